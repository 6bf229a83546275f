"""The settings of `idmetric.score`, and its result: rows, and the facts that all rows share."""

from __future__ import annotations

import math
import os
import statistics
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import TYPE_CHECKING, Any, Literal

from idmetric.metric.errors import RequestError
from idmetric.metric.files import StrPath, json_text
from idmetric.scoring.limits import Limit
from idmetric.scoring.records import File as File  # part of this module
from idmetric.scoring.records import Record, Records
from idmetric.tables import aligned, first_few, four, rounded

if TYPE_CHECKING:
    from idmetric.metric.images import Outside
    from idmetric.metric.masks import MaskId
    from idmetric.scoring.calibration import Calibration

PathLike = StrPath
Progress = Callable[[int, int], object]  # called with (images or pairs done, images or pairs in all)
# columns of scores with any options; other columns of a file of pairs may not have these names
COLUMNS = (
    "rank",
    "distance",
    "image",
    "reference",
    "model",
    "revision",
    "distance_name",
    "resolution",
    "dtype",
    "idmetric",
    "probability",
    "probability_basis",
    "real_mean",
    "real_max",
    "copy",
    "copy_agreement",
)
NEEDS_TWO = "how far real photos of the subject are from each other is shown with two different photos or more: --ref"


@dataclass(frozen=True)
class ScoreSettings:
    """The settings of `idmetric.score`, which explains them.

    Attributes:
        calibrated: the threshold of the calibration, see `score.limit_of`.
    """

    distance: str = "cls"
    aggregate: Literal["best", "mean"] = "best"
    mask_dir: PathLike | None = None
    mask_id: MaskId | None = None
    outside: Outside = "black"
    on_error: Literal["fail", "skip"] = "fail"
    cache: PathLike | None = None
    calibration: Calibration | None = None
    calibrated: Limit | None = None
    copies: bool = True
    threshold: float | Limit | None = None
    batch_size: int = 32
    workers: int | None = None

    def __post_init__(self) -> None:
        if self.aggregate not in ("best", "mean"):
            raise RequestError(f"unknown aggregate {self.aggregate!r}: choose best, mean")
        if self.on_error not in ("fail", "skip"):
            raise RequestError(f"unknown on_error {self.on_error!r}: choose fail, skip")
        if self.threshold is not None and math.isnan(Limit.of(self.threshold).distance):
            raise RequestError("threshold must be a number")


@dataclass(frozen=True)
class Baseline:
    """Distances of genuine photos of the subject to each other: leave-one-out, see `scoring.references`.

    Attributes:
        distances: the distance of each reference to the others. aggregate: to the nearest ("best") or their mean.
        repeated: references without a distance, which repeat the picture of another, and the name of that one.
    """

    distances: dict[str, float]
    aggregate: str
    repeated: dict[str, str] = field(default_factory=dict)

    @property
    def mean(self) -> float:
        """The mean of the references' distances."""
        return sum(self.distances.values()) / len(self.distances)

    @property
    def max(self) -> float:
        """The largest of the references' distances."""
        return max(self.distances.values())


@dataclass(frozen=True)
class NamedValue:
    """The number of a published score (see `models.named`) for the scored images; higher = more similar.

    Attributes:
        name: e.g. "dino-i:dreambooth". value: None where the source defines none for this request.
        note: what it is the mean of and where it is defined, or the reason why there is none.
    """

    name: str
    value: float | None
    note: str


