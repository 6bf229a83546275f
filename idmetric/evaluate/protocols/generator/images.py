"""The generated images of a manifest with their places, and the scores of each by a model."""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from idmetric.evaluate.protocols.common.columns import Array, Ints, Truths
from idmetric.evaluate.protocols.common.scorers import Scorer
from idmetric.evaluate.protocols.generator.pattern import FIELD, GENERATED, REFERENCE, TRAINING
from idmetric.evaluate.statistics.diversity import mean_pairwise_distance
from idmetric.metric.ties import comparable
from idmetric.scoring.references import leave_one_out

if TYPE_CHECKING:
    from pandas import DataFrame

    from idmetric.evaluate.protocols.generator.pictures import PicturesTaken

Names = NDArray[Any]
Place = tuple[str, str, str]  # subject, prompt, seed


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
    def of(cls, data: DataFrame) -> Images:
        """The images of a manifest that `outputs.read` made; images of subjects without a reference are left out."""
        columns: dict[str, Names] = {}
        for name in ("role", "method", "subject", "prompt", "seed"):
            columns[name] = data[FIELD + name].fillna("").to_numpy()
        role, subject = columns.pop("role"), columns["subject"]

        def by_subject(wanted: str) -> dict[str, Ints]:
            rows = np.flatnonzero(role == wanted)
            return {name: rows[subject[rows] == name] for name in dict.fromkeys(subject[rows])}

        references = by_subject(REFERENCE)
        rows = np.flatnonzero((role == GENERATED) & np.isin(subject, list(references)))
        return cls(
            rows=rows,
            file=data["path"].to_numpy()[rows],
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
        columns = ("rows", "file", "method", "subject", "prompt", "seed")
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
class MethodScores:
    """Scores of the images by a model.

    Attributes:
        identity: (G,) mean similarity to the references of the subject. nearest: (G,) row of the most similar one.
        real: subject -> mean similarity of each of its distinct references to the others; absent for subjects with one.
        several: (C,) an image of each method, subject and prompt with two images or more. diversity: (C,) their mean
            pairwise distance.
        copies: highest agreements with references and training images; None if not asked for.
        fidelity: (G,) cosine of image and prompt, NaN without a prompt in words; None if not asked for.
    """

    identity: Array
    nearest: Ints
    real: Mapping[str, Array]
    several: Ints
    diversity: Array
    copies: Copies | None = None
    fidelity: Array | None = None

    def real_of_images(self, subjects: Names, share_above: float | None = None) -> Array:
        """For the subject of each image (G,), the mean of `real`, or the share that is not below a similarity.

        NaN for subjects with one reference.
        """
        values = {}
        for subject, similarities in self.real.items():
            if share_above is not None:
                similarities = (comparable(similarities) >= comparable(share_above)).astype(float)
            values[subject] = float(similarities.mean())
        return np.array([values.get(subject, np.nan) for subject in subjects])


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
    identity = np.empty(len(images.rows))
    nearest = np.empty(len(images.rows), np.int64)
    for subject, members in images.by_subject().items():
        references = images.references[subject]
        similarities = scorer.matrix(images.rows[members], references)
        identity[members] = similarities.mean(1)
        nearest[members] = references[comparable(similarities).argmax(1)]

    real = {}
    for subject, rows in photos.items():
        if len(rows) > 1:
            distances = 1 - scorer.matrix(rows, rows)
            real[subject] = 1 - leave_one_out(distances, "mean")

    several, diversity = [], []
    for members in images.cells():
        several.append(members[0])
        diversity.append(mean_pairwise_distance(scorer.matrix(images.rows[members], images.rows[members])))
    return MethodScores(
        identity=identity,
        nearest=nearest,
        real=real,
        several=np.array(several, np.int64),
        diversity=np.array(diversity),
        copies=copies,
        fidelity=fidelity,
    )


def sizes_of(images: Images, data: DataFrame, taken: PicturesTaken) -> dict[str, str]:
    """Method -> width and height of its images in pixels; "mixed" with all of them if they differ."""
    sizes: dict[str, set[tuple[int, int]]] = {}
    for method, row in zip(images.method, images.rows, strict=True):
        sizes.setdefault(method, set()).add(taken.size(data["path"][row]))
    texts = {}
    for method, sides in sizes.items():
        listing = ", ".join(f"{width}x{height}" for width, height in sorted(sides))
        texts[method] = listing if len(sides) == 1 else f"mixed: {listing}"
    return texts
