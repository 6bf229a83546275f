"""VisME, Table 2: batches without repeated identities, and hard negatives in them.

    pip install 'idmetric[train]'
    python benchmarks/orderings/visme.py --out orderings/visme --seeds 5

EfficientNet-Lite0 with ImageNet weights (see lite_items.py) first learns to find objects of another world; from there,
the recipe `idmetric.train.visme` trains it on sub-datasets of few objects with many pictures of each, and on pictures
with the name of their kind as general data. It is tested on held-out objects of the same domains (in distribution), on
a domain that training never saw (out of distribution), and on names of kinds.
benchmarks/reports/orderings.md has the setup and the results.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from statistics import fmean

from common import Claim, Measure, Options, Row, Table, digest, run, train, world
from lite import imagenet
from lite_items import RECIPE, LiteItems
from world.write import WorldPlan

from idmetric.data.manifest.table import Manifest, merge
from idmetric.metric.checkpoints.format import CONFIG
from idmetric.train.batches import Pictures, generator
from idmetric.train.validate import validation
from idmetric.train.visme import data as pools
from idmetric.train.visme.items import precision_at_1

UNSEEN = "fashion"  # domain that is only tested
OOD, KINDS = "ood", "kinds"  # data sets of that domain, and of pictures with the name of their kind
HELD_OUT = 100_000  # number of the first tested object


@dataclass(frozen=True)
class Size:
    """The scale of the experiment.

    Attributes:
        side: of pictures.
        sets, objects, views: number of sub-datasets, of objects rendered for each (those of the unseen domain are left
            out, and of the others each seed takes five sixths), and of views of an object.
        captions: number of pictures with the name of their kind, among them those of the unseen domain, left out too.
        tested: number of held-out objects.
        gallery: number of them in a search; those of the unseen domain are searched all at once.
        samples: number of samples in a block; a batch has one block of each sub-dataset and one of names.
        steps, rate: of the recipe.
        warm_objects, warm_steps, warm_rate, warm_temperature: of the training that all rows start from.
    """

    side: int = 64
    sets: int = 4
    objects: int = 56
    views: int = 30
    captions: int = 700
    tested: int = 600
    gallery: int = 100
    samples: int = 30
    steps: int = 80
    rate: float = 1e-3
    warm_objects: int = 400
    warm_steps: int = 30
    warm_rate: float = 3e-4
    warm_temperature: float = 0.1


QUICK = Size(sets=2, objects=8, views=2, captions=8, tested=8, samples=2, steps=2, warm_objects=20, warm_steps=2)

MEASURES = (
    Measure("ind", "identity, IND"),
    Measure("ood", "identity, OOD"),
    Measure("ind_edits", "IND among edits"),
    Measure("ood_edits", "OOD among edits"),
    Measure("general", "general, IND"),
    Measure("fit", "mAP, trained objects"),
    Measure("map", "mAP, IND"),
)


def paper(general: float, ind: float, ood: float) -> dict[str, float]:
    """A row of the paper: MMEB IND, MVEB IND and OOD."""
    return {"general": general / 100, "ind": ind / 100, "ood": ood / 100}


START = Row("before training")
NAIVE = Row("naive sampling", {"sampling": "naive", "hard": 0}, paper(74.2, 64.3, 61.2))
AWARE = Row("ID-aware sampling", {"hard": 0}, paper(74.2, 76.2, 74.0))
HARD = Row("ID-aware sampling, hard cases", {}, paper(75.1, 77.7, 74.1))
TABLE = Table(
    "VisME, Table 2: sampling",
    MEASURES,
    (START, NAIVE, AWARE, HARD),
    (
        Claim("ind", NAIVE.name, AWARE.name),
        Claim("ood", NAIVE.name, AWARE.name),
        Claim("ind", AWARE.name, HARD.name),
        Claim("ood", AWARE.name, HARD.name),
        Claim("ind_edits", AWARE.name, HARD.name),
        Claim("ood_edits", AWARE.name, HARD.name),
        Claim("general", NAIVE.name, AWARE.name, equal=True),
        Claim("general", AWARE.name, HARD.name),
        Claim("fit", NAIVE.name, AWARE.name),
        Claim("map", NAIVE.name, AWARE.name),
    ),
)


def main(argv: Sequence[str] | None = None) -> str:
    """Train and measure what is missing; returns the table."""
    return run(__doc__, argv, [TABLE], (Size(), QUICK), measure, out="orderings/visme")


def measure(options: Options, size: Size, row: Row, seed: int, folder: Path) -> dict[str, float]:
    """Scores of a row."""
    learnt, tested = pictures(options, size)
    learnt = some(learnt, seed)
    first = start(options, size)
    if row is START:
        return scores(LiteItems(first), learnt, tested)
    settings = {
        "model": str(first),
        "steps": size.steps,
        "lr": size.rate,
        **blocks(size, size.sets + 1),
        **row.settings,
    }
    train(RECIPE, settings, learnt, folder / "run", seed)
    return scores(LiteItems(folder / "run"), learnt, tested)


def blocks(size: Size, count: int) -> dict[str, int]:
    """Settings of batches of this many blocks, embedded at once."""
    return {"batch_size": count * size.samples, "samples": size.samples, "chunk": 4 * count * size.samples}


def start(options: Options, size: Size) -> Path:
    """Folder of the model that all rows and seeds start from: trained once on two views of objects of another world.

    Its batches are ID-aware, at a higher temperature than the paper's 0.02, with which the rows continue.
    """
    warm = [size.warm_objects, size.warm_steps, size.warm_rate, size.warm_temperature]
    key = digest([size.side, *warm, size.samples, size.sets])
    folder = options.out / "encoders" / f"warm-{key}"
    if not (folder / CONFIG).is_file():
        plain = imagenet(options.out / "encoders", size.side)
        shown = WorldPlan(seed=79, size=size.side, views=2, distractors=0)
        data = within(world(options, shown, size.warm_objects), True)
        settings = {
            "model": str(plain),
            "steps": size.warm_steps,
            "lr": size.warm_rate,
            "temperature": size.warm_temperature,
            "hard": 0,
            **blocks(size, size.sets),
        }
        train(RECIPE, settings, data, folder, 0)
    return folder


@cache
def pictures(options: Options, size: Size) -> tuple[Manifest, Manifest]:
    """Rows of training and of test objects."""

    def rendered(name: str, seed: int, count: int, first: int = 0, **plan: int) -> Manifest:
        made = WorldPlan(seed=seed, size=size.side, distractors=0, strengths=(0.3, 0.5, 0.75, 1.0), mixed=True, **plan)
        data = world(options, made, count, first)
        return data.replace(dataset=[name] * len(data))

    def objects(name: str, seed: int, count: int, views: int, first: int = 0) -> Manifest:
        return rendered(name, seed, count, first, views=views, identity_edits=1)

    def captioned(first: int, count: int) -> Manifest:
        return named_kinds(within(rendered(KINDS, 90, count, first, views=1), True))

    learnt = [within(objects(f"objects-{k}", 80 + k, size.objects, size.views), True) for k in range(size.sets)]
    tested = objects("", 80, size.tested, 2, HELD_OUT)
    return merge([*learnt, captioned(0, size.captions)]), merge([
        in_galleries(within(tested, True), size.gallery), within(tested, False).replace(dataset=OOD),
        captioned(HELD_OUT, size.tested // 2),
    ])  # fmt: skip


def in_galleries(data: Manifest, size: int) -> Manifest:
    """Rows of the datasets ind-0, ind-1, ..., each with `size` object numbers (without objects of the other domain)."""
    number = [int(identity.split("~")[0].rsplit("-", 1)[1]) for identity in data.column("identity")]
    return data.replace(dataset=[f"ind-{(n - HELD_OUT) // size}" for n in number])


def some(data: Manifest, seed: int) -> Manifest:
    """Five sixths of each sub-dataset's objects, others for each seed, with their edits; and all named pictures."""
    pairs = zip(data.column("dataset"), data.column("identity"), strict=True)
    keys = [(dataset, (name or "").split("~")[0]) for dataset, name in pairs]
    kept = {(KINDS, "")}
    for dataset in sorted({dataset for dataset, _ in keys} - {KINDS}):
        names = sorted({key for key in keys if key[0] == dataset})
        order = generator(seed, "objects", dataset).permutation(len(names))
        kept.update(names[k] for k in order[: -(-5 * len(names) // 6)])
    return data.take([k for k, key in enumerate(keys) if key in kept])


def within(data: Manifest, seen: bool) -> Manifest:
    """Rows of the domains that training sees, or of the other one."""
    return data.take([k for k, domain in enumerate(data.column("domain")) if (domain != UNSEEN) == seen])


def named_kinds(data: Manifest) -> Manifest:
    """Pictures without an identity, each with the name of its kind as text."""
    return data.replace(identity=None, text=data.column("category"))


def scores(model: LiteItems, learnt: Manifest, tested: Manifest) -> dict[str, float]:
    """P@1 as in the paper, and mAP of views among views: of training objects, and of others of their domains."""
    views, trained = tested.filter(role="real"), learnt.filter(role="real")
    names = sorted(set(trained.column("dataset")) - {KINDS})
    fit = [validation(model, trained.filter(dataset=name))["map"] for name in names]
    known = views.filter(dataset=tuple(set(views.column("dataset")) - {KINDS, OOD}))
    edits = {f"{name}_edits": rate for name, rate in precision(model, tested).items()}
    return {
        **precision(model, views), "ind_edits": edits["ind_edits"], "ood_edits": edits["ood_edits"],
        "fit": fmean(fit), "map": validation(model, known)["map"],
    }  # fmt: skip


def precision(model: LiteItems, data: Manifest) -> dict[str, float]:
    """P@1: a query of each object among the targets of its gallery, and the edits of queries that the data have.

    Section 5.1 names the measure, without its candidates.
    """
    prepared = pools.prepare(data)
    found = precision_at_1(model, Pictures.of(model, data), prepared, queries=len(data), chunk=64)
    galleries = [rate for name, rate in found.items() if name.startswith("p@1/ind-")]
    return {"ind": fmean(galleries), "ood": found[f"p@1/{OOD}"], "general": found[f"p@1/{KINDS}"]}


if __name__ == "__main__":
    main()
