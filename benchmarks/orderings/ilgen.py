"""ILGen's losses (Table 6) and number of images per class (Table 7, S1 and S2) at small scale, on rendered objects.

    python benchmarks/orderings/ilgen.py --out orderings

A small ViT is pretrained on rendered pictures (see encoder.py), as SigLIP is in the paper; the recipe
`idmetric.train.ilgen` fine-tunes it whole with each loss, on objects that are seen from one side in four contexts, as
in the paper. Retrieval of held-out objects stands for the average of the paper's six benchmarks. The paper names its
augmentation without numbers: the tables are measured with a milder one than the recipe's default, MoCo's.
docs/reports/orderings.md has the setup and the results.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from common import Claim, Measure, Options, Row, Table, run, train, world
from encoder import SIZE, encoder

from idmetric import Backbone
from idmetric.data.manifest.table import Manifest
from idmetric.data.world.write import Plan
from idmetric.train.batches import generator
from idmetric.train.ilgen import recipe as ilgen
from idmetric.train.validate import validation


@dataclass(frozen=True)
class Size:
    """The scale of the experiment.

    Attributes:
        things: number of objects to train on, of which each seed takes two thirds. tested: number of held-out objects.
        classes: in a batch of recall@k and InfoNCE. epochs: passes that train the encoder.
    """

    things: int = 900
    tested: int = 150
    classes: int = 64
    epochs: int = 12


QUICK = Size(things=12, tested=4, classes=4, epochs=1)
HELD_OUT = 100_000  # number of the first tested object
# half of the picture or more, hardly another hue, no grey: these objects differ in color
MILD = {"crop": (0.5, 1.0), "jitter": (0.2, 0.2, 0.2, 0.02), "grey": 0.0}

MEASURES = (Measure("map", "mAP"), Measure("sides", "mAP, other side"), Measure("fit", "mAP, trained objects"))


def row(name: str, average: float, loss: str, rate: float, **settings: object) -> Row:
    """A row of the paper with mAP averaged over its benchmarks; its rate was chosen on other objects."""
    return Row(name, {"loss": loss, "lr": rate, **settings}, {"map": average / 100})


FROZEN = Row("pretrained", {}, {"map": 0.475})
RECALL = row("recall@k", 52.6, "recall@k", 3e-4, **MILD)
INFO_NCE = row("InfoNCE", 52.2, "infonce", 1e-3, **MILD)
CONTRASTIVE = row("contrastive", 50.6, "contrastive", 3e-5, **MILD)
SOFTMAX = row("softmax margin", 51.5, "softmax-margin", 3e-4, **MILD)
THREE = row("recall@k, 3 images (S1)", 51.5, "recall@k", 3e-4, images=3, **MILD)
TWO = row("recall@k, 2 images (S2)", 50.3, "recall@k", 3e-4, images=2, **MILD)

CLAIMS_6 = (
    Claim("map", FROZEN.name, RECALL.name),
    Claim("map", INFO_NCE.name, RECALL.name, equal=True),
    Claim("map", CONTRASTIVE.name, RECALL.name, equal=True),
    Claim("map", SOFTMAX.name, RECALL.name, equal=True),
)
CLAIMS_7 = (
    Claim("map", TWO.name, THREE.name),
    Claim("map", THREE.name, RECALL.name),
    Claim("map", TWO.name, RECALL.name),
)
LOSSES = (FROZEN, RECALL, INFO_NCE, CONTRASTIVE, SOFTMAX)
TABLE_6 = Table("ILGen, Table 6: losses", MEASURES, LOSSES, CLAIMS_6)
TABLE_7 = Table("ILGen, Table 7: images of a class", MEASURES, (FROZEN, TWO, THREE, RECALL), CLAIMS_7)


def main(argv: Sequence[str] | None = None) -> str:
    """Train and measure what is missing; returns both tables."""
    return run(__doc__, argv, [TABLE_6, TABLE_7], (Size(), QUICK), measure)


def measure(options: Options, size: Size, row: Row, seed: int, folder: Path) -> dict[str, float]:
    """Scores of a row."""
    start = encoder(options)
    learnt, tested = pictures(options, size)
    learnt = some(learnt, seed)
    if row is FROZEN:
        return scores(Backbone(start), learnt, tested)
    settings = {"backbone": str(start), "classes": size.classes, "epochs": size.epochs, "chunk": 256, **row.settings}
    if settings["loss"] == "contrastive":
        settings["epochs"] = size.epochs // 3 or 1  # as many pictures: each query comes with two more
    if settings["loss"] == "softmax-margin":
        settings["epochs"] += 2  # first passes, of the classifier alone (supplement B)
    return scores(train(ilgen, settings, learnt, folder / "run", seed), learnt, tested)


@cache
def pictures(options: Options, size: Size) -> tuple[Manifest, Manifest]:
    """Rows of training objects, from one side in four contexts, and of test objects, from two sides in two each."""

    def rendered(count: int, first: int, views: int, contexts: int) -> Manifest:
        plan = Plan(seed=60, size=SIZE, views=views, context_edits=contexts - 1, distractors=0)
        return world(options, plan, count, first)

    return rendered(size.things, 0, 1, 4), rendered(size.tested, HELD_OUT, 2, 2)


def some(data: Manifest, seed: int) -> Manifest:
    """Two thirds of the objects, different ones for each seed."""
    names = sorted(set(data.column("identity")))
    return of(data, [names[k] for k in generator(seed, "things").permutation(len(names))[: 2 * len(names) // 3]])


def of(data: Manifest, names: Sequence[str | None]) -> Manifest:
    """The rows of these identities."""
    known = set(names)
    return data.take([k for k, name in enumerate(data.column("identity")) if name in known])


def scores(model: Backbone, learnt: Manifest, tested: Manifest) -> dict[str, float]:
    """mAP of held-out objects, of only one picture of each of their sides, and of 100 training objects."""
    trained = of(learnt, sorted(set(learnt.column("identity")))[:100])
    shown = {"map": tested, "sides": tested.filter(role="real"), "fit": trained}
    return {name: validation(model, rows)["map"] for name, rows in shown.items()}


if __name__ == "__main__":
    main()
