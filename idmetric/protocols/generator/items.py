"""Tables of items of a comparison of generators: images, subjects, images of several subjects, and places."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from idmetric.data.manifest.table import Manifest
from idmetric.evaluate.copies import THRESHOLD
from idmetric.protocols.common.arrays import Array, Ints
from idmetric.protocols.common.columns import free
from idmetric.protocols.common.result import Result
from idmetric.protocols.generator.images import Images, Names, Place, Scores


def means(values: Array, subject: Any) -> dict[str, float]:
    """Subject -> mean of its images."""
    names, place = np.unique(subject.astype(str), return_inverse=True)
    means = np.bincount(place, values) / np.bincount(place)
    return dict(zip(names.tolist(), means.tolist(), strict=True))


def keep(
    images: Images, found: Scores, data: Manifest, by: Sequence[str], limits: Mapping[str, float], result: Result
) -> None:
    """Keep the scores of each image and subject, and the missing places."""
    ids = np.array(data.column("id"), dtype=object)
    columns: dict[str, Any] = {
        "image": ids[images.rows], "nearest": ids[found.nearest], "method": images.method,
        "subject": images.subject, "prompt": images.prompt, "seed": images.seed, "identity": found.identity,
    }  # fmt: skip
    if found.copied is not None:
        columns |= {"copy": found.copied >= THRESHOLD, "copy_agreement": found.copied}
    if found.copy_rate is not None:
        columns["copy_rate"] = found.copy_rate
    if found.leaning is not None:
        columns["leaning"] = [None if np.isnan(value) else float(value) for value in found.leaning]
    if found.fidelity is not None:
        columns["clip_t"] = [None if np.isnan(value) else float(value) for value in found.fidelity]
    for name in by:
        columns.setdefault(name, np.array(free(data, name), dtype=object)[images.rows])
    result.keep("images", **columns)

    for method in images.methods:
        own: Ints = np.flatnonzero(images.method == method)
        each, counts = means(found.identity[own], images.subject[own]), Counter(images.subject[own].tolist())
        worst = [min(own[images.subject[own] == name], key=lambda k: found.identity[k]) for name in each]
        result.keep(
            "subjects", worst=ids[images.rows[worst]], worst_score=found.identity[worst],
            method=[method] * len(each), subject=list(each), identity=list(each.values()),
            real=[found.real.get(name) for name in each],
            images=[counts[name] for name in each],
            **{name: [mean < tau for mean in each.values()] for name, tau in limits.items()},
        )  # fmt: skip
    scenes = [of for of in images.scenes if len(of) > 1]
    if scenes:
        result.keep("scenes", **_scenes(images, found, scenes, ids))
    if len(images.methods) > 1:
        result.keep("side_by_side", **_side_by_side(images, found, ids))
    for method, lacking in images.missing().items():
        subjects, prompts, seeds = zip(*lacking, strict=True)
        result.keep("missing", method=[method] * len(lacking), subject=subjects, prompt=prompts, seed=seeds)


def _scenes(images: Images, found: Scores, scenes: Sequence[Ints], ids: Names) -> dict[str, Any]:
    """The images of several subjects, with the subject that is least itself and its nearest reference."""
    weakest = np.array([of[found.identity[of].argmin()] for of in scenes])
    return {
        "image": ids[images.rows[weakest]], "nearest": ids[found.nearest[weakest]], "lowest": found.identity[weakest],
        "mean": [float(found.identity[of].mean()) for of in scenes], "weakest": images.subject[weakest],
        "subjects": [len(of) for of in scenes], "method": images.method[weakest], "prompt": images.prompt[weakest],
        "seed": images.seed[weakest],
    }  # fmt: skip


def _side_by_side(images: Images, found: Scores, ids: Names) -> dict[str, Any]:
    """The images of all methods for the same subject, prompt and seed, with their identities and a reference."""
    at: dict[Place, dict[str, int]] = {}
    for k, (place, method) in enumerate(zip(images.places(), images.method, strict=True)):
        at.setdefault(place, {})[method] = k

    subject, prompt, seed = zip(*at, strict=True)
    columns: dict[str, Any] = {"reference": [ids[images.references[name][0]] for name in subject]}
    lowest = [min(float(found.identity[k]) for k in by_method.values()) for by_method in at.values()]
    columns |= {"lowest": lowest, "subject": subject, "prompt": prompt, "seed": seed}
    for method in images.methods:
        name = f"by {method}"
        while {name, f"{name}_score"} & columns.keys():
            name += "'"  # methods may be named a and a_score
        own = [by_method.get(method) for by_method in at.values()]
        columns[name] = [None if k is None else ids[images.rows[k]] for k in own]
        columns[f"{name}_score"] = [None if k is None else float(found.identity[k]) for k in own]
    return columns
