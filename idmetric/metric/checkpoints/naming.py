"""The names of a model: how it was opened, which exact weights it has, and the signature of its scores."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any, Self

import torch
from torch import nn

from idmetric.metric.checkpoints import format as checkpoint
from idmetric.metric.checkpoints.fingerprint import weights_digest, write_counts
from idmetric.metric.checkpoints.hub import Files
from idmetric.metric.files import StrPath
from idmetric.metric.models import names
from idmetric.metric.models.devices import auto_device
from idmetric.version import __version__

_USUAL = {"preprocessing": "standard", "resize": "squash"}  # values that config.json leaves out


class Named(nn.Module):
    """A model with a name, weights with a revision, and settings that are saved with them.

    Args:
        name: the name by which the user opened it, e.g. "tiny".
        revision: which exact weights (`Checkpoint.revision`), "" for new ones.
        image_size: height and width of the encoder's input.
        files: the folder or repository that it was loaded from.
    """

    model_type = ""  # in config.json; models without one cannot be saved
    settings: Any  # the dataclass that is saved in config.json

    def __init__(self, name: str, revision: str, image_size: tuple[int, int], files: Files | None) -> None:
        super().__init__()
        self.name = name
        self.image_size = image_size
        self._opened_as = (name, _short_name(name, files))
        self._files = files
        self._revision = revision
        self._digest = ""  # of weights without a revision
        self._writes: list[tuple[int, int]] | None = None  # counters when the weights were named; None: not yet known

    # Names

    @property
    def short_name(self) -> str:
        """The name; for a folder its own name, however its path was spelled."""
        opened_name, short = self._opened_as
        return short if self.name == opened_name else self.name

    @property
    def label(self) -> str:
        """Class and name; a subclass adds every other setting that changes scores."""
        return f"{type(self).__name__}:{self.short_name}"

    @property
    def resolution(self) -> str:
        """Height x width in pixels at which images are seen."""
        height, width = self.image_size
        return f"{height}x{width}"

    @property
    def device(self) -> torch.device:
        """Where the weights are."""
        return next(self.parameters()).device

    @property
    def dtype(self) -> torch.dtype:
        """Floating type of the weights; images are cast to it."""
        return next(self.parameters()).dtype

    @property
    def revision(self) -> str:
        """Which exact weights: the checkpoint's revision, followed by "+changed" after writes; "" for new ones."""
        changed = "+changed" if self._has_changed() else ""
        return self._revision and self._revision + changed

    @property
    def model_id(self) -> str:
        """Model, exact weights and resolution in one string, which every Embedding carries.

        The weights are named by their revision, or by 12 digits of their hash if they have none.
        """
        if not self._revision and (self._has_changed() or not self._digest):
            self._digest = f"none+{weights_digest(self)[:12]}"
            self._writes = write_counts(self)
        return f"{self.label}@{self.revision or self._digest}/{self.resolution}"

    def _maker(self) -> str:
        """The `model_id` that marks an Embedding made now.

        Empty inside `torch.compile` and the transforms of torch.func, which cannot trace a hash, and while the weights
        are trained, as every step would be another model.
        """
        if torch.compiler.is_compiling() or torch._C._functorch.peek_interpreter_stack() is not None:
            return ""
        if torch.is_grad_enabled() and any(p.requires_grad for p in self.parameters()):
            return ""
        return self.model_id

    def signature(self, distance: str = "cls") -> dict[str, str]:
        """Model, revision, distance, resolution, dtype, version: reported with a score, they make it reproducible."""
        return {
            "model": self.label,
            "revision": self.revision,
            "distance": distance,
            "resolution": self.resolution,
            "dtype": str(self.dtype).removeprefix("torch."),
            "idmetric": __version__,
        }

    def about(self) -> dict[str, str]:
        """Everything that this model's features depend on, the exact weights in memory included."""
        return {
            **self.signature(),
            "weights": weights_digest(self) if self._is_unnamed() else self._revision,
            "settings": json.dumps(self.config(), sort_keys=True, default=str),
        }

    def __repr__(self) -> str:
        """One line; `print(metric.backbone)` shows the layers."""
        facts = self.signature()
        name = facts["model"].removeprefix(f"{type(self).__name__}:")
        revision = facts["revision"] or "none"
        dtype = facts["dtype"]
        return f"{type(self).__name__}({name!r}, revision {revision}, {self.resolution}, {dtype} on {self.device})"

    # Weights

    def _has_changed(self) -> bool:
        """Whether PyTorch counted a write to the weights since they were named (see `write_counts`)."""
        writes = write_counts(self)
        if self._writes is None:
            self._writes = writes
        return writes is not None and writes != self._writes

    def _is_unnamed(self) -> bool:
        """Whether no revision names the weights that are in memory now."""
        return not self._revision or self._has_changed()

    def take_revision(self, revision: str) -> None:
        """Call the weights that are in memory now by this revision."""
        self._revision = revision
        self._digest = ""
        self._writes = write_counts(self)

    def _name_saved(self, folder: StrPath, revision: Callable[[Path], str]) -> None:
        """Call weights that have no revision, or have changed, by that of the folder to which they were just saved."""
        if self._is_unnamed():
            self.take_revision(revision(Path(folder)))
            self._files = Files(folder)

    def _finish(self, device: torch.device | str | None, dtype: torch.dtype | None) -> None:
        """Freeze weights that were just loaded, move them, and call them by the revision that they were loaded as."""
        self.requires_grad_(False).eval()
        self.to(auto_device() if device is None else device, dtype)
        self.take_revision(self._revision)

    def _apply(self, *args: Any, **options: Any) -> Self:
        """Move to another device or type, which does not count as a change of the weights."""
        changed = self._has_changed()
        moved: Self = super()._apply(*args, **options)  # type: ignore[no-untyped-call]  # torch's
        if not changed:
            self._writes = write_counts(self)
        return moved

    def __getstate__(self) -> dict[str, Any]:
        # a copy has other tensors, with counters of their own
        return {**vars(self), "_writes": [] if self._has_changed() else None}

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)  # type: ignore[no-untyped-call]  # torch's
        if self._writes is None:  # counted from now on, not from the first question
            self._writes = write_counts(self)

    def train(self, mode: bool = True) -> Self:
        """As `nn.Module.train`, except that a frozen model stays in eval mode.

        So a metric kept inside a larger module gives the same scores when that module trains.
        """
        return super().train(mode and any(p.requires_grad for p in self.parameters()))

    # Files

    def config(self) -> dict[str, Any]:
        """The settings that config.json needs to rebuild this model, as plain JSON values: fields of `settings`."""
        config = asdict(self.settings)
        return {name: value for name, value in config.items() if (name, value) not in _USUAL.items()}

    def save_pretrained(self, folder: StrPath) -> None:
        """Write config.json and model.safetensors; `idmetric.load(folder)` opens them again."""
        if not self.model_type:
            raise NotImplementedError(f"{self.name} is opened by its name and cannot be saved")
        checkpoint.write(folder, {"model_type": self.model_type, **self.config()}, self.state_dict())
        self._name_saved(folder, checkpoint.revision)

    @classmethod
    def from_pretrained(cls, source: StrPath, **options: Any) -> Self:
        """The same as calling the class: `IDSim.from_pretrained("run/")` is `IDSim("run/")`."""
        return cls(source, **options)  # type: ignore[arg-type]  # subclasses take the source first


def _short_name(name: str, files: Files | None) -> str:
    """A folder's own name, with "./" before it if a published model has that name; other names as they are."""
    is_folder = files is not None and files.local and os.path.isdir(name) and os.path.samefile(name, files.name)
    if not is_folder:
        return name
    short = os.path.basename(os.path.realpath(name)) or name
    return f"./{short}" if names.known(short) else short
