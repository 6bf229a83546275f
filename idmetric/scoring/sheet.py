"""The page of `idmetric score --html`: summary, distances and threshold, references, the images, the nearest first."""

from __future__ import annotations

import os
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any

from PIL import Image

from idmetric.metric.images import WHITE, Color, ImageReadError, Outside, read_image
from idmetric.metric.masks import MaskLike, cut_out
from idmetric.page import Group, Page, PageTable, Picture, Plot, Tone, render, room, short, thumbnail
from idmetric.scoring.pairs import RequestImage
from idmetric.tables import four

_AXIS = "distance, lower = more surely the same identity"
_TONES: dict[str, Tone] = {
    "same": "good",
    "pass": "good",
    "unsure": "unsure",
    "different": "bad",
    "fail": "bad",
    "": "",
}


class Album:
    """The pictures of a page, taken while the images are scored: no file is opened again.

    Args:
        count: number of pictures, which share the page's room. background: color below transparent pixels.

    Attributes:
        uris: of the pictures. references: of the subject, in order; none for pairs.
        entries: each row, its image, and the reference to show beside it.
    """

    def __init__(self, count: int, background: Color = WHITE) -> None:
        self.uris: dict[RequestImage, str] = {}
        self.references: list[RequestImage] = []
        self.entries: list[tuple[dict[str, Any], RequestImage, RequestImage]] = []
        self._limit = room(count)
        self._background = background

    @property
    def images(self) -> list[RequestImage]:
        """The references and the images of the entries, each once."""
        images = list(self.references)
        for _, image, reference in self.entries:
            images += [image, reference]
        return list(dict.fromkeys(images))

    def add_picture(self, image: RequestImage, picture: Image.Image, mask: MaskLike | None, outside: Outside) -> None:
        """Keep an image as the model sees it: painted or cut out where a mask says so. Safe in threads."""
        if mask is not None:
            background = self._background
            shown, _ = cut_out(picture, mask, outside, background=background)
            if isinstance(shown, Image.Image):
                picture = shown
        self.uris[image] = thumbnail(picture, self._limit)


def read_album(scores: Any) -> Album:
    """The album of `Scores` that exist: files are read again; one that cannot be, or was in memory, has no picture."""
    album = Album(2 * len(scores.rows))
    names = list(scores.real)
    if not names:
        names = list({row["reference"] for row in scores.rows})
    if scores.real or len(names) == 1:  # else pairs
        album.references = [RequestImage(name, name) for name in names]
    for row in scores.rows:
        name, reference_name = row["image"], row["reference"]
        if not os.path.isfile(reference_name):  # with aggregate="mean", all of them in one text
            reference_name = reference_name.split(";")[0]
        image = RequestImage(name, name)
        reference = RequestImage(reference_name, reference_name)
        album.entries.append((row, image, reference))
    for image in album.images:
        with suppress(ImageReadError):
            picture = read_image(image.image)
            album.add_picture(image, picture, None, "keep")
    return album


def score_page(scores: Any, album: Album, *, messages: Sequence[str] = ()) -> str:
    """Make the page of `Scores`, whose module imports this one, with the warnings in `messages`; needs jinja2."""
    entries = sorted(album.entries, key=lambda entry: entry[0]["rank"])
    pictures = _pictures(album)
    range_name = ""
    if scores.real:
        summary = scores.summary
        mean, farthest = four(summary["real_mean"]), four(summary["real_max"])
        range_name = f"real photos of the subject to each other, leave-one-out: mean {mean}, max {farthest}"
    references = []
    for image in album.references:
        distance = scores.real.get(image.name)
        references.append(replace(pictures[image], value=distance))
    cards = []
    for row, image, reference in entries:
        card = _judged(pictures[image], row, pictures[reference])
        cards.append(card)
    left_out = []
    for name, reason in scores.skipped.items():
        left_out.append(Picture("", name, lines=[reason]))
    groups = [
        Group("References", references, small=True),
        Group("Images, the nearest first", cards),
        Group("Left out", left_out, small=True),
    ]
    return render(
        Page(
            "Identity scores",
            facts=scores.signature,
            warnings=messages,
            tables=[_summary(scores)],
            threshold=scores.threshold,
            threshold_source=scores.threshold_source,
            plots=[Plot("Distances", _AXIS, cards, range_name, scores.real)],
            groups=[group for group in groups if group.pictures],
            notes=_notes(scores),
        )
    )


def _pictures(album: Album) -> dict[RequestImage, Picture]:
    """The picture of each image, with a short name; one that could not be read is empty."""
    images = album.images
    names = short([image.name for image in images])
    pictures = {}
    for image, name in zip(images, names, strict=True):
        uri = album.uris.get(image, "")
        pictures[image] = Picture(uri, name, path=image.name)
    return pictures


def _notes(scores: Any) -> list[str]:
    """The lines below the images: the published score, if there is one, and what the answers rest on."""
    notes = [scores.answered_by, "Pictures are reduced; scores are of the files themselves."]
    if scores.named is not None:
        number = scores.named["value"]
        value = "none" if number is None else four(number)
        notes.insert(0, f"{scores.named['name']}: {value} ({scores.named['note']})")
    return notes


def _judged(picture: Picture, row: dict[str, Any], reference: Picture) -> Picture:
    """The card of an image with its one verdict: the reference itself, a copy of one, or the row's answer."""
    card = replace(picture, value=row["distance"], beside=reference)
    image_path, reference_path = os.path.realpath(picture.path), os.path.realpath(reference.path)
    if image_path == reference_path:
        return replace(card, verdict="the reference", tone="note")
    if row.get("copy"):
        agreement = f"pixels agree {four(row['copy_agreement'])}"
        return replace(card, verdict="copy", tone="unsure", lines=[agreement])
    answer = row.get("answer", "")
    is_judged = answer in ("pass", "fail")
    return replace(card, verdict=answer, tone=_TONES[answer], judged=is_judged)


def _summary(scores: Any) -> PageTable:
    """Mean and deviation of the distances, and how many pass, with and without copies."""
    summary = scores.summary
    lines = {"all images": summary}
    if "without_copies" in summary:
        lines["without copies"] = summary["without_copies"]
    columns = ["", "images", "mean", "std"]
    if scores.threshold is not None:
        columns.append(f"pass at {four(scores.threshold)}")
    rows = []
    for name, numbers in lines.items():
        row = [name, numbers["n"], numbers["mean"], numbers["std"]]
        if scores.threshold is not None:
            row.append(numbers["passing"])
        rows.append(row)
    return PageTable("Summary", columns, rows)
