"""The generated images of a manifest with their places, and the scores of each by a model."""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from idmetric.evaluate.protocols.common.columns import Array, Ints, Truths, free
from idmetric.evaluate.protocols.common.scorers import Scorer, VectorScorer
from idmetric.evaluate.protocols.generator.pattern import GENERATED, REFERENCE, TRAINING
from idmetric.evaluate.statistics.diversity import mean_pairwise_distance, vendi_score
from idmetric.metric.distance.ties import comparable
from idmetric.scoring.references import leave_one_out

if TYPE_CHECKING:
    from idmetric.data.manifest.table import Manifest
    from idmetric.evaluate.protocols.generator.pictures import PicturesTaken
    from idmetric.matching.similarities import Similarities

Names = NDArray[Any]
Place = tuple[str, str, str]  # subject, prompt, seed
_SAME = 1e-3  # radians, below which two photos count as one


@dataclass(frozen=True)
class Images:
    """Generated images, in the manifest's order, and the references of each subject.

    Attributes:
        rows: (G,) of the manifest; an image of several subjects has a row for each.
        file: (G,) a value that the rows of one image share.
        method, subject, prompt, seed: (G,) texts. label: (G,) what the subject is, such as "dog", or "".
        story: (G,) the story that the image is a shot of, or "".
        references, training: subject -> rows.
    """

    rows: Ints
    file: Names
    method: Names
    subject: Names
    prompt: Names
    seed: Names
    label: Names
    story: Names
    references: Mapping[str, Ints]
    training: Mapping[str, Ints]

    @classmethod
    def of(cls, data: Manifest, role_of_images: str = GENERATED) -> Images:
        """The images of a manifest that `outputs.read` made; images of subjects without a reference are left out."""
        columns: dict[str, Names] = {}
        for name in ("role", "method", "subject", "prompt", "seed", "label", "story"):
            texts = [text or "" for text in free(data, name)]
            columns[name] = np.array(texts, dtype=object)
        role, subject = columns.pop("role"), columns["subject"]

        def by_subject(wanted: str) -> dict[str, Ints]:
            rows = np.flatnonzero(role == wanted)
            return {name: rows[subject[rows] == name] for name in dict.fromkeys(subject[rows])}

        references = by_subject(REFERENCE)
        rows = np.flatnonzero((role == role_of_images) & np.isin(subject, list(references)))
        paths = data.column("path")
        return cls(
            rows=rows,
            file=np.array([paths[row] or f"row {row}" for row in rows], dtype=object),
            references=references,
            training=by_subject(TRAINING),
            **{name: column[rows] for name, column in columns.items()},
        )

    @property
    def methods(self) -> list[str]:
        """Methods in order of appearance."""
        return list(dict.fromkeys(self.method))

    def places(self) -> list[Place]:
        """(subject, prompt, seed) of each image."""
        return list(zip(self.subject, self.prompt, self.seed, strict=True))

    def take(self, chosen: Truths) -> Images:
        """The images where `chosen` (G,) is true."""
        columns = ("rows", "file", "method", "subject", "prompt", "seed", "label", "story")
        return replace(self, **{name: getattr(self, name)[chosen] for name in columns})

    def by_subject(self) -> dict[str, Ints]:
        """Subject -> the numbers of its images."""
        return {subject: np.flatnonzero(self.subject == subject) for subject in dict.fromkeys(self.subject)}

    def cells(self) -> list[Ints]:
        """The images (numbers below G) of each method, subject and prompt with two or more, which differ by seed."""
        cells = _grouped(zip(self.method, self.subject, self.prompt, strict=True))
        return [members for members in cells if len(members) > 1]

    def shown(self, subject: str) -> Ints:
        """Rows of the subject's references and training images."""
        references = self.references[subject]
        return np.concatenate([references, self.training.get(subject, references[:0])])

    @cached_property
    def scenes(self) -> list[Ints]:
        """The numbers below G of each image of a method, one for each subject that it should show.

        A file that has several rows for one subject, such as at two seeds, is an image at each.
        """
        times: Counter[tuple[str, str, str]] = Counter()
        keys = []
        for row in zip(self.method, self.file, self.subject, strict=True):
            method, file, _ = row
            keys.append((method, file, times[row]))
            times[row] += 1
        return _grouped(keys)

    @property
    def once(self) -> Ints:
        """The first of each image's subjects (a number below G), for values of whole images."""
        return np.array([members[0] for members in self.scenes], dtype=np.int64)

    @property
    def have_several_subjects(self) -> bool:
        """Whether an image should show several subjects."""
        return any(len(members) > 1 for members in self.scenes)

    def on_shared_places(self) -> SharedImages:
        """The images at places that all methods have, or else of the subjects that all have."""
        keys_of: dict[str, Sequence[Hashable]] = {
            "combinations of subject, prompt and seed": self.places(),
            "subjects": list(self.subject),
        }
        for noun, keys in keys_of.items():
            keys_of_method = self._by_method(keys)
            shared = set.intersection(*keys_of_method.values())
            every = set.union(*keys_of_method.values())
            if shared == every:
                return SharedImages(self)
            if shared:
                is_shared = np.array([key in shared for key in keys])
                compared_on = f"{len(shared)} of {len(every)} {noun}"
                note = f"compared on the {compared_on} that all have; other images are left out"
                return SharedImages(self.take(is_shared), compared_on, [note])
        note = "WARNING: no subject has images of all methods, so that their numbers do not compare"
        return SharedImages(self, notes=[note])

    def missing(self) -> dict[str, list[Place]]:
        """Method -> the places that other methods have and it lacks."""
        every = dict.fromkeys(self.places())
        missing = {}
        for method, places in self._by_method(self.places()).items():
            if len(places) < len(every):
                missing[method] = [place for place in every if place not in places]
        return missing

    def _by_method(self, keys: Sequence[Hashable]) -> dict[str, set[Hashable]]:
        """Method -> the keys of its images."""
        by_method: dict[str, set[Hashable]] = {}
        for method, key in zip(self.method, keys, strict=True):
            by_method.setdefault(method, set()).add(key)
        return by_method


