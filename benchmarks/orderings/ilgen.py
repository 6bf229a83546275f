"""ILGen's losses (Table 6) and its number of images of a class (Table 7, S1 and S2) at small scale, on rendered things.

    python benchmarks/orderings/ilgen.py --out orderings

A small ViT is pretrained on rendered pictures (see encoder.py), as SigLIP is in the paper; the recipe
`idmetric.train.ilgen` fine-tunes it whole with each loss, on things in four contexts each. Retrieval of held-out things
stands for the average of the paper's six benchmarks. docs/orderings.md tells what stands for what, and what was
measured.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path

from common import Claim, Measure, Options, Row, Table, read_options, report, results, threads, train, world
from encoder import SIZE, encoder

from idmetric import Backbone
from idmetric.data.manifest import Manifest
from idmetric.data.world.write import Plan
from idmetric.train import ilgen
from idmetric.train.batches import generator
from idmetric.train.validate import validation


@dataclass(frozen=True)
class Size:
    """How large everything is.

    Attributes:
        things: to train on, of which each seed takes two thirds. tested: held out.
        classes, epochs, rate: of recall@k and InfoNCE. crop, jitter, grey: of the augmentation, which the paper names
            without numbers: milder than MoCo's, since colours tell these things apart.
    """

    things: int = 1800
    tested: int = 200
    classes: int = 64
    epochs: int = 2
    rate: float = 1e-4
    crop: tuple[float, float] = (0.5, 1.0)
    jitter: tuple[float, float, float, float] = (0.2, 0.2, 0.2, 0.02)
    grey: float = 0.0


QUICK = Size(things=12, tested=4, classes=4, epochs=1)
HELD_OUT = 100_000  # number of the first thing that is tested on

MEASURES = (Measure("map", "mAP"), Measure("map_twins", "mAP among twins"))


def paper(average: float) -> dict[str, float]:
    """A row of the paper: mAP averaged over its benchmarks."""
    return {"map": average / 100}


FROZEN = Row("pretrained", {}, paper(47.5))
RECALL = Row("recall@k", {"loss": "recall@k"}, paper(52.6))
INFO_NCE = Row("InfoNCE", {"loss": "infonce"}, paper(52.2))
CONTRASTIVE = Row("contrastive", {"loss": "contrastive"}, paper(50.6))
SOFTMAX = Row("softmax margin", {"loss": "softmax-margin"}, paper(51.5))
THREE = Row("recall@k, 3 images (S1)", {"loss": "recall@k", "images": 3}, paper(51.5))
TWO = Row("recall@k, 2 images (S2)", {"loss": "recall@k", "images": 2}, paper(50.3))

TABLE_6 = Table(
    "ILGen, Table 6: losses",
    MEASURES,
    (FROZEN, RECALL, INFO_NCE, CONTRASTIVE, SOFTMAX),
    (
        Claim("map", FROZEN.name, RECALL.name),
        Claim("map", INFO_NCE.name, RECALL.name, equal=True),
        Claim("map", CONTRASTIVE.name, RECALL.name, equal=True),
        Claim("map", SOFTMAX.name, RECALL.name, equal=True),
    ),
)
TABLE_7 = Table(
    "ILGen, Table 7: images of a class",
    MEASURES,
    (FROZEN, TWO, THREE, RECALL),
    (
        Claim("map", TWO.name, THREE.name),
        Claim("map", THREE.name, RECALL.name),
        Claim("map", TWO.name, RECALL.name),
    ),
)


def main(argv: Sequence[str] | None = None) -> str:
    """Train and measure what is not there yet; returns both tables."""
    options = read_options(__doc__, argv, out="orderings")
    size = QUICK if options.quick else Size()
    threads(1 if options.quick else None)

    def measure(row: Row, seed: int, folder: Path) -> dict[str, float]:
        start = encoder(options)
        learnt, tested = pictures(options, size)
        if row is FROZEN:
            return scores(Backbone(start), tested)
        settings = {
            "backbone": str(start), "classes": size.classes, "epochs": size.epochs, "rate": size.rate,
            "crop": size.crop, "jitter": size.jitter, "grey": size.grey, "chunk": 256, **row.settings,
        }  # fmt: skip
        if settings["loss"] == "softmax-margin":
            settings["epochs"] += 2  # passes of the classifier alone (supplement B)
        return scores(train(ilgen, settings, some(learnt, seed), folder / "run", seed), tested)

    rows = tuple(dict.fromkeys((*TABLE_6.rows, *TABLE_7.rows)))
    found = results(rows, options, measure, asdict(size))
    return "\n".join(report(table, found, options) for table in (TABLE_6, TABLE_7))


@cache
def pictures(options: Options, size: Size) -> tuple[Manifest, Manifest]:
    """Rows to train on, and of other things to measure on, each with a twin almost like it."""
    twins = Plan(seed=60, size=SIZE, views=4, distractors=1, strengths=(0.3, 0.5, 0.75, 1.0), mixed=True)
    workers = 1 if options.quick else 0
    learnt = world(options.out, Plan(seed=60, size=SIZE, views=4, distractors=0), size.things, 0, workers)
    return learnt, world(options.out, twins, size.tested, HELD_OUT, workers)


def some(data: Manifest, seed: int) -> Manifest:
    """Two thirds of the things, others for each seed."""
    names = sorted(set(data.column("identity")))
    kept = {names[k] for k in generator(seed, "things").permutation(len(names))[: 2 * len(names) // 3]}
    return data.take([k for k, name in enumerate(data.column("identity")) if name in kept])


def scores(model: Backbone, data: Manifest) -> dict[str, float]:
    """mAP of views among views, and among the views of all twins as well."""
    views = data.take([k for k, role in enumerate(data.column("role")) if role == "real"])
    return {"map": validation(model, views)["map"], "map_twins": validation(model, data)["map"]}


if __name__ == "__main__":
    main()
