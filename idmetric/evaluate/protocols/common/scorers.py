"""One interface to all models of protocols: similarities of a manifest's rows, higher = more alike.

    scorers = bind(manifest, {"tiny": load("tiny"), "LPIPS": models.open_model("lpips")}, EvalSettings())
    scorers.models["tiny"].matrix([0, 1], [2, 3])  # similarities (2, 2) of rows 0, 1 to rows 2, 3
    scorers.models["LPIPS"].pairs([0, 1], [2, 3])  # similarities (2,) of rows 0 and 2, rows 1 and 3

Models that give vectors are embedded one after the other, each image once. Metrics of pairs (LPIPS, DiffSim) see each
image once too, and compare when they are asked, see `pairwise`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Protocol, TypeAlias, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from idmetric.evaluate.protocols.common.columns import Array, listed
from idmetric.evaluate.protocols.common.paper_numbers import missing_rows, open_points
from idmetric.evaluate.protocols.common.result import Result
from idmetric.metric.distance import distance, distance_matrix, needs_patches
from idmetric.scoring.calibration import PAIR_RATE, CalibrationError, calibration_of
from idmetric.scoring.scores import Limit
from idmetric.store import settings_digest
from idmetric.stream import ImageModel, Look, PlainModel

if TYPE_CHECKING:
    import torch
    from pandas import DataFrame
    from typing_extensions import TypeIs

    from idmetric.data.embed import Stored, Want
    from idmetric.evaluate.protocols.common.pairwise import PairModel
    from idmetric.metric.embedder import Embedder
    from idmetric.metric.embedding import Embedding

Rows = Sequence[int] | NDArray[np.integer]
Model: TypeAlias = "Embedder | PlainModel | PairModel | PairJudge"  # what `models.open_model` opens
Models: TypeAlias = "Mapping[str, Model]"  # by the names that the user gave
Progress = Callable[[int, int], None]
_PATCH_BYTES = 2**28  # of patch tokens held at once, on each side of a matrix
_COLUMNS = 2**16  # of a matrix of cosines, in double precision at once
_PAIRS = 2**12  # of vectors, in double precision at once
MAX_PAIRS = 1_000_000  # of 1,413 images


@dataclass(frozen=True)
class EvalSettings:
    """Settings of all protocols.

    Attributes:
        distance: of models with patches, see `idmetric.metric.distance`.
        bootstrap: resamples for intervals; 0 = none. seed: of the resampling.
        store: folder that keeps embeddings; None keeps none.
        look: whether models see whole images or subjects alone.
        on_error: for unreadable images: "fail" with a list of all, or "skip" them and the rows that depend on them.
        batch_size: images per pass. workers: threads that read images.
        progress: called with (images done, images to do).
        max_pairs: pairs of images that a metric of pairs may compare in all, see `pairwise.PairScorer`.
        pair_progress: called with (pairs done, pairs to do) by metrics of pairs and judges.
        out: folder for files that a protocol writes itself; None: it writes none.
        data_name: the data's name, for these files.
        device: of models that a protocol opens itself, such as a CLIP; None: the best one.
        wants: functions that take what they need of each image while it is read for the models.
    """

    distance: str = "cls"
    bootstrap: int = 1000
    seed: int = 0
    store: Path | None = None
    look: Look = field(default_factory=Look)
    on_error: Literal["fail", "skip"] = "fail"
    batch_size: int = 32
    workers: int | None = None
    progress: Progress | None = None
    max_pairs: int = MAX_PAIRS
    pair_progress: Progress | None = None
    out: Path | None = None
    data_name: str = ""
    device: str | None = None
    wants: tuple[Want, ...] = ()

    def __post_init__(self) -> None:
        needs_patches(self.distance)  # raises for an unknown one
        if min(self.bootstrap, self.seed) < 0 or min(self.batch_size, self.max_pairs) < 1:
            raise ValueError("bootstrap and seed are 0 or more, batch_size and max_pairs at least 1")

    def as_dict(self) -> dict[str, Any]:
        """The settings that change numbers, to report with them."""
        return {
            "distance": self.distance,
            "bootstrap": self.bootstrap,
            "seed": self.seed,
            "outside": self.outside,
        }

    @property
    def outside(self) -> str:
        """The treatment of pixels outside the masks; "all" if models see whole images."""
        if not self.look.masked:
            return "all"
        return self.look.outside


class Scorer(Protocol):
    """A model bound to a manifest."""

    def signature(self) -> dict[str, str]:
        """Facts about the model to report with a score."""

    def matrix(self, rows: Rows, columns: Rows) -> Array:
        """Similarities (R, C) of each row to each column."""

    def pairs(self, a: Rows, b: Rows) -> Array:
        """Similarities (P,) of a's rows to b's, one by one."""


class JudgeScorer(Scorer, Protocol):
    """A judge that is bound to a manifest."""

    def problems(self, rows: Rows | None = None) -> dict[int, str]:
        """Row -> reason of all images (or some rows) that cannot be used."""


@runtime_checkable
class PairJudge(Protocol):
    """A model that is asked about pairs of images, and binds itself to a manifest; see `judges.scorer`."""

    def bind(self, manifest: DataFrame, settings: EvalSettings) -> JudgeScorer:
        """The judge for a manifest."""

    def report(self) -> str:
        """Its cost so far."""


@dataclass(frozen=True)
class Bound:
    """A manifest without unusable rows, and the models bound to it."""

    manifest: DataFrame
    models: dict[str, Scorer]
    notes: list[str]

    def results(
        self,
        protocol: str,
        settings: Mapping[str, Any],
        notes: Sequence[str] = (),
    ) -> Iterator[tuple[Scorer, Result]]:
        """Each model with its result, to which the protocol adds rows, items and further notes."""
        for name, scorer in self.models.items():
            signature = scorer.signature()
            label = signature.get("model", "")
            result = Result(
                protocol,
                name,
                rows=[],
                signature=signature,
                settings=settings,
                notes=[*self.notes, *notes, *open_points(protocol, label)],
                missing=missing_rows(protocol),
            )
            yield scorer, result


def bind(
    manifest: DataFrame,
    models: Models,
    settings: EvalSettings,
    rows_of: Callable[[DataFrame], Rows] | None = None,
    words_of: Callable[[DataFrame], Mapping[int, str]] | None = None,
    *,
    wants: Sequence[Want] = (),
) -> Bound:
    """Read and embed the images of a manifest (or of some rows) for all models.

    Args:
        models: name -> an `Embedder`, or a result of `models.open_model`.
        rows_of: the rows of a manifest that are needed; default all.
        words_of: row -> the text that goes with its image, for models that read; see `idmetric.data.embed.embed`.
        wants: see `idmetric.data.embed.embed`; in addition to the settings' own.

    Raises:
        ManifestError: naming all images that cannot be used, unless `settings.on_error` is "skip", which leaves them
            and the rows that depend on them out of the result's manifest, with a note.
        ValueError: if a model has no patches, and the distance needs them.
    """
    from idmetric.data.check import without
    from idmetric.data.embed import unusable
    from idmetric.evaluate.protocols.common.pairwise import PairModel
    from idmetric.metric.embedder import Embedder

    vector_models: dict[str, ImageModel] = {}
    pair_models: dict[str, PairModel] = {}
    judges: dict[str, PairJudge] = {}
    for name, model in models.items():
        if isinstance(model, PairModel):
            pair_models[name] = model
        elif isinstance(model, Embedder | PlainModel):
            vector_models[name] = model
        else:
            judges[name] = model

    with_patches = {name for name, model in vector_models.items() if model.has_patches}
    lacking = [name for name in models if name not in with_patches]
    if needs_patches(settings.distance) and lacking:
        raise ValueError(f"models without patches: {', '.join(lacking)}; leave them out, or use the distance cls")

    wants = (*settings.wants, *wants)
    wants_of_pair_models = () if vector_models else wants  # once is enough
    notes: list[str] = []
    while True:
        rows = rows_of(manifest) if rows_of else None
        words = words_of(manifest) if words_of else {}
        scorers: dict[str, Scorer] = {}
        problems: dict[int, str] = {}
        if vector_models:
            bound, problems = _bound_vectors(manifest, vector_models, settings, rows, words, wants)
            scorers |= bound
        if pair_models and not problems:
            bound, problems = _bound_pairs(manifest, pair_models, settings, rows, wants_of_pair_models)
            scorers |= bound
        for name, judge in judges.items():
            if not problems:
                judge_scorer = judge.bind(manifest, settings)
                problems = judge_scorer.problems(rows)
                scorers[name] = judge_scorer
        if not problems:
            return Bound(manifest, {name: scorers[name] for name in models}, notes)

        usable = without(manifest, set(problems))
        if settings.on_error != "skip" or not len(usable):
            raise unusable(manifest, problems)
        lost = len(manifest) - len(usable)
        names = listed(manifest["id"][list(problems)])
        notes.append(
            f"{len(problems)} images could not be used: {names} ({lost} rows that depend on them are left out)"
        )
        manifest = usable


def _bound_vectors(
    manifest: DataFrame,
    models: Mapping[str, ImageModel],
    settings: EvalSettings,
    rows: Rows | None,
    words: Mapping[int, str],
    wants: Sequence[Want],
) -> tuple[dict[str, Scorer], dict[int, str]]:
    """Models bound to the embeddings of rows, and row -> reason of images that cannot be used.

    If files are missing, which is cheap to find out, nothing is embedded.
    """
    from idmetric.data.embed import embed, items_of

    all_read_words = all(model.reads_words for model in models.values())
    _, missing = items_of(manifest, rows, settings.look, words, all_read_words)
    if missing:
        return {}, missing

    stored = embed(
        manifest,
        models,
        rows,
        store=settings.store,
        patches=needs_patches(settings.distance),
        look=settings.look,
        words=words,
        batch_size=settings.batch_size,
        workers=settings.workers,
        progress=settings.progress,
        skip=True,
        wants=wants,
    )
    scorers: dict[str, Scorer] = {}
    problems: dict[int, str] = {}
    for name, model in models.items():
        problems.update(stored[name].problems)
        scorers[name] = VectorScorer(model, stored[name], settings.distance)
    return scorers, problems


def _bound_pairs(
    manifest: DataFrame,
    models: Mapping[str, PairModel],
    settings: EvalSettings,
    rows: Rows | None,
    wants: Sequence[Want],
) -> tuple[dict[str, Scorer], dict[int, str]]:
    """Metrics of pairs bound to the images of rows, and row -> reason of images that cannot be used."""
    from idmetric.evaluate.protocols.common.pairwise import PairScorer, prepare

    images, problems = prepare(
        manifest,
        models,
        rows,
        look=settings.look,
        workers=settings.workers,
        progress=settings.progress,
        wants=wants,
    )
    scorers: dict[str, Scorer] = {}
    for name, prepared in images.items():
        scorers[name] = PairScorer(
            models[name],
            prepared,
            batch_size=settings.batch_size,
            max_pairs=settings.max_pairs,
            progress=settings.pair_progress,
        )
    return scorers, problems


def is_embedder(model: Any) -> TypeIs[Embedder]:
    """Whether a model is an `Embedder`; to ask does not load torch."""
    from idmetric.metric.embedder import Embedder

    return isinstance(model, Embedder)


def facts_of(model: ImageModel) -> dict[str, str]:
    """A model's signature, for an `Embedder` with its weights and settings."""
    if not is_embedder(model):
        return model.signature()
    facts = model.about()
    return {
        **model.signature(),
        "interpolation": model.interpolation,
        "weights": facts["weights"],
        "settings": settings_digest({key: facts[key] for key in ("settings", "seen")}),
    }


