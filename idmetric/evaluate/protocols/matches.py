"""Do matched patches lie on the subject? The strongest matches of two photos of one identity, against its masks.

    idmetric eval matches --data photos/ --model tiny --out results/

Every identity with masks gives pairs: each image with the next one (by id), in a circle. The models see whole images,
never the masks.

A match is on the subject if the masks cover both patches by half; docs/evaluate-patches.md lists the columns. No paper
prints these numbers. Only real images count.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from typing import TYPE_CHECKING, Any, cast

import numpy as np

from idmetric.evaluate.protocols.common import intervals
from idmetric.evaluate.protocols.common.columns import Truths, texts
from idmetric.evaluate.protocols.common.protocol import Protocol
from idmetric.evaluate.protocols.common.result import Result, Row
from idmetric.evaluate.protocols.common.scorers import EvalSettings, Models, VectorScorer, bind
from idmetric.evaluate.protocols.common.table_columns import Column
from idmetric.metric.files.settings import Checked, option

if TYPE_CHECKING:
    from idmetric.data.manifest.table import Manifest
    from idmetric.metric.scoring.matches import Tokens


@dataclass(frozen=True)
class MatchesOptions(Checked):
    """Options of the protocol `matches`."""

    count: int = option(10, "matches of a pair", least=1)


COLUMNS = {
    "on subject": Column("share of the strongest patch matches with both ends on the subject"),
}

_SHARES = {"on subject": "strength", "by cosine": "cosine", "area": "area"}


def run(
    data: Manifest, models: Models, settings: EvalSettings = EvalSettings(), options: MatchesOptions = MatchesOptions()
) -> list[Result]:
    """A result for each model, with a row for each dataset.

    Raises:
        ValueError: if no identity has two images with masks, a model has no patches, or settings.look shows subjects
            alone.
    """
    if settings.look.masked:
        raise ValueError("matches are of whole images: leave --subject out")
    masked = [mask is not None for mask in data.sources("mask")]
    usable = np.array([r == "real" and m for r, m in zip(data.column("role"), masked, strict=True)], dtype=bool)
    known = data.take(usable)
    list(pairs(known))  # before anything is embedded

    bound = bind(known, models, replace(settings, distance="patch"))
    ids, names, dataset = (texts(bound.manifest, column, "") for column in ("id", "identity", "dataset"))
    results = []
    for scorer, result in bound.results("matches", {**settings.as_dict(), "distance": "patch", "count": options.count}):
        found = list(_measured(cast(VectorScorer, scorer), bound.manifest, options.count))
        a, b = (np.array(side, dtype=np.int64) for side in zip(*((a, b) for a, b, _ in found), strict=True))
        columns = {name: np.array([shares[name] for *_, shares in found]) for name in _SHARES.values()}
        result.keep("pairs", reference=ids[a], image=ids[b], **columns)
        for one in sorted(set(dataset[a])):
            own = dataset[a] == one
            row: Row = {"dataset": one}
            for title, name in _SHARES.items():
                row[title] = intervals.mean(columns[name][own], names[a][own], settings)
            result.rows.append(row)
        results.append(result)
    return results


def pairs(data: Manifest) -> Iterator[tuple[int, int]]:
    """Rows of two images of each identity: each with the next by id, the last with the first; of two images one pair.

    Raises:
        ValueError: if there are none.
    """
    ids, names, datasets = (data.column(name) for name in ("id", "identity", "dataset"))
    rows = defaultdict[Any, list[int]](list)
    for row in sorted(range(len(data)), key=lambda r: ids[r]):
        rows[datasets[row], names[row]].append(row)
    several = [of for of in rows.values() if len(of) > 1]
    if not several:
        raise ValueError("no identity has two images with masks (column mask)")
    for of in several:
        yield from zip(of, of[1:] + of[:1], strict=True) if len(of) > 2 else [(of[0], of[1])]


def _measured(scorer: VectorScorer, data: Manifest, count: int) -> Iterator[tuple[int, int, dict[str, float]]]:
    """Both rows of each pair, and its shares of matches on the subject."""
    from idmetric.metric.scoring.matches import matches_of, strongest

    read = lru_cache(16)(partial(_tokens, scorer, data))  # a row is in two pairs, mostly in a row
    for a, b in pairs(data):
        (reference, first), (image, second) = read(a), read(b)
        shares = {"area": float(first.mean() * second.mean())}
        for name, border in (("strength", True), ("cosine", False)):
            best = strongest(matches_of(reference, image, border=border), count)
            shares[name] = float(np.mean([first[i] and second[j] for i, j in best]))
        yield a, b, shares


def _tokens(scorer: VectorScorer, data: Manifest, row: int) -> tuple[Tokens, Truths]:
    """An image's patch tokens, and which of them (P,) its mask covers by half."""
    from idmetric.metric.images.masks import read_mask
    from idmetric.metric.scoring.heatmaps import coverage, layout
    from idmetric.metric.scoring.matches import tokens_of

    embedding, picture = scorer.stored.embedding([row]), data.image(row)
    where = layout(scorer.embedder, picture.height, picture.width, embedding)
    tokens = tokens_of(where, embedding)
    if tokens is None:
        raise ValueError(f"{data.column('id')[row]}: this model's patches cannot be placed on it")
    mask = read_mask(cast("str | bytes", data.source(row, "mask")), (picture.height, picture.width), image=picture)
    found: Truths = (coverage(mask, where).flatten() >= 0.5).numpy()
    return tokens, found


PROTOCOL = Protocol(
    name="matches",
    run=run,
    options=MatchesOptions,
    columns=COLUMNS,
)
