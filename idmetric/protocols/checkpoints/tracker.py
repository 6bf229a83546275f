"""The numbers of `idmetric eval checkpoints` within a training script, every N steps.

    tracker = Tracker(IDSim("tiny"), references=photos, training=train_photos, writer=SummaryWriter("logs"))
    tracker.update(0, base_images, prompts)  # of the base model, for drift
    tracker.update(500, images, prompts)  # {"identity": 0.61, "real": 0.78, "copies": 0.0, ...}
    tracker.best().step

Numbers equal those of the command on the same images. References are embedded once. An update leaves the state of the
training alone: random numbers, gradients, autocast, modules. In a run of several processes, only the main one updates.
"""

from __future__ import annotations

import operator
import tempfile
import warnings
from collections.abc import Sequence
from dataclasses import dataclass, replace
from io import BytesIO
from os import PathLike, fspath
from pathlib import Path
from typing import Any

import torch

from idmetric.data.manifest.table import Manifest
from idmetric.data.manifest.table import Row as ImageRow
from idmetric.embed.keys import key_of
from idmetric.images.kinds import ImageLike
from idmetric.images.masks import Images
from idmetric.images.read import read_image, split_images
from idmetric.io.progress import check_writer, log_scalars
from idmetric.models.embedder import Embedder
from idmetric.protocols.checkpoints.protocol import Best, add_rows, best_step, measured
from idmetric.protocols.checkpoints.reading import BASE
from idmetric.protocols.common.dual_encoder import DualEncoder
from idmetric.protocols.common.result import Result, Row, Value
from idmetric.protocols.common.scorers import Settings, bind
from idmetric.protocols.generator.columns import CLIP
from idmetric.protocols.generator.outputs import words
from idmetric.protocols.generator.pattern import GENERATED, ONLY, REFERENCE, TRAINING
from idmetric.protocols.options import CheckpointsOptions


class Tracker:
    """Scores the samples of checkpoints of one subject while its LoRA trains.

    Args:
        metric: any `Embedder`; another one than a loss of the training uses.
        references: photos of the subject that were held out from training; anything `Embedder.embed` takes.
        training: photos that the LoRA is trained on, for copies and leaning.
        writer: logs `prefix/NAME` for each number, see `idmetric.io.progress.log_scalars`.
        clip: adds prompt fidelity.
        options: drift prompts, the rule of the best step. settings: distance, bootstrap, store; by default, embeddings
            are kept in a temporary folder for as long as the tracker lives.

    Raises:
        TypeError: for a metric or writer of another kind.
        UnreadableError, ImageReadError: naming photos that cannot be read.
        ValueError: without references.
    """

    def __init__(
        self,
        metric: Embedder,
        references: Images,
        training: Images = (),
        *,
        writer: Any = None,
        prefix: str = "identity",
        clip: DualEncoder | None = None,
        options: CheckpointsOptions = CheckpointsOptions(),
        settings: Settings = Settings(),
    ) -> None:
        if not isinstance(metric, Embedder):
            raise TypeError(f"metric must be a model of idmetric (IDSim, NearID, ...), got {type(metric).__name__}")
        if writer is not None:
            check_writer(writer)
        self.metric, self.writer, self.prefix = metric, writer, prefix
        self._models: dict[str, Any] = {metric.name: metric} if clip is None else {metric.name: metric, CLIP: clip}
        self._temporary = tempfile.TemporaryDirectory(prefix="idmetric-") if settings.store is None else None
        store = settings.store if self._temporary is None else Path(self._temporary.name)
        self.settings, self.options = replace(settings, store=store), replace(options, held_out=True)

        photos = [*_photos(references, REFERENCE), *_photos(training, TRAINING)]
        if not any(image.role == REFERENCE for image in photos):
            raise ValueError("no references: give at least one photo of the subject")
        with self._full_precision():  # embeds them, or names unreadable ones
            bind(_manifest(photos), {metric.name: metric}, self.settings)
        self._photos = list({(image.role, key_of(image.source)): image for image in photos}.values())
        self._base: list[_Image] = []
        self._warned: set[str] = set()
        self._last = Result("checkpoints", metric.name, [])
        self.rows: dict[int, Row] = {}

    def update(self, step: int, images: Images, prompts: str | Sequence[str]) -> dict[str, float]:
        """Score the samples of a step, and log the numbers; step 0 is the base model, to which drift compares.

        Args:
            images: PIL images, tensors in [0, 1], arrays or files.
            prompts: of each image, or of all. The images of a prompt have the same seeds, in order, at every step.

        Returns:
            The numbers of the step's row by name, without undefined ones.

        Raises:
            ImageReadError: if an image cannot be read.
            TypeError: for a step that is not a whole number.
            ValueError: for a negative step, or if there are more or fewer prompts than images.
        """
        step = int(operator.index(step))
        if step < 0:
            raise ValueError(f"a step is 0 or more, got {step}")
        own = _samples(images, step, prompts)
        shown = [*(self._base if step != BASE else []), *own, *self._photos]
        with self._full_precision():
            [self._last] = measured(_manifest(shown), self._models, self.settings, self.options)
        if step == BASE:
            self._base = own
        self._warn()

        found = [row for row in self._last.rows if row["step"] == str(step)]
        self.rows[step] = {name: value for row in found for name, value in row.items() if isinstance(value, Value)}
        numbers = {name: value.value for name, value in self.rows[step].items() if isinstance(value, Value)}
        if self.writer is not None:
            log_scalars(self.writer, {f"{self.prefix}/{name}": value for name, value in numbers.items()}, step)
        return numbers

    def best(self) -> Best:
        """The best step so far, by the rule of the protocol."""
        return best_step(self.rows, self.options)

    def result(self) -> Result:
        """All steps so far as a result, for `result.table`, `result.write` and `report.plots.draw`."""
        found = replace(self._last, rows=[], items={}, notes=[])
        add_rows(found, self.rows, self.options)
        return found

    def _full_precision(self) -> torch.autocast:
        """The precision of the metric's weights, whatever the training's autocast."""
        return torch.autocast(self.metric.device.type, enabled=False)

    def _warn(self) -> None:
        """Give each warning of the protocol once."""
        for note in self._last.notes:
            if note.startswith("WARNING") and note not in self._warned:
                self._warned.add(note)
                warnings.warn(note.removeprefix("WARNING: "), stacklevel=3)


