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

    def add_picture(self, image: RequestImage, picture: Image.Image, mask: MaskLike | None, outside: Outside) -> None:
        """Keep an image as the model sees it: painted or cut out where a mask says so. Safe in threads."""
        if mask is not None:
            shown, _ = cut_out(picture, mask, outside, background=self._background)
            if isinstance(shown, Image.Image):
                picture = shown
        self.uris[image] = thumbnail(picture, self._limit)


def read_album(scores: Any) -> Album:
    """The album of `Scores` that exist: files are read again; one that cannot be, or was in memory, has no picture."""
    album = Album(2 * len(scores.rows))
    references = list(scores.real) or list({row["reference"] for row in scores.rows})
    if scores.real or len(references) == 1:  # else pairs
        album.references = [RequestImage(name, name) for name in references]
    for row in scores.rows:
        reference = row["reference"]
        if not os.path.isfile(reference):  # with aggregate="mean", all of them in one text
            reference = reference.split(";")[0]
        album.entries.append((row, RequestImage(row["image"], row["image"]), RequestImage(reference, reference)))
    for image in [*album.references, *(image for _, *images in album.entries for image in images)]:
        if image not in album.uris:
            with suppress(ImageReadError):
                album.add_picture(image, read_image(image.image), None, "keep")
    return album


def score_page(scores: Any, album: Album, *, messages: Sequence[str] = ()) -> str:
    """Make the page of `Scores`, whose module imports this one, with the warnings in `messages`; needs jinja2."""
    entries = sorted(album.entries, key=lambda entry: entry[0]["rank"])
    images = dict.fromkeys([*album.references, *(image for _, *both in entries for image in both)])
    pictures = {}
    for image, name in zip(images, short([image.name for image in images]), strict=True):
        pictures[image] = Picture(album.uris.get(image, ""), name, path=image.name)

    range_name = ""
    if scores.real:
        mean, farthest = four(scores.summary["real_mean"]), four(scores.summary["real_max"])
        range_name = f"real photos of the subject to each other, leave-one-out: mean {mean}, max {farthest}"
    references = [replace(pictures[image], value=scores.real.get(image.name)) for image in album.references]
    cards = [_judged(pictures[image], row, pictures[reference]) for row, image, reference in entries]
    left_out = [Picture("", image, lines=[reason]) for image, reason in scores.skipped.items()]
    groups = [
        Group("References", references, small=True),
        Group("Images, the nearest first", cards),
        Group("Left out", left_out, small=True),
    ]
    notes = [scores.answered_by, "Pictures are reduced; scores are of the files themselves."]
    if scores.named is not None:
        value = "none" if scores.named["value"] is None else four(scores.named["value"])
        notes.insert(0, f"{scores.named['name']}: {value} ({scores.named['note']})")
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
            notes=notes,
        )
    )


def _judged(picture: Picture, row: dict[str, Any], reference: Picture) -> Picture:
    """The card of an image with its one verdict: the reference itself, a copy of one, or the row's answer."""
    card = replace(picture, value=row["distance"], beside=reference)
    if os.path.realpath(picture.path) == os.path.realpath(reference.path):
        return replace(card, verdict="the reference", tone="note")
    if row.get("copy"):
        return replace(card, verdict="copy", tone="unsure", lines=[f"pixels agree {four(row['copy_agreement'])}"])
    answer = row.get("answer", "")
    return replace(card, verdict=answer, tone=_TONES[answer], judged=answer in ("pass", "fail"))


def _summary(scores: Any) -> PageTable:
    """Mean and deviation of the distances, and how many pass, with and without copies."""
    summary = scores.summary
    lines = {"all images": summary}
    if "without_copies" in summary:
        lines["without copies"] = summary["without_copies"]
    rows = [[name, numbers["n"], numbers["mean"], numbers["std"]] for name, numbers in lines.items()]
    if scores.threshold is None:
        return PageTable("Summary", ("", "images", "mean", "std"), rows)
    for row, numbers in zip(rows, lines.values(), strict=True):
        row.append(numbers["passing"])
    return PageTable("Summary", ("", "images", "mean", "std", f"pass at {four(scores.threshold)}"), rows)
