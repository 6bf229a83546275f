"""NIGHTS: references with two variations, and human votes for the more similar one (Fu et al., NeurIPS 2023).

data.csv has the columns id, left_vote, right_vote, votes, ref_path, left_path, right_path, prompt, is_imagenet, split,
with paths relative to its folder. A triplet is a group with the slots anchor, left and right; the label of left and
right is the share of votes for it. Identities stay empty, because people judged similarity, not identity.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from idmetric.data.importers.run import Job, where
from idmetric.data.importers.source import Source, SourceError
from idmetric.data.manifest.table import Row

MIN_VOTES = 6  # the published benchmark has triplets with at least six votes, all for one side
_SLOTS = (("anchor", "ref_path"), ("left", "left_path"), ("right", "right_path"))


def rows(job: Job) -> Iterator[Row]:
    """Three rows for each triplet with enough votes."""
    least = job.number("min_votes", MIN_VOTES)
    for given in job.sources:
        source = job.open(given)
        job.need(source, *(column for _, column in _SLOTS))
        if not job.has(source, "left_vote"):
            job.need(source, "right_vote")

        for number, shard, values in job.rows(source):
            place = where(source, shard, number)
            votes = _number(values, "votes", place)
            if votes is not None and votes < least:
                continue
            images = {
                slot: job.keep(source, values.get(column), f"{_name(job, values, number)}/{slot}")
                for slot, column in _SLOTS
            }
            if all(images.values()):
                yield from _triplet(job, source, values, number, images, _shares(values, place))
            else:
                job.reject(source, shard, number, "an image of the triplet is missing")


def _name(job: Job, values: dict[str, Any], number: int) -> str:
    return f"{job.name}/{number if values.get('id') is None else values['id']}"


def _triplet(
    job: Job, source: Source, values: dict[str, Any], number: int, images: dict[str, Any], shares: dict[str, float]
) -> Iterator[Row]:
    group = _name(job, values, number)
    for slot, image in images.items():
        yield Row(
            identity=None,
            id=f"{group}/{slot}",
            dataset=job.name,
            split=values.get("split"),
            text=values.get("prompt"),
            group=group,
            slot=slot,
            label=shares.get(slot),
            parameters={
                "source": source.label,
                "votes": values.get("votes"),
                "x_imagenet": None if values.get("is_imagenet") is None else str(values["is_imagenet"]).lower(),
            },
            **image,
        )


def _shares(values: dict[str, Any], place: str) -> dict[str, float]:
    """The shares of votes for left and right, which tables hold as 0 and 1 or as counts."""
    left, right = (_number(values, c, place) for c in ("left_vote", "right_vote"))
    if left is None and right is None:
        raise SourceError(f"{place}: neither left_vote nor right_vote has a value")
    if left is None or right is None:
        one = right if left is None else left
        if one is None or not 0 <= one <= 1:
            raise SourceError(f"{place}: a single vote of {one} is not a share within 0..1")
        left, right = (1 - one, one) if left is None else (one, 1 - one)
    if left < 0 or right < 0 or left + right == 0:
        raise SourceError(f"{place}: votes {left:g} and {right:g} give no shares")
    return {"left": left / (left + right), "right": right / (left + right)}


def _number(values: dict[str, Any], column: str, place: str) -> float | None:
    value = values.get(column)
    try:
        return None if value is None else float(value)
    except (TypeError, ValueError) as error:
        raise SourceError(f"{place}, column {column!r}: {value!r} is not a number") from error
