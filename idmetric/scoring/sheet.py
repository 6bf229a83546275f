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
from idmetric.metric.ties import comparable
from idmetric.page import Group, Page, PageTable, Picture, Plot, render, room, short, thumbnail
from idmetric.scoring.records import File, Record
from idmetric.tables import four

_AXIS = "distance, lower = more surely the same identity"


class Album:
    """The pictures of a page, taken while the images are scored: no file is opened again.

    Args:
        count: number of pictures, which share the page's room. background: color below transparent pixels.

    Attributes:
        uris: of the pictures. references: of the subject, in order; none for pairs.
        entries: each row, its image, and the reference to show beside it.
    """

    def __init__(self, count: int, background: Color = WHITE) -> None:
        self.uris: dict[File, str] = {}
        self.references: dict[File, None] = {}
        self.entries: list[tuple[Record, File, File]] = []
        self._limit = room(count)
        self._background = background

    def add_picture(self, file: File, picture: Image.Image, mask: MaskLike | None, outside: Outside) -> None:
        """Keep an image as the model sees it: painted or cut out where a mask says so. Safe in threads."""
        if mask is not None:
            shown, _ = cut_out(picture, mask, outside, background=self._background)
            if isinstance(shown, Image.Image):
                picture = shown
        self.uris[file] = thumbnail(picture, self._limit)


def read_album(scores: Any) -> Album:
    """The album of `Scores` that exist: files are read again; one that cannot be, or was in memory, has no picture."""
    album = Album(2 * len(scores.rows))
    for row in scores.rows:
        reference = row["reference"]
        if not os.path.isfile(reference):  # with aggregate="mean", all of them in one text
            reference = reference.split(";")[0]
        image_file, reference_file = (row["image"], None), (reference, None)
        album.entries.append((row, image_file, reference_file))
        if scores.references:
            album.references[reference_file] = None
        for file in (image_file, reference_file):
            with suppress(ImageReadError):
                if file not in album.uris:
                    album.add_picture(file, read_image(file[0]), None, "keep")
    return album


def score_page(scores: Any, album: Album, *, messages: Sequence[str] = ()) -> str:
    """Make the page of `Scores`, whose module imports this one, with the warnings in `messages`; needs jinja2."""
    entries = sorted(album.entries, key=lambda entry: entry[0]["rank"])
    files = dict(album.references)
    for _, image, reference in entries:
        files |= {image: None, reference: None}
    names = short([path for path, _ in files])
    pictures = {}
    for file, name in zip(files, names, strict=True):
        pictures[file] = Picture(album.uris.get(file, ""), name, path=file[0])

    # distances of real photos, and of the images
    real: dict[str, float] = {}
    range_name = ""
    if scores.baseline is not None:
        real = scores.baseline.distances
        mean, farthest = four(scores.baseline.mean), four(scores.baseline.max)
        range_name = f"real photos of the subject to each other, leave-one-out: mean {mean}, max {farthest}"
    references = [replace(pictures[file], value=real.get(file[0])) for file in album.references]
    cards = [_judged(pictures[image], row, pictures[reference], scores) for row, image, reference in entries]
    left_out = [Picture("", skipped["image"], lines=[skipped["reason"]]) for skipped in scores.skipped]
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
            plots=[Plot("Distances", _AXIS, cards, range_name, real)],
            groups=[group for group in groups if group.pictures],
            notes=_notes(scores),
        )
    )


def _judged(picture: Picture, row: Record, reference: Picture, scores: Any) -> Picture:
    """The card of an image with its one verdict: the reference itself, a copy of one, or that of the threshold."""
    card = replace(picture, value=row["distance"], beside=reference)
    if "probability" in row:
        card = replace(card, lines=[f"P(same) {four(row['probability'])}"])

    if os.path.realpath(picture.path) == os.path.realpath(reference.path):
        return replace(card, verdict="the reference", tone="note")
    if row.get("copy"):
        agreement = f"pixels agree {four(row['copy_agreement'])}"
        return replace(card, verdict="copy", tone="unsure", lines=[*card.lines, agreement])
    if scores.threshold is None:
        return card
    if comparable(row["distance"]) <= comparable(scores.threshold):
        return replace(card, verdict="pass", tone="good", judged=True)
    return replace(card, verdict="fail", tone="bad", judged=True)


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


def _notes(scores: Any) -> list[str]:
    facts = scores.to_dict()
    notes = [facts[name] for name in ("baseline_note", "probability_note") if name in facts]
    if scores.rows and "probability_basis" in scores.rows[0]:
        notes.append(f"P(same), the probability of the same identity: {scores.rows[0]['probability_basis']}")
    if scores.named is not None:
        value = "none" if scores.named.value is None else four(scores.named.value)
        notes.append(f"{scores.named.name}: {value} ({scores.named.note})")
    notes.append("Pictures are reduced; scores are of the files themselves.")
    return notes
