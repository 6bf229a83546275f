"""Shared by the scripts of this folder: rendered worlds, runs of the recipes, results over seeds, tables, claims.

    options = read_options(__doc__)
    data = world(options, WorldPlan(size=64), 400)
    found = results(ROWS, options, measure)      # measure(row, seed, folder) -> {"ssr": 0.61, ...}
    report(Table("NearID, Table 3", MEASURES, ROWS, CLAIMS), found, options)

A script defines the rows of a paper's table that it trains, their settings, and the orderings that the paper claims.
Every training run uses a recipe of `idmetric.train` and its loop. Worlds, training runs and scores are kept in --out
under names derived from their settings, and are not made again.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import re
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from functools import partial
from pathlib import Path
from statistics import fmean, stdev
from types import ModuleType, SimpleNamespace
from typing import Any

import torch
from world.structures import VERSION
from world.write import WorldPlan, cores, write_world

from idmetric import load
from idmetric.data.manifest.table import Manifest
from idmetric.metric.models.embedder import Embedder
from idmetric.train.loader import seed_all
from idmetric.train.loop import TrainSettings, fit
from idmetric.train.processes import Processes

Results = dict[str, list[dict[str, float]]]  # name of a row -> its scores, one dict for each seed
SCORES = "scores.json"


@dataclass(frozen=True)
class Options:
    """The options of the command line.

    Attributes:
        out: folder of worlds, runs and results. seeds: number of seeds. quick: only test the code, in seconds.
    """

    out: Path
    seeds: int
    quick: bool


@dataclass(frozen=True)
class Measure:
    """A column of a table.

    Attributes:
        key: of the scores. title: as printed. scale: 100 prints a share in percent. digits: after the point.
    """

    key: str
    title: str
    scale: float = 100.0
    digits: int = 1

    def text(self, value: float, sign: str = "") -> str:
        """A score as printed; with sign "+" a difference."""
        return f"{self.scale * value:{sign}.{self.digits}f}"


@dataclass(frozen=True, eq=False)
class Row:
    """A row of a table.

    Attributes:
        name: as printed. settings: those that distinguish it, JSON values. paper: the paper's scores by key, as shares
            (0.61, not 61).
    """

    name: str
    settings: Mapping[str, Any] = field(default_factory=dict)
    paper: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class Claim:
    """An ordering of the paper: in this measure the row `high` is above the row `low`.

    Attributes:
        equal: a tie counts too.
    """

    measure: str
    low: str
    high: str
    equal: bool = False


@dataclass(frozen=True)
class Table:
    """A table of a paper: its source, columns and rows, and the claims that it supports."""

    source: str
    measures: Sequence[Measure]
    rows: Sequence[Row]
    claims: Sequence[Claim]


def read_options(text: str | None, argv: Sequence[str] | None = None, *, out: str = "", seeds: int = 3) -> Options:
    """The command line: --quick, --seeds, --out.

    Args:
        text: the script's docstring. argv: arguments, default the program's. out: default of --out.
    """
    parser = argparse.ArgumentParser(description=text, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="all rows in seconds; the numbers mean nothing")
    parser.add_argument("--seeds", type=int, default=0, help=f"runs of each row (default {seeds}, with --quick 1)")
    parser.add_argument("--out", type=Path, default=Path(out or "orderings"), help="folder of all files")
    args = parser.parse_args(argv)
    if args.seeds < 0:
        parser.error("--seeds is 1 or more")
    return Options(args.out, args.seeds or (1 if args.quick else seeds), args.quick)


def world(options: Options, plan: WorldPlan, count: int, start: int = 0) -> Manifest:
    """Identities `start` .. `start + count - 1` of a world, rendered into a folder of this plan, once.

    Training and held-out identities come from one plan with different numbers, in separate calls; the caller sets the
    split.
    """
    folder = options.out / "worlds" / f"{digest([asdict(plan), count, start, VERSION])}"
    began = time.monotonic()
    data = write_world(folder, plan, count, start=start, workers=1 if options.quick else 0)
    say(f"world: {len(data)} pictures of {count} objects at {plan.size} px, {time.monotonic() - began:.0f} s")
    return data


def train(
    module: ModuleType | SimpleNamespace, settings: Mapping[str, Any], data: Manifest, folder: Path, seed: int
) -> Embedder:
    """The model that a recipe trains, opened from the folder that it wrote; a stopped run resumes.

    Args:
        module: such as `idmetric.train.nearid.recipe`.
        settings: fields of its Config and of `idmetric.train.loop.TrainSettings`; others keep the recipe's defaults.
        data: the rows to train on, without held-out ones.
    """
    own, of_run = ({f.name for f in fields(kind)} for kind in (module.Config, TrainSettings))
    if odd := settings.keys() - own - of_run:
        raise ValueError(f"{sorted(odd)} are settings of neither {module.__name__} nor the loop")
    values = {"save_every": 0, "validate_every": 0, "log_every": 50, "workers": 0, **settings, "seed": seed}
    config = module.Config(**{name: value for name, value in values.items() if name in own})
    shared = {name: getattr(config, name) for name in own & of_run}
    run = TrainSettings(**{**{name: value for name, value in values.items() if name in of_run}, **shared})
    processes = Processes(run.precision)
    seed_all(run.seed)  # new weights follow from the seed, as in idmetric train
    stopped = fit(module.build(config, data, processes), folder, run, processes)
    if stopped is not None:
        sys.exit(str(stopped))
    return load(folder, device=str(processes.device))


def run(
    text: str | None,
    argv: Sequence[str] | None,
    tables: Sequence[Table],
    sizes: tuple[Any, Any],
    measure: Callable[[Options, Any, Row, int, Path], Mapping[str, float]],
    out: str = "orderings",
) -> str:
    """Train and measure the rows that are missing in --out; prints and returns the tables.

    Args:
        text, argv, out: as for `read_options`. sizes: dataclasses with the scale of the experiment and of a quick run.
        measure: called with the options, the size, and the arguments that `results` describes.
    """
    options = read_options(text, argv, out=out)
    size = sizes[options.quick]
    torch.set_num_threads(1 if options.quick else cores())
    rows = tuple(dict.fromkeys(row for table in tables for row in table.rows))
    found = results(rows, options, partial(measure, options, size), asdict(size))
    return "\n".join(report(table, found, options) for table in tables)


def results(
    rows: Sequence[Row],
    options: Options,
    measure: Callable[[Row, int, Path], Mapping[str, float]],
    settings: Mapping[str, Any] | None = None,
) -> Results:
    """The scores of all rows and seeds; those that are not stored yet are measured and written.

    Args:
        measure: scores of a row and seed; its folder is kept, so a stopped run in it resumes.
        settings: those that all rows share, JSON values; with a row's own they name its folders, which keeps results of
            different settings apart.
    """
    found: Results = {row.name: [] for row in rows}
    for seed in range(options.seeds):
        for row in rows:
            key = digest([options.quick, dict(settings or {}), dict(row.settings)])
            folder = options.out / "runs" / f"{slug(row.name)}-{key}" / f"seed-{seed}"
            found[row.name].append(_scores(row, seed, folder, measure))
    return found


def _scores(
    row: Row, seed: int, folder: Path, measure: Callable[[Row, int, Path], Mapping[str, float]]
) -> dict[str, float]:
    file = folder / SCORES
    if not file.is_file():
        say(f"\n{row.name}, seed {seed}")
        folder.mkdir(parents=True, exist_ok=True)
        began = time.monotonic()
        scores = {name: float(value) for name, value in measure(row, seed, folder).items()}
        seconds = time.monotonic() - began
        write_json(file, {"row": row.name, "seed": seed, "scores": scores, "seconds": round(seconds, 1)})
        say(", ".join(f"{name} {value:.3f}" for name, value in scores.items()) + f"; {seconds:.0f} s")
    return dict(json.loads(file.read_text(encoding="utf-8"))["scores"])


# The table, and whether its orderings hold


def report(table: Table, found: Results, options: Options) -> str:
    """Print the table with the paper's values and a line for each claim, and write both to a file in --out."""
    note = "quick run: the numbers mean nothing\n\n" if options.quick else ""
    text = f"## {table.source}\n\n{note}{markdown(table, found)}\n\n{judged(table, found)}\n"
    file = options.out / f"{slug(table.source)}.md"
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text, encoding="utf-8")
    print(f"\n{text}", flush=True)
    return text


