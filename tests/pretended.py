"""A device that is pretended on the CPU: CUDA's or MPS's rules for tensors, without a card.

Its tensors hold their values on the CPU, so that code which looks at values runs to its end, backward passes too (which
FakeTensorMode has only for devices of the machine). As on a card, an operator refuses tensors of two devices. Each
time the host waits for the device (to read a value, to copy a tensor, or to learn a size that depends on values) is
noted with the function of this package that waits.
"""

from __future__ import annotations

import contextlib
import os
import sys
from types import FrameType
from typing import Any, Self
from unittest import mock

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode, return_and_correct_aliasing
from torch.utils._pytree import tree_leaves, tree_map_only

import idmetric

READS_VALUES = {"_local_scalar_dense", "_unique2", "bincount", "equal", "is_nonzero", "masked_select", "nonzero",
                "repeat_interleave", "unique_dim"}  # fmt: skip
INDEXES = {"index", "index_put", "index_put_", "_index_put_impl_"}  # by a mask, which is counted first
COPIES = {"_to_copy", "copy_"}


class Pretended(Tensor):
    """A tensor on the pretended device; to PyTorch's kernels its device is "meta", to Python the pretended one."""

    __torch_function__ = torch._C._disabled_torch_function_impl
    held: Tensor
    mode: PretendedDevice

    @staticmethod
    def __new__(cls, held: Tensor, mode: PretendedDevice) -> Pretended:
        tensor: Pretended = Tensor._make_wrapper_subclass(  # type: ignore[attr-defined]
            cls, held.size(), strides=held.stride(), storage_offset=held.storage_offset(), dtype=held.dtype,
            device="meta",
        )  # fmt: skip
        tensor.held, tensor.mode = held, mode
        return tensor

    @property
    def device(self) -> torch.device:  # type: ignore[override]
        return self.mode.device

    @property
    def is_cpu(self) -> bool:  # type: ignore[override]
        return False

    @property
    def is_cuda(self) -> bool:  # type: ignore[override]
        return self.mode.device.type == "cuda"

    def new_tensor(self, data: Any, *, dtype: torch.dtype | None = None) -> Tensor:  # type: ignore[override]
        return torch.tensor(data, dtype=dtype or self.dtype).to(self.device)

    def to(self, *args: Any, **kwargs: Any) -> Tensor:
        device, dtype, _, memory_format = torch._C._nn._parse_to(*args, **kwargs)  # type: ignore[attr-defined]
        if device in (None, self.device) and dtype in (None, self.dtype) and memory_format is None:
            return self
        return super().to(*args, **kwargs)

    def tolist(self) -> Any:
        return self.cpu().tolist()

    def numpy(self, *, force: bool = False) -> Any:
        raise TypeError(f"cannot convert a tensor on {self.device} to numpy: use Tensor.cpu() first")

    def __deepcopy__(self, memo: dict[int, Any]) -> Tensor:
        copied = self.detach().clone().requires_grad_(self.requires_grad)
        if isinstance(self, torch.nn.Parameter):
            copied = torch.nn.Parameter(copied, self.requires_grad)
        return memo.setdefault(id(self), copied)

    def __repr__(self, **_: Any) -> str:  # type: ignore[override]
        return f"Pretended({self.held}, {self.device})"

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        [mode] = {tensor.mode for tensor in tree_leaves((args, kwargs)) if isinstance(tensor, Pretended)}
        return mode.run(func, args, kwargs or {})


class PretendedDevice(TorchDispatchMode):
    """Within it, "cuda:0" or "mps:0" can be used.

    Attributes:
        waits: "module.function" of this package, or "autograd" in a backward pass, for each time that the host waited.
    """

    def __init__(self, name: str) -> None:
        super().__init__()
        self.device, self.waits = torch.device(name), list[str]()

    def __enter__(self) -> Self:
        with contextlib.ExitStack() as stack:
            stack.enter_context(mock.patch("torch.cuda._lazy_init"))  # which looks for a card
            stack.enter_context(_Constants())
            self._stack = stack.pop_all()
        super().__enter__()
        return self

    def __exit__(self, *error: Any) -> None:
        super().__exit__(*error)
        self._stack.close()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return self.run(func, args, kwargs or {})

    def run(self, func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
        name = func.overloadpacket.__name__
        tensors = [leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, Tensor)]
        pretended = [tensor for tensor in tensors if isinstance(tensor, Pretended)]
        hosts = [tensor for tensor in tensors if not isinstance(tensor, Pretended) and tensor.ndim > 0]
        if pretended and hosts and name not in COPIES | INDEXES:
            raise RuntimeError(f"{func} got tensors on {self.device} and on {hosts[0].device}")

        asked = kwargs.get("device")
        if name == "copy_":
            on_device = isinstance(args[0], Pretended)
        elif asked is None:
            on_device = bool(pretended)
        else:  # autograd copies gradients to "meta", as which it sees the device
            on_device = torch.device(asked).type in ("meta", self.device.type)
        by_mask = name in INDEXES and any(index is not None and index.dtype == torch.bool for index in args[1])
        if pretended and (not on_device or name in READS_VALUES or by_mask):
            self.waits.append(_caller())

        inner_args, inner_kwargs = tree_map_only(Pretended, lambda tensor: tensor.held, (args, kwargs))
        if asked is not None:
            inner_kwargs["device"] = torch.device("cpu")
        found = func(*inner_args, **inner_kwargs)
        if not on_device:
            return found
        found = tree_map_only(Tensor, self.wrapped, found)
        return return_and_correct_aliasing(func, args, kwargs, found)

    def wrapped(self, held: Tensor) -> Pretended:
        if self.device.type == "mps" and held.dtype == torch.float64:
            raise TypeError("MPS has no float64")
        return Pretended(held, self)


class _Constants(TorchFunctionMode):
    """Makes tensors of Python's numbers on the CPU and moves them, as PyTorch makes them without its dispatcher."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        options = dict(kwargs or {})
        if func not in (torch.tensor, torch.as_tensor):
            return func(*args, **options)
        device = options.pop("device", None)
        found = func(*args, **options)
        return found if device is None else found.to(device)


def _caller() -> str:
    """The innermost function of this package that runs."""
    package = os.path.dirname(idmetric.__file__) + os.sep  # a clone of the repository may have the package's name
    frame: FrameType | None = sys._getframe()
    while frame is not None and (not frame.f_code.co_filename.startswith(package) or frame.f_code.co_name[0] == "<"):
        frame = frame.f_back  # out of PyTorch, and of comprehensions
    if frame is None:
        return "autograd"
    module = frame.f_globals["__name__"].removeprefix("idmetric.")
    return f"{module}.{frame.f_code.co_name}"
