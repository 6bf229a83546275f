"""NIGHTS: references with two variations, and human votes for the more similar one (Fu et al., NeurIPS 2023).

data.csv has the columns id, left_vote, right_vote, votes, ref_path, left_path, right_path, prompt, is_imagenet, split,
with paths relative to its folder. A triplet is a group with the slots anchor, left and right; the label of left and
right is the share of votes for it. Identities stay empty, because people judged similarity, not identity.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from idmetric.data.importers.run import Job
from idmetric.data.importers.source import SourceError
from idmetric.data.manifest.table import Row

MIN_VOTES = 6  # the published benchmark has triplets with at least six votes
_SLOTS = {"anchor": "ref_path", "left": "left_path", "right": "right_path"}


def rows(job: Job) -> Iterator[Row]:
    """Three rows for each triplet with enough votes."""
    source = job.open(*_SLOTS.values())
    if "left_vote" not in source.columns:
        job.need(source, "right_vote")
    for record in job.rows(source):
        values = record.values
        given = [values.get(column) for column in ("votes", "left_vote", "right_vote")]
        try:
            numbers: list[Any] = [None if value is None else float(value) for value in given]
            votes, left, right = numbers
            if votes is not None and votes < MIN_VOTES:
                continue
            left = 1 - right if left is None else left  # as counts, or as 0 and 1
            right = 1 - left if right is None else right
            shares, photos = {"left": left / (left + right), "right": right / (left + right)}, values.get("is_imagenet")
        except (TypeError, ValueError, ZeroDivisionError) as error:
            raise SourceError(f"{record.where}: votes, left_vote and right_vote {given} give no shares") from error
        about = {"votes": values.get("votes"), "x_imagenet": None if photos is None else str(photos).lower()}
        yield from record.group(
            f"{job.name}/{record.number if values.get('id') is None else values['id']}",
            {slot: (values.get(column), {"label": shares.get(slot)}) for slot, column in _SLOTS.items()},
            split=values.get("split"),
            text=values.get("prompt"),
            parameters={"source": source.label, **about},
        )
