"""Communication between the processes of a training run, over accelerate's launcher state.

A program started by itself is one process; `accelerate launch` and `torchrun` start several, on one machine or more.
One rule makes several processes equal one: every process's loss is the mean over the same global batch (computed on
gathered embeddings, or the mean over its own equal share), and gradients are averaged over processes before the
optimizer's step. To that end the backward pass of `Processes.gather` sums over processes.
"""

from __future__ import annotations

import contextlib
import importlib
import itertools
import os
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager
from datetime import timedelta
from typing import Any, TypeVar, cast

import torch
import torch.distributed as dist
from torch import Tensor, nn

from idmetric.metric.files import need
from idmetric.train.options import Precision
from idmetric.train.state import TrainError

T = TypeVar("T")
# The other processes wait while the main one reads all images or draws a schedule; torch's limit is 10 min on GPUs
_PATIENCE = timedelta(hours=6)


class Processes:
    """The processes of a training run, seen from one of them.

    Args:
        precision: "no" (float32), or mixed precision in "bf16" or "fp16" (with a scaled loss).
        cpu: stay on the CPU even if there is an accelerator.

    Attributes:
        rank: number of this process, from 0. count: number of processes. local_count: number on this machine.
        main: whether this is the process that writes. device: device of its model.
        scaler: scales the loss for "fp16" (disabled otherwise).

    Every process holds a whole model, whatever accelerate's configuration says about DeepSpeed, FSDP and precision.

    Raises:
        MissingExtraError: without accelerate.
    """

    def __init__(self, precision: Precision = "no", cpu: bool = False) -> None:
        need("train", "training", accelerate="accelerate")
        from accelerate import PartialState

        # The optimizer imports it, and its functions' default arguments would keep the group, with its threads, past
        # `close`: a thread that lets go of a tensor while Python shuts down aborts the process
        with contextlib.suppress(ImportError):  # deprecated
            importlib.import_module("torch.distributed.nn")
        state = PartialState(cpu=cpu, timeout=_PATIENCE)
        self.precision: Precision = precision
        self.rank = state.process_index
        self.count = state.num_processes
        self.main = state.is_main_process
        self.local_count = int(os.environ.get("LOCAL_WORLD_SIZE") or self.count)
        self.device = torch.device("cpu") if cpu else state.device
        self.dtype = {"no": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}[precision]
        self.scaler = torch.amp.GradScaler(self.device.type, enabled=precision == "fp16")

    # One step

    def autocast(self) -> AbstractContextManager[Any]:
        """Mixed precision within the block, if it was asked for."""
        if self.precision == "no":
            return contextlib.nullcontext()
        return torch.autocast(self.device.type, self.dtype)

    def backward(self, loss: Tensor) -> None:
        """`loss.backward()`, scaled for fp16. Gradients add up over calls; the loop averages them over processes."""
        self.scaler.scale(loss).backward()  # type: ignore[no-untyped-call]

    def gather(self, tensor: Tensor) -> Tensor:
        """The tensors of all processes, of one shape and type, joined on axis 0 in order of ranks; differentiable.

        The gradient of this process's rows is the sum over all processes' losses: with the same loss L everywhere it is
        count * dL/drows, and the mean of gradients over processes is that of L.
        """
        if self.count == 1:
            return tensor
        gathered: Tensor = _Gather.apply(tensor, self.rank, self.count)
        return gathered

    def average_gradients(self, parameters: Iterable[nn.Parameter]) -> None:
        """Replace gradients by their mean over processes; a missing gradient counts as zero."""
        if self.count == 1:
            return
        trained = [parameter for parameter in parameters if parameter.requires_grad]
        has_gradient = self.any(*(parameter.grad is not None for parameter in trained))
        used = list(itertools.compress(trained, has_gradient))
        gradients = [torch.zeros_like(p) if p.grad is None else p.grad for p in used]
        flat = torch.cat([gradient.flatten() for gradient in gradients])
        dist.all_reduce(flat)
        means = (flat / self.count).split([parameter.numel() for parameter in used])
        for parameter, mean in zip(used, means, strict=True):
            parameter.grad = mean.view_as(parameter)

    # Between steps

    def any(self, *flags: bool) -> tuple[bool, ...]:
        """For each flag, whether it is true in any process."""
        if self.count == 1:
            return flags
        values = torch.tensor(flags, dtype=torch.int32, device=self.device)
        dist.all_reduce(values, dist.ReduceOp.MAX)
        return tuple(map(bool, values.tolist()))

    def on_main(self, run: Callable[[], T]) -> T:
        """Call `run` in the main process, and return its result in all, which wait for it; errors as in `together`."""
        result = self.together(lambda: run() if self.main else None)
        return cast(T, self.all_values(result)[0])

    def together(self, run: Callable[[], T]) -> T:
        """Call `run` in each process, and return its own result; if one fails, all fail.

        Raises:
            Exception: of `run`, where it failed; TrainError with its first line in the other processes, which stop
                waiting.
        """
        try:
            result = run()
        except Exception as error:
            self.all_values(f"{type(error).__name__}: {error}")
            raise
        for rank, text in enumerate(self.all_values("")):
            if text:
                first_line = text.partition("\n")[0]  # that process prints all of it
                raise TrainError(f"process {rank} failed: {first_line}")
        return result

    def all_values(self, value: T) -> list[T]:
        """A small value (numbers, text, dicts of them) of each process, in order of ranks."""
        from accelerate.utils import gather_object

        values: list[T] = gather_object([value])
        return values

    def copy_from_main(self, tensors: Iterable[Tensor]) -> None:
        """Overwrite these tensors (parameters, buffers) with the main process's."""
        if self.count == 1:
            return
        from accelerate.utils import broadcast

        with torch.no_grad():
            for tensor in tensors:
                sent = tensor.detach().to(self.device).contiguous()
                tensor.copy_(broadcast(sent))

    def place(self, batch: T) -> T:
        """A batch (nested dicts, lists, tuples, named tuples) with its tensors on this process's device."""
        from accelerate.utils import send_to_device

        placed: T = send_to_device(batch, self.device, non_blocking=True)
        return placed

    def close(self) -> None:
        """Leave the group of processes and end its threads; needed before the program ends, also after an error."""
        if self.count > 1 and dist.is_initialized():
            dist.destroy_process_group()


class _Gather(torch.autograd.Function):
    """all_gather on axis 0. Its backward pass sums gradients over processes and takes this process's rows."""

    @staticmethod
    def forward(ctx: Any, tensor: Tensor, rank: int, count: int) -> Tensor:
        ctx.rows = slice(rank * len(tensor), (rank + 1) * len(tensor))
        sent = tensor.detach().contiguous()
        parts = [torch.empty_like(sent) for _ in range(count)]
        dist.all_gather(parts, sent)
        return torch.cat(parts)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None]:
        whole = gradient.contiguous().clone()
        dist.all_reduce(whole)
        return whole[ctx.rows], None, None