@dataclass(frozen=True)
class Scores(Records):
    """Scored images: a row for each, with the fields that `idmetric score --format json` prints.

    Rows are sorted by distance; rows of pairs keep the order of the pairs. `to_pandas` and `to_records` give the rows;
    `to_csv`, `to_json`, `to_jsonl` and `to_table` give the command's four formats.

    Attributes:
        signature: model, revision, distance, resolution, dtype and version, to report with the scores.
        skipped: `image` and `reason` of each unreadable image, with on_error="skip".
        baseline: distances of the references to each other; None for pairs and a single photo, however many copies.
        references: number of references; 0 for pairs.
        limit: the largest distance that passes, with its source; None without one.
        left_out: references among the images, which have no row.
        other: columns of a file of pairs that are carried through.
        calibration: the source of the probabilities.
        named: the number of a published score, if the model was opened by its name.
    """

    signature: dict[str, str] = field(default_factory=dict)
    skipped: Sequence[Record] = ()
    baseline: Baseline | None = None
    references: int = 0
    limit: Limit | None = None
    left_out: Sequence[str] = ()
    other: Sequence[str] = ()
    calibration: Calibration | None = None
    named: NamedValue | None = None

    @property
    def threshold(self) -> float | None:
        """The largest distance that passes; None without one."""
        return None if self.limit is None else self.limit.distance

    @property
    def threshold_source(self) -> str:
        """Where the threshold comes from, see `limits.Limit`; "" without one."""
        return "" if self.limit is None else self.limit.source

    @property
    def summary(self) -> dict[str, Any]:
        """Count, mean and sample standard deviation of the distances, and how many of them pass the threshold.

        Returns:
            n, mean (None without rows), std (n - 1; None for fewer than two rows); with a threshold also threshold,
            threshold_source, passing (how many are not above it) and share_passing in [0, 1]; with copies among the
            rows also without_copies, these numbers of the other rows; with a published score also named.
        """
        distances = [row["distance"] for row in self.rows]
        summary: dict[str, Any] = {
            "n": len(distances),
            "mean": statistics.fmean(distances) if distances else None,
            "std": statistics.stdev(distances) if len(distances) > 1 else None,
        }
        if self.threshold is not None:
            passing = len(distances) - len(self.failing)
            share = passing / len(distances) if distances else None
            summary |= {"threshold": self.threshold, "threshold_source": self.threshold_source}
            summary |= {"passing": passing, "share_passing": share}
        new_rows = [row for row in self.rows if not row.get("copy")]
        if len(new_rows) < len(self.rows):
            summary["without_copies"] = replace(self, rows=new_rows, named=None).summary
        if self.named is not None:
            summary["named"] = asdict(self.named)
        return summary

    @property
    def failing(self) -> list[Record]:
        """The rows with a distance above the threshold."""
        if self.threshold is None:
            return []
        from idmetric.metric.ties import comparable

        return [row for row in self.rows if not comparable(row["distance"]) <= comparable(self.threshold)]

    @property
    def probability_note(self) -> str:
        """What to believe where probabilities and real photos disagree about an image; "" where they do not.

        They disagree about an image that is farther than every real photo and more probably the same than not, and
        about one that is nearer and more probably another.
        """
        if self.baseline is None or not self.rows or "probability" not in self.rows[0]:
            return ""
        from idmetric.metric.ties import comparable

        distances = comparable([row["distance"] for row in self.rows])
        probabilities = comparable([row["probability"] for row in self.rows])
        is_farther = distances > comparable(self.baseline.max)
        farther = int((is_farther & (probabilities > 0.5)).sum())
        nearer = int((~is_farther & (probabilities < 0.5)).sum())

        count = len(self.baseline.distances)
        sentences = []
        if farther:
            sentences.append(
                f"{_images(farther)} farther than every real photo although P(same) is above 0.5: believe the real "
                "photos, which show this subject, while P(same) is of pairs of other subjects; with "
                f"{count} references, 1 in {count + 1} new photos of the subject would be farther, too"
            )
        if nearer:
            sentences.append(
                f"{_images(nearer)} as near as real photos although P(same) is below 0.5: believe the real photos if "
                "all of them show the subject, since P(same) is of pairs of other subjects"
            )
        return "; ".join(sentences)

    def _repr_html_(self) -> str:
        """The first rows as a notebook shows them, with pictures of image files."""
        from idmetric.scoring.display import scores_html

        return scores_html(self)

    def to_html(self) -> str:
        """The page of `idmetric score --html`, with pictures read from the files again.

        Raises:
            ImportError: without jinja2.
        """
        from idmetric.scoring.sheet import read_album, score_page

        return score_page(self, read_album(self))

    def write(self, path: PathLike) -> None:
        """Write a .csv, .json or .jsonl file, or the page as .html, atomically; ValueError for another ending."""
        if os.fspath(path).lower().endswith(".html"):
            from idmetric.page import write_page

            write_page(self.to_html(), path)
            return
        try:
            super().write(path)
        except ValueError as error:
            raise ValueError(f"{error}, .html") from None

    def plot(self, ax: Any = None) -> Any:
        """Draw the distance of each image, the range of the real photos and the threshold; returns matplotlib's Axes.

        Args:
            ax: Axes to draw into; default: new ones.

        Raises:
            ImportError: without matplotlib.
        """
        from idmetric.scoring.display import plot_scores

        return plot_scores(self, ax)

    def to_dict(self) -> dict[str, Any]:
        """The object that `--format json` prints; numbers with nine significant digits."""
        baseline = self.baseline
        values: dict[str, Any] = {"signature": self.signature, "rows": self.rows, "baseline": None}
        if baseline is not None:
            values["baseline"] = {**asdict(baseline), "mean": baseline.mean, "max": baseline.max}
        if self.references and baseline is None:
            values["baseline_note"] = NEEDS_TWO
        if self.probability_note:
            values["probability_note"] = self.probability_note
        values["skipped"] = list(self.skipped)
        if self.left_out:
            values["references_left_out"] = list(self.left_out)
        values["summary"] = self.summary
        rounded_values: dict[str, Any] = rounded(values)
        return rounded_values

    def to_json(self) -> str:
        """`to_dict` as text."""
        return json_text(self.to_dict(), indent=2) + "\n"

    def to_jsonl(self) -> str:
        """Format a JSON object for each row, with the mean and maximum of the baseline."""
        return self._with_baseline().to_jsonl()

    def to_csv(self) -> str:
        """Format CSV text with the baseline's mean and maximum in each row; numbers have four decimals."""
        return self._with_baseline().to_csv()

    def to_table(self) -> str:
        """Format the columns that have values, aligned, and below them the facts that all rows share."""
        lines = _columns(self) if self.rows else []
        return "\n".join(line.rstrip() for line in [*lines, *_notes(self)]) + "\n"

    def _with_baseline(self) -> Records:
        if self.baseline is None:
            return Records(self.rows, self.columns)
        facts = {"real_mean": self.baseline.mean, "real_max": self.baseline.max}
        rows = [row | facts for row in self.rows]
        return Records(rows, (*self.columns, *facts))


