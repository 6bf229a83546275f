"""Run jobs one by one; a stop at any moment loses at most the image in progress.

Images and masks are written atomically, masks first. Then the worker's journal gets a line with the row and the SHA-256
of the files. A job is finished if a journal names it and its files are unchanged, by size and modification time or else
by SHA-256. The journals are the only state: the same jobs over the same folder resume, with any number of workers. A
job is repeated if its source has changed in size.

    task = distractor_task(manifest, open_engine("sdxl_inpaint"), read_wording())
    run(task, "images", shard=(1, 4))       # one of four workers
    collect(task, "images").manifest.write("distractors.parquet")    # when all are done
"""

from __future__ import annotations

import hashlib
import io
import os
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, Literal

from idmetric.data.generate.compose import ComposeError
from idmetric.data.generate.errors import Flat, GenerateError, Rejected
from idmetric.data.generate.job import Job, Made, Task, read_photo, read_source, source_sizes
from idmetric.data.generate.journal import Entry, Journals, add, open_journal
from idmetric.images.read import ImageReadError
from idmetric.io.output import replacing
from idmetric.io.settings import fail_or_skip

if TYPE_CHECKING:
    from PIL import Image

    from idmetric.data.manifest.table import Manifest, Row

Progress = Callable[[Iterable[Any], int, str], Iterable[Any]]
Reasons = list[tuple[str, str]]
_FLAT = 3  # flat images at the start that end a run: the prompt is not the cause


@dataclass(frozen=True)
class Outcome:
    """The result of a run.

    Attributes:
        made, kept: number of new images, and of images that were already finished.
        unusable: (row, reason) of unusable sources.
        rejected: (name, reason) of rejected images.
    """

    made: int
    kept: int
    unusable: tuple[tuple[str, str], ...] = ()
    rejected: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True)
class Collected:
    """The manifest of finished jobs in their order, names of unfinished jobs, and (name, reason) of rejected ones."""

    manifest: Manifest
    missing: tuple[str, ...]
    rejected: tuple[tuple[str, str], ...]


def run(
    task: Task, folder: str | os.PathLike[str], shard: tuple[int, int] = (1, 1),
    on_error: Literal["fail", "skip"] = "fail", progress: Progress = lambda items, total, what: items,
    without: Collection[str] = (), verify: bool = False,
) -> Outcome:  # fmt: skip
    """Run the jobs that are not finished.

    Args:
        folder: of the images and journals; created if absent.
        shard: this worker's number, from 1, and the number of workers. Workers take blocks of jobs in turn.
        on_error: treatment of sources that cannot be read or composed. "fail" reads all sources first and raises if
            one is unreadable; sources that fail later are listed at the end. "skip" leaves them out.
        progress: wraps iterables: (items, total, name) -> items.
        without: ids of parents to leave out.
        verify: compare the SHA-256 of all finished files, even if size and modification time are unchanged.

    Raises:
        GenerateError: listing unusable sources, if `on_error` is "fail" (all other images have been made); if another
            process runs this shard in this folder; or if the first images are all flat.
    """
    on_error = fail_or_skip(on_error)
    root = Path(folder)
    mine = [job for job in sharded(task.jobs, shard) if job.parent not in without]
    root.mkdir(parents=True, exist_ok=True)
    with open_journal(root, shard) as journal:
        done = finished(task, root, mine, verify)
        todo = [job for job in mine if job.name not in done]
        if on_error == "fail" and (problems := unusable_sources(task, todo, progress)):
            raise GenerateError(listing(problems))
        unusable, rejected = _do(task, root, todo, journal, progress) if todo else ([], [])
    if unusable and on_error == "fail":
        raise GenerateError(listing(unusable))
    return Outcome(len(todo) - len(unusable) - len(rejected), len(mine) - len(todo), tuple(unusable), tuple(rejected))


def _do(task: Task, root: Path, todo: Sequence[Job], journal: BinaryIO, progress: Progress) -> tuple[Reasons, Reasons]:
    """Run jobs; returns unusable sources and rejected images. Flat images at the start are journaled only after the
    first image that is not flat."""
    unusable: Reasons = []
    rejected: Reasons = []
    held: list[Entry] | None = []
    task.load()

    for job in progress(todo, len(todo), "generate"):
        try:
            entry = _write(root, job, task.make(job))
            flat = False
        except Rejected as error:
            entry, flat = {"name": job.name, "rejected": str(error)}, isinstance(error, Flat)
            rejected.append((job.name, str(error)))
        except (ImageReadError, ComposeError) as error:
            unusable.append((_who(job), str(error)))
            continue

        entry["source"] = _source(task, job)
        if flat and held is not None:
            held.append(entry)
            if len(held) == _FLAT:
                raise GenerateError(f"the first {_FLAT} images are all flat, so numbers overflow: pass --dtype float32")
            continue

        for other in held or ():
            add(journal, other)
        held = None
        add(journal, entry)

    for other in held or ():
        add(journal, other)
    return unusable, rejected


