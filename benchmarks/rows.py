"""The results of a comparison, as text and as JSON."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from timing import Ratio, Timing, cpu_ratio, ratio

from idmetric.metric.files import json_text
from idmetric.tables import aligned


@dataclass(frozen=True)
class Row:
    """The measurement of one function, or the reason why there is none.

    Args:
        section: the section of the benchmark. model: name of the model, or "".
        what: name of the function.
        timing: its runs; None if it was left out.
        ratio: its time over the time of `against`, taken in turns; None without a comparison.
        cpu_ratio: the same ratio of processor times.
        against: the `what` of the row that it is compared with.
        note: a remark, or the reason for leaving it out.
        numbers: other results by name, such as the largest difference of two ways to compute one value.
    """

    section: str
    model: str
    what: str
    timing: Timing | None = None
    ratio: Ratio | None = None
    cpu_ratio: Ratio | None = None
    against: str = ""
    note: str = ""
    numbers: dict[str, float] | None = None


def over(timings: Mapping[str, Timing], what: str, against: str) -> tuple[Ratio | None, Ratio | None, str]:
    """Return `ratio`, `cpu_ratio` and `against` of a row; none for the row that the others are compared with."""
    if what == against:
        return None, None, ""
    a, b = timings[what], timings[against]
    return ratio(a, b), cpu_ratio(a, b), against


HEADER = ("model", "what", "items/s", "median ms", "p90 ms", "peak MB", "time over", "ratio (lowest to highest)",
          "ratio of CPU time")  # fmt: skip


def table(rows: Iterable[Row]) -> str:
    """Format the rows of one section as columns of text, with notes below."""
    kept = list(rows)
    lines = [HEADER, *(_cells(row) for row in kept)]
    used = [k for k in range(len(HEADER)) if any(line[k] for line in lines[1:])]
    numbers = [place for place, k in enumerate(used) if 2 <= k <= 5]
    text = aligned([[line[k] for k in used] for line in lines], right=numbers)
    notes = list(dict.fromkeys(f"  {row.what}: {_note(row)}" for row in kept if _note(row)))
    return "\n".join([*text, *notes]) + "\n"


def _cells(row: Row) -> tuple[str, ...]:
    t = row.timing
    times = ("left out", "", "", "") if t is None else (
        f"{t.rate:.4g}", f"{1e3 * t.median:.4g}", f"{1e3 * t.p90:.4g}", "" if t.peak is None else f"{t.peak / 1e6:.0f}",
    )  # fmt: skip
    return (row.model, row.what, *times, row.against, _shown(row.ratio), _shown(row.cpu_ratio))


def _shown(r: Ratio | None) -> str:
    return "" if r is None else f"{r.median:.3f} ({r.low:.3f} to {r.high:.3f})"


def _note(row: Row) -> str:
    numbers = [f"{name} {value:.3g}" for name, value in (row.numbers or {}).items()]
    return "; ".join(part for part in (row.note, *numbers) if part)


def as_json(machine: dict[str, Any], options: dict[str, Any], rows: Sequence[Row]) -> str:
    """Format machine, options and rows as JSON, with the seconds of each run."""
    found = {"machine": machine, "options": options, "rows": [_object(row) for row in rows]}
    return json_text(found, indent=1) + "\n"


def _object(row: Row) -> dict[str, Any]:
    found = asdict(row)
    if row.timing is not None:
        found["timing"] |= {"median": row.timing.median, "p90": row.timing.p90, "rate": row.timing.rate}
    return found
