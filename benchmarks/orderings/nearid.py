"""NearID's training objectives (Table 3), and its weights of ranking and cohesion (Tables 8, 9), at small scale.

    pip install 'idmetric[train]'
    python benchmarks/orderings/nearid.py --out orderings/nearid

EfficientNet-Lite0 with ImageNet weights is frozen, as SigLIP2 is in the paper; `idmetric.train.nearid.recipe` trains
attention pooling on its feature maps (see lite.py) with each objective, on rendered objects with matched-context
distractors and on others with only part-edits, like the paper's NearID and MTG. SSR, PA and the correlation with the
oracle are measured on objects that neither saw (NearID, section 3.4). Each seed trains on other objects.

A batch has one object of each kind, because the world has only 24 of them: in larger batches, InfoNCE's negatives would
be of the anchor's kind, as distractors are, which the paper's batches of 128 among 19,000 identities rarely hold.
benchmarks/reports/orderings.md has the setup and the results.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from functools import cache
from pathlib import Path
from types import SimpleNamespace

import numpy as np
from common import Claim, Measure, Options, Row, Table, digest, run, train, world
from lite import encoder
from numpy.typing import NDArray
from world.write import WorldPlan

from idmetric.data.manifest.lineage import lineages
from idmetric.data.manifest.table import Manifest, merge
from idmetric.metric.models.nearid import NearID
from idmetric.train.batches import generator
from idmetric.train.nearid import recipe as nearid
from idmetric.train.nearid.batches import NearIDBatches
from idmetric.train.nearid.config import NearIDTraining
from idmetric.train.nearid.data import Rows, draw
from idmetric.train.processes import Processes
from idmetric.train.validate import validation


@dataclass(frozen=True)
class Size:
    """The scale of the experiment.

    Attributes:
        side: of the pictures.
        things, edited: number of identities with distractors, and with part-edits, to train on; each seed takes five
            sixths of them. tested: number of held-out identities of each.
        steps: of the recipe. rate: its peak learning rate.
    """

    side: int = 96
    things: int = 900
    edited: int = 300
    tested: int = 160
    steps: int = 250
    rate: float = 3e-4


QUICK = Size(side=64, things=4, edited=3, tested=3, steps=2)

MEASURES = (
    Measure("ssr", "SSR"),
    Measure("pa", "PA"),
    Measure("oracle", "M-O", 1, 3),
    Measure("oracle_pair", "M-O pair", 1, 3),
    Measure("part_ssr", "part SSR"),
    Measure("part_pa", "part PA"),
)


def paper(*values: float) -> dict[str, float]:
    """A row of the paper: SSR, PA, M-O, M-O pair, MTG's SSR and PA."""
    return {m.key: value / m.scale for m, value in zip(MEASURES, values, strict=True)}


FROZEN = Row("frozen", {}, paper(30.74, 48.81, 0.180, 0.366, 0.0, 0.0))
INFO_NCE = Row("InfoNCE", {"objective": "info-nce"}, paper(60.97, 75.26, 0.267, 0.418, 8.0, 12.0))
DENOMINATOR = Row(
    "+ R neg", {"objective": "info-nce-distractors"}, paper(99.57, 99.79, 0.236, 0.267, 64.0, 74.0)
)  # fmt: skip
ORACLE = Row("+ oracle ranking", {"objective": "oracle"}, paper(86.34, 92.25, 0.299, 0.444, 7.0, 11.0))
BOTH = Row(
    "+ R neg + oracle ranking", {"objective": "oracle-distractors"}, paper(99.60, 99.89, 0.247, 0.277, 65.0, 74.5)
)
SIGLIP = Row("SigLIP + rank", {"objective": "siglip"}, paper(61.40, 77.81, 0.213, 0.385, 6.0, 9.5))
CIRCLE = Row("Circle + rank", {"objective": "circle"}, paper(99.97, 99.99, 0.264, 0.303, 67.0, 76.5))
NEAR_ID = Row("NearID (alpha 0.5)", {}, paper(99.17, 99.71, 0.465, 0.486, 35.0, 46.5))
COHESION = Row("+ cohesion", {"beta": 0.1}, paper(99.31, 99.78, 0.459, 0.485, 36.0, 47.0))
ALPHA = {
    0.0: Row("alpha 0", {"alpha": 0.0}, paper(99.57, 99.85, 0.306, 0.336, 63.0, 73.0)),
    0.1: Row("alpha 0.1", {"alpha": 0.1}, paper(99.57, 99.84, 0.362, 0.422, 58.0, 69.0)),
    0.25: Row("alpha 0.25", {"alpha": 0.25}, paper(99.20, 99.73, 0.466, 0.518, 49.0, 62.0)),
    0.5: NEAR_ID,
    1.0: Row("alpha 1", {"alpha": 1.0}, paper(98.80, 99.61, 0.542, 0.583, 35.0, 49.5)),
    2.0: Row("alpha 2", {"alpha": 2.0}, paper(97.09, 98.94, 0.494, 0.562, 26.0, 34.5)),
}
BETA = {
    0.1: Row("beta 0.1", {"alpha": 1.0, "beta": 0.1}, paper(98.94, 99.67, 0.442, 0.478, 30.0, 40.0)),
    0.2: Row("beta 0.2", {"alpha": 1.0, "beta": 0.2}, paper(98.74, 99.59, 0.444, 0.482, 29.0, 37.5)),
    0.3: Row("beta 0.3", {"alpha": 1.0, "beta": 0.3}, paper(98.94, 99.68, 0.430, 0.468, 29.0, 36.5)),
}

