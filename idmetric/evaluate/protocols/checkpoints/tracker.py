"""The numbers of `idmetric eval checkpoints` within a training script, every N steps.

    tracker = Tracker(IDSim("tiny"), references=photos, training=train_photos, writer=SummaryWriter("logs"))
    tracker.update(0, base_images, prompts)  # of the base model, for drift
    tracker.update(500, images, prompts)  # {"identity": 0.61, "real": 0.78, "copies": 0.0, ...}
    tracker.best().step

Numbers equal those of the command on the same images. References are embedded once. An update leaves the state of the
training alone: random numbers, gradients, autocast, modules. In a run of several processes, only the main one updates.
"""

from __future__ import annotations

import hashlib
import operator
import tempfile
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import replace
from os import PathLike, fspath
from pathlib import Path
from typing import Any

import torch
from PIL import Image
from PIL.PngImagePlugin import PngInfo

from idmetric.evaluate.protocols.checkpoints.reading import BASE
from idmetric.evaluate.protocols.checkpoints_steps import (
    Best,
    CheckpointsOptions,
    add_rows,
    best_step,
    identities_of,
    measured,
)
from idmetric.evaluate.protocols.common.dual_encoder import DualEncoder
from idmetric.evaluate.protocols.common.result import Result, Row, numbers_of
from idmetric.evaluate.protocols.common.scorers import EvalSettings, bind
from idmetric.evaluate.protocols.generator.columns import CLIP
from idmetric.evaluate.protocols.generator.outputs import as_manifest
from idmetric.evaluate.protocols.generator.pattern import GENERATED, ONLY, REFERENCE, TRAINING, GeneratedPicture
from idmetric.metric.distance.embedding import serialized
from idmetric.metric.distance.matrix import needs_patches
from idmetric.metric.images.masks import Images
from idmetric.metric.images.read import read_image, split_images
from idmetric.metric.models.embedder import Embedder
from idmetric.metric.subject import Subject, subject_among
from idmetric.stream.cache import Cache
from idmetric.stream.keys import folder_name
from idmetric.stream.pipeline import ContentSource
from idmetric.stream.store import Store


