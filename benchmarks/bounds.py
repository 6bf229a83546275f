"""Ratios of speed that a change must not make worse.

    python benchmarks/bounds.py [--only sinkhorn]

Seconds depend on the machine and on what else runs there; ratios of functions that take turns hardly do. The script
prints each ratio next to its bound and ends with status 1 if one is beyond it. Run it on an idle machine, on the CPU.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import NamedTuple

import speed
from rows import Row, over


class Bound(NamedTuple):
    section: str
    what: str  # its time
    against: str  # over that of this
    least: float = 0.0
    most: float = float("inf")


# some room beyond the ratios in benchmarks/reports/speed.md, measured on two cores
BOUNDS = (
    Bound("sinkhorn", "geomloss, pair by pair", "sinkhorn, 20 x 20", least=4.0),
    Bound("metrics", "DreamSim's encoders", "this metric", least=20.0),
    Bound("start", "idmetric score --model tiny, two images", "import torch", most=1.6),
    Bound("start", "idmetric score --help", "import torch", most=0.15),
)


def processes(paths: list[Path]) -> dict[str, Callable[[], object]]:
    """Commands on two images, by name, each in a new process."""
    run = partial(subprocess.run, check=True, capture_output=True, env={**os.environ, "HF_HUB_OFFLINE": "1"})
    score = [sys.executable, "-m", "idmetric.cli.score"]
    return {
        "import torch": partial(run, [sys.executable, "-c", "import torch"]),
        "idmetric score --model tiny, two images": partial(run, [*score, "--model", "tiny", "--device", "cpu", *paths]),
        "idmetric score --help": partial(run, [*score, "--help"]),
    }


def start(_: object, setting: speed.Compared) -> Iterator[Row]:
    """Measure a command from nothing to its first score, in turns with `import torch`."""
    with tempfile.TemporaryDirectory() as folder:
        paths = [Path(folder, f"{k}.jpg") for k in range(2)]
        for path, data in zip(paths, setting.files, strict=False):
            path.write_bytes(data)
        found = setting.clock.alternate(processes(paths))
    for what, timing in found.items():
        yield Row("start", "", what, timing, *over(found, what, "import torch"))


speed.SECTIONS["start"] = start


def main() -> None:
    """Measure and compare."""
    sections = tuple(dict.fromkeys(bound.section for bound in BOUNDS))
    parser = argparse.ArgumentParser(description="Ratios of speed against their bounds.")
    parser.add_argument("--only", choices=sections, action="append", help="a section; may be repeated (default: all)")
    wanted = parser.parse_args().only or sections

    words = ["--repeats", "5", "--device", "cpu", *(word for name in wanted for word in ("--only", name))]
    rows = speed.measure(speed.build_parser().parse_args(words))
    found = {(row.section, row.what, row.against): row.ratio for row in rows}

    beyond = []
    print("\n| time of | over that of | ratio (lowest to highest) | bound | |\n|---|---|---|---|---|")
    for bound in (one for one in BOUNDS if one.section in wanted):
        ratio = found.get((bound.section, bound.what, bound.against))
        kept = ratio is not None and bound.least <= ratio.median <= bound.most
        measured = "not measured" if ratio is None else f"{ratio.median:.2f} ({ratio.low:.2f} to {ratio.high:.2f})"
        limit = f"at least {bound.least:g}" if bound.least else f"at most {bound.most:g}"
        print(
            "|", bound.what, "|", bound.against, "|", measured, "|", limit, "|", "kept" if kept else "**beyond**", "|"
        )
        if not kept:
            beyond.append(bound.what)
    sys.exit(f"beyond their bounds: {', '.join(beyond)}" if beyond else 0)


if __name__ == "__main__":
    main()
