"""Run jobs one by one; a stop at any moment loses at most the image in progress.

Images and masks are written atomically, and last a file NAME.json with the image's row. A job is finished if this file
is there, with the images that it names. A job's name follows from its source, prompt and all settings, so the same jobs
over the same folder resume, with any number of workers.

    task = distractor_task(manifest, open_engine("sdxl_inpaint"), read_wording())
    run(task, "images", shard=(1, 4))       # one of four workers
    collect(task, "images").manifest.write("distractors.parquet")    # when all are done
"""

from __future__ import annotations

import json
import os
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from idmetric.data.generate.compose import ComposeError
from idmetric.data.generate.job import Job, Made, Progress, Task, read_source
from idmetric.data.generate.weights import Flat, GenerateError, Rejected
from idmetric.images.read import ImageReadError
from idmetric.io import json_file
from idmetric.io.lock import locked
from idmetric.io.output import replacing

if TYPE_CHECKING:
    from idmetric.data.manifest.table import Manifest, Row

Reasons = list[tuple[str, str]]
Entry = dict[str, Any]  # content of NAME.json: the row of the image, or the reason why it was rejected
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
    without: Collection[str] = (),
) -> Outcome:  # fmt: skip
    """Run the jobs that are not finished.

    Args:
        folder: of the images; created if absent.
        shard: this worker's number, from 1, and the number of workers. Workers take blocks of jobs in turn.
        on_error: treatment of sources that cannot be read or composed. "fail" reads all sources first and raises if
            one is unreadable; sources that fail later are listed at the end. "skip" leaves them out.
        progress: wraps iterables: (items, total, name) -> items.
        without: ids of parents to leave out.

    Raises:
        GenerateError: listing unusable sources, if `on_error` is "fail" (all other images have been made); if another
            process runs this shard in this folder; or if the first images are all flat.
    """
    root = Path(folder)
    mine = [job for job in sharded(task.jobs, shard) if job.parent not in without]
    root.mkdir(parents=True, exist_ok=True)
    busy = GenerateError(f"another run is using {root}: wait for it to end, or share the work with --shard I/N")
    with locked(root / f".shard-{shard[0]}-of-{shard[1]}.lock", busy):
        done = finished(task, root, mine)
        todo = [job for job in mine if job.name not in done]
        if on_error != "skip" and (problems := unusable_sources(task, todo, progress)):
            raise GenerateError(listing(problems))
        unusable, rejected = _do(task, root, todo, progress) if todo else ([], [])
    if unusable and on_error != "skip":
        raise GenerateError(listing(unusable))
    return Outcome(len(todo) - len(unusable) - len(rejected), len(mine) - len(todo), tuple(unusable), tuple(rejected))


def _do(task: Task, root: Path, todo: Sequence[Job], progress: Progress) -> tuple[Reasons, Reasons]:
    """Run jobs; returns unusable sources and rejected images."""
    unusable: Reasons = []
    rejected: Reasons = []
    flat: int | None = 0  # images so far, if all are flat
    task.load()

    for job in progress(todo, len(todo), "generate"):
        try:
            entry = _write(root, job, task.make(job))
            flat = None
        except Rejected as error:
            entry = {"rejected": str(error)}
            rejected.append((job.name, str(error)))
            flat = flat + 1 if flat is not None and isinstance(error, Flat) else None
        except (ImageReadError, ComposeError) as error:
            unusable.append((_who(job), str(error)))
            continue

        if flat == _FLAT:
            raise GenerateError(f"the first {_FLAT} images are all flat, so numbers overflow: pass --dtype float32")
        note = json.dumps(entry, ensure_ascii=False, sort_keys=True)
        with replacing(root / f"{job.name}.json", parents=True) as temporary:
            temporary.write_text(note, encoding="utf-8")

    return unusable, rejected


def sharded(jobs: Sequence[Job], shard: tuple[int, int]) -> list[Job]:
    """The jobs of worker i of n, i.e. every n-th block in order of appearance."""
    number, count = shard
    if not 1 <= number <= count:
        raise GenerateError(f"shard {number}/{count}: the first number must be within 1..{count}")
    turn: dict[str, int] = {}
    return [job for job in jobs if turn.setdefault(job.block, len(turn)) % count == number - 1]


def finished(task: Task, folder: str | os.PathLike[str], jobs: Sequence[Job] | None = None) -> set[str]:
    """Names of the finished jobs (default: of all jobs), including rejected ones."""
    return {job.name for job in (task.jobs if jobs is None else jobs) if _entry(Path(folder), job)}


def collect(task: Task, folder: str | os.PathLike[str]) -> Collected:
    """The manifest of the jobs that any worker finished; its paths are relative to `folder`."""
    from idmetric.data.manifest.table import Manifest, Row

    missing: list[str] = []
    rejected: Reasons = []

    def rows() -> Iterator[Row]:
        for job in task.jobs:
            entry = _entry(Path(folder), job)
            if entry is None:
                missing.append(job.name)
            elif "row" in entry:
                yield Row(**entry["row"])
            else:
                rejected.append((job.name, entry["rejected"]))

    manifest = Manifest.from_rows(rows(), folder)
    return Collected(manifest, tuple(missing), tuple(rejected))


def _entry(root: Path, job: Job) -> Entry | None:
    """What a finished job's file says; None if the job isn't finished."""
    try:
        entry: Entry = json_file.read(root / f"{job.name}.json")
    except (OSError, ValueError):
        return None
    files = [entry["row"][name] for name in ("path", "mask", "part_mask") if name in entry.get("row", ())]
    return entry if all((root / file).is_file() for file in files) else None


def _write(root: Path, job: Job, made: Made) -> Entry:
    """Write the images of a job, and return its entry."""
    row = {**job.row, "parameters": {**job.settings, **made.parameters}}
    if made.oracle is not None:
        row["oracle"] = made.oracle
    for column, image in (("mask", made.mask), ("part_mask", made.part_mask), ("path", made.image)):
        if image is not None:
            row[column] = f"{job.name}.png" if column == "path" else f"{job.name}.{column}.png"
            with replacing(root / row[column], parents=True) as temporary:
                image.save(temporary, "PNG")
    return {"row": {k: v for k, v in row.items() if v is not None or k == "identity"}}


def _who(job: Job) -> str:
    """The row that a job is made from, for messages."""
    return job.name if job.source is None else f"row {job.source + 1} ({job.parent})"


def unusable_sources(task: Task, jobs: Sequence[Job], progress: Progress) -> Reasons:
    """(row, reason) of every source of these jobs that cannot be read or composed."""
    problems: Reasons = []
    if task.sources is None:
        return problems
    sources = {job.source: job for job in jobs if job.source is not None}
    for index, job in progress(sources.items(), len(sources), "check"):
        try:
            if task.masked:
                read_source(task.sources, job)
            else:
                task.sources.image(index)
        except (ImageReadError, ComposeError) as error:
            problems.append((_who(job), str(error)))
    return problems


def listing(problems: Sequence[tuple[str, str]]) -> str:
    """The message that lists unusable sources."""
    listed = "".join(f"\n  {who}: {why}" for who, why in problems)
    return f"{len(problems)} sources cannot be used; fix them, or leave them out with --on-error skip:{listed}"