@dataclass(frozen=True)
class SharedImages:
    """The images that methods are compared on.

    Attributes:
        compared_on: how many places or subjects all methods have, such as "11 of 18 subjects"; empty if all of them.
        notes: on images that are left out, or numbers that do not compare.
    """

    images: Images
    compared_on: str = ""
    notes: list[str] = field(default_factory=list)


def _grouped(keys: Iterable[Hashable]) -> list[Ints]:
    """The numbers of the items of each different key."""
    groups: dict[Hashable, list[int]] = {}
    for index, key in enumerate(keys):
        groups.setdefault(key, []).append(index)
    return [np.array(members) for members in groups.values()]


class Copies(NamedTuple):
    """The highest agreement (G,) of each image with a reference or training image, and the row (G,) of that one."""

    agreement: Array
    original: Ints


@dataclass(frozen=True)
class Sightings:
    """Subjects in the regions of G generated images.

    Attributes:
        identity: (G,) similarity of the subject's region, whatever the threshold; 0 in images without regions.
        is_found: (G,). state: (G,) see `Match.states`; "" without a threshold.
        threshold: (G,) of the subject, a distance, NaN without one. threshold_source: (G,) see `Match`.
        similarities: method -> story, or "" -> what published numbers are computed from.
    """

    identity: Array
    is_found: Truths
    state: Names
    threshold: Array
    threshold_source: Names
    similarities: Mapping[str, Mapping[str, Similarities]]


@dataclass(frozen=True)
class Confusion:
    """How often images are nearer to the references of another subject than to those of their own.

    Attributes:
        subjects: (S,) all subjects with references.
        nearest: (G, S) share of draws in which a subject is the nearest one, see `statistics.nearest_group`.
        right: (G,) the number of each image's subject.
        chance: (G,) the share that is confused if the nearest subject is drawn at random; 0 where none other competes.
        real: number of a subject -> the same share of its references, each left out of its subject in turn; absent for
            subjects with one.
        size: references of each subject in a draw.
    """

    subjects: list[str]
    nearest: Array
    right: Ints
    chance: Array
    real: Mapping[int, float]
    size: int

    @property
    def confused(self) -> Array:
        """The share (G,) of draws in which another subject is nearest; NaN where no other one competes."""
        shares = 1 - self.nearest[np.arange(len(self.right)), self.right]
        return np.where(self.chance > 0, shares, np.nan)