class Tracker:
    """Scores the samples of checkpoints of one subject while its LoRA trains.

    Args:
        metric: any `Embedder`; another one than a loss of the training uses.
        references: photos of the subject that were held out from training; anything `Embedder.embed` takes, or a
            `Subject` or its file.
        training: photos that the LoRA is trained on, for copies and leaning.
        writer: logs `prefix/NAME` for each number, see `log_scalars`.
        clip: adds prompt fidelity.
        options: drift prompts, the rule of the best step. settings: distance, bootstrap, store; by default, embeddings
            are kept in a temporary folder for as long as the tracker lives.

    Raises:
        TypeError: for a metric or writer of another kind.
        ManifestError, ImageReadError: naming photos that cannot be read.
        ValueError: without references.
    """

    def __init__(
        self,
        metric: Embedder,
        references: Images | Subject,
        training: Images = (),
        *,
        writer: Any = None,
        prefix: str = "identity",
        clip: DualEncoder | None = None,
        options: CheckpointsOptions = CheckpointsOptions(),
        settings: EvalSettings = EvalSettings(),
    ) -> None:
        if not isinstance(metric, Embedder):
            raise TypeError(f"metric must be a model of idmetric (IDSim, NearID, ...), got {type(metric).__name__}")
        if writer is not None:
            check_writer(writer)
        self.metric = metric
        self.writer = writer
        self.prefix = prefix
        self._models: dict[str, Any] = {metric.name: metric}
        if clip is not None:
            self._models[CLIP] = clip
        self._temporary = tempfile.TemporaryDirectory(prefix="idmetric-", ignore_cleanup_errors=True)
        self._folder = Path(self._temporary.name)
        self.settings = replace(settings, store=settings.store or self._folder / "embeddings")
        self.options = replace(options, held_out=True)

        subject = subject_among(references)
        if subject is None:
            self._photos = self._pictures(references, REFERENCE)  # type: ignore[arg-type]  # photos, then
        else:
            self._photos = self._subject_photos(subject)
        self._photos += self._pictures(training, TRAINING)
        if not any(picture.role == REFERENCE for picture in self._photos):
            raise ValueError("no references: give at least one photo of the subject")
        with self._full_precision():  # embeds them, or names unreadable ones
            bind(as_manifest(self._photos, outputs=False), {metric.name: metric}, self.settings)
        self._base: list[GeneratedPicture] = []
        self._warned: set[str] = set()
        self._last = Result("checkpoints", metric.name, [])
        self.rows: dict[int, Row] = {}
        self._identities: dict[int, dict[tuple[str, ...], float]] = {}

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
        samples = self._pictures(images, GENERATED, method=str(step))
        if isinstance(prompts, str):
            prompts = [prompts] * len(samples)
        if not samples or len(samples) != len(prompts):
            raise ValueError(f"{len(samples)} images and {len(prompts)} prompts: give one for each image")
        samples = [picture.having(prompt=prompt) for picture, prompt in zip(samples, prompts, strict=True)]
        base = self._base if step != BASE else []
        manifest = as_manifest([*base, *samples, *self._photos], "step")
        with self._full_precision():
            [self._last] = measured(manifest, self._models, self.settings, self.options)
        if step == BASE:
            self._base = samples
        self._warn()

        values = numbers_of(next((row for row in self._last.rows if row["step"] == str(step)), {}))
        self.rows[step] = {**values}
        self._identities[step] = identities_of(self._last.items["images"]).get(step, {})
        numbers = {name: value.value for name, value in values.items()}
        if self.writer is not None:
            scalars = {f"{self.prefix}/{name}": number for name, number in numbers.items()}
            log_scalars(self.writer, scalars, step)
        return numbers

    def best(self) -> Best:
        """The best step so far, by the rule of the protocol."""
        return best_step(self.rows, self._identities, self.options)

    def result(self) -> Result:
        """All steps so far as a result, for `result.table`, `result.write` and `report.plots.draw`."""
        result = replace(self._last, rows=[], items={}, notes=[])
        add_rows(result, self.rows, self._identities, self.options)
        return result

    def _pictures(self, images: Images, role: str, **fields: str) -> list[GeneratedPicture]:
        """Images as files; pixels are kept as PNG until the next update of the step."""
        pictures = []
        for number, image in enumerate(split_images(images)):
            if isinstance(image, str | PathLike):
                path = Path(fspath(image)).absolute()
            else:
                path = self._folder / f"{role}-{fields.get('method', '')}-{number}.png"
                read_image(image).save(path, compress_level=1)
            pictures.append(GeneratedPicture(path, role, {"subject": ONLY, **fields}))
        return pictures

    def _subject_photos(self, subject: Subject) -> list[GeneratedPicture]:
        """Thumbnails as files; the store has the embeddings of the subject under their keys."""
        subject.check(self.metric.model_id, self.settings.distance)
        patches = needs_patches(self.settings.distance)
        embedding = subject.embedding.cpu()
        if not patches:
            embedding = embedding.without_patches()
        digest = hashlib.blake2b(serialized(embedding, {})).hexdigest()
        note = PngInfo()
        note.add_text("embedding", digest)  # other embeddings of the same photo have other files, and so other keys

        pictures = []
        keys = []
        for number, thumbnail in enumerate(subject.thumbnails):
            path = self._folder / f"{REFERENCE}-{number}.png"
            Image.fromarray(thumbnail).save(path, pnginfo=note)
            pictures.append(GeneratedPicture(path, REFERENCE, {"subject": ONLY}))
            keys.append(ContentSource.read(fspath(path)).key)
        folder = folder_name(self.metric.about())
        store = Store(Path(self.settings.store or "") / folder, patches)
        cache = Cache.of_store(store)
        cache.add(0, {key: row for row, key in enumerate(keys)}, embedding)
        cache.save()
        return pictures

    def _full_precision(self) -> torch.autocast:
        """The precision of the metric's weights, whatever the training's autocast."""
        return torch.autocast(self.metric.device.type, enabled=False)

    def _warn(self) -> None:
        """Give each warning of the protocol once."""
        for note in self._last.notes:
            if note.startswith("WARNING") and note not in self._warned:
                self._warned.add(note)
                warnings.warn(note.removeprefix("WARNING: "), stacklevel=3)


def check_writer(writer: Any) -> None:
    """Raise a TypeError unless a writer is of a kind that `log_scalars` takes."""
    if not (hasattr(writer, "add_scalar") or hasattr(writer, "log") or callable(writer)):
        raise TypeError(
            f"cannot log to a {type(writer).__name__}: give a SummaryWriter, a run of wandb, an Accelerator, or a "
            "function of (numbers, step)"
        )


def log_scalars(writer: Any, values: Mapping[str, float], step: int) -> None:
    """Log numbers by name.

    Args:
        writer: TensorBoard's `SummaryWriter`; a run of Weights & Biases or an `Accelerator`, with
            `log(numbers, step=...)`; or a function of (numbers, step).
    """
    if hasattr(writer, "add_scalar"):
        for name, value in values.items():
            writer.add_scalar(name, value, step)
    elif hasattr(writer, "log"):
        writer.log(dict(values), step=step)
    else:
        writer(dict(values), step)
