"""Which weights a model has: name, revision, a hash of them in memory, PyTorch's counters of writes to them."""

from __future__ import annotations

import copy
import hashlib
import os
import weakref
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn


class Weights:
    """The names of a model's weights, and whether they have changed since they were named.

    Args:
        module: the model; it is not kept alive.
        name: the name by which the user opened it, e.g. "tiny".
        revision: which exact weights (`Checkpoint.revision`), "" for new ones.
        folder: that they were loaded from, perhaps with a calibration; of the Hub its cache.

    Attributes:
        is_folder: whether it was opened from a local folder of that name.
        short_name: in labels; of a folder its own name.
    """

    def __init__(self, module: nn.Module, name: str, revision: str, folder: Path | None) -> None:
        self.name = name
        self.is_folder = _is_folder(name, folder)
        self.short_name = name
        if self.is_folder:
            self.short_name = os.path.basename(os.path.realpath(name)) or name
        self.folder = folder
        self._module: weakref.ref[nn.Module] | None = weakref.ref(module)
        self._revision = revision
        self._digest = ""  # of weights without a revision
        self._writes: list[tuple[int, int]] | None = None  # when they were last looked at
        self._changed = False  # whether there were writes since they were named

    @property
    def revision(self) -> str:
        """The revision, followed by "+changed" after writes; "" for new weights."""
        changed = "+changed" if self.have_changed() else ""
        return self._revision and self._revision + changed

    @property
    def revision_or_digest(self) -> str:
        """The revision; of new weights 12 digits of their hash, computed again after writes alone."""
        if not self._revision and (self.have_changed() or not self._digest):
            self._digest = f"none+{self.digest()[:12]}"
            self._changed = False
        return self.revision or self._digest

    @property
    def exact(self) -> str:
        """The revision of weights that have not changed since they were named, else their hash."""
        if self._revision and not self.have_changed():
            return self._revision
        return self.digest()

    def digest(self) -> str:
        """The hash of the weights in memory, see `weights_digest`."""
        return weights_digest(self._of())

    def take_revision(self, revision: str | None = None) -> None:
        """Call the weights that are in memory now by this revision; None: by the one that they were loaded as."""
        self._revision = self._revision if revision is None else revision
        self._digest = ""
        self._changed = False
        self.recount()

    def take_folder(self, folder: Path, revision: Callable[[Path], str]) -> None:
        """Call weights that have no revision, or have changed, by that of the folder to which they were just saved."""
        if not self._revision or self.have_changed():
            self.take_revision(revision(folder))
            self.folder = folder

    def have_changed(self) -> bool:
        """Whether PyTorch counted a write to the weights since they were named (see `write_counts`)."""
        writes = write_counts(self._of())
        if self._writes is not None and writes is not None and writes != self._writes:
            self._changed = True
        self._writes = writes
        return self._changed

    def recount(self, *, changed: bool = False) -> None:
        """Count writes from here: those before, as of moving the weights to a device, change no value, or all do."""
        self._changed |= changed
        self._writes = write_counts(self._of())

    def copied_for(self, module: nn.Module) -> Weights:
        """The same names for a copy of the model."""
        weights = copy.copy(self)
        weights._module = weakref.ref(module)
        weights.recount()
        return weights

    def __getstate__(self) -> dict[str, Any]:
        if self._module is not None:  # not yet copied
            self.have_changed()
        return {**vars(self), "_module": None, "_writes": None}  # addresses, which differ each time

    def _of(self) -> nn.Module:
        module = None if self._module is None else self._module()
        if module is None:
            raise RuntimeError("the model of these weights is gone: keep the model itself")
        return module


def _is_folder(name: str, folder: Path | None) -> bool:
    """Whether a name is that of this local folder."""
    if folder is None or not os.path.isdir(name):
        return False
    return os.path.samefile(name, folder)


def weights_digest(module: nn.Module) -> str:
    """Return `tensors_digest` of a module's parameters and saved buffers in memory, in about 1.5 s per gigabyte."""
    return tensors_digest(module.state_dict().items())


def tensors_digest(tensors: Iterable[tuple[str, Any]]) -> str:
    """Return a hash of named tensors, in order: names, shapes, types and bytes; 32 hex digits.

    Quantized layers have other state too: pairs of tensors count one by one, all else by its text.
    """
    digest = hashlib.blake2b(digest_size=16)
    waiting = list(tensors)[::-1]
    while waiting:
        name, value = waiting.pop()
        if isinstance(value, tuple | list):
            waiting += [(f"{name}.{number}", part) for number, part in enumerate(value)][::-1]
        elif isinstance(value, Tensor):
            header = f"{name} {tuple(value.shape)} {value.dtype}\0"
            plain = value.dequantize() if value.is_quantized else value
            values = plain.detach().cpu().contiguous().flatten()
            digest.update(header.encode())
            digest.update(values.view(torch.uint8).numpy().data)
        else:
            digest.update(f"{name} {value}\0".encode())
    return digest.hexdigest()


def keeps_values(convert: Callable[[Tensor], Tensor]) -> bool:
    """Whether a function for `nn.Module._apply` keeps values: not that of `to_empty`, nor a move to "meta"."""
    bits = [byte % 2 for byte in os.urandom(64)]  # exact in every type, and unlike what freed memory may hold
    converted = convert(torch.tensor(bits, dtype=torch.float32, device="cpu"))
    return converted.device.type != "meta" and converted.tolist() == bits


def write_counts(module: nn.Module) -> list[tuple[int, int]] | None:
    """Return each saved tensor's identity and PyTorch's count of writes to it, without waiting for the device.

    Writes through `.data` (as PEFT merges adapters) and through NumPy views are not counted. None for a model with
    layers that FSDP shards, which puts other tensors in their place at each use.
    """
    counts = []
    for layer in module.modules():
        if hasattr(type(layer), "unshard"):
            return None
        # not layer.state_dict(), for which quantized layers make new tensors at each call
        saved: list[Tensor | None] = [*layer._parameters.values()]
        saved += [buffer for name, buffer in layer._buffers.items() if name not in layer._non_persistent_buffers_set]
        for tensor in saved:
            if tensor is not None:
                version = 0 if tensor.is_inference() else tensor._version
                counts.append((id(tensor), version))
    return counts
