"""Doing jobs one by one, so that a stop at any moment loses at most the image at work.

An image is written to a temporary file and renamed, its masks before it; then a line with its row and the SHA-256 of
its files is added to the worker's journal. Finished is what a journal names and whose files are as it says: by size and
time of change, and where these differ by SHA-256. Nothing else is remembered: the same jobs over the same folder go on
where they stopped, in however many workers. A job whose source has changed its size is done anew.

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
from idmetric.data.generate.job import Job, Made, Task, read_source, source_sizes
from idmetric.data.generate.journal import Entry, Journals, add, open_journal
from idmetric.images.read import ImageReadError
from idmetric.io.output import replacing

if TYPE_CHECKING:
    from PIL import Image

    from idmetric.data.manifest.table import Manifest, Row

Progress = Callable[[Iterable[Any], int, str], Iterable[Any]]
Reasons = list[tuple[str, str]]
_FLAT = 3  # images that are all of one colour, before any other: then it is not the prompt


@dataclass(frozen=True)
class Outcome:
    """What a run did: numbers of images made and found finished; (row, reason) of unusable sources, and (name, reason)
    of rejected images."""

    made: int
    kept: int
    unusable: tuple[tuple[str, str], ...] = ()
    rejected: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True)
class Collected:
    """The manifest of finished jobs, in the jobs' order; names that are not finished; and (name, reason) rejected."""

    manifest: Manifest
    missing: tuple[str, ...]
    rejected: tuple[tuple[str, str], ...]


def run(
    task: Task, folder: str | os.PathLike[str], shard: tuple[int, int] = (1, 1),
    on_error: Literal["fail", "skip"] = "fail", progress: Progress = lambda items, total, what: items,
    without: Collection[str] = (), verify: bool = False,
) -> Outcome:  # fmt: skip
    """Do the jobs that are not done yet.

    Args:
        folder: of the images and journals; made if absent.
        shard: this worker's number, from 1, and the number of workers. Blocks of jobs are dealt out in turn.
        on_error: what becomes of sources that cannot be read or composed. "fail" reads all sources first and refuses
            to begin if one cannot be read; one that turns out unusable later is listed at the end. "skip" leaves them
            out.
        progress: wraps what is iterated over: (items, total, what) -> items.
        without: ids of parents whose jobs are left out, as if they were not there.
        verify: compare the SHA-256 of all finished files, whether or not size and time tell of a change.

    Raises:
        GenerateError: listing unusable sources, if `on_error` is "fail" (what could be made has been made); if another
            process works on this shard in this folder; or if the first images are all flat.
    """
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
    """Do jobs; returns what could not be used, and what was rejected. Flat images are held back until another comes."""
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
    """The jobs of worker i of n: every n-th block, in order of appearance."""
    number, count = shard
    if not 1 <= number <= count:
        raise GenerateError(f"shard {number}/{count}: the first number must be within 1..{count}")
    turn: dict[str, int] = {}
    return [job for job in jobs if turn.setdefault(job.block, len(turn)) % count == number - 1]


def finished(
    task: Task, folder: str | os.PathLike[str], jobs: Sequence[Job] | None = None, verify: bool = False
) -> set[str]:
    """Names of the jobs (default all) that are done: rejected, or with all files as they were written."""
    with Journals(folder) as journals:
        chosen = task.jobs if jobs is None else jobs
        return {job.name for job in chosen if _entry(task, Path(folder), job, journals, verify)}


def collect(task: Task, folder: str | os.PathLike[str], verify: bool = False) -> Collected:
    """The manifest of what is finished, whoever did it; its paths start from `folder`."""
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
    """The journals' entry of the job that still holds, before those that say it was rejected; None if it isn't done."""
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
    """Write the files of a job, the image last; returns its journal entry."""
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
    """Write a PNG, whole or not at all; returns the SHA-256 of its bytes. A kill may leave one hidden file."""
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
    """Size and time of the last change, in nanoseconds."""
    found = path.stat()
    return [found.st_size, found.st_mtime_ns]


def _source(task: Task, job: Job) -> list[int | None] | None:
    return None if task.sources is None or job.source is None else source_sizes(task.sources, job.source)


def _same(then: list[int | None] | None, now: list[int | None] | None) -> bool:
    """Whether sources are the same, as far as they are here."""
    return not then or not now or all(a == b or None in (a, b) for a, b in zip(then, now, strict=True))


def _intact(root: Path, entry: Entry, verify: bool) -> bool:
    """Whether all files of an entry are as they were written."""
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
    """(row, reason) of all sources of these jobs that cannot be read or composed."""
    problems: Reasons = []
    if task.sources is None:
        return problems
    sources = {job.source: job for job in jobs if job.source is not None}
    for index, job in progress(sources.items(), len(sources), "check"):
        try:
            read_source(task.sources, index)
        except (ImageReadError, ComposeError) as error:
            problems.append((_who(job), str(error)))
    return problems


def listing(problems: Sequence[tuple[str, str]]) -> str:
    """The message about unusable sources."""
    listed = "".join(f"\n  {who}: {why}" for who, why in problems)
    return f"{len(problems)} sources cannot be used; mend them, or leave them out with --on-error skip:{listed}"
