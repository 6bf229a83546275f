"""The names of a model: how it was opened, which exact weights it has, and the signature of its scores."""

from __future__ import annotations

from typing import Any, Self

import torch
from torch import nn

from idmetric.metric.checkpoints.fingerprint import weights_digest, write_counts
from idmetric.version import __version__


class Named(nn.Module):
    """A model with a name, and weights with a revision; `Saved` describes the arguments."""

    def __init__(self, name: str, short_name: str, revision: str, image_size: tuple[int, int]) -> None:
        super().__init__()
        self.name = name
        self.short_name = short_name
        self.image_size = image_size
        self._revision = revision
        self._digest = ""  # of weights without a revision
        self._writes: list[tuple[int, int]] | None = None  # to the weights, when they were last looked at
        self._changed = False  # whether there were writes since the weights were named

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
        """Model, exact weights (new ones by 12 digits of their hash) and resolution, which every Embedding carries."""
        if not self._revision and (self._has_changed() or not self._digest):
            self._digest = f"none+{weights_digest(self)[:12]}"
            self._changed = False
        return f"{self.label}@{self.revision or self._digest}/{self.resolution}"

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

    def _maker(self) -> str:
        """The `model_id` that marks an Embedding made now.

        Empty inside `torch.compile` and the transforms of torch.func, which cannot trace a hash, and while the weights
        are trained, as every step would be another model.
        """
        if torch.compiler.is_compiling() or torch._C._functorch.peek_interpreter_stack() is not None:
            return ""
        is_training = torch.is_grad_enabled() and any(p.requires_grad for p in self.parameters())
        return "" if is_training else self.model_id

    def __repr__(self) -> str:
        """One line; `print(metric.backbone)` shows the layers."""
        kind, _, name = self.label.partition(":")
        revision = self.revision or "none"
        dtype = str(self.dtype).removeprefix("torch.")
        where = f"{dtype} on {self.device}"
        return f"{kind}({name!r}, revision {revision}, {self.resolution}, {where})"

    def take_revision(self, revision: str) -> None:
        """Call the weights that are in memory now by this revision."""
        self._revision = revision
        self._digest = ""
        self._writes = write_counts(self)
        self._changed = False

    def _has_changed(self) -> bool:
        """Whether PyTorch counted a write to the weights since they were named (see `write_counts`)."""
        writes = write_counts(self)
        if self._writes is not None and writes is not None and writes != self._writes:
            self._changed = True
        self._writes = writes
        return self._changed

    def _apply(self, *args: Any, **options: Any) -> Self:
        """Move to another device or type, which does not count as a change of the weights."""
        self._has_changed()
        moved: Self = super()._apply(*args, **options)  # type: ignore[no-untyped-call]  # torch's
        self._writes = write_counts(self)
        return moved

    def __getstate__(self) -> dict[str, Any]:
        self._has_changed()
        return {**vars(self), "_writes": None}  # addresses, which differ each time

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)  # type: ignore[no-untyped-call]  # torch's
        self._writes = write_counts(self)  # of the copy's tensors
