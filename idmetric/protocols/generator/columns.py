"""Scores of generated images as the columns of a table; copies and prompt fidelity of each image."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, cast

import numpy as np

from idmetric.data.embed import Look, content_keys
from idmetric.data.manifest.table import Manifest
from idmetric.evaluate.arrays import comparable
from idmetric.evaluate.copies import MANY, THRESHOLD, compare
from idmetric.images.read import read_image
from idmetric.protocols.common import intervals
from idmetric.protocols.common.columns import Array, Ints, Truths, free, listed
from idmetric.protocols.common.dual_encoder import DualEncoder
from idmetric.protocols.common.pairwise import PairStore, cell_of
from idmetric.protocols.common.result import Result, Row, Value
from idmetric.protocols.common.scorers import Bound, Progress, Settings, VectorScorer
from idmetric.protocols.generator.images import Images, Names, Scores
from idmetric.scoring.copies import Prints, small_picture
from idmetric.scoring.gray import is_gray


def copying(result: Result) -> list[str]:
    """The methods with a share of copies above `MANY`."""
    shares = {str(row["method"]): row.get("copies") for row in result.rows if row.get("group") == "all"}
    return [method for method, share in shares.items() if isinstance(share, Value) and share.value > MANY]


# Copies


_FOLDER = "copies-1"  # the number is the detector's version
_SAVE_SECONDS = 20.0
_CHUNK = 64  # images read ahead


def agreements(
    data: Manifest,
    images: Ints,
    references: Ints,
    store: Path | None = None,
    workers: int | None = None,
    progress: Progress | None = None,
) -> Array:
    """Agreement (P,) of each image with a reference, see `idmetric.evaluate.copies`.

    Args:
        images, references: rows (P,) of pairs; pairs of one reference are best next to each other.
        store: the folder that keeps embeddings; known pairs are not read again.
        progress: called with (pairs compared, pairs to compare).

    Raises:
        UnreadableError, ImageReadError: for images that cannot be read.
    """
    kept = None if store is None else PairStore(store / _FOLDER)
    with ThreadPoolExecutor(workers or 8) as pool:
        rows = sorted({*images.tolist(), *references.tolist()})
        content = content_keys(data, rows, Look(), pool)
        keys = list(dict.fromkeys(content.values()))
        number = {key: k for k, key in enumerate(keys)}
        a, b = (np.array([number[content[int(row)]] for row in side], np.int64) for side in (images, references))
        cells = cell_of(np.minimum(a, b), np.maximum(a, b))
        known, values = (np.empty(0, np.int64), np.empty(0)) if kept is None else kept.read(keys)
        first = np.unique(cells, return_index=True)[1]
        todo = np.sort(first[~np.isin(cells[first], known)])  # in the order of the pairs
        found, saved, since = np.empty(len(todo)), 0, time.monotonic()
        prints = Prints()

        try:
            done = 0
            for start in range(0, len(todo), _CHUNK):
                part = todo[start : start + _CHUNK]
                wanted = dict.fromkeys([*images[part].tolist(), *references[part].tolist()])
                sources = [cast("str | bytes", data.source(row)) for row in wanted]
                small = dict(zip(wanted, pool.map(lambda s: small_picture(read_image(s)), sources), strict=True))
                for k, pair in enumerate(part, start):
                    one, other = int(references[pair]), int(images[pair])
                    reference, image = prints.of(keys[b[pair]], small[one]), prints.of(keys[a[pair]], small[other])
                    assert reference is not None
                    assert image is not None
                    found[k] = compare(reference, image).agreement
                done = start + len(part)
                if progress is not None:
                    progress(done, len(todo))
                if kept is not None and time.monotonic() - since > _SAVE_SECONDS:
                    kept.add(keys, cells[todo[saved:done]], found[saved:done])
                    saved, since = done, time.monotonic()
        finally:
            if kept is not None and done > saved:
                kept.add(keys, cells[todo[saved:done]], found[saved:done])

    every, values = np.append(known, cells[todo]), np.append(values, found)
    order = np.argsort(every)
    agreed: Array = values[order][np.searchsorted(every[order], cells)]
    return agreed


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


def notes_on_gray(images: Images, data: Manifest, workers: int | None = None) -> list[str]:
    """Warn of gray images where all references of the subject are in color: their distances are too large."""
    rows = sorted({*images.rows.tolist(), *(int(row) for own in images.references.values() for row in own)})
    sources = [cast("str | bytes", data.source(row)) for row in rows]
    with ThreadPoolExecutor(workers or 8) as pool:
        gray = dict(
            zip(rows, pool.map(lambda source: is_gray(small_picture(read_image(source))), sources), strict=True)
        )

    in_color = {name for name, own in images.references.items() if not any(gray[int(row)] for row in own)}
    ids = data.column("id")
    found = [
        ids[row]
        for row, name in zip(images.rows.tolist(), images.subject, strict=True)
        if name in in_color and gray[row]
    ]
    if not found:
        return []
    return [f"WARNING: {len(found)} images are gray where the references are in color, which lowers their scores: "
            f"{listed(found)}"]  # fmt: skip


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
