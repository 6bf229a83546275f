"""Embeddings of very many images as a folder of Parquet files, by this process or by Ray Data: docs/scale.md.

An image is embedded unless a file has it with its present size and time, so either way resumes the other's work.
"""

from __future__ import annotations

import json
import math
import os
import re
import uuid
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass, field
from functools import partial
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from idmetric.gallery.index import Item, files_of
from idmetric.gallery.read import load
from idmetric.gallery.sources import Entry, entries
from idmetric.gallery.sources import Source as LocalSource
from idmetric.gallery.update import stamp_of
from idmetric.metric.files.hints import need
from idmetric.metric.files.lock import locked
from idmetric.metric.files.output import replacing, writing
from idmetric.metric.images.paths import is_hidden, is_image
from idmetric.metric.scoring.pipeline import Input, batches, embed

if TYPE_CHECKING:
    from idmetric.metric.models.embedder import Embedder

__all__ = ["ScaleError", "Summary", "embed_dataset", "embed_on_ray"]

Source = str | os.PathLike[str]
Stored = Literal["float32", "float16"]
OnError = Literal["skip", "fail"]
ROWS = 256  # images of a file
LARGE = 2**27  # bytes of embeddings after which a file is written, even if it has few rows
META = b"idmetric.embed"
PART = re.compile(r"part_[0-9a-f]{32}_[0-9]{6}-[0-9]+\.parquet")  # as Ray Data names them
WRITING: dict[str, Any] = {"use_dictionary": False, "write_page_checksum": True}
STORES = ("file", "s3", "gs", "abfs", "abfss", "hdfs")  # pyarrow opens others too, and addresses inside addresses


class ScaleError(RuntimeError):
    """A source or a folder of embeddings cannot be used; the message says why and how to fix it."""


@dataclass(frozen=True)
class Summary:
    """The result of a run.

    Attributes:
        images: rows in the folder. embedded: how many of them were embedded in this run. parts: files.
        unreadable: image -> why it has no embedding.
        removed: deleted files: damaged, or with an image that has changed, could not be opened, or is gone.
    """

    images: int
    embedded: int
    parts: int
    unreadable: dict[str, str] = field(default_factory=dict)
    removed: int = 0

    def __str__(self) -> str:
        files = "1 file" if self.parts == 1 else f"{self.parts} files"
        unreadable = f", {len(self.unreadable)} unreadable" if self.unreadable else ""
        return f"{self.images} images in {files}, {self.embedded} embedded{unreadable}"


# Where images come from


def place(address: Source) -> tuple[Any, str, str]:
    """Return pyarrow's file system, the path there, and what the names of its files begin with."""
    import pyarrow as pa
    from pyarrow import fs

    text = os.fspath(address)
    scheme, separator, _ = text.partition("://")
    if not separator:
        return fs.LocalFileSystem(), os.path.abspath(text), ""
    if scheme not in STORES:
        raise ScaleError(f"{text!r} is not an address of {', '.join(STORES)}: download it, and name the file or folder")
    try:
        system, path = fs.FileSystem.from_uri(text)
    except (pa.ArrowException, OSError, ImportError) as error:
        raise ScaleError(f"{text!r} cannot be opened ({error}): check its name, network and credentials") from error
    return system, path.rstrip("/"), "" if is_local(system) else f"{scheme}://"


def is_local(system: Any) -> bool:
    """Whether paths are on this machine."""
    return bool(system.type_name == "local")


def listed(sources: Sequence[Source]) -> tuple[list[Entry], dict[str, str]]:
    """List all images, each once, and image -> stamp: size and time of its file."""
    images: dict[str, Entry] = {}
    stamps: dict[str, str] = {}
    for source in sources:
        system, root, prefix = place(source)
        if is_local(system):
            for entry in entries([LocalSource(root)], masked=False):
                images[as_text(entry.place)] = entry
                stamps[as_text(entry.place)] = str(stamp_of(files_of(entry)))
            continue
        for path, stamp in files_below(system, root).items():
            if path == root or is_image(path):
                name = path[len(root) + 1 :] or os.path.basename(path)
                images[prefix + path] = Entry(name, prefix + path, (), partial(_read, system, path))
                stamps[prefix + path] = stamp
    if not images:
        raise ScaleError("the sources hold no images: check their addresses")
    return list(images.values()), stamps


