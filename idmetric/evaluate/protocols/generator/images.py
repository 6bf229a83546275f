"""The generated images of a manifest with their places, and the scores of each by a model."""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from idmetric.evaluate.protocols.common.columns import Array, Ints, Truths, free
from idmetric.evaluate.protocols.common.scorers import Scorer, VectorScorer
from idmetric.evaluate.protocols.generator.pattern import GENERATED, REFERENCE, TRAINING
from idmetric.evaluate.statistics.sets import mean_pairwise_distance, vendi_score
from idmetric.metric.distance.ties import comparable
from idmetric.metric.scoring.references import leave_one_out

if TYPE_CHECKING:
    from idmetric.data.manifest.table import Manifest

Names = NDArray[Any]
Place = tuple[str, str, str]  # subject, prompt, seed
_SAME = 1e-3  # radians, below which two photos count as one


@dataclass(frozen=True)
class Images:
    """Generated images, in the manifest's order, and the references of each subject.

    Attributes:
        rows: (G,) of the manifest; an image of several subjects has a row for each.
        file: (G,) a value that the rows of one image share.
        method, subject, prompt, seed: (G,) texts.
        references, training: subject -> rows.
    """

    rows: Ints
    file: Names
    method: Names
    subject: Names
    prompt: Names
    seed: Names
    references: Mapping[str, Ints]
    training: Mapping[str, Ints]

    @classmethod
    def of(cls, data: Manifest) -> Images:
        """The images of a manifest that `outputs.read` made; images of subjects without a reference are left out."""
        role, subject = (np.array(free(data, name), dtype=object) for name in ("role", "subject"))

        def by_subject(wanted: str) -> dict[str, Ints]:
            rows = np.flatnonzero(role == wanted)
            return {name: rows[subject[rows] == name] for name in dict.fromkeys(subject[rows])}

        references = by_subject(REFERENCE)
        known = np.array([name in references for name in subject], dtype=bool)
        rows = np.flatnonzero((role == GENERATED) & known)
        method, named, prompt, seed = (
            np.array(["" if text is None else text for text in free(data, name)], dtype=object)[rows]
            for name in ("method", "subject", "prompt", "seed")
        )
        paths = data.column("path")
        file = np.array([paths[row] or f"row {row}" for row in rows], dtype=object)
        return cls(rows, file, method, named, prompt, seed, references, by_subject(TRAINING))

    @property
    def methods(self) -> list[str]:
        """Methods in order of appearance."""
        return list(dict.fromkeys(self.method))

    def places(self) -> list[Place]:
        """(subject, prompt, seed) of each image."""
        return list(zip(self.subject, self.prompt, self.seed, strict=True))

    def take(self, chosen: Truths) -> Images:
        """The images where `chosen` (G,) is true."""
        parts = {name: getattr(self, name)[chosen] for name in ("rows", "file", "method", "subject", "prompt", "seed")}
        return replace(self, **parts)

    def cells(self) -> list[Ints]:
        """The images (numbers below G) of each method, subject and prompt with two or more, which differ by seed."""
        cells = zip(self.method, self.subject, self.prompt, strict=True)
        return [of for of in _grouped(cells) if len(of) > 1]

    def shown(self, subject: str) -> Ints:
        """Rows of the subject's references and training images."""
        found: Ints = np.append(self.references[subject], self.training.get(subject, np.empty(0, np.int64)))
        return found

    @cached_property
    def scenes(self) -> list[Ints]:
        """The numbers below G of each image of a method, one for each subject that it should show.

        A file that has several rows for one subject, such as at two seeds, is an image at each.
        """
        times: Counter[tuple[str, str, str]] = Counter()
        keys = []
        for method, file, subject in zip(self.method, self.file, self.subject, strict=True):
            keys.append((method, file, times[method, file, subject]))
            times[method, file, subject] += 1
        return _grouped(keys)

    @property
    def have_several_subjects(self) -> bool:
        """Whether an image should show several subjects."""
        return any(len(members) > 1 for members in self.scenes)

    def on_shared_places(self, but: str = "") -> tuple[Images, list[str]]:
        """The images at places that all methods have, or else of the subjects that all have, and a note if some do not.

        Args:
            but: a method that is not compared, such as the base model of checkpoints: it keeps its images.
        """
        keys_of: dict[str, Sequence[Hashable]] = {
            "combinations of subject, prompt and seed": self.places(),
            "subjects": list(self.subject),
        }
        for what, keys in keys_of.items():
            of_method: dict[str, set[Hashable]] = {}
            for method, key in zip(self.method, keys, strict=True):
                of_method.setdefault(method, set()).add(key)
            compared = [of for method, of in of_method.items() if method != but]
            if not compared:
                return self, []
            shared, every = set.intersection(*compared), set.union(*compared)
            if len(shared) == len(every):
                return self, []
            if shared:
                chosen = [key in shared or method == but for method, key in zip(self.method, keys, strict=True)]
                note = f"compared on the {len(shared)} of {len(every)} {what} that all have; other images are left out"
                return self.take(np.array(chosen)), [note]
        return self, ["WARNING: no subject has images of all methods, so that their numbers do not compare"]

    def missing(self) -> dict[str, list[Place]]:
        """Method -> the places that other methods have and it lacks."""
        own: dict[str, set[Place]] = {}
        for name, place in zip(self.method, self.places(), strict=True):
            own.setdefault(name, set()).add(place)
        every = dict.fromkeys(self.places())
        return {name: lacking for name in own if (lacking := [place for place in every if place not in own[name]])}


