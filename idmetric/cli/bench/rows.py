"""The results of a benchmark and the machine that it ran on, as text and as JSON."""

from __future__ import annotations

import os
import platform
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from importlib import metadata
from pathlib import Path
from typing import Any

import torch

from idmetric import __version__
from idmetric.cli.bench.timing import Ratio, Timing, cpu_ratio, ratio
from idmetric.io import json_file
from idmetric.io.tables import aligned


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
    return json_file.text(found, indent=1) + "\n"


def _object(row: Row) -> dict[str, Any]:
    found = asdict(row)
    if row.timing is not None:
        found["timing"] |= {"median": row.timing.median, "p90": row.timing.p90, "rate": row.timing.rate}
    return found


# The machine, without which a measurement means little

PACKAGES = ("torch", "timm", "torchvision", "pillow", "numpy", "geomloss", "lpips", "dreamsim")


def describe(device: torch.device) -> dict[str, Any]:
    """Describe processor, cores, threads, memory, device, load and versions as plain JSON values.

    `busy` is the load average of the last minute per core, before the benchmark began. Above 0.2, other programs were
    running, and only ratios are meaningful. None if the system does not report it.
    """
    load = os.getloadavg()[0] if hasattr(os, "getloadavg") else None
    cores = os.cpu_count() or 1
    return {
        "processor": _processor(),
        "cores": cores,
        "threads": torch.get_num_threads(),
        "memory_gb": _memory(),
        "device": torch.cuda.get_device_name(device) if device.type == "cuda" else device.type,
        "busy": None if load is None else round(load / cores, 2),
        "system": f"{platform.system()} {platform.machine()}",
        "python": platform.python_version(),
        "idmetric": __version__,
        **{name: version for name in PACKAGES if (version := _version(name))},
    }


def line(machine: dict[str, Any]) -> str:
    """Describe the machine in a sentence."""
    memory = f", {machine['memory_gb']} GB" if machine["memory_gb"] else ""
    found = (
        f"{machine['processor']}, {machine['cores']} cores, {machine['threads']} threads{memory}; on "
        f"{machine['device']}; {machine['system']}, Python {machine['python']}, torch {machine['torch']}, timm "
        f"{machine['timm']}, idmetric {machine['idmetric']}"
    )
    if machine["busy"] is not None and machine["busy"] > 0.2:
        found += f"\nOther programs were running (load {machine['busy']} per core): trust ratios, not single times."
    return found


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        return next(line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    except (OSError, StopIteration):
        return platform.processor() or platform.machine()


def _memory() -> int | None:
    try:
        return round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30)
    except (AttributeError, ValueError, OSError):
        return None


def _version(name: str) -> str | None:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None
