"""Do matched patches lie on the subject? The strongest matches of two photos of one identity, against its masks.

    idmetric eval matches --data photos/ --model tiny --out results/

Every identity with masks gives pairs: each image with the next one (by id), in a circle. The models see whole images,
never the masks.

A match is on the subject if the masks cover both patches by half; docs/protocols/patches.md lists the columns. No paper
prints these numbers. Only real images count.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from itertools import pairwise
from typing import TYPE_CHECKING, cast

import numpy as np

from idmetric.evaluate.protocols.common import intervals
from idmetric.evaluate.protocols.common.columns import Truths, texts
from idmetric.evaluate.protocols.common.protocol import Protocol
from idmetric.evaluate.protocols.common.result import Result, Row
from idmetric.evaluate.protocols.common.scorers import EvalSettings, Models, VectorScorer, bind
from idmetric.evaluate.protocols.common.table_columns import Column
from idmetric.evaluate.settings import Checked, option

if TYPE_CHECKING:
    from idmetric.data.manifest.table import Manifest
    from idmetric.evaluate.patch_matches import Tokens


@dataclass(frozen=True)
class MatchesOptions(Checked):
    """Options of the protocol `matches`."""

    count: int = option(10, "matches of a pair", least=1)


COLUMNS = {
    "on subject": Column("share of the strongest patch matches with both ends on the subject"),
}

_SHARES = {"on subject": "strength", "by cosine": "cosine", "area": "area"}


def run(
    data: Manifest,
    models: Models,
    settings: EvalSettings = EvalSettings(),
    options: MatchesOptions = MatchesOptions(),
) -> list[Result]:
    """A result for each model, with a row for each dataset.

    Raises:
        ValueError: if no identity has two images with masks, a model has no patches, or settings.look shows subjects
            alone.
    """
    if settings.look.masked:
        raise ValueError("matches are of whole images: leave --subject out")
    has_mask = np.array([mask is not None for mask in data.sources("mask")], dtype=bool)
    is_real = np.array(data.column("role")) == "real"
    photos = data.take(is_real & has_mask)
    list(pairs(photos))  # before anything is embedded

    bound = bind(photos, models, replace(settings, distance="patch"))
    ids = texts(bound.manifest, "id")
    identity = texts(bound.manifest, "identity", "")
    dataset = texts(bound.manifest, "dataset", "")
    results = []
    for scorer, result in bound.results("matches", {**settings.as_dict(), "distance": "patch", "count": options.count}):
        references, images = [], []
        shares: dict[str, list[float]] = {name: [] for name in _SHARES.values()}
        for reference, image, pair_shares in _measured(cast(VectorScorer, scorer), bound.manifest, options.count):
            references.append(reference)
            images.append(image)
            for name, share in pair_shares.items():
                shares[name].append(share)
        columns = {name: np.array(values) for name, values in shares.items()}
        result.keep("pairs", reference=ids[references], image=ids[images], **columns)

        for name in sorted(set(dataset[references])):
            is_own = dataset[references] == name
            row: Row = {"dataset": name}
            for title, column in _SHARES.items():
                row[title] = intervals.mean(columns[column][is_own], identity[references][is_own], settings)
            result.rows.append(row)
        results.append(result)
    return results


def pairs(data: Manifest) -> Iterator[tuple[int, int]]:
    """Rows of two images of each identity: each with the next by id, the last with the first; of two images one pair.

    Raises:
        ValueError: if there are none.
    """
    ids = data.column("id")
    identities = list(zip(data.column("dataset"), data.column("identity"), strict=True))
    images: dict[tuple[str | None, str | None], list[int]] = defaultdict(list)
    for row in sorted(range(len(data)), key=lambda number: ids[number]):
        images[identities[row]].append(row)
    circles = [rows for rows in images.values() if len(rows) > 1]
    if not circles:
        raise ValueError("no identity has two images with masks (column mask)")
    for rows in circles:
        yield from pairwise(rows)
        if len(rows) > 2:
            yield rows[-1], rows[0]


def _measured(
    scorer: VectorScorer,
    data: Manifest,
    count: int,
) -> Iterator[tuple[int, int, dict[str, float]]]:
    """Both rows of each pair, and its shares of matches on the subject."""
    from idmetric.evaluate.patch_matches import matches_of, strongest

    read = lru_cache(16)(partial(_tokens, scorer, data))  # a row is in two pairs, mostly one after the other
    for reference_row, image_row in pairs(data):
        reference, on_reference = read(reference_row)
        image, on_image = read(image_row)
        shares = {"area": float(on_reference.mean() * on_image.mean())}
        for name, border in (("strength", True), ("cosine", False)):
            best = strongest(matches_of(reference, image, border=border), count)
            shares[name] = float(np.mean([on_reference[i] and on_image[j] for i, j in best]))
        yield reference_row, image_row, shares


def _tokens(scorer: VectorScorer, data: Manifest, row: int) -> tuple[Tokens, Truths]:
    """An image's patch tokens, and which of them (P,) its mask covers by half."""
    from idmetric.evaluate.patch_matches import tokens_of
    from idmetric.matching.heatmaps import coverage, layout
    from idmetric.metric.images.coverage import read_mask

    embedding = scorer.stored.embedding([row])
    picture = data.image(row)
    patch_layout = layout(scorer.embedder, picture.height, picture.width, embedding)
    tokens = tokens_of(patch_layout, embedding)
    if tokens is None:
        raise ValueError(f"{data.column('id')[row]}: this model's patches cannot be placed on it")
    source = cast("str | bytes", data.source(row, "mask"))
    mask = read_mask(source, (picture.height, picture.width), image=picture)
    is_covered: Truths = (coverage(mask, patch_layout).flatten() >= 0.5).numpy()
    return tokens, is_covered


PROTOCOL = Protocol(
    name="matches",
    run=run,
    options=MatchesOptions,
    columns=COLUMNS,
)
