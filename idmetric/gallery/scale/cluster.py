"""Embed chunks on many machines: Ray Data's `map_batches` hands them to actors, which embed them and write their parts.

A part has the name of its chunk and is written atomically, so a chunk that Ray repeats after losing a node replaces its
part. The output is complete, or the call raises.
"""

from __future__ import annotations

import json
import logging
import os
import re
import signal
import socket
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import closing, contextmanager
from typing import TYPE_CHECKING, Any

from idmetric.gallery.scale.chunks import ROWS
from idmetric.gallery.scale.parts import Stored, schema_of
from idmetric.gallery.scale.places import Place, ScaleError
from idmetric.gallery.scale.run import (
    Done,
    OnError,
    Progress,
    Source,
    Summary,
    Work,
    embed_chunks,
    finish,
    open_model,
    prepared,
)
from idmetric.metric.files.hints import need

if TYPE_CHECKING:
    from idmetric.metric.models.embedder import Embedder

_BLOCKS = 2000  # more chunks share blocks: Ray's own work grows with their number


class Actor:
    """A worker process with the model; `map_batches` creates one for each worker, and calls it with numbers of chunks.

    Args:
        todo: Ray's reference of the chunks. options: of `embed_chunks`.
    """

    def __init__(
        self, model: str | Callable[[], Embedder], todo: Any, folder: Place, schema: Any, stored: Stored, **options: Any
    ) -> None:
        import ray

        self.metric, self.todo = open_model(model), ray.get(todo)
        if schema_of(self.metric, "patches" in schema.names, stored).metadata != schema.metadata:
            raise ScaleError(f"the model on {socket.gethostname()} differs from that of the driver")
        self.options = {"folder": folder, "schema": schema, **options}

    def __call__(self, batch: dict[str, Any]) -> dict[str, Any]:
        """Embed chunks, and return their results as columns."""
        import numpy as np

        some = [self.todo[k] for k in batch["item"].tolist()]
        done = {
            chunk.part: (fresh, json.dumps(errors))
            for chunk, fresh, errors in embed_chunks(self.metric, some, **self.options)
        }
        fresh, errors = zip(*(done[chunk.part] for chunk in some), strict=True)
        return {"item": batch["item"], "fresh": np.array(fresh), "errors": np.array(errors)}


def embed_on_ray(
    sources: Source | Sequence[Source],
    out: Source,
    *,
    model: str | Callable[[], Embedder] = "dinov3_vitl16",
    address: str | None = None,
    cpus: float = 1,
    gpus: float = 0,
    patches: bool = False,
    stored: Stored = "float32",
    column: str | None = None,
    column_id: str | None = None,
    batch_size: int = 32,
    workers: int | None = None,
    rows: int = ROWS,
    on_error: OnError = "skip",
    progress: Progress | None = None,
) -> Summary:
    """Run `embed_dataset` on a Ray cluster; the rows are the same, and their numbers agree up to float rounding.

    Args:
        model: a name for `idmetric.load`, or a function that opens the model, on each node; each must see a folder.
        address: of the cluster ("auto": the cluster of this machine); None: the cluster of this process, or a new one
            on this machine. All nodes must see the sources and `out`.
        cpus, gpus: of each worker process, of which there are as many as the cluster has room for. Threads that read
            (`workers`) default to `cpus`.
        others: see `embed_dataset`.

    Raises:
        ImportError: without ray. ScaleError: as `embed_dataset`, or if the cluster gives up.
    """
    need("scale", "a cluster", ray="Ray")
    import ray
    import ray.data

    with (
        prepared(sources, out, model, patches, stored, column=column, column_id=column_id, rows=rows) as work,
        _connected(address),
    ):
        options = {
            "model": model, "todo": ray.put(work.todo), "folder": work.folder, "schema": work.schema, "stored": stored,
            "batch_size": batch_size, "workers": workers or max(1, round(cpus)),
        }  # fmt: skip
        actors = min(_room(ray.cluster_resources(), cpus, gpus), len(work.todo))
        # in memory, as tasks that read would wait for the room that the actors take
        numbers = ray.data.from_items(list(range(len(work.todo))), override_num_blocks=min(len(work.todo), _BLOCKS))
        dataset = numbers.map_batches(
            Actor, batch_size=1, num_cpus=cpus, num_gpus=gpus, fn_constructor_kwargs=options,
            compute=ray.data.ActorPoolStrategy(size=actors),
        )  # fmt: skip
        try:
            with closing(_results(dataset, work)) as results:  # whatever stops this stops the actors
                return finish(work, results, on_error, progress)
        except ray.exceptions.RayError as error:
            raise ScaleError(f"the cluster gave up ({_last(error)}): run again for what is missing") from error


def _results(dataset: Any, work: Work) -> Generator[Done, None, None]:
    for row in dataset.iter_rows():
        yield work.todo[row["item"]], bool(row["fresh"]), json.loads(row["errors"])


@contextmanager
def _connected(address: str | None) -> Iterator[None]:
    """Connect to a cluster during the block, unless this process is connected to one already."""
    import ray
    import ray.data

    if ray.is_initialized():
        yield
        return
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")  # send no statistics
    options: dict[str, Any] = {"address": address} if address else {"include_dashboard": False}
    try:
        if address and (found := re.fullmatch(r"([^:/]+):(\d+)", address)):  # Ray would try for a quarter of an hour
            socket.create_connection((found[1], int(found[2])), timeout=10).close()
        handler = signal.getsignal(signal.SIGTERM)
        ray.init(logging_level=logging.WARNING, **options)
        if callable(handler) and signal.getsignal(signal.SIGTERM) is not handler:  # Ray's own exits without a word
            signal.signal(signal.SIGTERM, handler)
    except (OSError, ValueError, RuntimeError) as error:
        raise ScaleError(f"there is no Ray cluster at {address or 'this machine'!r}: {_last(error)}") from error
    try:
        ray.data.DataContext.get_current().enable_progress_bars = False  # `progress` reports
        yield
    finally:
        ray.shutdown()


def _room(resources: dict[str, float], cpus: float, gpus: float) -> int:
    """Count the actors that the cluster has room for."""
    room = [resources.get(name, 0) / each for name, each in (("CPU", cpus), ("GPU", gpus)) if each]
    count = int(min(room)) if room else 1
    if count < 1:
        raise ScaleError(f"the cluster has no room for an actor of {cpus:g} CPUs and {gpus:g} GPUs: ask for less")
    return count


def _last(error: Exception) -> str:
    """Return the last line of one of Ray's messages, which holds the cause."""
    return next((line.strip() for line in reversed(str(error).splitlines()) if line.strip()), type(error).__name__)