class VectorScorer:
    """Similarity 1 - distance of embeddings."""

    def __init__(self, model: ImageModel, stored: Stored, distance: str = "cls") -> None:
        self.model = model
        self.stored = stored
        self.distance = distance
        self.device: torch.device | str = "cpu"
        if is_embedder(model):
            self.device = model.device
        rows = sorted(stored.keys)
        self._rows = np.array(rows, dtype=np.int64)
        self._vectors = _unit(stored.vectors(self._rows))

    @property
    def embedder(self) -> Embedder:
        """The model, if it has patches."""
        assert is_embedder(self.model)  # no other model has patches
        return self.model

    def signature(self) -> dict[str, str]:
        """See `Scorer`."""
        return {**facts_of(self.model), "distance": self.distance}

    def vectors(self, rows: Rows) -> Array:
        """Unit-length global features (R, D)."""
        numbers = np.searchsorted(self._rows, rows)
        return self._vectors[numbers].astype(np.float64)

    def matrix(self, rows: Rows, columns: Rows) -> Array:
        """See `Scorer`."""
        rows = np.asarray(rows)
        columns = np.asarray(columns)
        similarities = np.empty((len(rows), len(columns)))
        if self.distance == "cls":
            left = self.vectors(rows)
            for part in slices(len(columns), _COLUMNS):
                right = self.vectors(columns[part])
                np.matmul(left, right.T, out=similarities[:, part])
            return similarities.clip(-1, 1, out=similarities)

        for i in self._blocks(len(rows)):
            for j in self._blocks(len(columns)):
                loaded_rows = self._load(rows[i])
                loaded_columns = self._load(columns[j])
                distances = distance_matrix(loaded_rows, loaded_columns, self.distance)
                similarities[i, j] = 1 - distances.double().cpu().numpy()
        return similarities

    def pairs(self, a: Rows, b: Rows) -> Array:
        """See `Scorer`."""
        a = np.asarray(a)
        b = np.asarray(b)
        similarities = np.empty(len(a))
        if self.distance == "cls":
            for part in slices(len(a), _PAIRS):
                products = self.vectors(a[part]) * self.vectors(b[part])
                similarities[part] = products.sum(1)
            return similarities

        for part in self._blocks(len(a)):
            loaded_a = self._load(a[part])
            loaded_b = self._load(b[part])
            distances = distance(loaded_a, loaded_b, self.distance)
            similarities[part] = 1 - distances.double().cpu().numpy()
        return similarities

    def _load(self, rows: Rows) -> Embedding:
        return self.stored.embedding(rows).to(self.device)

    def _blocks(self, count: int) -> list[slice]:
        patches = self.stored.embedding(self._rows[:1]).patches
        assert patches is not None
        return slices(count, max(1, _PATCH_BYTES // (patches[0].numel() * 4)))


def _unit(vectors: NDArray[np.float32]) -> NDArray[np.float32]:
    doubles = vectors.astype(np.float64)
    norm = np.linalg.norm(doubles, axis=1, keepdims=True)
    return np.asarray(vectors / norm, dtype=np.float32)


def slices(count: int, size: int) -> list[slice]:
    """Slices of `size` items that cover `count` items; the last one may be smaller."""
    starts = range(0, count, size)
    return [slice(start, min(start + size, count)) for start in starts]


def answered(scores: Array, where: str, notes: list[str]) -> NDArray[np.bool_]:
    """Which comparisons (P,) have a score, as a judge may have given none of some; adds a note on those without.

    Raises:
        ValueError: if none has one.
    """
    has_score = np.isfinite(scores)
    if not has_score.any():
        raise ValueError(f"{where}: none of {len(scores)} comparisons has an answer")
    if not has_score.all():
        lost = int((~has_score).sum())
        notes.append(f"{where}: {lost} of {len(scores)} comparisons have no answer and are left out")
    return has_score


# Thresholds of calibrations


def calibrated(
    model: Model,
    settings: EvalSettings,
    file: Path | None = None,
    rate: float = PAIR_RATE,
) -> Limit | None:
    """The threshold at a false-accept rate, a distance, by a model's calibration.

    Args:
        file: the calibration to use in place of the model's own.
        rate: see `Calibration.threshold_at`.

    Returns:
        None for baselines, and for models without a calibration for this distance and treatment of masks, or whose
        calibration lists no threshold at this rate or below.

    Raises:
        CalibrationError: for a file of another model, distance or way of masking, or without such a threshold.
    """
    from idmetric.metric.embedder import Embedder

    if not isinstance(model, Embedder):
        return None
    calibration = calibration_of(model, file, settings.distance, settings.outside)
    if calibration is None:
        return None
    try:
        return calibration.threshold_at(rate)
    except CalibrationError:
        if file is not None:
            raise
        return None