def files_below(system: Any, root: str) -> dict[str, str]:
    """Return path -> stamp of the files in and below a folder, sorted and without hidden ones, or of a file."""
    from pyarrow import fs

    info = system.get_file_info(root)
    infos = [info] if info.is_file else system.get_file_info(fs.FileSelector(root, recursive=True))
    stamps: dict[str, str] = {}
    for info in sorted(infos, key=lambda info: str(info.path)):
        if info.is_file and not any(map(is_hidden, info.path[len(root) :].split("/"))):
            stamps[info.path] = f"{info.size} {info.mtime_ns}"
    return stamps


def _read(system: Any, path: str) -> bytes:
    with system.open_input_stream(path) as file:
        return bytes(file.read())


def _row_entry(prefix: str, column: str, column_id: str, row: dict[str, Any]) -> Entry:
    name = str(row[column_id])
    return Entry(name, f"{prefix}{row['path']}#{name}", (), partial(_cell, row[column]))


def _cell(value: Any) -> bytes:
    """Return the image in a table's cell: bytes, or datasets' struct with them."""
    data = value.get("bytes") if isinstance(value, dict) else value
    if not isinstance(data, bytes):
        raise OSError(f"the row holds no image bytes, but {value!r:.80}; paths and addresses in tables are not opened")
    return data


def as_text(name: str) -> str:
    """Escape a name that may not be UTF-8."""
    return name.encode("utf-8", "backslashreplace").decode()


# Embedding


class Worker:
    """Embeds images; Ray Data opens one in each process.

    Args:
        schema: of the files, see `schema_of`. stamps: of images, or of the tables that hold them.
        done: images to leave out. fail: stop at an unreadable image. entry: the image in a row of Ray Data.
    """

    def __init__(
        self, model: Any, schema: Any, stamps: dict[str, str], done: Iterable[str], fail: bool, batch_size: int,
        workers: int | None, entry: Callable[[dict[str, Any]], Entry] | None = None,
    ) -> None:  # fmt: skip
        self.metric, self.schema, self.stamps, self.done = opened(model), schema, stamps, frozenset(done)
        self.fail, self.batch_size, self.workers, self.entry = fail, batch_size, workers, entry
        if not self.metric.about().items() <= json.loads(schema.metadata[META]).items():
            raise ScaleError("the model on this machine differs from that of the driver")

    def __call__(self, rows: Any) -> Iterator[Any]:
        """Yield tables of embeddings for a block of Ray Data."""
        assert self.entry is not None
        yield from self.tables(map(self.entry, rows.to_pylist()))

    def tables(self, images: Iterable[Entry]) -> Iterator[Any]:
        """Yield a table of embeddings for each batch of the images that are not done."""
        todo = (entry for entry in images if as_text(entry.place) not in self.done)
        with closing(batches(todo, self._load, batch_size=self.batch_size, workers=self.workers)) as ahead:
            for batch in ahead:
                table = self._embed(batch)
                for image, error in zip(table["image"].to_pylist(), table["error"].to_pylist(), strict=True):
                    if error and self.fail:
                        raise unreadable(image, error)
                yield table

    def _load(self, entry: Entry) -> Input[Item]:
        item = Item(entry.name, entry.place, entry.files, "")
        return load(self.metric, entry, item, lambda key: False, masked=False)

    def _embed(self, images: Sequence[Input[Item]]) -> Any:
        """Embed the images with pixels in one batch, and return a table with a row for each image."""
        import numpy as np
        import pyarrow as pa

        records: list[dict[str, Any]] = []
        for image in images:
            item, name = image.item, as_text(image.item.place)
            records.append({
                "image": name, "name": as_text(item.name), "key": item.key or None, "width": item.width or None,
                "height": item.height or None, "error": as_text(image.problem) or None,
                "stamp": stamp(self.stamps, name),
            })  # fmt: skip
        readable = [k for k, image in enumerate(images) if image.pixels is not None]
        if readable:
            embedding, reasons = embed(self.metric, [images[k] for k in readable], "patches" in self.schema.names)
            number = self.schema.field("embedding").type.value_type.to_pandas_dtype()
            for column, tensor in (("embedding", embedding.cls), ("patches", embedding.patches)):
                if tensor is None or column not in self.schema.names:
                    continue
                with np.errstate(over="ignore"):
                    values = tensor.cpu().float().flatten(1).numpy().astype(number)
                for position, k in enumerate(readable):
                    records[k][column] = values[position]
                    if not np.isfinite(values[position]).all():
                        reasons.setdefault(position, "its embedding exceeds what float16 can hold")
            for position, reason in reasons.items():
                records[readable[position]] |= {"embedding": None, "patches": None, "error": reason}
        return pa.Table.from_pylist(records, schema=self.schema)


