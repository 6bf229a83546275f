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
    source = job.open()
    job.need(source, *_SLOTS.values())
    if "left_vote" not in source.columns:
        job.need(source, "right_vote")
    for record in job.rows(source):
        values: dict[str, Any] = record.values
        votes, left, right, photos = (values.get(c) for c in ("votes", "left_vote", "right_vote", "is_imagenet"))
        try:
            if votes is not None and float(votes) < MIN_VOTES:
                continue
            first = 1 - float(right) if left is None else float(left)  # as counts, or as 0 and 1
            both = first + (1 - first if right is None else float(right))
            shares = {"left": first / both, "right": 1 - first / both}
        except (TypeError, ValueError, ZeroDivisionError) as error:
            raise SourceError(f"{record.where}: left_vote {left} and right_vote {right} give no shares") from error
        about = {"votes": votes, "x_imagenet": None if photos is None else str(photos).lower()}
        yield from record.group(
            f"{job.name}/{record.number if values.get('id') is None else values['id']}",
            {slot: (values.get(column), {"label": shares.get(slot)}) for slot, column in _SLOTS.items()},
            split=values.get("split"),
            text=values.get("prompt"),
            parameters={"source": source.label, **about},
        )
