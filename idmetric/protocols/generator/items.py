"""Tables of items of a comparison of generators: images, subjects, images of several subjects, and places."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from idmetric.data.manifest.table import Manifest
from idmetric.evaluate.arrays import comparable
from idmetric.protocols.common.arrays import Ints
from idmetric.protocols.common.columns import free
from idmetric.protocols.common.result import Result
from idmetric.protocols.generator.columns import image_items, means_of, side_by_side
from idmetric.protocols.generator.images import Images, Names, Scores


def keep(
    images: Images, found: Scores, data: Manifest, by: Sequence[str], limits: Mapping[str, float], result: Result
) -> None:
    """Keep the scores of each image and subject, and the missing places."""
    ids = np.array(data.column("id"), dtype=object)
    columns = image_items(images, found, ids)
    for name in by:
        columns.setdefault(name, np.array(free(data, name), dtype=object)[images.rows])
    result.keep("images", **columns)

    for method in images.methods:
        own: Ints = np.flatnonzero(images.method == method)
        each, counts = means_of(found.identity[own], images.subject[own]), Counter(images.subject[own].tolist())
        worst = [min(own[images.subject[own] == name], key=lambda k: comparable(found.identity[k])) for name in each]
        result.keep(
            "subjects", worst=ids[images.rows[worst]], worst_score=found.identity[worst],
            method=[method] * len(each), subject=list(each), identity=list(each.values()),
            real=[found.real.get(name) for name in each],
            images=[counts[name] for name in each],
            **{name: (comparable(list(each.values())) < comparable(tau)).tolist() for name, tau in limits.items()},
        )  # fmt: skip
    scenes = [of for of in images.scenes if len(of) > 1]
    if scenes:
        result.keep("scenes", **_scenes(images, found, scenes, ids))
    if len(images.methods) > 1:
        result.keep("side_by_side", **side_by_side(images, found, ids))
    for method, lacking in images.missing().items():
        subjects, prompts, seeds = zip(*lacking, strict=True)
        result.keep("missing", method=[method] * len(lacking), subject=subjects, prompt=prompts, seed=seeds)


def _scenes(images: Images, found: Scores, scenes: Sequence[Ints], ids: Names) -> dict[str, Any]:
    """The images of several subjects, with the subject that is least itself and its nearest reference."""
    weakest = np.array([of[comparable(found.identity[of]).argmin()] for of in scenes])
    return {
        "image": ids[images.rows[weakest]], "nearest": ids[found.nearest[weakest]], "lowest": found.identity[weakest],
        "mean": [float(found.identity[of].mean()) for of in scenes], "weakest": images.subject[weakest],
        "subjects": [len(of) for of in scenes], "method": images.method[weakest], "prompt": images.prompt[weakest],
        "seed": images.seed[weakest],
    }  # fmt: skip
