"""Batches read ahead by loading processes, the same for any number of them."""

from __future__ import annotations

import os
import random
import signal
import sys
import traceback
from collections.abc import Generator
from multiprocessing.reduction import ForkingPickler
from typing import Any

import numpy as np
import torch
from torch.utils.data import DataLoader, Dataset, get_worker_info

from idmetric.train.processes import Processes
from idmetric.train.recipe import Recipe


def batches(recipe: Recipe, steps: range, seed: int, workers: int, processes: Processes) -> Generator[Any, None, None]:
    """The batches of these steps in order, each as `recipe.load(step)` gives it, or a `Failure`.

    Closing the generator ends the loading processes.

    Args:
        workers: loading processes, see `worker_count`; 0 loads in this process.
    """
    count = worker_count(workers, processes)
    loader = DataLoader(
        Steps(recipe, seed, processes.rank),
        batch_size=None,
        sampler=steps,
        num_workers=count,
        prefetch_factor=recipe.prefetch if count else None,
        multiprocessing_context="fork" if count else None,  # copies need not import torch again
        worker_init_fn=_start_worker,
        pin_memory=processes.device.type == "cuda",
    )
    for batch in loader:
        yield batch.unpacked() if isinstance(batch, SharedBatch) else batch


class SharedBatch:
    """A batch on its way from a loading process, its tensors in shared memory."""

    def __init__(self, batch: Any) -> None:
        self.data = bytes(ForkingPickler.dumps(batch))

    def unpacked(self) -> Any:
        """The batch."""
        return ForkingPickler.loads(self.data)

    def pin_memory(self) -> Any:
        """The batch in pinned memory, for the DataLoader."""
        from accelerate.utils import recursively_apply

        return recursively_apply(torch.Tensor.pin_memory, self.unpacked())


def seed_all(*numbers: int) -> None:
    """Seed the global generators of torch, Python and NumPy with these numbers."""
    seed = int(np.random.SeedSequence(numbers).generate_state(1, np.uint64)[0])
    torch.manual_seed(seed)
    random.seed(seed)
    np.random.seed(seed % 2**32)  # noqa: NPY002  # some packages draw from it


class Steps(Dataset[Any]):
    """The batches of a recipe, by step: each is the result of `recipe.load(step)`, or a `Failure`."""

    def __init__(self, recipe: Recipe, seed: int, rank: int) -> None:
        self.recipe = recipe
        self.seed = seed
        self.rank = rank

    def __getitem__(self, step: int) -> Any:
        seed_all(self.seed, step, self.rank, 1)
        try:
            batch = self.recipe.load(step)
            if get_worker_info() is None:
                return batch
            return SharedBatch(batch)  # a queue would drop it without a word, for want of shared memory or descriptors
        except Exception as error:  # all processes learn of it and stop together
            if "shared memory" in str(error):
                return Failure(f"{error}; try --workers 0, or a container with more (docker run --shm-size=8g)")
            expected = isinstance(error, OSError | ValueError)
            return Failure(str(error) if expected else traceback.format_exc())


class Failure(str):
    """The reason why a batch could not be loaded, in place of the batch."""


def _start_worker(_: int) -> None:
    # both signals go to whole groups of processes; the training process decides when to end its loaders
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, lambda *_: signal.signal(signal.SIGTERM, signal.SIG_DFL))


def worker_count(asked: int, processes: Processes) -> int:
    """Loading processes of this training process; -1 asks for one per core of its share, at most 8.

    Outside of Linux there are none: copies of a process are not safe there.
    """
    if sys.platform != "linux":
        return 0
    if asked >= 0:
        return asked
    cores = len(os.sched_getaffinity(0)) // processes.local_count
    return max(1, min(8, cores))
