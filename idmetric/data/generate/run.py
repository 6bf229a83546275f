"""Doing jobs one by one, so that a stop at any moment loses at most the image at work.

An image is written to a temporary file and renamed, its masks before it; then a line with its row and the SHA-256 of
its files is added to the worker's journal. Finished is what a journal names and whose files are as it says. Nothing
else is remembered: the same jobs over the same folder go on where they stopped, in however many workers. A job whose
source has changed its size is done anew.

    task = distractor_task(manifest, open_engine("sdxl_inpaint"), read_wording())
    run(task, "images", shard=(1, 4))       # one of four workers
    collect(task, "images").manifest.write("distractors.parquet")    # when all are done
"""

from __future__ import annotations

import hashlib
import io
import json
import os
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, Literal

from idmetric.data.compose import ComposeError
from idmetric.data.generate.background import Rejected
from idmetric.data.generate.engine import GenerateError
from idmetric.data.generate.job import Job, Made, Task, read_source, source_sizes
from idmetric.images import ImageReadError

if TYPE_CHECKING:
    from PIL import Image

    from idmetric.data.manifest import Manifest

Progress = Callable[[Iterable[Any], int, str], Iterable[Any]]
Entries = dict[str, dict[str, Any]]


@dataclass(frozen=True)
class Outcome:
    """What a run did: numbers of images made and found finished, and (name, reason) of those left out."""

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
    on_error: Literal["stop", "skip"] = "stop", progress: Progress = lambda items, total, what: items,
    without: Collection[str] = (),
) -> Outcome:  # fmt: skip
    """Do the jobs that are not done yet.

    Args:
        folder: of the images and journals; made if absent.
        shard: this worker's number, from 1, and the number of workers. Blocks of jobs are dealt out in turn.
        on_error: what becomes of sources that cannot be read or composed. "stop" reads all sources first and refuses
            to begin if one cannot be read; one that turns out unusable later is listed at the end. "skip" leaves them
            out.
        progress: wraps what is iterated over: (items, total, what) -> items.
        without: ids of parents whose jobs are left out, as if they were not there.

    Raises:
        GenerateError: listing unusable sources, if `on_error` is "stop". What could be made has been made.
    """
    root = Path(folder)
    root.mkdir(parents=True, exist_ok=True)
    mine = [job for job in sharded(task.jobs, shard) if job.parent not in without]
    done = finished(task, root, mine)
    todo = [job for job in mine if job.name not in done]
    if on_error == "stop" and (problems := unusable_sources(task, todo, progress)):
        raise GenerateError(listing(problems))
    unusable: list[tuple[str, str]] = []
    rejected: list[tuple[str, str]] = []
    if todo:
        task.load()
        with open_journal(root, shard) as journal:
            for job in progress(todo, len(todo), "generate"):
                try:
                    entry = _write(root, job, task.make(job))
                    _add(journal, {**entry, "source": _source(task, job)})
                except Rejected as error:
                    _add(journal, {"name": job.name, "rejected": str(error), "source": _source(task, job)})
                    rejected.append((job.name, str(error)))
                except (ImageReadError, ComposeError) as error:
                    unusable.append((job.parent or job.name, str(error)))
    if unusable and on_error == "stop":
        raise GenerateError(listing(unusable))
    return Outcome(len(todo) - len(unusable) - len(rejected), len(mine) - len(todo), tuple(unusable), tuple(rejected))


def sharded(jobs: Sequence[Job], shard: tuple[int, int]) -> list[Job]:
    """The jobs of worker i of n: every n-th block, in order of appearance."""
    number, count = shard
    if not 1 <= number <= count:
        raise GenerateError(f"shard {number}/{count}: the first number must be within 1..{count}")
    turn: dict[str, int] = {}
    return [job for job in jobs if turn.setdefault(job.block, len(turn)) % count == number - 1]


def finished(task: Task, folder: str | os.PathLike[str], jobs: Sequence[Job] | None = None) -> Entries:
    """Journal entries of the jobs (default all) that are done: rejected, or with all files as they were written."""
    entries = read_journals(folder)
    found = {}
    for job in task.jobs if jobs is None else jobs:
        entry = entries.get(job.name)
        if entry and _same(entry.get("source"), _source(task, job)) and _intact(Path(folder), entry):
            found[job.name] = entry
    return found


