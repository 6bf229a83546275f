"""Scores of generated images as the columns of a table; copies and prompt fidelity of each image."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from typing import Any, cast

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from idmetric.data.manifest.table import Manifest
from idmetric.evaluate.arrays import comparable
from idmetric.evaluate.copies import MANY, SIZE, THRESHOLD, Print, compare, take_print
from idmetric.images.read import Outside
from idmetric.protocols.common import intervals, pairwise
from idmetric.protocols.common.columns import Array, Ints, Truths, free, known, listed
from idmetric.protocols.common.dual_encoder import DualEncoder
from idmetric.protocols.common.result import Result, Row, Value
from idmetric.protocols.common.scorers import Bound, Settings, VectorScorer
from idmetric.protocols.generator.images import Images, Names, Scores
from idmetric.scoring.copies import is_gray, small_picture


def copying(result: Result) -> list[str]:
    """The methods with a share of copies above `MANY`."""
    shares = {str(row["method"]): row.get("copies") for row in result.rows if row.get("group") == "all"}
    return [method for method, share in shares.items() if isinstance(share, Value) and share.value > MANY]


# Copies


_FOLDER = "copies-1"  # the number is the detector's version
_PRINTS = 256  # most prints in memory; one is 30 times as large as its picture


class _Agreement:
    """The agreement of `idmetric.evaluate.copies` as a metric of pairs; it depends a little on the order."""

    def __init__(self) -> None:
        self._print = lru_cache(_PRINTS)(self._taken)
        self.references: set[bytes] = set()  # their pixels

    def signature(self) -> dict[str, str]:
        """See `pairwise.PairModel`."""
        return {"model": "the search for copies"}

    def prepare(self, image: Image.Image, mask: Any, outside: Outside) -> Tensor:
        """See `pairwise.PairModel`; (SIZE, SIZE, 3), uint8."""
        return torch.from_numpy(small_picture(image).copy())

    def compare(self, a: Tensor, b: Tensor) -> Tensor:
        """See `pairwise.PairModel`."""
        pairs = [(image.numpy().tobytes(), reference.numpy().tobytes()) for image, reference in zip(a, b, strict=True)]
        turned = [pair[::-1] if pair[1] not in self.references else pair for pair in pairs]
        found = [compare(self._print(reference), self._print(image)).agreement for image, reference in turned]
        return torch.tensor(found, dtype=torch.float64)

    @staticmethod
    def _taken(pixels: bytes) -> Print:
        return take_print(np.frombuffer(pixels, np.uint8).reshape(SIZE, SIZE, 3))


def small_pictures(images: Images, data: Manifest, settings: Settings) -> pairwise.Prepared:
    """All images and what they are compared with, decoded once, at the size of the search for copies.

    Raises:
        UnreadableError: for images that cannot be read.
    """
    shown = [images.shown(name) for name in dict.fromkeys(images.subject)]
    rows = np.concatenate([images.rows, *shown, *images.references.values()])
    [small] = pairwise.prepare(data, {"copies": _Agreement()}, rows, workers=settings.workers).values()
    return small


def agreements(small: pairwise.Prepared, images: Ints, references: Ints, settings: Settings) -> Array:
    """Agreement (P,) of each image with a reference, see `idmetric.evaluate.copies`; kept for the next run.

    Args:
        images, references: rows (P,) of pairs.
    """
    model = _Agreement()
    model.references = {small.pixels[small.place[row]].numpy().tobytes() for row in set(references.tolist())}
    store = None if settings.store is None else settings.store / _FOLDER
    scorer = pairwise.PairScorer(model, small, max_pairs=sys.maxsize, store=store, progress=settings.pair_progress)
    return scorer.pairs(images, references)


CLIP = "CLIP-T"


def highest_agreements(images: Images, small: pairwise.Prepared, settings: Settings) -> Array:
    """The highest agreement (G,) of each image with a reference or training image of its subject."""
    ends: list[tuple[int, int, int]] = []
    for name in dict.fromkeys(images.subject):
        own, others = np.flatnonzero(images.subject == name), images.shown(name).tolist()
        ends += [(int(k), int(images.rows[k]), other) for k in own for other in others]
    if not ends:
        return np.empty(0)
    number, rows, others_ = np.array(ends, np.int64).T
    found = agreements(small, rows, others_, settings)
    best = np.full(len(images.rows), -1.0)
    np.maximum.at(best, number, found)
    return best


def notes_on_gray(images: Images, data: Manifest, small: pairwise.Prepared) -> list[str]:
    """Warn of gray images where all references of the subject are in color: their distances are too large."""
    found = [is_gray(pixels) for pixels in small.pixels.numpy()]
    gray = {row: found[place] for row, place in small.place.items()}

    in_color = {name for name, own in images.references.items() if not any(gray[int(row)] for row in own)}
    ids = data.column("id")
    shown = zip(images.rows.tolist(), images.subject, strict=True)
    alone = [ids[row] for row, name in shown if name in in_color and gray[row]]
    if not alone:
        return []
    return [f"WARNING: {len(alone)} images are gray where the references are in color, which lowers their scores: "
            f"{listed(alone)}"]  # fmt: skip


def prompt_fidelity(images: Images, bound: Bound, clip: DualEncoder | None, notes: list[str]) -> Array | None:
    """Cosine (G,) of each image and its prompt, NaN without one; adds a note on images without one.

    Args:
        bound: CLIP among its models, which is taken away.
    """
    if clip is None:
        return None
    data, scorer = bound.manifest, cast(VectorScorer, bound.models.pop(CLIP))
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


# Items


def keep_items(
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
    keep_missing(images, result, "method", str)


def keep_missing(images: Images, result: Result, column: str, named: Callable[[str], object]) -> None:
    """Keep the places that a method lacks; `named` gives its name in this column."""
    for method, lacking in images.missing().items():
        subjects, prompts, seeds = zip(*lacking, strict=True)
        names = {column: [named(method)] * len(lacking)}
        result.keep("missing", **names, subject=subjects, prompt=prompts, seed=seeds)


def _scenes(images: Images, found: Scores, scenes: Sequence[Ints], ids: Names) -> dict[str, Any]:
    """The images of several subjects, with the subject that is least itself and its nearest reference."""
    weakest = np.array([of[comparable(found.identity[of]).argmin()] for of in scenes])
    return {
        "image": ids[images.rows[weakest]], "nearest": ids[found.nearest[weakest]], "lowest": found.identity[weakest],
        "mean": [float(found.identity[of].mean()) for of in scenes], "weakest": images.subject[weakest],
        "subjects": [len(of) for of in scenes], "method": images.method[weakest], "prompt": images.prompt[weakest],
        "seed": images.seed[weakest],
    }  # fmt: skip
