"""Seconds and memory of `idmetric eval folder` (benchmarks/reports/scale.md): after embedding, or the whole command.

    python benchmarks/tables.py [--images 2000 20000 100000] [--channels 512] [--bootstrap 1000]
    python benchmarks/tables.py --galleries [--images ...]     near-duplicates and clusters of a gallery
    python benchmarks/tables.py --photos photos/ ...     the command on folders of photos, twice, with a page

Features are random, ten images for each identity. "product" is one matrix product of all features with themselves, in
the same blocks and precision; "table" the measures of every query and the pairs; "intervals" the rest of the protocol,
mostly their bootstrap; "files" the items as Parquet and the page, without pictures. Each size runs in its own process;
memory is its largest resident set.

Of galleries, a tenth of the images are in clusters of ten, and of these every fourth is a near-duplicate of another.
"pairs" finds the ten nearest images of each; "average" and "single" cluster by these linkages, at a distance of 0.3. No
image is read, and "product" is in single precision, as these searches are.

Of the whole command, "read" lists the folder, "embed" hashes, reads and embeds the photos, "after" is the table with
intervals and pairs, "write" the files and the page.

All times are seconds of the clock and, in brackets, of the processor. On a busy machine, compare those of the processor
with OMP_NUM_THREADS=1.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import os
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from idmetric.data.manifest import checked
from idmetric.data.nearest import nearest, unit
from idmetric.evaluate.protocols import folder
from idmetric.evaluate.protocols.common.ranked import Search, searched
from idmetric.evaluate.protocols.common.scorers import Bound, EvalSettings, VectorScorer, slices
from idmetric.evaluate.protocols.common.tables import write
from idmetric.evaluate.report.evaluation import eval_page
from idmetric.gallery.clusters import cluster
from idmetric.gallery.copies import nearest_pairs


@dataclass
class Features:
    """Features in memory, in the place of `idmetric.data.embed.Stored`."""

    found: NDArray[np.float32]

    @property
    def keys(self) -> dict[int, str]:
        return {row: str(row) for row in range(len(self.found))}

    def vectors(self, rows: Sequence[int] | NDArray[np.int64]) -> NDArray[np.float32]:
        return self.found[rows]


class Random:
    """In the place of a model."""

    def signature(self) -> dict[str, str]:
        return {"model": "random"}


def measure(images: int, channels: int, samples: int) -> None:
    """Print a line of the table."""
    rng, rows = np.random.default_rng(0), np.arange(images)
    identity = rows // 10
    found = rng.standard_normal((images // 10 + 1, channels), dtype=np.float32)[identity]
    found += 2.5 * rng.standard_normal(found.shape, dtype=np.float32)
    scorer = VectorScorer(Random(), Features(found))  # type: ignore[arg-type]  # it has what the scorer asks for

    start = now()
    for part in Search(rows, rows, identity, rows).blocks():
        scorer.matrix(rows[part], rows)
    product = now() - start
    spent = np.zeros(2)

    def timed(*given: Any) -> Any:
        begun = now()
        answer = searched(*given)
        spent[:] = now() - begun
        return answer

    folder.searched = timed  # type: ignore[assignment]
    folder.bind = lambda data, models, settings: Bound(data, {"random": scorer}, [])  # type: ignore[assignment]
    photos = checked(
        pd.DataFrame({"identity": [f"identity {k}" for k in identity], "path": [f"{k}.jpg" for k in rows]})
    )
    start = now()
    results = folder.run(photos, {"random": None}, EvalSettings(bootstrap=samples))
    drawn = now() - start - spent

    start = now()
    with tempfile.TemporaryDirectory() as out:
        write(results, Path(out), "folder")
    eval_page(results, photos)
    written = now() - start

    rate = f"{2 * images**2 * channels / product[0] / 1e9:.0f}"
    ratio = f"{spent[0] / product[0]:.2f} ({spent[1] / product[1]:.2f})"
    line(f"{images:,}", shown(product), rate, shown(spent), ratio, shown(drawn), shown(written), memory())


def galleries(images: int, channels: int) -> None:
    """Print a line of the table of galleries."""
    rng, part = np.random.default_rng(0), images // 10
    found = rng.standard_normal((images, channels), dtype=np.float32)
    centers = rng.standard_normal((part // 10 + 1, channels), dtype=np.float32)
    found[:part] = centers[np.arange(part) // 10] + 0.3 * found[:part]
    found[: part // 2 : 2] = found[1 : part // 2 + 1 : 2] + 0.02 * found[-len(found[: part // 2 : 2]) :]
    table = unit(found[rng.permutation(images)])

    start = now()
    for rows in slices(images, 2048):
        for columns in slices(images, 8192):
            table[rows] @ table[columns].T
    product = now() - start
    cells = []
    for work in (
        lambda: nearest_pairs(*nearest(table, table, 11)),
        lambda: cluster(table, 0.3, "average"),
        lambda: cluster(table, 0.3, "single"),
    ):
        start = now()
        work()
        spent = now() - start
        cells += [shown(spent), f"{spent[0] / product[0]:.2f} ({spent[1] / product[1]:.2f})"]
    line(f"{images:,}", shown(product), *cells, memory())


def command(photos: Path) -> None:
    """Print a line for each of two runs of `idmetric eval folder`."""
    from idmetric.cli import eval as cli

    marks: list[NDArray[np.float64]] = []

    def marked(function: Callable[..., Any]) -> Callable[..., Any]:
        """The function, which notes the time before and after it."""

        def run(*args: Any, **options: Any) -> Any:
            marks.append(now())
            found = function(*args, **options)
            marks.append(now())
            return found

        return run

    folder.bind, folder.run = marked(folder.bind), marked(folder.run)
    with tempfile.TemporaryDirectory() as out:
        for kind in ("first", "again"):
            marks[:] = [now()]
            words = ["folder", "--data", str(photos), "--model", "tiny", "--out", out, "--html", f"{out}/page.html"]
            with contextlib.redirect_stdout(io.StringIO()):
                assert cli.main([*words, "--quiet", "--device", "cpu"]) == 0
            start, _, bound, embedded, measured = marks
            end = now()
            steps = ((start, bound), (bound, embedded), (embedded, measured), (measured, end), (start, end))
            size = sum(file.stat().st_size for file in Path(out).rglob("*.parquet")) / 2**20
            count = sum(1 for file in photos.rglob("*") if file.is_file())
            line(f"{count:,}, {kind}", *(shown(b - a) for a, b in steps), memory(), f"{size:.0f}")


def now() -> NDArray[np.float64]:
    """Seconds of the clock and of the processor."""
    return np.array([time.perf_counter(), time.process_time()])


def shown(seconds: NDArray[np.float64]) -> str:
    """The clock's, and in brackets the processor's."""
    return f"{seconds[0]:.1f} ({seconds[1]:.1f})"


def memory() -> str:
    """The largest resident set so far, in MB."""
    return f"{resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024:.0f}"


def line(*cells: str) -> None:
    """Print a line of a table."""
    print("| " + " | ".join(cells) + " |", flush=True)


def main() -> None:
    """Measure each size in a process."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--images", type=int, nargs="+", default=[2000, 20000, 100000])
    parser.add_argument("--channels", type=int, default=512)
    parser.add_argument("--bootstrap", type=int, default=1000)
    parser.add_argument("--galleries", action="store_true", help="measure galleries in place of tables")
    parser.add_argument("--photos", type=Path, nargs="+", metavar="DIR", help="folders with a folder for each identity")
    parser.add_argument("--child", action="store_true", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.child and args.photos:
        command(args.photos[0])
        return
    if args.child and args.galleries:
        galleries(args.images[0], args.channels)
        return
    if args.child:
        measure(args.images[0], args.channels, args.bootstrap)
        return
    if args.photos:
        print(f"{os.cpu_count()} cores; seconds (of the processor)")
        print("| photos | read | embed | after | write | in all | MB | items, MB |")
        print("|---|---|---|---|---|---|---|---|", flush=True)
        for photos in args.photos:
            subprocess.run([sys.executable, __file__, "--photos", str(photos), "--child"], check=True)
        return
    print(f"{os.cpu_count()} cores, {args.channels} channels, {args.bootstrap} resamples")
    if args.galleries:
        print("| images | product, s | pairs, s | / product | average, s | / product | single, s | / product | MB |")
        print("|---|---|---|---|---|---|---|---|---|", flush=True)
    else:
        print("| images | product, s | GFLOP/s | table, s | table / product | intervals, s | files, s | MB |")
        print("|---|---|---|---|---|---|---|---|", flush=True)
    for images in args.images:
        given = ["--images", str(images), "--channels", str(args.channels), "--bootstrap", str(args.bootstrap)]
        given += ["--galleries"] * args.galleries
        subprocess.run([sys.executable, __file__, *given, "--child"], check=True)


if __name__ == "__main__":
    main()
