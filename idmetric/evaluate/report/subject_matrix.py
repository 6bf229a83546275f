"""The matrix of a method: the subject that its images should show, by the subject with the nearest references."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass

from idmetric.evaluate.protocols.common.result import Result

SHOWN = 12  # subjects of a matrix


@dataclass(frozen=True)
class SubjectMatrix:
    """How many images of a method are nearest to each subject.

    Attributes:
        subjects: the rows and columns, in the order of the data: those with the most confused images.
        images: (row, column) -> images that should show the subject of the row and are nearest to that of the column;
            not whole numbers where draws of references differ. totals: row -> its images, also of hidden columns.
        hidden: the number of subjects that are left out.
    """

    method: str
    subjects: list[str]
    images: dict[tuple[str, str], float]
    totals: dict[str, float]
    hidden: int

    def share(self, row: str, column: str) -> float:
        """The share of a row's images that are nearest to the subject of a column."""
        return self.images.get((row, column), 0.0) / self.totals[row]


def subject_matrices(result: Result, methods: Iterable[str]) -> list[SubjectMatrix]:
    """The matrices of the methods with confused images, in this order."""
    items = result.items.get("nearest_subjects", {})
    images_of: dict[str, dict[tuple[str, str], float]] = {}
    columns = [items.get(name, []) for name in ("method", "subject", "nearest", "images")]
    for method, subject, nearest, images in zip(*columns, strict=True):
        images_of.setdefault(method, {})[subject, nearest] = images

    matrices = []
    for method in methods:
        matrix = _matrix(method, images_of.get(method, {}))
        if matrix.subjects:
            matrices.append(matrix)
    return matrices


def _matrix(method: str, images: dict[tuple[str, str], float]) -> SubjectMatrix:
    """The matrix of a method; without subjects if no image is confused."""
    totals: dict[str, float] = defaultdict(float)
    confused: dict[str, float] = defaultdict(float)  # images that should show a subject, or seem to
    for (subject, nearest), count in images.items():
        totals[subject] += count
        confused[subject] += 0
        if subject != nearest:
            confused[subject] += count
            confused[nearest] += count

    with_confused = [subject for subject, count in confused.items() if count > 0]
    with_confused.sort(key=lambda subject: -confused[subject])
    shown = with_confused[:SHOWN]
    return SubjectMatrix(
        method=method,
        subjects=[subject for subject in confused if subject in shown],
        images=images,
        totals=totals,
        hidden=len(confused) - len(shown),
    )