# Images


@dataclass(frozen=True)
class _Image:
    """An image with its place; `source` is a file or the bytes of one."""

    source: str | bytes
    role: str
    id: str
    step: int | None = None
    prompt: str | None = None
    seed: int | None = None


def _photos(images: Images, role: str) -> list[_Image]:
    singles = split_images(images)
    return [_Image(_source(image), role, f"{role} {k}") for k, image in enumerate(singles)]


def _samples(images: Images, step: int, prompts: str | Sequence[str]) -> list[_Image]:
    singles = split_images(images)
    texts = [prompts] * len(singles) if isinstance(prompts, str) else list(prompts)
    if not len(singles) == len(texts) > 0:
        raise ValueError(f"{len(singles)} images and {len(texts)} prompts: give one for each image")
    return [
        _Image(_source(image), GENERATED, f"step {step}, image {k}", step, text, texts[:k].count(text))
        for k, (image, text) in enumerate(zip(singles, texts, strict=True))
    ]


def _source(image: ImageLike) -> str | bytes:
    """The file of an image, or its pixels as the bytes of a PNG."""
    if isinstance(image, str | PathLike):
        return str(Path(fspath(image)).absolute())
    held = BytesIO()
    read_image(image).save(held, format="PNG", compress_level=1)
    return held.getvalue()


def _manifest(images: Sequence[_Image]) -> Manifest:
    """The manifest of samples and photos as `reading.read` makes it of files."""
    rows = [
        ImageRow(
            ONLY if i.role == REFERENCE else None, i.source if isinstance(i.source, str) else None,
            i.source if isinstance(i.source, bytes) else None, id=i.id, text=words(i.prompt),
            role="context-edit" if i.role == GENERATED else "real",
        )
        for i in images
    ]  # fmt: skip
    return Manifest.from_rows(rows).replace(
        x_role=[i.role for i in images],
        x_method=[None if i.step is None else str(i.step) for i in images],
        x_subject=[ONLY] * len(images),
        x_prompt=[i.prompt for i in images],
        x_seed=[None if i.seed is None else str(i.seed) for i in images],
        x_held_out=[None] * len(images),
    )