def stamp(stamps: dict[str, str], image: str) -> str | None:
    """Return the stamp of an image, or of the table in which it is a row; None if it is in no source."""
    return stamps.get(image, stamps.get(image.rpartition("#")[0]))


def unreadable(image: str, error: str) -> ScaleError:
    """The error of a run that stops at unreadable images."""
    return ScaleError(f"{image}: {error}; replace it, or keep it as a row with its error (on_error 'skip')")


def opened(model: Embedder | str | Callable[[], Embedder]) -> Embedder:
    """Open a model, unless it is open."""
    from idmetric.metric.models.embedder import Embedder
    from idmetric.metric.models.load import load as load_model

    if isinstance(model, Embedder):
        return model
    return load_model(model) if isinstance(model, str) else model()


def schema_of(metric: Embedder, patches: bool, stored: Stored, sources: Sequence[str]) -> Any:
    """Find the schema of a model's files by embedding one image; its metadata names model, settings and sources."""
    import pyarrow as pa
    import torch

    embedding, _ = embed(metric, [Input(None, pixels=torch.zeros(3, *metric.image_size))], patches)
    number = {"float32": pa.float32(), "float16": pa.float16()}[stored]
    columns = [(name, pa.string()) for name in ("image", "name", "stamp", "key")]
    columns += [("width", pa.int32()), ("height", pa.int32())]
    columns.append(("embedding", pa.list_(number, embedding.cls.shape[1])))
    grid = None
    if patches:
        if embedding.patches is None or embedding.grid is None:
            raise ScaleError(f"{metric.label} has no patches: leave them out")
        grid = [*embedding.grid, embedding.patches.shape[2]]
        columns.append(("patches", pa.list_(number, grid[0] * grid[1] * grid[2])))
    facts = {"format": 2, **metric.about(), "size": embedding.cls.shape[1], "patches": grid, "stored": stored,
             "sources": [as_text(source) for source in sources]}  # fmt: skip
    return pa.schema([*columns, ("error", pa.string())], {META: json.dumps(facts)})


# The folder of embeddings


def parts(system: Any, folder: str, schema: Any) -> dict[str, list[dict[str, Any]] | None]:
    """Return path -> image, stamp, key and error of the rows of each file, checked with their checksums.

    The rows are None if the file is damaged. Patches are not checked.

    Raises:
        ScaleError: for a Parquet file of another origin. OSError: if a file cannot be read now.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    tables: dict[str, list[dict[str, Any]] | None] = {}
    for path in files_below(system, folder):
        if not path.endswith(".parquet"):
            continue
        if not PART.fullmatch(os.path.relpath(path, folder)):
            raise ScaleError(f"{folder!r} holds other Parquet files ({path}): name a folder of its own")
        try:
            with system.open_input_file(path) as file, pq.ParquetFile(file, page_checksum_verification=True) as part:
                check_same(path, part.schema_arrow.metadata or {}, schema)
                table = part.read(columns=[name for name in schema.names if name != "patches"])
            tables[path] = table.select(["image", "stamp", "key", "error"]).to_pylist()
        except (pa.ArrowException, KeyError, ValueError):
            tables[path] = None
        except OSError as error:
            if error.errno is not None:  # pyarrow reports wrong checksums as OSErrors without a number
                raise
            tables[path] = None
    return tables


def check_same(path: str, metadata: dict[bytes, bytes], schema: Any) -> None:
    """Raise ScaleError for a file of another model, settings or sources; the package's version may differ."""
    if META not in metadata:
        raise ScaleError(f"{path!r} is another Parquet file: name a folder of its own")
    facts = json.loads(metadata[META])
    wanted = json.loads(schema.metadata[META])
    different = [
        f"{key} {facts.get(key)} instead of {value}"
        for key, value in wanted.items()
        if key != "idmetric" and facts.get(key) != value
    ]
    if different:
        raise ScaleError(f"{path!r} is of other work ({'; '.join(different)}): name another folder")


