"""Embed chunks on many machines: Ray Data's `map_batches` hands them to actors, which embed them and write their parts.

Only names and counts travel through Ray; each actor reads the images and writes the parts of its chunks. A part has the
name of its chunk and is written atomically, so a chunk that Ray repeats after losing a node replaces its part. The
output is complete, or the call raises.
"""

from __future__ import annotations

import json
import logging
import os
import re
import socket
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from idmetric.io.hints import need
from idmetric.scale.chunks import ROWS, Chunk
from idmetric.scale.parts import Layout, Stored
from idmetric.scale.places import ScaleError, checked_protocols, place
from idmetric.scale.run import Done, OnError, Settings, Source, Summary, embed_chunks, finish, open_model, prepared

if TYPE_CHECKING:
    from idmetric.models.embedder import Embedder

_BLOCKS = 2000  # more chunks share blocks: Ray's own work grows with their number


class Actor:
    """A worker process with the model; `map_batches` creates one for each worker.

    Errors come back as rows, since Ray would bury them in its own errors.
    """

    def __init__(
        self, model: str | Callable[[], Embedder], out: str, facts: dict[str, Any], patches: bool, stored: Stored,
        settings: Settings,
    ) -> None:  # fmt: skip
        self.settings, self.problem = settings, ""
        try:
            self.folder, self.metric = place(out, settings.out_filesystem), open_model(model)
            self.layout = Layout.of(self.metric, patches, stored)
            if self.layout.facts != facts:
                found = {k: v for k, v in self.layout.facts.items() if facts.get(k) != v}
                raise ScaleError(f"its model differs from that of the driver in {', '.join(found)}")
        except Exception as error:
            self.problem = _described(error)

    def __call__(self, batch: Any) -> Any:
        """Embed chunks (column `chunk`, JSON); return their results (`done`, JSON), or the error (`failed`)."""
        import pyarrow as pa

        todo = [_chunk(text) for text in batch.column("chunk").to_pylist()]
        done: list[Done] = []
        try:
            if not self.problem:
                done += embed_chunks(self.metric, todo, self.folder, self.layout, self.settings)
        except Exception as error:
            self.problem = _described(error)
        rows = [(json.dumps(asdict(one)), "") for one in done] + ([("", self.problem)] if self.problem else [])
        return pa.table(dict(zip(("done", "failed"), map(list, zip(*rows, strict=True)), strict=True)))


def _described(error: Exception) -> str:
    text = str(error) if isinstance(error, ScaleError) else f"{type(error).__name__}: {error}"
    return f"{socket.gethostname()}: {text}"


def embed_on_ray(
    sources: Source | Sequence[Source],
    out: Source,
    *,
    model: str | Callable[[], Embedder] = "dinov3_vitl16",
    address: str | None = None,
    actors: int | tuple[int, int] | None = None,
    cpus: float = 1,
    gpus: float = 0,
    lists: Sequence[Source] = (),
    patches: bool = False,
    stored: Stored = "float32",
    column: str | None = None,
    column_id: str | None = None,
    batch_size: int = 32,
    workers: int | None = None,
    rows: int = ROWS,
    quick: bool = False,
    on_error: OnError = "skip",
    filesystem: Any = None,
    out_filesystem: Any = None,
    allow: str | Sequence[str] = (),
    progress: Callable[[int, int], None] | None = None,
) -> Summary:
    """Run `embed_dataset` on a Ray cluster; the rows are the same, and their numbers agree up to float rounding.

    Args:
        model: a name for `idmetric.load`, or a function that opens the model, on each node; each must see a folder.
        address: of the cluster ("auto": the cluster of this machine); None: the cluster of this process, or a new one
            on this machine. All nodes must see the sources and `out`.
        actors: number of worker processes, or the fewest and most; default: as many as the cluster has room for.
        cpus, gpus: per actor. Threads that read (`workers`) default to `cpus`.
        others: see `embed_dataset`.

    Raises:
        ImportError: without ray. ScaleError: as `embed_dataset`, or if the cluster gives up.
    """
    need("scale", "a cluster", ray="Ray")
    import ray
    import ray.data

    threads = workers or max(1, round(cpus))
    settings = Settings(batch_size, threads, quick, filesystem, out_filesystem, checked_protocols(allow))
    with (
        prepared(sources, out, model, lists, patches, stored, column, column_id, rows, settings) as work,
        _connected(address),
    ):
        dataset = ray.data.from_arrow(_blocks(work.todo)).map_batches(
            Actor, batch_size=1, batch_format="pyarrow", num_cpus=cpus, num_gpus=gpus,
            compute=_pool(actors or min(_room(ray.cluster_resources(), cpus, gpus), len(work.todo))),
            fn_constructor_kwargs={
                "model": model, "out": work.folder.name, "facts": work.layout.facts, "patches": patches,
                "stored": stored, "settings": settings,
            },
        )  # fmt: skip
        try:
            with closing(_results(dataset)) as results:  # whatever stops this stops the actors
                return finish(work.folder, work.todo, results, on_error, progress)
        except ray.exceptions.RayError as error:
            raise ScaleError(f"the cluster gave up ({_last(error)}): run again for what is missing") from error


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
        ray.init(logging_level=logging.getLogger("ray").getEffectiveLevel(), **options)
    except (OSError, ValueError, RuntimeError) as error:
        raise ScaleError(f"there is no Ray cluster at {address or 'this machine'!r}: {_last(error)}") from error
    try:
        ray.data.DataContext.get_current().enable_progress_bars = False  # `progress` reports
        yield
    finally:
        ray.shutdown()


def _results(dataset: Any) -> Generator[Done, None, None]:
    """Yield the results of chunks as they are done."""
    for row in dataset.iter_rows():
        if row["failed"]:
            raise ScaleError(row["failed"])
        yield Done(**json.loads(row["done"]))


def _blocks(todo: Sequence[Chunk]) -> list[Any]:
    import pyarrow as pa

    step = -(-len(todo) // _BLOCKS)
    texts = [json.dumps(asdict(chunk)) for chunk in todo]  # JSON escapes names that are not UTF-8
    return [pa.table({"chunk": texts[at : at + step]}) for at in range(0, len(texts), step)]


def _chunk(text: str) -> Chunk:
    values = json.loads(text)
    return Chunk(**{**values, "names": tuple(values["names"]), "paths": tuple(values["paths"])})


def _pool(actors: int | tuple[int, int]) -> Any:
    import ray.data

    if isinstance(actors, int):
        return ray.data.ActorPoolStrategy(size=actors)
    return ray.data.ActorPoolStrategy(min_size=actors[0], max_size=actors[1])


def _last(error: Exception) -> str:
    """Return the last line of one of Ray's messages, which holds the cause."""
    return next((line.strip() for line in reversed(str(error).splitlines()) if line.strip()), type(error).__name__)


def _room(resources: dict[str, float], cpus: float, gpus: float) -> int:
    """Count the actors that the cluster has room for."""
    room = [resources.get(name, 0) / each for name, each in (("CPU", cpus), ("GPU", gpus)) if each]
    count = int(min(room)) if room else 1
    if count < 1:
        raise ScaleError(f"the cluster has no room for an actor of {cpus:g} CPUs and {gpus:g} GPUs: ask for less")
    return count
