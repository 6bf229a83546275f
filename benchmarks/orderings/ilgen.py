"""ILGen's losses (Table 6), images per class (Table 7, S1 and S2) and backgrounds (Table 3), on rendered objects.

    pip install 'idmetric[train]'
    python benchmarks/orderings/ilgen.py --out orderings/ilgen --seeds 5

EfficientNet-Lite0 with ImageNet weights is the pretrained encoder, as SigLIP is in the paper; the recipe
`idmetric.train.ilgen` fine-tunes it whole with each loss, in one short pass over objects that are seen from one side in
four contexts. "w/o bg" trains on the first picture's object alone, four times on white with random padding, as the
paper's data without background generation. Retrieval of held-out objects stands for the average of the paper's six
benchmarks; the same objects on white stand for SOP, whose backgrounds are clean. The paper names its augmentation
without numbers: a milder one than the recipe's default, MoCo's, is used.
benchmarks/reports/orderings.md has the setup and the results.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path

import numpy as np
from common import Claim, Measure, Options, Row, Table, digest, run, train, world
from lite import imagenet
from PIL import Image
from world.write import WorldPlan

from idmetric import Backbone
from idmetric.data.manifest.table import Manifest
from idmetric.metric.images.coverage import read_mask
from idmetric.train.batches import generator
from idmetric.train.ilgen import recipe as ilgen
from idmetric.train.validate import validation


@dataclass(frozen=True)
class Size:
    """The scale of the experiment.

    Attributes:
        side: of the pictures.
        things: number of objects to train on, of which each seed takes two thirds. tested: number of held-out objects.
        classes: in a batch of recall@k and InfoNCE.
    """

    side: int = 64
    things: int = 2400
    tested: int = 150
    classes: int = 200


QUICK = Size(things=12, tested=4, classes=4)
HELD_OUT = 100_000  # number of the first tested object
# half of the picture or more, hardly another hue, no gray: these objects differ in color
MILD = {"crop": (0.5, 1.0), "jitter": (0.2, 0.2, 0.2, 0.02), "gray": 0.0}

MEASURES = (
    Measure("map", "mAP"),
    Measure("clean", "mAP, on white"),
    Measure("sides", "mAP, other side"),
    Measure("fit", "mAP, trained objects"),
)


def row(name: str, average: float, loss: str, rate: float, **settings: object) -> Row:
    """A row of the paper with mAP averaged over its benchmarks."""
    return Row(name, {"loss": loss, "lr": rate, **settings}, {"map": average / 100})


FROZEN = Row("pretrained", {}, {"map": 0.475, "clean": 0.554})
RECALL = Row("recall@k", {"loss": "recall@k", "lr": 1e-3, **MILD}, {"map": 0.526, "clean": 0.553})
PLAIN = Row("recall@k, w/o bg", {"loss": "recall@k", "lr": 1e-3, "plain": True, **MILD}, {"map": 0.494, "clean": 0.605})
INFO_NCE = row("InfoNCE", 52.2, "infonce", 3e-4, **MILD)
CONTRASTIVE = row("contrastive", 50.6, "contrastive", 1e-5, **MILD)
SOFTMAX = row("softmax margin", 51.5, "softmax-margin", 1e-3, **MILD)
THREE = row("recall@k, 3 images (S1)", 51.5, "recall@k", 1e-3, images=3, **MILD)
TWO = row("recall@k, 2 images (S2)", 50.3, "recall@k", 1e-3, images=2, **MILD)

CLAIMS_3 = (
    Claim("map", FROZEN.name, PLAIN.name),
    Claim("map", PLAIN.name, RECALL.name),
    Claim("clean", FROZEN.name, PLAIN.name),
    Claim("clean", RECALL.name, PLAIN.name),
)
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
TABLE_3 = Table("ILGen, Table 3: generated backgrounds", MEASURES, (FROZEN, PLAIN, RECALL), CLAIMS_3)
TABLE_6 = Table("ILGen, Table 6: losses", MEASURES, LOSSES, CLAIMS_6)
TABLE_7 = Table("ILGen, Table 7: images of a class", MEASURES, (FROZEN, TWO, THREE, RECALL), CLAIMS_7)


def main(argv: Sequence[str] | None = None) -> str:
    """Train and measure what is missing; returns the tables."""
    return run(__doc__, argv, [TABLE_3, TABLE_6, TABLE_7], (Size(), QUICK), measure, out="orderings/ilgen")


def measure(options: Options, size: Size, row: Row, seed: int, folder: Path) -> dict[str, float]:
    """Scores of a row."""
    start = imagenet(options.out / "encoders", size.side)
    learnt, tested = pictures(options, size)
    learnt = some(learnt, seed)
    judge = partial(scores, learnt=learnt, tested=tested, clean=cleaned(options, size))
    if row is FROZEN:
        return judge(Backbone(start))
    settings = {"backbone": str(start), "classes": size.classes, "epochs": 1, "chunk": 64, **row.settings}
    if settings.pop("plain", False):
        learnt = on_white(learnt, options.out / "white", size.side, one_view=True)
    if settings["loss"] == "softmax-margin":
        settings["epochs"] = 3  # two first passes, of the classifier alone (supplement B)
    return judge(train(ilgen, settings, learnt, folder / "run", seed))


@cache
def pictures(options: Options, size: Size) -> tuple[Manifest, Manifest]:
    """Rows of training objects, from one side in four contexts, and of test objects, from two sides in two each."""

    def rendered(count: int, first: int, views: int, contexts: int) -> Manifest:
        plan = WorldPlan(seed=60, size=size.side, views=views, context_edits=contexts - 1, distractors=0)
        return world(options, plan, count, first)

    return rendered(size.things, 0, 1, 4), rendered(size.tested, HELD_OUT, 2, 2)


@cache
def cleaned(options: Options, size: Size) -> Manifest:
    """The test pictures, on white."""
    return on_white(pictures(options, size)[1], options.out / "white", size.side, one_view=False)


def on_white(data: Manifest, folder: Path, side: int, *, one_view: bool) -> Manifest:
    """The same rows, each with its object alone on white, with random padding of up to half of the picture.

    Args:
        one_view: show the identity's first view in each of its rows.
    """
    folder.mkdir(parents=True, exist_ok=True)
    names = data.column("identity")
    first = {name: k for k, name in reversed(list(enumerate(names))) if data.column("role")[k] == "real"}
    paths = []
    for k, (identity, name) in enumerate(zip(names, data.column("id"), strict=True)):
        path = folder / f"{digest([side, name, one_view])}.png"
        if not path.is_file():
            white(data, first[identity] if one_view else k, side, generator("white", name)).save(path)
        paths.append(str(path.resolve()))
    return data.replace(path=paths, mask=None)


def white(data: Manifest, row: int, side: int, rng: np.random.Generator) -> Image.Image:
    """The object of a picture, cut out by its mask and pasted anywhere on a white square."""
    picture = data.image(row)
    inside = np.asarray(read_mask(data.source(row, "mask"), (picture.height, picture.width))) > 0.5
    rows, columns = (np.flatnonzero(inside.any(axis)) for axis in (1, 0))
    box = (int(columns[0]), int(rows[0]), int(columns[-1]) + 1, int(rows[-1]) + 1)
    share = rng.uniform(0.5, 1.0) * side / max(box[2] - box[0], box[3] - box[1])
    shape = [max(1, round(share * (box[k + 2] - box[k]))) for k in (0, 1)]
    cut = picture.crop(box).resize(shape, Image.Resampling.BICUBIC)
    cover = Image.fromarray(inside).convert("L").crop(box).resize(shape, Image.Resampling.BILINEAR)
    found = Image.new("RGB", (side, side), "white")
    found.paste(cut, tuple(int(rng.integers(side - n + 1)) for n in shape), cover)
    return found


def some(data: Manifest, seed: int) -> Manifest:
    """Two thirds of the objects, different ones for each seed."""
    names = sorted(set(data.column("identity")))
    return of(data, [names[k] for k in generator(seed, "things").permutation(len(names))[: 2 * len(names) // 3]])


def of(data: Manifest, names: Sequence[str | None]) -> Manifest:
    """The rows of these identities."""
    known = set(names)
    return data.take([k for k, name in enumerate(data.column("identity")) if name in known])


def scores(model: Backbone, learnt: Manifest, tested: Manifest, clean: Manifest) -> dict[str, float]:
    """mAP of held-out objects, of the same on white, of one picture of each side, and of 100 training objects."""
    trained = of(learnt, sorted(set(learnt.column("identity")))[:100])
    shown = {"map": tested, "clean": clean, "sides": tested.filter(role="real"), "fit": trained}
    return {name: validation(model, rows)["map"] for name, rows in shown.items()}


if __name__ == "__main__":
    main()