TABLE_3 = Table(
    "NearID, Table 3: training objectives",
    MEASURES,
    (FROZEN, INFO_NCE, DENOMINATOR, ORACLE, BOTH, SIGLIP, CIRCLE, NEAR_ID, COHESION),
    (
        Claim("ssr", FROZEN.name, INFO_NCE.name),
        Claim("ssr", INFO_NCE.name, NEAR_ID.name),
        Claim("ssr", INFO_NCE.name, DENOMINATOR.name),
        Claim("ssr", INFO_NCE.name, CIRCLE.name),
        Claim("part_ssr", INFO_NCE.name, DENOMINATOR.name),
        Claim("part_ssr", INFO_NCE.name, NEAR_ID.name),
        Claim("part_ssr", NEAR_ID.name, CIRCLE.name),
        # distractors in the denominator alone cost correlation with the oracle
        Claim("oracle", DENOMINATOR.name, INFO_NCE.name),
        Claim("oracle_pair", DENOMINATOR.name, INFO_NCE.name),
        Claim("oracle", DENOMINATOR.name, NEAR_ID.name),
        Claim("oracle_pair", DENOMINATOR.name, NEAR_ID.name),
        Claim("oracle", BOTH.name, NEAR_ID.name),
        Claim("oracle", CIRCLE.name, NEAR_ID.name),
        Claim("oracle_pair", CIRCLE.name, NEAR_ID.name),
        Claim("oracle", FROZEN.name, NEAR_ID.name),
    ),
)
TABLE_8 = Table(
    "NearID, Table 8: weight of ranking",
    MEASURES,
    tuple(ALPHA.values()),
    (
        Claim("oracle", ALPHA[0.0].name, ALPHA[0.5].name),
        Claim("oracle", ALPHA[0.0].name, ALPHA[1.0].name),
        Claim("oracle", ALPHA[0.1].name, ALPHA[1.0].name),
        Claim("ssr", ALPHA[2.0].name, ALPHA[0.0].name),
        Claim("part_ssr", ALPHA[2.0].name, ALPHA[0.0].name),
    ),
)


TABLE_9 = Table(
    "NearID, Table 9: weight of cohesion",
    MEASURES,
    (ALPHA[1.0], *BETA.values()),
    (
        *(Claim(measure, row.name, ALPHA[1.0].name) for row in BETA.values() for measure in ("oracle", "oracle_pair")),
        Claim("part_ssr", BETA[0.3].name, ALPHA[1.0].name),
    ),
)


def main(argv: Sequence[str] | None = None) -> str:
    """Train and measure what is missing; returns the tables."""
    return run(__doc__, argv, [TABLE_3, TABLE_8, TABLE_9], (Size(), QUICK), measure, out="orderings/nearid")


def measure(options: Options, size: Size, row: Row, seed: int, folder: Path) -> dict[str, float]:
    """Scores of a row."""
    start = encoder(options.out / "encoders" / digest(["lite0", size.side]), size.side)
    learnt, held_out = pictures(options, size)
    if row is FROZEN:
        return validation(NearID(str(start)), held_out)
    data = some(learnt, seed)
    settings = {
        "backbone": str(start), "augment": False, "mask_prob": 0.0,  # as the released code trains
        "cache": str(options.out / "features"), "precision": "no", "steps": size.steps,
        "batch_size": len(set(data.column("category"))), "lr": size.rate, "chunk": 512, **row.settings,
    }  # fmt: skip
    recipe = SimpleNamespace(Config=NearIDTraining, build=build, __name__=nearid.__name__)
    return validation(train(recipe, settings, data, folder, seed), held_out)


def build(config: NearIDTraining, data: Manifest, processes: Processes) -> nearid.NearIDRecipe:
    """The recipe with one identity of each kind in a batch."""
    recipe = nearid.build(config, data, processes)
    given = {field.name: getattr(recipe.batches, field.name) for field in fields(NearIDBatches)}
    recipe.batches = OneOfEachKind(**given)
    return recipe


class OneOfEachKind(NearIDBatches):
    """Batches of as many tuples as there are kinds, each of another kind."""

    def tuples(self, step: int) -> tuple[Rows, NDArray[np.bool_], Rows]:
        """See `NearIDBatches.tuples`."""
        kinds = np.array(self.pictures.data.column("category"), dtype=object)
        kind = kinds[[self.identities[number].views[0] for number in self.items]]
        rng = generator(self.seed, "kinds", step)
        numbers = np.array([rng.choice(self.items[kind == one]) for one in np.unique(kind)])
        drawn = [
            draw(self.identities[number], self.shape, generator(self.seed, step, place))
            for place, number in enumerate(numbers.tolist())
        ]
        rows, masked = (np.stack(column) for column in zip(*drawn, strict=True))
        return rows, masked, numbers


@cache
def pictures(options: Options, size: Size) -> tuple[Manifest, Manifest]:
    """Rows of training and of test objects, with distractors and with part-edits."""
    near = WorldPlan(seed=4, size=size.side, views=3, distractors=2, strengths=(1.0,))
    edits = WorldPlan(seed=5, size=size.side, views=2, distractors=0, parts=2)
    learnt = [world(options, near, size.things), world(options, edits, size.edited)]
    tested = [world(options, plan, size.tested, 100_000) for plan in (near, edits)]
    return merge(learnt), merge(tested)


def some(data: Manifest, seed: int) -> Manifest:
    """Five sixths of the identities, different ones for each seed, with the images made from them."""
    family = lineages(data)
    names = np.unique(family)
    kept = generator(seed, "things").permutation(names)[: -(-5 * len(names) // 6)]
    return data.take(np.flatnonzero(np.isin(family, kept)).tolist())


if __name__ == "__main__":
    main()
