"""ID-Sim's training on class features, patches, or both (Table 8) at small scale, on rendered objects.

    python benchmarks/orderings/idsim.py --out orderings

A small ViT is pretrained on rendered pictures (see encoder.py), as DINOv3 is in the paper; the recipe
`idmetric.train.idsim` trains LoRA and heads on the three kinds of triplets. Held-out objects are judged as in the
paper: by triplets of real views with mined negatives (Real Instance Validation, accuracy), and by pairs of a view with
another image of its object or with an edit of its identity (Identity Validation, ROC AUC; B.1).
benchmarks/reports/orderings.md has the setup and the results.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import numpy as np
import torch
from common import Claim, Measure, Options, Row, Table, run, train, world
from encoder import ARGS, NAME, SIZE, WEIGHTS, encoder
from numpy.typing import NDArray
from world.write import WorldPlan

from idmetric import Backbone
from idmetric.data.curate.mine import hard_negatives
from idmetric.data.curate.triplets import mixture
from idmetric.data.manifest.lineage import VIEW_ROLES, lineages
from idmetric.data.manifest.table import Manifest
from idmetric.evaluate.statistics.ranking import roc_auc
from idmetric.metric.distance.embedding import Embedding
from idmetric.metric.distance.matrix import distance
from idmetric.metric.models.embedder import Embedder
from idmetric.train.batches import generator
from idmetric.train.embed import embed_rows
from idmetric.train.idsim import recipe as idsim

Pairs = NDArray[np.int64]  # rows: (N, 2), triplets (N, 3)


@dataclass(frozen=True)
class Size:
    """The scale of the experiment.

    Attributes:
        things: number of objects to train on. tested: number of held-out objects. count: number of triplets.
        pool: views of other objects drawn for each tested triplet; the nearest is its negative.
        hidden: width of the heads. rate: of all rows, chosen on objects that are not tested.
        batch, accumulation, epochs: the paper's.
    """

    things: int = 900
    tested: int = 200
    count: int = 2400
    pool: int = 4
    hidden: int = 128
    rate: float = 1e-3
    batch: int = 8
    accumulation: int = 4
    epochs: int = 3


QUICK = Size(things=6, tested=3, count=12, batch=2, accumulation=2, epochs=1)
HELD_OUT = 100_000  # number of the first tested object

MEASURES = (
    Measure("triplet_joint", "triplets, joint"),
    Measure("auc_joint", "AUC, joint"),
    Measure("triplet_own", "triplets, trained features"),
    Measure("auc_own", "AUC, trained features"),
    Measure("triplet_cls", "triplets, CLS"),
    Measure("auc_cls", "AUC, CLS"),
)


def paper(accuracy: float, auc: float) -> dict[str, float]:
    """A row of the paper, whose ablations are judged by "a joint CLS+patch embedding" (B.3)."""
    return {"triplet_joint": accuracy, "auc_joint": auc}


BOTH = Row("CLS + patch", {"terms": "both"}, paper(0.8715, 0.965))
PATCH = Row("patch loss only", {"terms": "patch"}, paper(0.8665, 0.908))
CLS = Row("CLS loss only", {"terms": "cls"}, paper(0.8065, 0.893))
FROZEN = Row("pretrained")
OWN = {BOTH: "joint", PATCH: "patch", CLS: "cls", FROZEN: "joint"}  # the features that a row trains
TABLE = Table(
    "ID-Sim, Table 8: class features and patches",
    MEASURES,
    (FROZEN, BOTH, PATCH, CLS),
    tuple(
        Claim(f"{what}_{by}", low.name, BOTH.name)
        for by in ("joint", "own") for low in (PATCH, CLS) for what in ("triplet", "auc")
    ),
)  # fmt: skip


def main(argv: Sequence[str] | None = None) -> str:
    """Train and measure what is missing; returns the table."""
    return run(__doc__, argv, [TABLE], (Size(), QUICK), measure)


def measure(options: Options, size: Size, row: Row, seed: int, folder: Path) -> dict[str, float]:
    """Scores of a row."""
    start = encoder(options)
    pretrained = Backbone(start)
    learnt, tested = pictures(options, size)
    model: Embedder = pretrained
    if row is not FROZEN:
        settings = {
            "backbone": NAME, "backbone_args": ARGS,
            "backbone_weights": str(start / WEIGHTS), "image_size": SIZE, "hidden": size.hidden, "lr": size.rate,
            "batch_size": size.batch, "accumulation": size.accumulation, "epochs": size.epochs,
            "precision": "no", **row.settings,
        }  # fmt: skip
        model = train(idsim, settings, triplets(learnt, pretrained, size.count, seed), folder / "run", seed)
    found = scores(model, tested, pretrained, size.pool)
    return {**found, **{f"{what}_own": found[f"{what}_{OWN[row]}"] for what in ("triplet", "auc")}}


@cache
def pictures(options: Options, size: Size) -> tuple[Manifest, Manifest]:
    """Rows of training and of test objects: views, and an edit of the context and of the identity of each."""
    plan = WorldPlan(
        seed=70, size=SIZE, views=2, distractors=0, context_edits=1, identity_edits=1,
        strengths=(0.3, 0.5, 0.75, 1.0), mixed=True,
    )  # fmt: skip
    return world(options, plan, size.things), world(options, plan, size.tested, HELD_OUT)


def triplets(data: Manifest, judge: Embedder, count: int, seed: int) -> Manifest:
    """An even mixture of triplets, the real ones with negatives mined by the pretrained encoder (section 3.2)."""
    views = data.take(real(data))
    mined = hard_negatives(views, embed_rows(judge, views, range(len(views))), seed=seed)
    return mixture(mined, data, data, count=count, seed=seed)


def real(data: Manifest) -> NDArray[np.int64]:
    """Rows of views."""
    return np.flatnonzero([role == "real" for role in data.column("role")])


def scores(model: Embedder, test: Manifest, judge: Embedder, pool: int) -> dict[str, float]:
    """Accuracy on real triplets and AUC on pairs, by class features, patches, and both."""
    rows = tested_triplets(test, judge, pool)
    pairs, same = identity_pairs(test)
    embedded = model.embed([test.image(k) for k in range(len(test))], batch_size=64)
    found: dict[str, float] = {}
    for by in ("cls", "patch", "joint"):
        near, far = (distances(embedded, rows[:, [0, k]], by) for k in (1, 2))
        found[f"triplet_{by}"] = float((near < far).mean())
        found[f"auc_{by}"] = roc_auc(-distances(embedded, pairs, by), same)
    return found


def tested_triplets(data: Manifest, judge: Embedder, pool: int) -> Pairs:
    """Rows (N, 3): each view, another view of its object, and the nearest of `pool` random views of other objects."""
    views = real(data)
    vectors = embed_rows(judge, data, views)  # of unit length
    similar = vectors @ vectors.T
    identity = np.array(data.column("identity"))[views]
    found = []
    for anchor in range(len(views)):
        own = identity == identity[anchor]
        chance = generator("tested", data.column("id")[views[anchor]])
        drawn = chance.permutation(np.flatnonzero(~own))[:pool]
        others = np.setdiff1d(np.flatnonzero(own), [anchor])
        found.append((anchor, others[0], drawn[similar[anchor, drawn].argmax()]))
    return views[np.array(found)]


def identity_pairs(data: Manifest) -> tuple[Pairs, NDArray[np.bool_]]:
    """Pairs of a view with another image of its family, and whether they show the same (as in `validation`, B.1)."""
    family, identity = lineages(data), np.array(data.column("identity"))
    view = np.isin(data.column("role"), VIEW_ROLES)
    one, two = np.triu_indices(len(data), 1)
    kept = (family[one] == family[two]) & (view[one] | view[two])
    pairs = np.stack([one[kept], two[kept]], 1)
    return pairs, identity[pairs[:, 0]] == identity[pairs[:, 1]]


def distances(embedded: Embedding, pairs: Pairs, by: str) -> NDArray[np.float64]:
    """Distances (N,) of pairs, computed in parts."""
    parts = [distance(embedded[p[:, 0]], embedded[p[:, 1]], by) for p in np.array_split(pairs, -(-len(pairs) // 256))]
    return torch.cat(parts).double().cpu().numpy()


if __name__ == "__main__":
    main()