def _grouped(keys: Iterable[Hashable]) -> list[Ints]:
    """The numbers of the items of each different key."""
    found: dict[Hashable, list[int]] = {}
    for k, key in enumerate(keys):
        found.setdefault(key, []).append(k)
    return [np.array(of) for of in found.values()]


class Copies(NamedTuple):
    """The highest agreement (G,) of each image with a reference or training image, and the row (G,) of that one."""

    agreement: Array
    of: Ints


@dataclass(frozen=True)
class Scores:
    """Scores of the images by a model.

    Attributes:
        identity: (G,) mean similarity to the references of the subject. nearest: (G,) row of the most similar one.
        real: subject -> mean similarity of its references to each other; absent for subjects with one.
        leaning: (G,) see `_leaning`; NaN without training images, unseen references or cosines.
        several: (C,) an image of each method, subject and prompt with two images or more. diversity: (C,) their mean
            pairwise distance. vendi: (C,) their Vendi score; NaN without cosines.
        copies: highest agreements with references and training images; None if not asked for.
        fidelity: (G,) cosine of image and prompt, NaN without a prompt in words; None if not asked for.
    """

    identity: Array
    nearest: Ints
    real: Mapping[str, float]
    leaning: Array
    several: Ints
    diversity: Array
    vendi: Array
    copies: Copies | None = None
    fidelity: Array | None = None


def score(images: Images, scorer: Scorer, copies: Copies | None = None, fidelity: Array | None = None) -> Scores:
    """Score images by a bound model, subject by subject; `copies` and `fidelity` are kept as they are."""
    count, cosines = len(images.rows), are_cosines(scorer)
    identity, nearest, leaning = np.empty(count), np.empty(count, np.int64), np.full(count, np.nan)
    real = {}
    for name, references in images.references.items():
        own = np.flatnonzero(images.subject == name)
        if len(own):
            found = scorer.matrix(images.rows[own], references)
            identity[own], nearest[own] = found.mean(1), references[comparable(found).argmax(1)]
            shown = images.training.get(name)
            if cosines and shown is not None:
                between = scorer.matrix(references, shown)
                leaning[own] = _leaning(found, scorer.matrix(images.rows[own], shown), between)
        if len(references) > 1:
            real[name] = float(1 - leave_one_out(1 - scorer.matrix(references, references), "mean").mean())

    cells = images.cells()
    alike = [scorer.matrix(images.rows[of], images.rows[of]) for of in cells]
    return Scores(
        identity, nearest, real, leaning, np.array([of[0] for of in cells], np.int64),
        np.array([mean_pairwise_distance(found) for found in alike]),
        np.array([vendi_score(found) if cosines else np.nan for found in alike]), copies, fidelity,
    )  # fmt: skip


def are_cosines(scorer: Scorer) -> bool:
    """Whether the scorer's similarities are cosines, which angles, the Vendi score and drift need."""
    return isinstance(scorer, VectorScorer) and scorer.distance == "cls"


def _leaning(references: Array, training: Array, between: Array) -> Array:
    """How much nearer images (N,) are to what the generator was shown than to other photos of the subject.

    MultiID-Bench's copy-paste score, (angle(x, r) - angle(x, t)) / angle(r, t), for a photo r that the generator has
    not seen and a training image t: 1 at t, -1 at r; the mean over all such r and t. NaN if the generator was shown
    all references.

    Args:
        references: (N, R), training: (N, T), cosines of the images. between: (R, T).
    """
    x_r, x_t, r_t = (np.arccos(cosines.clip(-1, 1)) for cosines in (references, training, between))
    r, t = np.nonzero(np.broadcast_to((r_t > _SAME).all(1, keepdims=True), r_t.shape))
    if not len(r):
        return np.full(len(references), np.nan)
    found: Array = ((x_r[:, r] - x_t[:, t]) / r_t[r, t]).mean(1)
    return found
