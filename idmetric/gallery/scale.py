"""Embeddings of very many images as a folder of Parquet files, by this process or by Ray Data: docs/scale.md.

An image is embedded unless a file has it with its present size and time, so either way resumes the other's work.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from idmetric.gallery.parts import WRITING, Output, ScaleError, Stored, Summary, files_below, locate, schema_of
from idmetric.gallery.sources import Entry
from idmetric.gallery.worker import Model, Worker, listed, opened, table_entry
from idmetric.metric.files import StrPath
from idmetric.metric.files.hints import need
from idmetric.metric.files.lock import locked
from idmetric.metric.files.output import writing
from idmetric.metric.models.embedder import Embedder

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["ScaleError", "Summary", "embed_dataset", "embed_on_ray"]

OnError = Literal["skip", "fail"]
ROWS = 256  # images of a file
LARGE = 2**27  # bytes of embeddings after which a file is written, even if it has few rows


@contextmanager
def open_output(
    sources: Sequence[str],
    out: StrPath,
    model: Model,
    *,
    patches: bool,
    stored: Stored,
    stamps: dict[str, str],
    on_error: OnError,
) -> Iterator[tuple[Output, Embedder]]:
    """Open the model, hold the folder during the block, and delete files that do not hold what the sources hold."""
    system, folder, prefix = locate(out)
    names = []
    for source in sources:
        _, source_path, source_prefix = locate(source)
        names.append(source_prefix + source_path)
        if f"{prefix}{folder}/".startswith(f"{names[-1]}/"):
            raise ScaleError(f"{folder!r} lies in the source {names[-1]!r}: keep the embeddings elsewhere")

    metric = opened(model)
    schema = schema_of(metric, patches, stored, names)
    output = Output(system, folder, is_local=not prefix, schema=schema, stamps=stamps, fail=on_error == "fail")
    with writing(folder):
        system.create_dir(folder, recursive=True)
    busy = ScaleError(f"another run is writing to {folder!r}: wait for it, or name another folder")
    # object stores have no locks
    with locked(Path(folder) / ".lock", busy) if output.is_local else nullcontext():
        output.remove_outdated()
        yield output, metric


def embed_dataset(
    sources: StrPath | Sequence[StrPath],
    out: StrPath,
    *,
    model: Model = "dinov3_vitl16",
    patches: bool = False,
    stored: Stored = "float32",
    batch_size: int = 32,
    workers: int | None = None,
    rows: int = ROWS,
    on_error: OnError = "skip",
    progress: Callable[[int, int], None] | None = None,
) -> Summary:
    """Embed all images of the sources into a folder of Parquet files.

    A run that was stopped or killed loses at most its last file. The next run embeds missing and changed images, and
    those in the same files. In the end the folder holds one row for each image, and no others.

    Args:
        sources: folders, image files and manifests; or addresses (s3://bucket/photos) of folders and image files.
        out: a folder or an address.
        model: a name for `idmetric.load`, a function that opens the model, or the model itself.
        patches: keep patch tokens too: megabytes per image.
        stored: "float16" halves the files; an image with numbers beyond its range gets an error.
        batch_size: images per pass. workers: threads that read images (default: one per core, at most 8).
        rows: images per file.
        on_error: "fail" stops at the first unreadable image; files written before stay.
        progress: called with (images done, images in all).

    Raises:
        ScaleError, GalleryError: if a source or `out` cannot be used. Unreadable images become rows with an `error`.
        OSError: if the folder cannot be written. ImportError: without pyarrow.
    """
    paths = _several(sources)
    images, stamps = listed(paths)
    settings: dict[str, Any] = {"patches": patches, "stored": stored, "stamps": stamps, "on_error": on_error}
    with open_output(paths, out, model, **settings) as (output, metric):
        count = len(output.done)
        if progress is not None:
            progress(count, len(images))

        waiting: list[pa.Table] = []
        for table in Worker(metric, output, batch_size, workers).tables(images):
            waiting.append(table)
            count += len(table)
            is_full = sum(map(len, waiting)) >= rows
            is_large = sum(table.nbytes for table in waiting) >= LARGE
            if is_full or is_large or count == len(images):
                output.write(waiting)
                waiting = []
                if progress is not None:
                    progress(count, len(images))
        return output.summary(entry.place for entry in images)


def embed_on_ray(
    sources: StrPath | Sequence[StrPath],
    out: StrPath,
    *,
    model: str | Callable[[], Embedder] = "dinov3_vitl16",
    address: str | None = None,
    cpus: float = 1,
    gpus: float = 0,
    patches: bool = False,
    stored: Stored = "float32",
    column: str | None = None,
    column_id: str = "id",
    batch_size: int = 32,
    workers: int | None = None,
    rows: int = ROWS,
    on_error: OnError = "skip",
) -> Summary:
    """Embed images by Ray Data, on one machine or many; see `embed_dataset`.

    Args:
        sources: as for `embed_dataset`; with `column` Parquet files and folders of them. All nodes must see them.
        model: a name for `idmetric.load`, or a function that opens the model, on each node.
        address: of the cluster ("auto": the cluster of this machine); None: the cluster of this process, or a new one.
        cpus, gpus: of each worker process, of which there are as many as the cluster has room for. Threads that read
            (`workers`) default to `cpus`.
        column, column_id: columns of Parquet files: image bytes (or datasets' struct with them), and unique names.

    Raises:
        ImportError: without ray. ScaleError: as `embed_dataset`, or if the cluster gives up.
    """
    need("scale", "a cluster", ray="Ray")
    import ray
    import ray.data
    from ray.data.datasource import FilenameProvider

    paths = _several(sources)
    images: list[Entry] = []
    tables: list[str] = []
    if column is None:
        images, stamps = listed(paths)
    else:
        stamps = {}
        for source in paths:
            system, root, prefix = locate(source)
            for path, stamp in files_below(system, root).items():
                if path.endswith(".parquet"):
                    tables.append(path)
                    stamps[prefix + path] = stamp
        if not tables:
            raise ScaleError("the sources hold no .parquet files: leave --column out if they hold images")

    settings: dict[str, Any] = {"patches": patches, "stored": stored, "stamps": stamps, "on_error": on_error}
    with open_output(paths, out, model, **settings) as (output, _):
        todo = [entry for entry in images if entry.place not in output.done]
        if not todo and not tables:
            return output.summary(entry.place for entry in images)

        if not ray.is_initialized():
            os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")  # send no statistics
            ray.init(address, logging_level="WARNING")
        free = ray.cluster_resources()
        free["CPU"] = free.get("CPU", 0) - bool(tables)  # Ray Data lists tables in a task of its own
        wanted = {"CPU": cpus, "GPU": gpus}
        room = [free.get(kind, 0) / amount for kind, amount in wanted.items() if amount]
        processes = int(min(room, default=1))
        if processes < 1:
            raise ScaleError(f"the cluster has no room for a process of {cpus:g} CPUs and {gpus:g} GPUs: ask for less")

        # tasks that read and write need no CPU: the processes with the model take them all
        if column is not None:
            dataset = ray.data.read_parquet(
                tables, filesystem=system, columns=[column, column_id], include_paths=True, num_cpus=0
            )
            entry_of = partial(table_entry, prefix, column, column_id)
        else:
            positions = list(range(len(todo)))
            blocks = math.ceil(len(todo) / rows)
            dataset = ray.data.from_items(positions, override_num_blocks=blocks)
            entry_of = partial(_listed_entry, todo)
        threads = workers or max(1, round(cpus))
        embeddings = dataset.map_batches(
            Worker,
            fn_constructor_args=(model, output, batch_size, threads, entry_of),
            batch_size=rows,
            batch_format="pyarrow",
            num_cpus=cpus,
            num_gpus=gpus,
            compute=ray.data.ActorPoolStrategy(min_size=1, max_size=processes),
        )
        try:
            embeddings.write_parquet(
                output.folder,
                filesystem=output.system,
                ray_remote_args={"num_cpus": 0},
                filename_provider=FilenameProvider(dataset_uuid="part", file_format="parquet"),
                **WRITING,
            )
        except ray.exceptions.RayError as error:
            cause = str(error).strip().splitlines()[-1]
            raise ScaleError(f"the cluster gave up ({cause}): run again for what is missing") from error
        return output.summary(entry.place for entry in images)


def _listed_entry(images: list[Entry], row: dict[str, Any]) -> Entry:
    position: int = row["item"]
    return images[position]


def _several(sources: StrPath | Sequence[StrPath]) -> list[str]:
    if isinstance(sources, str | os.PathLike):
        sources = [sources]
    return [os.fspath(source) for source in sources]