@dataclass
class Run:
    """A run that holds its folder of embeddings; `done` are the images with a row there."""

    system: Any
    folder: str
    metric: Embedder
    schema: Any
    stamps: dict[str, str]
    done: set[str]
    removed: int = 0

    def write(self, tables: list[Any]) -> None:
        """Write a file."""
        import pyarrow as pa
        import pyarrow.parquet as pq

        path = os.path.join(self.folder, f"part_{uuid.uuid4().hex}_000000-0.parquet")
        if not is_local(self.system):
            pq.write_table(pa.concat_tables(tables), path, filesystem=self.system, **WRITING)
            return
        with replacing(Path(path)) as temporary:
            pq.write_table(pa.concat_tables(tables), temporary, **WRITING)

    def summary(self, images: Sequence[str]) -> Summary:
        """Check that all images have a row, and no two rows one name, and count them."""
        files = parts(self.system, self.folder, self.schema)
        errors: dict[str, str | None] = {}
        for row in chain.from_iterable(rows or [] for rows in files.values()):
            if row["image"] in errors:
                raise ScaleError(f"{row['image']!r} has two rows: name a column with unique ids (--id-column)")
            errors[row["image"]] = row["error"]
        missing = [image for image in images if image not in errors]
        if missing:
            raise ScaleError(
                f"{len(missing)} images ({missing[0]}, ...) are not in {self.folder!r}: it must be a place that all "
                "processes share; run again for what is missing"
            )
        embedded = sum(error is None and image not in self.done for image, error in errors.items())
        bad = {image: error for image, error in errors.items() if error is not None}
        return Summary(len(errors), embedded, len(files), bad, self.removed)


@contextmanager
def _begun(
    sources: Sequence[Source],
    out: Source,
    model: Any,
    patches: bool,
    stored: Stored,
    stamps: dict[str, str],
    fail: bool,
) -> Iterator[Run]:
    """Open the model, hold the folder during the block, and delete files that do not hold what the sources hold."""
    system, folder, prefix = place(out)
    names: list[str] = []
    for source in sources:
        _, source_path, source_prefix = place(source)
        names.append(source_prefix + source_path)
    for name in names:
        if f"{prefix}{folder}/".startswith(f"{name}/"):
            raise ScaleError(f"{folder!r} lies in the source {name!r}: keep the embeddings elsewhere")
    metric = opened(model)
    run = Run(system, folder, metric, schema_of(metric, patches, stored, names), stamps, set())
    with ExitStack() as stack:
        with writing(folder):
            system.create_dir(folder, recursive=True)
            if is_local(system):  # object stores have no locks
                busy = ScaleError(f"another run is writing to {folder!r}: wait for it, or name another folder")
                stack.enter_context(locked(Path(folder) / ".lock", busy))

        for path, rows in parts(system, folder, run.schema).items():
            images = {row["image"]: row for row in rows or []}
            is_current = all(row["key"] and row["stamp"] == stamp(stamps, image) for image, row in images.items())
            if not rows or not is_current or not run.done.isdisjoint(images):
                system.delete_file(path)
                run.removed += 1
                continue
            run.done |= images.keys()
            for image, row in images.items():
                if row["error"] and fail:
                    raise unreadable(image, row["error"])
        yield run