def sharded(jobs: Sequence[Job], shard: tuple[int, int]) -> list[Job]:
    """The jobs of worker i of n, i.e. every n-th block in order of appearance."""
    number, count = shard
    if not 1 <= number <= count:
        raise GenerateError(f"shard {number}/{count}: the first number must be within 1..{count}")
    turn: dict[str, int] = {}
    return [job for job in jobs if turn.setdefault(job.block, len(turn)) % count == number - 1]


def finished(
    task: Task, folder: str | os.PathLike[str], jobs: Sequence[Job] | None = None, verify: bool = False
) -> set[str]:
    """Names of the finished jobs (default: of all jobs), including rejected ones."""
    with Journals(folder) as journals:
        chosen = task.jobs if jobs is None else jobs
        return {job.name for job in chosen if _entry(task, Path(folder), job, journals, verify)}


def collect(task: Task, folder: str | os.PathLike[str], verify: bool = False) -> Collected:
    """The manifest of the jobs that any worker finished; its paths are relative to `folder`."""
    from idmetric.data.manifest.table import Manifest, Row

    missing: list[str] = []
    rejected: Reasons = []

    def rows() -> Iterator[Row]:
        with Journals(folder) as journals:
            for job in task.jobs:
                entry = _entry(task, Path(folder), job, journals, verify)
                if entry is None:
                    missing.append(job.name)
                elif "row" in entry:
                    yield Row(**entry["row"])
                else:
                    rejected.append((job.name, entry["rejected"]))

    manifest = Manifest.from_rows(rows(), folder)
    return Collected(manifest, tuple(missing), tuple(rejected))


def _entry(task: Task, root: Path, job: Job, journals: Journals, verify: bool) -> Entry | None:
    """The valid journal entry of a job, preferably one with an image; None if the job isn't finished."""
    found = None
    source = _source(task, job)
    for entry in journals.entries(job.name):
        if _same(entry.get("source"), source):
            if "row" in entry and _intact(root, entry, verify):
                return entry
            if "rejected" in entry and found is None:
                found = entry
    return found


def _write(root: Path, job: Job, made: Made) -> Entry:
    """Write the files of a job, the image last, and return its journal entry."""
    row = {**job.row, "path": f"{job.name}.png", "parameters": {**job.settings, **made.parameters}}
    if made.oracle is not None:
        row["oracle"] = made.oracle
    files, stats = {}, {}
    for column, image in (("mask", made.mask), ("part_mask", made.part_mask), ("path", made.image)):
        if image is not None:
            name = row["path"] if column == "path" else f"{job.name}.{column}.png"
            row[column] = name
            files[name] = _save(root / name, image)
            stats[name] = _stat(root / name)
    row = {k: v for k, v in row.items() if v is not None or k == "identity"}
    return {"name": job.name, "files": files, "stats": stats, "row": row}


def _save(path: Path, image: Image.Image) -> str:
    """Write a PNG atomically and return the SHA-256 of its bytes."""
    buffer = io.BytesIO()
    image.save(buffer, format="PNG")
    data = buffer.getvalue()
    path.parent.mkdir(parents=True, exist_ok=True)
    with replacing(path) as temporary, temporary.open("wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
    return hashlib.sha256(data).hexdigest()


def _stat(path: Path) -> list[int]:
    """Size in bytes and modification time in nanoseconds."""
    found = path.stat()
    return [found.st_size, found.st_mtime_ns]


def _source(task: Task, job: Job) -> list[int | None] | None:
    return None if task.sources is None or job.source is None else source_sizes(task.sources, job.source)


def _same(then: list[int | None] | None, now: list[int | None] | None) -> bool:
    """Whether the sizes of sources agree, as far as both are known."""
    return not then or not now or all(a == b or None in (a, b) for a, b in zip(then, now, strict=True))


def _intact(root: Path, entry: Entry, verify: bool) -> bool:
    """Whether all files of an entry are unchanged."""
    stats = entry.get("stats", {})
    for name, digest in entry.get("files", {}).items():
        try:
            if not verify and stats.get(name) == _stat(root / name):
                continue
            if hashlib.sha256((root / name).read_bytes()).hexdigest() != digest:
                return False
        except OSError:
            return False
    return True


def _who(job: Job) -> str:
    """The row that a job is made from, for messages."""
    return job.name if job.source is None else f"row {job.source + 1} ({job.parent})"


def unusable_sources(task: Task, jobs: Sequence[Job], progress: Progress) -> Reasons:
    """(row, reason) of every source of these jobs that cannot be read or composed."""
    problems: Reasons = []
    if task.sources is None:
        return problems
    sources = {job.source: job for job in jobs if job.source is not None}
    for job in progress(sources.values(), len(sources), "check"):
        try:
            (read_source if task.masked else read_photo)(task.sources, job)
        except (ImageReadError, ComposeError) as error:
            problems.append((_who(job), str(error)))
    return problems


def listing(problems: Sequence[tuple[str, str]]) -> str:
    """The message that lists unusable sources."""
    listed = "".join(f"\n  {who}: {why}" for who, why in problems)
    return f"{len(problems)} sources cannot be used; fix them, or leave them out with --on-error skip:{listed}"