def collect(task: Task, folder: str | os.PathLike[str]) -> Collected:
    """The manifest of what is finished, whoever did it; its paths start from `folder`."""
    from idmetric.data.manifest import Manifest, Row

    done = finished(task, folder)
    names = [job.name for job in task.jobs]
    rows = [Row(**done[name]["row"]) for name in names if "row" in done.get(name, {})]
    missing = tuple(name for name in names if name not in done)
    rejected = tuple((name, done[name]["rejected"]) for name in names if "rejected" in done.get(name, {}))
    return Collected(Manifest.from_rows(rows, folder), missing, rejected)


def read_journals(folder: str | os.PathLike[str]) -> Entries:
    """All entries of all workers by name, the last of each; lines cut off by a stop are passed over."""
    entries: Entries = {}
    for path in sorted(Path(folder).glob("journal*.jsonl")):
        for line in path.read_bytes().splitlines():
            try:
                entry = json.loads(line)
                entries[entry["name"]] = entry
            except (ValueError, KeyError, TypeError):
                continue
    return entries


def open_journal(folder: Path, shard: tuple[int, int]) -> BinaryIO:
    """The worker's journal, to be added to; a line that a stop cut off is ended first."""
    path = folder / f"journal-{shard[0]}-of-{shard[1]}.jsonl"
    file = path.open("ab+")
    if file.tell():
        file.seek(-1, os.SEEK_END)
        if file.read(1) != b"\n":
            file.write(b"\n")
    return file


def _add(journal: BinaryIO, entry: dict[str, Any]) -> None:
    journal.write(json.dumps(entry, ensure_ascii=False, sort_keys=True).encode() + b"\n")
    journal.flush()
    os.fsync(journal.fileno())


def _write(root: Path, job: Job, made: Made) -> dict[str, Any]:
    """Write the files of a job, the image last; returns its journal entry."""
    row = {**job.row, "path": f"{job.name}.png", "parameters": {**job.settings, **made.parameters}}
    files = {}
    for column, image in (("mask", made.mask), ("part_mask", made.part_mask)):
        if image is not None:
            row[column] = f"{job.name}.{column}.png"
            files[row[column]] = _save(root / row[column], image)
    files[row["path"]] = _save(root / row["path"], made.image)
    return {"name": job.name, "files": files, "row": {k: v for k, v in row.items() if v is not None or k == "identity"}}


def _save(path: Path, image: Image.Image) -> str:
    """Write a PNG, whole or not at all; returns the SHA-256 of its bytes. A temporary file left by a kill is reused."""
    buffer = io.BytesIO()
    image.save(buffer, format="PNG")
    data = buffer.getvalue()
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.part")
    with temporary.open("wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
    os.replace(temporary, path)
    return hashlib.sha256(data).hexdigest()


def _source(task: Task, job: Job) -> list[int | None] | None:
    return None if task.sources is None or job.source is None else source_sizes(task.sources, job.source)


def _same(then: list[int | None] | None, now: list[int | None] | None) -> bool:
    """Whether sources are the same, as far as they are here."""
    return not then or not now or all(a == b or None in (a, b) for a, b in zip(then, now, strict=True))


def _intact(root: Path, entry: dict[str, Any]) -> bool:
    if "rejected" in entry:
        return True
    for name, digest in entry.get("files", {}).items():
        try:
            if hashlib.sha256((root / name).read_bytes()).hexdigest() != digest:
                return False
        except OSError:
            return False
    return "row" in entry


def unusable_sources(task: Task, jobs: Sequence[Job], progress: Progress) -> list[tuple[str, str]]:
    """(row, reason) of all sources of these jobs that cannot be read or composed."""
    problems: list[tuple[str, str]] = []
    if task.sources is None:
        return problems
    sources = {job.source: job for job in jobs if job.source is not None}
    for index, job in progress(sources.items(), len(sources), "check"):
        try:
            read_source(task.sources, index)
        except (ImageReadError, ComposeError) as error:
            problems.append((f"row {index + 1} ({job.parent})", str(error)))
    return problems


def listing(problems: Sequence[tuple[str, str]]) -> str:
    """The message about unusable sources."""
    listed = "".join(f"\n  {who}: {why}" for who, why in problems)
    return f"{len(problems)} sources cannot be used; mend them, or leave them out with --on-error skip:{listed}"
