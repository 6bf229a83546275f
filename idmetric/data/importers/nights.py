"""NIGHTS: references with two variations, and human votes for the more similar one (Fu et al., NeurIPS 2023).

data.csv has the columns id, left_vote, right_vote, votes, ref_path, left_path, right_path, prompt, is_imagenet, split,
with paths relative to its folder. A triplet is a group with the slots anchor, left and right; the label of left and
right is the share of votes for it. Identities stay empty, because people judged similarity, not identity.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from idmetric.data.importers.run import ImportJob
from idmetric.data.old_manifest.errors import ManifestError
from idmetric.data.old_manifest.table import Row

MIN_VOTES = 6  # the published benchmark has triplets with at least six votes
_SLOTS = {"anchor": "ref_path", "left": "left_path", "right": "right_path"}
_KNOWN = ("votes", "left_vote", "right_vote", "prompt", "is_imagenet")


def rows(job: ImportJob) -> Iterator[Row]:
    """Three rows for each triplet with enough votes."""
    source = job.open(*_SLOTS.values(), known=_KNOWN)
    if "left_vote" not in source.columns:
        source.need("right_vote")
    for record in job.records(source):
        values = record.values
        cells: list[Any] = [values.get(column) for column in ("votes", "left_vote", "right_vote")]
        try:
            if cells[0] is not None and record.number_in("votes") < MIN_VOTES:
                continue
            if cells[1] is None:
                right = record.number_in("right_vote")
                left = 1 - right
            else:
                left = record.number_in("left_vote")
                right = 1 - left if cells[2] is None else record.number_in("right_vote")
            labels = {"left": left / (left + right), "right": right / (left + right)}  # of counts, or of 0 and 1
        except (TypeError, ValueError, ZeroDivisionError) as error:
            raise ManifestError(f"{record.where}: votes, left_vote and right_vote {cells} give no shares") from error

        about = {"votes": values.get("votes"), "x_imagenet": None}
        if values.get("is_imagenet") is not None:
            about["x_imagenet"] = str(values["is_imagenet"]).lower()
        yield from record.group(
            record.text("id") or str(record.number),
            {slot: (values[column], {"label": labels.get(slot)}) for slot, column in _SLOTS.items()},
            split=values.get("split"),
            text=values.get("prompt"),
            parameters={"source": source.label, **about},
        )
