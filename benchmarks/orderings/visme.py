"""VisME, Table 2: batches in which no identity occurs twice, and hard negatives in them.

    python benchmarks/orderings/visme.py --out orderings

A very small Qwen2-VL is pretrained on rendered pictures (see pretraining.py); the recipe `idmetric.train.visme` trains
LoRA on three sub-datasets of rendered things, few with many pictures or many with few, and on pictures with the name of
their kind as general data. Tested on held-out things of the same domains (in distribution), on a domain that training
never saw (out of distribution), and on names of kinds. docs/orderings.md tells what stands for what, and what was
measured.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path

from common import Claim, Measure, Options, Row, Table, digest, read_options, report, results, threads, train, world
from pretraining import pretrained

from idmetric.data.manifest import Manifest, merge
from idmetric.data.world.write import Plan
from idmetric.train import pools, small_qwen, visme
from idmetric.train.batches import Pictures
from idmetric.train.items import Sizes, precision_at_1
from idmetric.visid import CANDIDATE, VisIDConfig, VisIDEmbed

UNSEEN = "fashion"  # domain that is tested on alone
HELD_OUT = 100_000  # number of the first thing that is tested on


@dataclass(frozen=True)
class Size:
    """How large everything is.

    Attributes:
        datasets: things to render, views of each; those of the unseen domain are left out. captions: pictures with the
            name of their kind. tested: things, held out. side: of pictures. width: of the model.
        pictures, pretraining: pictures to pretrain on, and steps. steps, batch, samples, rate,
        temperature: of the recipe; the paper's temperature of 0.02 is for a model that knows much already.
    """

    datasets: tuple[tuple[int, int], ...] = ((80, 8), (210, 3))
    captions: int = 400
    tested: int = 300
    side: int = 84
    width: int = 64
    pictures: int = 3000
    pretraining: int = 600
    steps: int = 600
    batch: int = 96
    samples: int = 32
    rate: float = 5e-4
    temperature: float = 0.1


QUICK = Size(
    datasets=((4, 2), (4, 2)), captions=4, tested=8, side=56, width=32, pictures=8, pretraining=2, steps=2, batch=4,
    samples=2,
)  # fmt: skip

MEASURES = (Measure("ind", "identity, IND"), Measure("ood", "identity, OOD"), Measure("general", "general, IND"))


def paper(general: float, ind: float, ood: float) -> dict[str, float]:
    """A row of the paper: MMEB IND, MVEB IND and OOD."""
    return {"general": general / 100, "ind": ind / 100, "ood": ood / 100}


NAIVE = Row("naive sampling", {"sampling": "naive", "hard": 0}, paper(74.2, 64.3, 61.2))
AWARE = Row("ID-aware sampling", {"hard": 0}, paper(74.2, 76.2, 74.0))
HARD = Row("ID-aware sampling, hard cases", {}, paper(75.1, 77.7, 74.1))
TABLE = Table(
    "VisME, Table 2: sampling",
    MEASURES,
    (NAIVE, AWARE, HARD),
    (
        Claim("ind", NAIVE.name, AWARE.name),
        Claim("ood", NAIVE.name, AWARE.name),
        Claim("ind", AWARE.name, HARD.name),
        Claim("ood", AWARE.name, HARD.name),
        Claim("general", NAIVE.name, AWARE.name, equal=True),
    ),
)


def main(argv: Sequence[str] | None = None) -> str:
    """Train and measure what is not there yet; returns the table."""
    options = read_options(__doc__, argv, out="orderings")
    size = QUICK if options.quick else Size()
    threads(1 if options.quick else None)

    def measure(row: Row, seed: int, folder: Path) -> dict[str, float]:
        learnt, tested = pictures(options, size)
        settings = {
            "model": str(start(options, size)), "targets": "qwen-vision", "max_pixels": size.side**2,
            "steps": size.steps, "batch": size.batch, "samples": size.samples, "rate": size.rate,
            "temperature": size.temperature, "instructions": asks(learnt), "chunk": 96, **row.settings,
        }  # fmt: skip
        return precision(train(visme, settings, learnt, folder / "run", seed), tested)

    return report(TABLE, results(TABLE.rows, options, measure, asdict(size)), options)


def start(options: Options, size: Size) -> Path:
    """Folder of the model that all seeds begin with, pretrained once on things of another world."""
    settings = VisIDConfig(max_pixels=size.side**2, min_pixels=size.side**2 // 4)
    folder = options.out / "encoders" / f"qwen-{digest([size.side, size.width, size.pictures, size.pretraining])}"
    if not folder.is_dir():
        plan = Plan(seed=79, size=size.side, views=1, distractors=0)
        data = world(options.out, plan, size.pictures, workers=1 if options.quick else 0)
        new = folder.with_name(f"{folder.name}-new")
        small_qwen.write(new, "qwen2_vl", width=size.width, seed=0)
        pretrained(
            VisIDEmbed(new, config=settings), data, folder, steps=size.pretraining, seed=0, batch=min(64, len(data))
        )
    return folder


@cache
def pictures(options: Options, size: Size) -> tuple[Manifest, Manifest]:
    """Rows to train on, and of other things to measure on."""

    def rendered(name: str, seed: int, count: int, first: int = 0, **plan: int) -> Manifest:
        made = Plan(seed=seed, size=size.side, distractors=0, strengths=(0.3, 0.5, 0.75, 1.0), mixed=True, **plan)
        data = world(options.out, made, count, first, 1 if options.quick else 0)
        return data.replace(dataset=[name] * len(data))

    def things(name: str, seed: int, count: int, views: int, first: int = 0) -> Manifest:
        return rendered(name, seed, count, first, views=views, identity_edits=1)

    def captioned(first: int, count: int) -> Manifest:
        return named_kinds(rendered("kinds", 90, count, first, views=1))

    learnt = [within(things(f"things-{views}", 80 + k, count, views), True)
              for k, (count, views) in enumerate(size.datasets)]  # fmt: skip
    tested = things("ind", 80, size.tested, 2, HELD_OUT)
    return merge([*learnt, captioned(0, size.captions)]), merge([
        within(tested, True), within(tested, False).replace(dataset="ood"), captioned(HELD_OUT, size.tested)
    ])  # fmt: skip


def within(data: Manifest, seen: bool) -> Manifest:
    """Rows of the domains that training sees, or of the other one."""
    return data.take([k for k, domain in enumerate(data.column("domain")) if (domain != UNSEEN) == seen])


def named_kinds(data: Manifest) -> Manifest:
    """Pictures of nothing in particular, each with the name of its kind as text."""
    return data.replace(identity=None, text=data.column("category"))


def asks(data: Manifest) -> tuple[str, ...]:
    """Queries say what candidates say: pretraining taught the model these words alone."""
    things = {d for d, identity in zip(data.column("dataset"), data.column("identity"), strict=True) if identity}
    return tuple(f"{name}={CANDIDATE}" for name in sorted(things))


def precision(model: VisIDEmbed, data: Manifest) -> dict[str, float]:
    """P@1 of each dataset: a query of each thing, among the targets of all and an edit of each query (section 5.1)."""
    prepared = pools.prepare(data, model.settings, instructions=asks(data))
    sight = Pictures(data, Sizes(model.settings), model.interpolation, model.background)
    found = precision_at_1(model, sight, prepared, queries=len(data), chunk=64)
    return {"ind": found["p@1/ind"], "ood": found["p@1/ood"], "general": found["p@1/kinds"]}


if __name__ == "__main__":
    main()