@dataclass(frozen=True)
class MethodScores:
    """Scores of the images by a model.

    Attributes:
        identity: (G,) mean similarity to the references of the subject. nearest: (G,) row of the most similar one.
        real: subject -> mean similarity of its distinct references to each other; absent for subjects with one.
        leaning: (G,) see `_leaning`; NaN without training images, unseen references or cosines.
        several: (C,) an image of each method, subject and prompt with two images or more. diversity: (C,) their mean
            pairwise distance. vendi: (C,) their Vendi score; NaN without cosines.
        copies: highest agreements with references and training images; None if not asked for.
        fidelity: (G,) cosine of image and prompt, NaN without a prompt in words; None if not asked for.
        floor: (G,) identity of the image that the prompt alone gives, NaN without one; None if not asked for.
        seen: subjects in regions, where `identity` is of these; None for whole images.
        grades: name -> grades (G,) by a language model, NaN for images without, see `grades.Grades.columns`.
        confusion: the nearest subject of each image; None if not asked for.
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
    floor: Array | None = None
    seen: Sightings | None = None
    grades: Mapping[str, Array] = field(default_factory=dict)
    confusion: Confusion | None = None


def score(
    images: Images,
    scorer: Scorer,
    photos: Mapping[str, Ints],
    copies: Copies | None = None,
    fidelity: Array | None = None,
) -> MethodScores:
    """Score images by a bound model, subject by subject.

    Args:
        photos: subject -> rows of its distinct references, which `real` compares.
        copies, fidelity: are kept as they are.
    """
    has_cosines = are_cosines(scorer)
    identity = np.empty(len(images.rows))
    nearest = np.empty(len(images.rows), np.int64)
    leaning = np.full(len(images.rows), np.nan)
    for subject, members in images.by_subject().items():
        rows, references = images.rows[members], images.references[subject]
        similarities = scorer.matrix(rows, references)
        identity[members] = similarities.mean(1)
        nearest[members] = references[comparable(similarities).argmax(1)]
        training = images.training.get(subject)
        if has_cosines and training is not None:
            between = scorer.matrix(references, training)
            leaning[members] = _leaning(similarities, scorer.matrix(rows, training), between)

    real = {}
    for subject, rows in photos.items():
        if len(rows) > 1:
            distances = 1 - scorer.matrix(rows, rows)
            real[subject] = float(1 - leave_one_out(distances, "mean").mean())

    several, diversity, vendi = [], [], []
    for members in images.cells():
        similarities = scorer.matrix(images.rows[members], images.rows[members])
        several.append(members[0])
        diversity.append(mean_pairwise_distance(similarities))
        vendi.append(vendi_score(similarities) if has_cosines else np.nan)
    return MethodScores(
        identity=identity,
        nearest=nearest,
        real=real,
        leaning=leaning,
        several=np.array(several, np.int64),
        diversity=np.array(diversity),
        vendi=np.array(vendi),
        copies=copies,
        fidelity=fidelity,
    )


def on_places(images: Images, scored: Images, values: Array) -> Array:
    """The values (G,) of other images, such as the floor's, at the places of these; NaN where there is none."""
    value_of = dict(zip(scored.places(), values.tolist(), strict=True))
    return np.array([value_of.get(place, np.nan) for place in images.places()])


def sizes_of(images: Images, data: Manifest, taken: PicturesTaken) -> dict[str, str]:
    """Method -> width and height of its images in pixels; "mixed" with all of them if they differ."""
    sizes: dict[str, set[tuple[int, int]]] = {}
    for method, row in zip(images.method, images.rows, strict=True):
        source = data.source(row) or b""
        sizes.setdefault(method, set()).add(taken.size(source))
    texts = {}
    for method, sides in sizes.items():
        listing = ", ".join(f"{width}x{height}" for width, height in sorted(sides))
        texts[method] = listing if len(sides) == 1 else f"mixed: {listing}"
    return texts


def are_cosines(scorer: Scorer) -> bool:
    """Whether the scorer's similarities are cosines, which angles and the Vendi score need."""
    return isinstance(scorer, VectorScorer) and scorer.distance == "cls"


def _leaning(references: Array, training: Array, between: Array) -> Array:
    """How much nearer images (N,) are to what the generator was shown than to other photos of the subject.

    MultiID-Bench's copy-paste score, (angle(x, r) - angle(x, t)) / angle(r, t), for a photo r that the generator has
    not seen and a training image t: 1 at t, -1 at r, never beyond; the mean over all such r and t. NaN if the generator
    was shown all references.

    Args:
        references: (N, R), training: (N, T), cosines of the images. between: (R, T).
    """
    x_r = np.arccos(references.clip(-1, 1))
    x_t = np.arccos(training.clip(-1, 1))
    r_t = np.arccos(between.clip(-1, 1))
    unseen = (r_t > _SAME).all(1)
    if not unseen.any():
        return np.full(len(references), np.nan)
    nearer = x_r[:, unseen, None] - x_t[:, None, :]
    leaning: Array = (nearer / r_t[unseen]).mean((1, 2))
    return leaning
