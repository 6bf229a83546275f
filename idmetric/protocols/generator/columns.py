"""Scores of generated images as the columns of a table; copies and prompt fidelity of each image."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from idmetric.data.manifest.table import Manifest
from idmetric.evaluate.copies import THRESHOLD
from idmetric.protocols.common import intervals
from idmetric.protocols.common.arrays import Array, Truths
from idmetric.protocols.common.dual_encoder import DualEncoder
from idmetric.protocols.common.result import Row
from idmetric.protocols.common.scorers import Settings, VectorScorer
from idmetric.protocols.generator.copies import agreements
from idmetric.protocols.generator.images import Images, Names, Scores

CLIP = "CLIP-T"


def highest_agreements(images: Images, data: Manifest, settings: Settings) -> Array:
    """The highest agreement (G,) of each image with a reference or training image of its subject."""
    ends: list[tuple[int, int, int]] = []
    for name in dict.fromkeys(images.subject):
        own, others = np.flatnonzero(images.subject == name), images.shown(name).tolist()
        ends += [(int(k), int(images.rows[k]), other) for k in own for other in others]
    number, rows, others_ = np.array(ends, np.int64).reshape(-1, 3).T
    found = agreements(data, rows, others_, settings.store, settings.workers, settings.pair_progress)
    best = np.full(len(images.rows), -1.0)
    np.maximum.at(best, number, found)
    return best


def prompt_fidelity(images: Images, data: Manifest, scorer: VectorScorer, clip: DualEncoder, notes: list[str]) -> Array:
    """Cosine (G,) of each image and its prompt, NaN without one; adds a note on images without one."""
    words = np.array(data.column("text"), dtype=object)[images.rows]
    spoken = np.flatnonzero(words != None)  # noqa: E711
    if len(spoken) < len(words):
        notes.append(f"{len(words) - len(spoken)} images have no prompt in words, and no CLIP-T: add a column text")
    found = np.full(len(words), np.nan)
    different, place = np.unique(words[spoken].astype(str), return_inverse=True)
    texts = [clip.texts(different[k : k + 64].tolist()).double().cpu().numpy() for k in range(0, len(different), 64)]
    if texts:
        found[spoken] = (scorer.vectors(images.rows[spoken]) * np.concatenate(texts)[place]).sum(1)
    return found


def columns_of(images: Images, found: Scores, chosen: Truths, unit: Names, settings: Settings) -> Row:
    """The numbers of some images of a method: identity, real, copies, CopyRate, leaning, diversity, Vendi, CLIP-T.

    Args:
        chosen: (G,). unit: (G,), what intervals draw again: subjects, or the prompts of a single one.
    """
    row: Row = {"identity": intervals.mean(found.identity[chosen], unit[chosen], settings)}

    subject = images.subject[chosen]
    anchored = np.array([name in found.real for name in subject], dtype=bool)
    if anchored.any():  # one number for each subject, whatever the unit
        real = np.array([found.real[name] for name in subject[anchored]])
        row["real"] = intervals.mean(real, subject[anchored], settings)
    if found.copied is not None:
        row["copies"] = intervals.mean((found.copied[chosen] >= THRESHOLD).astype(float), unit[chosen], settings)

    if found.copy_rate is not None:
        row["CopyRate"] = intervals.mean(found.copy_rate[chosen], unit[chosen], settings)
    if found.leaning is not None:
        shown = chosen & ~np.isnan(found.leaning)
        if shown.any():
            row["leaning"] = intervals.mean(found.leaning[shown], unit[shown], settings)

    cells = found.cells
    inside = chosen[cells.first] if len(cells) else np.empty(0, bool)
    if inside.any():
        of = unit[cells.first[inside]]
        row["diversity"] = intervals.mean(cells.distance[inside], of, settings)
        if not np.isnan(cells.vendi[inside]).any():
            row["Vendi"] = intervals.mean(cells.vendi[inside], of, settings)
    if found.fidelity is not None:
        spoken = chosen & ~np.isnan(found.fidelity)
        if spoken.any():
            row[CLIP] = intervals.mean(found.fidelity[spoken], unit[spoken], settings)
    return row


def means_of(values: Array, subject: Names) -> dict[str, float]:
    """Subject -> mean of its images."""
    names, place = np.unique(subject.astype(str), return_inverse=True)
    means = np.bincount(place, values) / np.bincount(place)
    return dict(zip(names.tolist(), means.tolist(), strict=True))


def known(values: Array) -> list[float | None]:
    """Numbers as items are kept, None in place of NaN."""
    return [None if np.isnan(value) else float(value) for value in values]


def image_items(images: Images, found: Scores, ids: Sequence[Any] | Names) -> dict[str, Any]:
    """The scores of each image, as columns of items.

    Args:
        ids: names of the manifest's rows.
    """
    names = np.asarray(ids, dtype=object)
    columns: dict[str, Any] = {
        "image": names[images.rows], "nearest": names[found.nearest], "method": images.method,
        "subject": images.subject, "prompt": images.prompt, "seed": images.seed, "identity": found.identity,
    }  # fmt: skip
    if found.copied is not None:
        columns |= {"copy": found.copied >= THRESHOLD, "copy_agreement": found.copied}
    if found.copy_rate is not None:
        columns["copy_rate"] = found.copy_rate
    if found.leaning is not None:
        columns["leaning"] = known(found.leaning)
    if found.fidelity is not None:
        columns["clip_t"] = known(found.fidelity)
    return columns


def side_by_side(images: Images, found: Scores, ids: Names, prefix: str = "by ") -> dict[str, Any]:
    """The images of all methods for the same subject, prompt and seed, with their identities and a reference.

    Args:
        prefix: of a method's name in its column.
    """
    at: dict[tuple[str, str, str], dict[str, int]] = {}
    for k, (place, method) in enumerate(zip(images.places(), images.method, strict=True)):
        at.setdefault(place, {})[method] = k

    subject, prompt, seed = zip(*at, strict=True)
    columns: dict[str, Any] = {"reference": [ids[images.references[name][0]] for name in subject]}
    lowest = [min(float(found.identity[k]) for k in by_method.values()) for by_method in at.values()]
    columns |= {"lowest": lowest, "subject": subject, "prompt": prompt, "seed": seed}
    for method in images.methods:
        name = f"{prefix}{method}"
        while {name, f"{name}_score"} & columns.keys():
            name += "'"  # methods may be named a and a_score
        own = [by_method.get(method) for by_method in at.values()]
        columns[name] = [None if k is None else ids[images.rows[k]] for k in own]
        columns[f"{name}_score"] = [None if k is None else float(found.identity[k]) for k in own]
    return columns
