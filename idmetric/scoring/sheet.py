"""The page of `idmetric score --html`: summary, distances and threshold, references, the images, the nearest first."""

from __future__ import annotations

import os
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Any

from PIL import Image

from idmetric.metric.images import WHITE, Color, ImageReadError, Outside, read_image
from idmetric.metric.masks import MaskLike, cut_out
from idmetric.page import Group, Page, PageTable, Picture, Plot, Tone, render, room, short, thumbnail
from idmetric.scoring.pairs import RequestImage
from idmetric.tables import four

_AXIS = "distance, lower = more surely the same identity"
_REDUCED = "Pictures are reduced; scores are of the files themselves."
_TONES: dict[str, Tone] = {
    "same": "good",
    "pass": "good",
    "unsure": "unsure",
    "different": "bad",
    "fail": "bad",
}


@dataclass
class Album:
    """The pictures of a page, taken while the images are scored: no file is opened again.

    Attributes:
        count: number of pictures, which share the page's room. background: color below transparent pixels.
        uris: of the pictures. references: of the subject, in order; none for pairs.
        entries: each row, its image, and the reference to show beside it.
    """

    count: int
    background: Color = WHITE
    uris: dict[RequestImage, str] = field(default_factory=dict)
    references: list[RequestImage] = field(default_factory=list)
    entries: list[tuple[dict[str, Any], RequestImage, RequestImage]] = field(default_factory=list)

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
            shown, _ = cut_out(picture, mask, outside, background=self.background)
            if isinstance(shown, Image.Image):
                picture = shown
        self.uris[image] = thumbnail(picture, room(self.count))


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
    images = album.images
    pictures = {}
    for image, name in zip(images, short([image.name for image in images]), strict=True):
        pictures[image] = Picture(album.uris.get(image, ""), name, path=image.name)
    range_name = ""
    if scores.real:
        summary = scores.summary
        mean, farthest = four(summary["real_mean"]), four(summary["real_max"])
        range_name = f"real photos of the subject to each other, leave-one-out: mean {mean}, max {farthest}"
    references = [replace(pictures[image], value=scores.real.get(image.name)) for image in album.references]
    cards = [_judged(pictures[image], row, pictures[reference]) for row, image, reference in entries]
    left_out = [Picture("", name, lines=[reason]) for name, reason in scores.skipped.items()]
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
            notes=[*scores.named_notes, scores.answered_by, _REDUCED],
        )
    )


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
    return replace(card, verdict=answer, tone=_TONES.get(answer, ""), judged=is_judged)


def _summary(scores: Any) -> PageTable:
    """Mean and deviation of the distances, and how many pass, with and without copies."""
    summary = scores.summary
    lines = {"all images": summary}
    if "without_copies" in summary:
        lines["without copies"] = summary["without_copies"]
    columns = {"n": "images", "mean": "mean", "std": "std"}
    if scores.threshold is not None:
        columns["passing"] = f"pass at {four(scores.threshold)}"
    rows = [[name, *[numbers[column] for column in columns]] for name, numbers in lines.items()]
    return PageTable("Summary", ["", *columns.values()], rows)
