"""NearID's training objectives (Table 3) and its weight of ranking (Table 8) at small scale, on rendered identities.

    python benchmarks/orderings/nearid.py --out orderings/nearid

A small ViT with attention pooling is pretrained on rendered pictures (see pretraining.py) and then frozen, as SigLIP2
is in the paper; the recipe `idmetric.train.nearid.recipe` trains its pooling head with each objective, on objects with
matched-context distractors and on others with only part-edits, like the paper's NearID and MTG. SSR, PA and the
correlation with the oracle are measured on objects that neither saw (NearID, section 3.4). Each seed trains on other
objects. docs/reports/orderings.md has the setup and the results.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path

import numpy as np
import torch
from captions import Captions
from common import Claim, Measure, Options, Row, Table, digest, run, train, world
from pretraining import pretrained

from idmetric.data.manifest.lineage import lineages
from idmetric.data.manifest.table import Manifest, merge
from idmetric.data.world.write import Plan
from idmetric.models.nearid import NearID, NearIDConfig
from idmetric.train.batches import generator
from idmetric.train.nearid import recipe as nearid
from idmetric.train.validate import validation


@dataclass(frozen=True)
class Size:
    """The scale of the experiment.

    Attributes:
        pictures, pretraining: number of pictures to pretrain on, and of steps. width, depth, side, patch: of the
            encoder.
        things, edited: number of identities with distractors, and with part-edits, to train on; each seed takes five
            sixths of them. tested: number of held-out identities of each.
        steps, batch: of the recipe. rate: its peak learning rate.
    """

    pictures: int = 4000
    pretraining: int = 600
    width: int = 192
    depth: int = 3
    side: int = 64
    patch: int = 8
    things: int = 900
    edited: int = 300
    tested: int = 160
    steps: int = 400
    batch: int = 64
    rate: float = 3e-3


QUICK = Size(
    pictures=8, pretraining=2, width=32, depth=1, side=32, patch=16, things=4, edited=3, tested=3, steps=2, batch=4
)

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

TABLE_3 = Table(
    "NearID, Table 3: training objectives",
    MEASURES,
    (FROZEN, INFO_NCE, DENOMINATOR, ORACLE, BOTH, SIGLIP, CIRCLE, NEAR_ID, COHESION),
    (
        Claim("ssr", FROZEN.name, INFO_NCE.name),
        Claim("ssr", INFO_NCE.name, NEAR_ID.name),
        Claim("ssr", INFO_NCE.name, DENOMINATOR.name),
        Claim(
            "oracle", DENOMINATOR.name, INFO_NCE.name
        ),  # distractors in the denominator alone cost oracle correlation
        Claim("oracle", DENOMINATOR.name, NEAR_ID.name),
        Claim("oracle", BOTH.name, NEAR_ID.name),
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


def main(argv: Sequence[str] | None = None) -> str:
    """Train and measure what is missing; returns both tables."""
    return run(__doc__, argv, [TABLE_3, TABLE_8], (Size(), QUICK), measure, out="orderings/nearid")


def measure(options: Options, size: Size, row: Row, seed: int, folder: Path) -> dict[str, float]:
    """Scores of a row."""
    start = encoder(options, size)
    learnt, held_out = pictures(options, size)
    if row is FROZEN:
        return validation(NearID(str(start)), held_out)
    settings = {
        "backbone": str(start), "augment": False, "cache": str(options.out / "features"), "cache_gb": 8.0,
        "precision": "no", "batch_size": size.batch, "steps": size.steps, "lr": size.rate, "chunk": 512,
        **row.settings,
    }  # fmt: skip
    return validation(train(nearid, settings, some(learnt, seed), folder, seed), held_out)


def encoder(options: Options, size: Size) -> Path:
    """Folder of the encoder that all rows and seeds start from, pretrained on objects of another world."""
    config = NearIDConfig(
        image_size=size.side,
        backbone_args={"act_layer": "gelu_tanh", "patch_size": size.patch, "embed_dim": size.width,
                       "depth": size.depth, "num_heads": 4, "mlp_ratio": 2.0},
    )  # fmt: skip
    folder = options.out / "encoders" / digest([asdict(config), size.pictures, size.pretraining, "captions 2"])
    if not folder.is_dir():
        data = world(options, Plan(seed=3, size=size.side, views=1, distractors=0), size.pictures)
        torch.manual_seed(0)
        batch = min(64, size.pictures)
        pretrained(NearID(config), data, folder, steps=size.pretraining, seed=0, batch=batch, captions=Captions)
    return folder


@cache
def pictures(options: Options, size: Size) -> tuple[Manifest, Manifest]:
    """Rows of training and of test objects, with distractors and with part-edits."""
    near = Plan(seed=4, size=size.side, views=3, distractors=2, strengths=(1.0,))
    edits = Plan(seed=5, size=size.side, views=2, distractors=0, parts=2)
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
