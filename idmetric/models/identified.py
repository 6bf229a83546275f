"""The identity of a model: its name, its exact weights, and everything else that its embeddings depend on."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from idmetric import __version__
from idmetric.checkpoints.fingerprint import Marks, weights_digest
from idmetric.checkpoints.hub import Files
from idmetric.images.fit import SQUASH, Fit
from idmetric.images.masks import MaskId
from idmetric.images.opening import Decode, checked, mark_of
from idmetric.images.read import Outside, Preprocessing

Self = TypeVar("Self", bound="IdentifiedModel")


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
        self.revision = revision
        is_folder = (files is None or files.local) and os.path.isdir(name)
        self._named = (name, os.path.basename(os.path.realpath(name)) or name if is_folder else name)
        self._files = files
        self._loaded: Marks | None = None  # of the weights of `revision`; None where they have been changed
        self._new_digest = ""  # of weights without a revision, when they were first asked for

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
    def model_id(self) -> str:
        """Model, exact weights and resolution in one string, which every Embedding carries.

        The weights are named by their revision, followed by 12 digits of their hash if they were written to after they
        were loaded (by training, say), or have no revision. The name is the folder's own, however its path was spelled.
        """
        return self._model_id(values=True)

    def _model_id(self, values: bool) -> str:
        exact = self.revision or "none"
        if not self.revision or not self._as_loaded(values):
            exact += f"+{self._kept_digest() if self._as_loaded(values) else weights_digest(self)[:12]}"
        return f"{self.label}@{exact}/{self.resolution}"

    def _kept_digest(self) -> str:
        """Digest of new weights, which have no revision; it stays when they are moved or rounded."""
        if not self._new_digest:
            self._new_digest = weights_digest(self)[:12]
        return self._new_digest

    def _as_loaded(self, values: bool) -> bool:
        if self._loaded is None:
            return False
        now = Marks.of(self, values)
        return now.written == self._loaded.written and (not values or now.values == self._loaded.values)

    def _maker(self) -> str:
        """The `model_id` that marks an Embedding made now.

        Empty inside `torch.compile`, which cannot trace a hash, and while the weights are trained, as every step
        would be another model. A graph is built without waiting for the device.
        """
        if torch.compiler.is_compiling():
            return ""
        graph = torch.is_grad_enabled()
        if graph and any(p.requires_grad for p in self.parameters()):
            return ""
        return self._model_id(values=not graph)

    def take_revision(self, revision: str) -> None:
        """Call the weights that are in memory now by this revision."""
        self.revision, self._loaded = revision, Marks.of(self)

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
            "weights": weights_digest(self),
            "settings": json.dumps(self.config(), sort_keys=True, default=str),
            "seen": f"{self.image_size} {self.mean} {self.std} {self.interpolation} {self.background}{shape}",
            "outside": outside or "all",
            **({} if self.decode == "exact" else {"decode": self.decode}),
            **({} if mask_id is None else {"mask_id": str(mask_id)}),
        }

    @property
    def spelled_label(self) -> str:
        """The label with the model's path as it was spelled; idmetric 0.1 named folders by it."""
        kind = type(self).__name__
        return f"{kind}:{self.name}{self.label.removeprefix(f'{kind}:{self.short_name}')}"

    def train(self: Self, mode: bool = True) -> Self:
        """As `nn.Module.train`, except that a frozen model stays in eval mode.

        So a metric kept inside a larger module gives the same scores when that module trains.
        """
        return super().train(mode and any(p.requires_grad for p in self.parameters()))

    def _finish(self, device: torch.device | str | None, dtype: torch.dtype | None) -> None:
        self.requires_grad_(False).eval()
        self.to(auto_device() if device is None else device, dtype)
        self._loaded = Marks.of(self)

    def _apply(self: Self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Self:
        """Weights moved to a device or to a dtype of less precision still count as the loaded ones."""
        kept, before = self._as_loaded(values=True), self.dtype
        if kept and not self.revision:
            self._kept_digest()
        moved: Self = super()._apply(fn, recurse)  # type: ignore[no-untyped-call]  # torch's
        rounded = before.itemsize < 4 and self.dtype != before  # what 16 bits have lost does not come back
        self._loaded = Marks.of(self) if kept and not rounded else None
        return moved

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_loaded": self._as_loaded(values=True)}

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)  # type: ignore[no-untyped-call]  # torch's
        self._loaded = Marks.of(self) if state["_loaded"] else None  # a copy has other addresses