def embed_dataset(
    sources: Source | Sequence[Source],
    out: Source,
    *,
    model: Embedder | str | Callable[[], Embedder] = "dinov3_vitl16",
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
    need("data", "embedding a data set", pyarrow="pyarrow")
    fail = on_error == "fail"
    images, stamps = listed(_several(sources))
    with _begun(_several(sources), out, model, patches, stored, stamps, fail) as run:
        count = len(run.done)
        waiting: list[Any] = []
        if progress is not None:
            progress(count, len(images))
        for table in Worker(run.metric, run.schema, stamps, run.done, fail, batch_size, workers).tables(images):
            waiting.append(table)
            count += len(table)
            is_large = sum(map(len, waiting)) >= rows or sum(table.nbytes for table in waiting) >= LARGE
            if is_large or count == len(images):
                run.write(waiting)
                waiting = []
                if progress is not None:
                    progress(count, len(images))
        return run.summary([as_text(entry.place) for entry in images])


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

    images: list[Entry] = []
    tables: list[str] = []
    if column is None:
        images, stamps = listed(_several(sources))
    else:
        stamps = {}
        for source in _several(sources):
            system, root, prefix = place(source)
            for path, stamp_of_table in files_below(system, root).items():
                if path.endswith(".parquet"):
                    tables.append(path)
                    stamps[prefix + path] = stamp_of_table
        if not tables:
            raise ScaleError("the sources hold no .parquet files: leave --column out if they hold images")

    fail = on_error == "fail"
    with _begun(_several(sources), out, model, patches, stored, stamps, fail) as run:
        if not ray.is_initialized():
            os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")  # send no statistics
            ray.init(address, logging_level="WARNING")
        resources = ray.cluster_resources()
        free = resources.get("CPU", 0) - bool(tables)  # Ray Data lists tables in a task of its own
        room = [free / cpus] if cpus else []
        room += [resources.get("GPU", 0) / gpus] if gpus else []
        processes = int(min(room, default=1))
        if processes < 1:
            raise ScaleError(f"the cluster has no room for a process of {cpus:g} CPUs and {gpus:g} GPUs: ask for less")

        names = [as_text(entry.place) for entry in images]
        todo = [entry for entry in images if as_text(entry.place) not in run.done]
        if not todo and not tables:
            return run.summary(names)
        threads = workers or max(1, round(cpus))
        # tasks that read and write need no CPU: the processes with the model take them all
        if column is None:
            dataset = ray.data.from_items(list(range(len(todo))), override_num_blocks=math.ceil(len(todo) / rows))
            entry = partial(_listed_entry, todo)
        else:
            dataset = ray.data.read_parquet(
                tables, filesystem=system, columns=[column, column_id], include_paths=True, num_cpus=0
            )
            entry = partial(_row_entry, prefix, column, column_id)
        embeddings = dataset.map_batches(
            Worker, batch_size=rows, batch_format="pyarrow", num_cpus=cpus, num_gpus=gpus,
            compute=ray.data.ActorPoolStrategy(min_size=1, max_size=processes),
            fn_constructor_args=(model, run.schema, stamps, run.done, fail, batch_size, threads, entry),
        )  # fmt: skip
        try:
            embeddings.write_parquet(
                run.folder, filesystem=run.system, ray_remote_args={"num_cpus": 0},
                filename_provider=FilenameProvider(dataset_uuid="part", file_format="parquet"), **WRITING,
            )  # fmt: skip
        except ray.exceptions.RayError as error:
            cause = str(error).strip().splitlines()[-1]
            raise ScaleError(f"the cluster gave up ({cause}): run again for what is missing") from error
        return run.summary(names)


def _listed_entry(images: list[Entry], row: dict[str, Any]) -> Entry:
    position: int = row["item"]
    return images[position]


def _several(sources: Source | Sequence[Source]) -> list[str]:
    return [os.fspath(source) for source in ([sources] if isinstance(sources, str | os.PathLike) else sources)]