def markdown(table: Table, found: Results) -> str:
    """Mean and standard deviation over seeds; the paper's column follows each."""
    titles = [title for m in table.measures for title in (m.title, "paper")]
    lines = ["| | " + " | ".join(titles) + " |", "|---" * (1 + len(titles)) + "|"]
    for row in table.rows:
        cells = [row.name]
        for m in table.measures:
            printed = row.paper.get(m.key)
            cells += [spread([s[m.key] for s in found[row.name]], m), "" if printed is None else m.text(printed)]
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)


def judged(table: Table, found: Results) -> str:
    """For each claim the number of seeds in which it holds, and the paired difference, ours and the paper's."""
    return "\n".join(_judged(claim, table, found) for claim in table.claims)


def _judged(claim: Claim, table: Table, found: Results) -> str:
    measure = next(m for m in table.measures if m.key == claim.measure)
    pairs = zip(found[claim.low], found[claim.high], strict=True)  # of one seed each
    differences = [high[claim.measure] - low[claim.measure] for low, high in pairs]
    holds = sum(d >= 0 if claim.equal else d > 0 for d in differences)
    verdict = f"holds in {holds} of {len(differences)} seeds" if holds else "does not hold in any seed"
    paper = {row.name: row.paper.get(claim.measure) for row in table.rows}
    low, high = paper[claim.low], paper[claim.high]
    printed = "" if low is None or high is None else f"; paper {measure.text(high - low, '+')}"
    sign = "<=" if claim.equal else "<"
    return (
        f"- {measure.title}: {claim.low} {sign} {claim.high}: **{verdict}** "
        f"(difference {spread(differences, measure, '+')}{printed})"
    )


def spread(values: Sequence[float], measure: Measure, sign: str = "") -> str:
    """Mean ± standard deviation (of the sample, n - 1); only the mean of a single value."""
    mean = measure.text(fmean(values), sign)
    return mean if len(values) < 2 else f"{mean} ± {measure.text(stdev(values))}"


# Files and messages


def digest(value: Any) -> str:
    """Ten hex digits of the hash of a JSON value."""
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()[:10]


def slug(text: str) -> str:
    """The text as a part of file names."""
    return re.sub(r"[^a-z0-9]+", "-", text.lower()).strip("-")


def write_json(file: Path, value: Any) -> None:
    """Write a JSON file atomically."""
    making = file.with_suffix(".making")
    making.write_text(json.dumps(value, indent=1), encoding="utf-8")
    making.replace(file)


def say(text: str) -> None:
    """Print a line about the progress to stderr."""
    print(text, file=sys.stderr, flush=True)
