"""Why SigLIP + rank separates distractors so little (NearID, Table 3): its objective taken apart, at small scale.

    pip install 'idmetric[train]'
    python benchmarks/orderings/siglip_rank.py --out orderings/siglip_rank

The setup is that of nearid.py with fewer objects and steps. Rows switch off the ranking term (alpha 0), and divide the
sigmoid terms by the number of anchors, as Zhai et al. do, instead of by the number of pairs, as NearID's released code
does. The last columns are mean cosines of held-out views: to other views of the object, to distractors made from the
view, and to views of other objects.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import nearid as table_3
import numpy as np
from common import Claim, Measure, Options, Row, Table, digest, run
from lite import encoder

from idmetric import NearID, load
from idmetric.data.manifest.lineage import VIEW_ROLES, parent_rows
from idmetric.data.manifest.table import Manifest
from idmetric.metric.models.embedder import Embedder
from idmetric.train.embed import embed_rows

SIZE = replace(table_3.Size(), things=480, edited=160, tested=100, steps=150)
MEASURES = (
    Measure("ssr", "SSR"),
    Measure("pa", "PA"),
    Measure("part_pa", "part PA"),
    Measure("views", "cos views", 1, 3),
    Measure("near", "cos distractors", 1, 3),
    Measure("others", "cos others", 1, 3),
)

FROZEN, INFO_NCE, DENOMINATOR, SIGLIP = table_3.FROZEN, table_3.INFO_NCE, table_3.DENOMINATOR, table_3.SIGLIP
NO_RANK = Row("SigLIP, alpha 0", {"objective": "siglip", "alpha": 0.0})
ANCHORS = Row("SigLIP per anchor + rank", {"objective": "siglip", "sigmoid_per_anchor": True})
NEITHER = Row("SigLIP per anchor, alpha 0", {"objective": "siglip", "sigmoid_per_anchor": True, "alpha": 0.0})

TABLE = Table(
    "NearID, Table 3: parts of SigLIP + rank",
    MEASURES,
    (FROZEN, INFO_NCE, DENOMINATOR, SIGLIP, NO_RANK, ANCHORS, NEITHER),
    (
        Claim("ssr", SIGLIP.name, DENOMINATOR.name),
        Claim("ssr", INFO_NCE.name, SIGLIP.name),
        Claim("ssr", SIGLIP.name, NO_RANK.name),
        Claim("ssr", SIGLIP.name, ANCHORS.name),
        Claim("ssr", ANCHORS.name, NEITHER.name),
    ),
)


def main(argv: Sequence[str] | None = None) -> str:
    """Train and measure what is missing; returns the table."""
    return run(__doc__, argv, [TABLE], (SIZE, table_3.QUICK), measure, out="orderings/siglip_rank")


def measure(options: Options, size: table_3.Size, row: Row, seed: int, folder: Path) -> dict[str, float]:
    """Scores of a row, and the cosines of its model."""
    scores = table_3.measure(options, size, row, seed, folder)
    start = encoder(options.out / "encoders" / digest(["lite0", size.side]), size.side)
    model = NearID(str(start)) if row is FROZEN else load(folder)
    return {**scores, **cosines(model, table_3.pictures(options, size)[1])}


def cosines(model: Embedder, data: Manifest) -> dict[str, float]:
    """Mean cosine of views to views of the same object, to their own distractors, and to views of others."""
    roles, parents = np.array(data.column("role"), dtype=object), parent_rows(data)
    near = np.flatnonzero(roles == "distractor")
    owners = {data.column("identity")[parents[row]] for row in near}
    is_view = [role in VIEW_ROLES and name in owners for role, name in zip(roles, data.column("identity"), strict=True)]
    views = np.flatnonzero(is_view)
    rows = np.concatenate([views, near])
    vectors = dict(zip(rows.tolist(), embed_rows(model, data, rows), strict=True))

    x = np.stack([vectors[row] for row in views.tolist()])
    names = np.array(data.column("identity"), dtype=object)[views]
    same, distinct = names[:, None] == names, np.triu(np.ones((len(x), len(x)), dtype=bool), 1)
    similar = x @ x.T
    own = [float(vectors[int(parents[row])] @ vectors[row]) for row in near.tolist()]
    return {
        "views": float(similar[same & distinct].mean()), "near": float(np.mean(own)),
        "others": float(similar[~same & distinct].mean()),
    }  # fmt: skip


if __name__ == "__main__":
    main()
