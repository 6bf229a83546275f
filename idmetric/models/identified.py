"""The identity of a model: its name, its exact weights, and everything else that its embeddings depend on."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, Self

import torch
from torch import nn

from idmetric import __version__
from idmetric.checkpoints.fingerprint import Sample, weights_digest, writes
from idmetric.checkpoints.hub import Files
from idmetric.images.fit import SQUASH, Fit
from idmetric.images.masks import MaskId
from idmetric.images.opening import Decode, checked, mark_of
from idmetric.images.read import Outside, Preprocessing


def auto_device() -> torch.device:
    """CUDA where there is one, else Apple's MPS, else the CPU."""
    if torch.cuda.is_available():
        return torch.device("cuda")
    return torch.device("mps" if torch.backends.mps.is_available() else "cpu")


class IdentifiedModel(nn.Module):
    """A frozen model that knows its name and revision, and notices when its weights change.

    Args:
        name: the name by which the user opened it, e.g. "tiny".
        revision: which exact weights (`Checkpoint.revision`); "" for new ones.
        files: the folder or repository that it was loaded from.
    """

    # set by `Embedder`
    image_size: tuple[int, int]
    mean: tuple[float, ...]
    std: tuple[float, ...]
    interpolation: str
    background: tuple[int, int, int]
    preprocessing: Preprocessing
    fit: Fit

    scales_files = True  # whether images are resized with antialiasing, before which files may be scaled
    _decode: Decode = "exact"

    def __init__(self, name: str, revision: str, files: Files | None) -> None:
        super().__init__()
        self.name = name
        is_folder = (files is None or files.local) and os.path.isdir(name)
        self._named = (name, os.path.basename(os.path.realpath(name)) or name if is_folder else name)
        self._files = files
        self._revision = revision
        self._sample: Sample | None = None  # of the weights when they were named
        self._writes: list[tuple[int, int]] = []  # when the sample was last compared
        self._changed = False  # whether it differed then
        self._digest = ""  # of weights without a revision

    def config(self) -> dict[str, Any]:
        """The settings that config.json needs to rebuild this model, as plain JSON values."""
        raise NotImplementedError(f"{type(self).__name__} does not define config")

    @property
    def decode(self) -> Decode:
        """How files are decoded, a setting that `idmetric.load` takes too.

        "exact" decodes all pixels; "fast" decodes large JPEG files at a smaller size, which moves distances a little
        (`idmetric.images.opening`). Images with a mask, other formats, and decoded images keep all pixels.

        Raises:
            ValueError: for another name, or "fast" where the model needs all pixels.
        """
        return self._decode

    @decode.setter
    def decode(self, decode: str) -> None:
        if checked(decode) == "fast" and not self.scales_files:
            raise ValueError(f"{self.name!r} needs all pixels of a file: leave out --decode fast (decode='fast')")
        self._decode = checked(decode)

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
        """Which exact weights: the checkpoint's revision, followed by "+changed" once they differ; "" for new ones."""
        return self._revision and self._exact()

    @property
    def model_id(self) -> str:
        """Model, exact weights and resolution in one string, which every Embedding carries.

        The weights are named by their revision, or by 12 digits of their hash if they have none. The name is the
        folder's own, however its path was spelled.
        """
        return self._model_id()

    def _model_id(self, look: bool = True) -> str:
        return f"{self.label}@{self._exact(look)}/{self.resolution}"

    def _exact(self, look: bool = True) -> str:
        changed = self._has_changed(look)
        if self._revision:
            return self._revision + "+changed" * changed
        if changed:
            self._digest, self._sample = f"none+{weights_digest(self)[:12]}", Sample(self)
            self._changed = False
        return self._digest

    def _has_changed(self, look: bool = True) -> bool:
        """Whether the weights are others than the named ones.

        Args:
            look: compare values even if PyTorch counted no write since the last time, which waits for the device.
        """
        now = writes(self)
        if look or now != self._writes:
            self._writes, self._changed = now, self._sample is None or not self._sample.fits(self)
        return self._changed

    def _maker(self) -> str:
        """The `model_id` that marks an Embedding made now.

        Empty inside `torch.compile` and the transforms of torch.func, which cannot trace a hash, and while the weights
        are trained, as every step would be another model. A graph is built without waiting for the device.
        """
        if torch.compiler.is_compiling() or torch._C._functorch.peek_interpreter_stack() is not None:
            return ""
        graph = torch.is_grad_enabled()
        if graph and any(p.requires_grad for p in self.parameters()):
            return ""
        return self._model_id(look=not graph)

    def take_revision(self, revision: str) -> None:
        """Call the weights that are in memory now by this revision."""
        self._revision, self._sample = revision, Sample(self) if revision else None

    def _name_saved(self, folder: str | os.PathLike[str], revision: Callable[[Path], str]) -> None:
        """Call weights that have no revision, or have changed, by that of the folder to which they were just saved."""
        if not self._revision or self._has_changed():
            self.take_revision(revision(Path(folder)))
            self._files = Files(folder)

    @property
    def short_name(self) -> str:
        """The name; for a folder its own name, however its path was spelled."""
        given, short = self._named
        return short if self.name == given else self.name

    @property
    def label(self) -> str:
        """Class and name, and every other setting of a model that changes its scores."""
        reading = "" if self.preprocessing == "standard" else f"[{self.preprocessing} preprocessing]"
        shape = "" if self.fit == SQUASH else f"[{self.fit}, {self.interpolation}]"
        return f"{type(self).__name__}:{self.short_name}{reading}{mark_of(self.decode)}{shape}"

    @property
    def resolution(self) -> str:
        """Height x width in pixels at which images are seen."""
        height, width = self.image_size
        return f"{height}x{width}"

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

    def about(self, outside: Outside | None = None, mask_id: MaskId | None = None) -> dict[str, str]:
        """Everything that this model's embeddings depend on, the exact weights in memory included.

        Args:
            outside: what becomes of pixels outside masks; None for whole images.
            mask_id: which label of the masks is the subject, if one was chosen.
        """
        shape = "" if self.fit == SQUASH else f" {self.fit}"
        return {
            **self.signature(),
            "weights": weights_digest(self) if not self._revision or self._has_changed() else self._revision,
            "settings": json.dumps(self.config(), sort_keys=True, default=str),
            "seen": f"{self.image_size} {self.mean} {self.std} {self.interpolation} {self.background}{shape}",
            "outside": outside or "all",
            **({} if self.decode == "exact" else {"decode": self.decode}),
            **({} if mask_id is None else {"mask_id": str(mask_id)}),
        }

    def train(self, mode: bool = True) -> Self:
        """As `nn.Module.train`, except that a frozen model stays in eval mode.

        So a metric kept inside a larger module gives the same scores when that module trains.
        """
        return super().train(mode and any(p.requires_grad for p in self.parameters()))

    def _finish(self, device: torch.device | str | None, dtype: torch.dtype | None) -> None:
        self.requires_grad_(False).eval()
        self.to(auto_device() if device is None else device, dtype)
        self.take_revision(self._revision)