def columns_of(rows: Sequence[Record]) -> tuple[str, ...]:
    """Return the keys of all rows, in order of first appearance."""
    names: Record = {}
    for row in rows:
        names |= row
    return tuple(names)


# As a text table


def _columns(scores: Scores) -> list[str]:
    has_copies = any(row.get("copy") for row in scores.rows)
    has_several = _has_several_references(scores)
    lines = []
    for row in scores.rows:
        cells = {"rank": f"{row['rank']:>4}", "distance": f"{four(row['distance']):>8}"}
        if "probability" in row:
            cells["P(same)"] = f"{four(row['probability']):>7}"
        cells["image"] = row["image"]
        if has_several:
            cells["reference"] = row["reference"]
        if has_copies:
            cells["copy"] = "copy" if row.get("copy") else ""
        lines.append(cells)
    return aligned([list(lines[0]), *(list(cells.values()) for cells in lines)])


def _images(count: int) -> str:
    return "1 image is" if count == 1 else f"{count} images are"


def _has_several_references(scores: Scores) -> bool:
    return len({row["reference"] for row in scores.rows}) > 1


def _notes(scores: Scores) -> list[str]:
    lines = []
    baseline = scores.baseline
    needs_two = f"({NEEDS_TWO})" if scores.references and baseline is None else ""
    if scores.rows and not _has_several_references(scores):
        lines.append(f"reference: {scores.rows[0]['reference']} {needs_two}")
    elif needs_two:
        lines.append(needs_two)
    if baseline is not None:
        count = f"{len(baseline.distances)} references"
        if baseline.repeated:
            count += f" ({len(baseline.repeated)} more repeat one of them)"
        lines.append(
            f"real to real, leave-one-out ({baseline.aggregate}) over {count}: mean {four(baseline.mean)}, max "
            f"{four(baseline.max)}"
        )
    if scores.left_out:
        left_out = ", ".join(first_few(scores.left_out, 5))
        lines.append(f"left out, as references: {left_out} (--include-refs scores them too)")
    if scores.other:
        lines.append(f"other columns, in --format csv, json and jsonl: {', '.join(scores.other)}")
    if scores.rows and "probability_basis" in scores.rows[0]:
        lines.append(scores.rows[0]["probability_basis"])
    if scores.probability_note:
        lines.append(scores.probability_note)
    lines.append("  ".join(f"{key}={value}" for key, value in scores.signature.items()))

    summary = scores.summary
    lines.append(f"summary: {_numbers(summary)}")
    if "without_copies" in summary:
        lines.append(f"without copies: {_numbers(summary['without_copies'])}")
    named = scores.named
    if named is not None:
        value = "none" if named.value is None else four(named.value)
        lines.append(f"{named.name}: {value} ({named.note})")
    return lines


def _numbers(summary: dict[str, Any]) -> str:
    parts = [f"n {summary['n']}"]
    for name in ("mean", "std"):
        if summary[name] is not None:
            parts.append(f"{name} {four(summary[name])}")
    if summary.get("share_passing") is not None:
        limit = Limit(summary["threshold"], summary["threshold_source"])
        parts.append(f"share passing {four(summary['share_passing'])} ({summary['passing']} of {summary['n']})")
        parts.append(f"threshold {limit}")
    return ", ".join(parts)
