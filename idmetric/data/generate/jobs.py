"""Jobs: one image to make from a source each, and their runs; a stop at any moment loses at most one image.

Images and masks are written atomically, and last a file NAME.json with the image's row. A job is finished if this file
is there, with the images that it names. A job's name follows from its source, prompt and all settings, so the same jobs
over the same folder resume; several processes may share them, each with a part of a task's jobs.

    task = distractor_task(manifest, open_engine("sdxl_inpaint"), read_wording())
    run_jobs(task, "images").manifest.write("distractors.parquet")
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, cast

from PIL import Image

from idmetric.data.generate.compose import ComposeError, read_pair
from idmetric.data.generate.engine import Engine
from idmetric.data.generate.weights import Flat, GenerateError, Rejected
from idmetric.metric.files import json_file
from idmetric.metric.files.output import replacing
from idmetric.metric.files.tables import first_few
from idmetric.metric.images.read import ImageReadError

if TYPE_CHECKING:
    from idmetric.data.generate.wording import Wording
    from idmetric.data.manifest.table import Manifest, Row

Progress = Callable[[Iterable[Any], int, str], Iterable[Any]]  # (items, total, name) -> items, with progress shown
Reasons = list[tuple[str, str]]  # (row or name, why)
_FLAT = 3  # flat images at the start that end a run: the prompt is not the cause


@dataclass(frozen=True)
class Job:
    """One image to make; jobs are planned before any weights are loaded.

    Attributes:
        engine: name of the engine.
        prompt, seed: input of the engine.
        settings: everything else that determines the pixels, as JSON values.
        origin: id of the row that the image is made from, or a name of what an image from words alone shows.
        row: values of the new row in the manifest.
        source: number of the origin's row; None for an image from words alone.
    """

    engine: str
    prompt: str
    seed: int
    settings: Mapping[str, Any]
    origin: str
    row: Mapping[str, Any]
    source: int | None = None

    @cached_property
    def name(self) -> str:
        """Path of the image without extension, equal for equal jobs.

        It consists of the engine, a hash of the origin, the seed, and a hash of the prompt and all settings.
        """
        origin, rest = _hash(self.origin)[:12], _hash([self.prompt, self.settings])[:10]
        return f"{self.engine}/{origin[:2]}/{origin}-seed{self.seed}-{rest}"

    @property
    def about(self) -> str:
        """The row that it is made from, for messages."""
        return self.name if self.source is None else f"row {self.source + 1} ({self.origin})"


@dataclass(frozen=True)
class Made:
    """The result of a job: the image, its masks ("L", 0 or 255), random draws and measurements, and the oracle score
    if only a part was repainted."""

    image: Image.Image
    mask: Image.Image | None = None
    part_mask: Image.Image | None = None
    parameters: Mapping[str, Any] = field(default_factory=dict)
    oracle: float | None = None


@dataclass(frozen=True)
class Task:
    """A list of jobs, the function that runs one of them, and one that loads the weights it needs."""

    jobs: Sequence[Job]
    make: Callable[[Job], Made]
    load: Callable[[], None]


@dataclass(frozen=True)
class Outcome:
    """The result of a run.

    Attributes:
        manifest: of all finished images, in the order of the jobs; its paths are relative to the folder.
        made: number of images that this run made.
        left_out: (row or name, why) of unusable sources and of rejected images.
    """

    manifest: Manifest
    made: int
    left_out: Reasons


# Runs


def run_jobs(
    task: Task, folder: str | os.PathLike[str], on_error: Literal["fail", "skip"] = "fail",
    progress: Progress = lambda items, total, what: items,
) -> Outcome:  # fmt: skip
    """Run the jobs that are not finished.

    Args:
        folder: of the images; created if absent.
        on_error: treatment of sources that cannot be read or composed: "fail" lists them in an error once all other
            images have been made, "skip" leaves them out.

    Raises:
        GenerateError: listing unusable sources, or if the first images are all flat.
    """
    from idmetric.data.manifest.table import Manifest, Row

    root = Path(folder)
    todo = [job for job in task.jobs if _entry(root, job) is None]
    unusable = list(dict.fromkeys(_make(task, root, todo, progress))) if todo else []
    if unusable and on_error != "skip":
        listed = "".join(f"\n  {who}: {why}" for who, why in unusable)
        raise GenerateError(
            f"{len(unusable)} sources cannot be used; fix them, or leave them out with --on-error skip:{listed}"
        )
    entries = {job.name: entry for job in task.jobs if (entry := _entry(root, job))}
    rejected = [(name, entry["rejected"]) for name, entry in entries.items() if "rejected" in entry]
    manifest = Manifest.from_rows((Row(**entry["row"]) for entry in entries.values() if "row" in entry), root)
    made = sum("row" in entries.get(job.name, ()) for job in todo)
    return Outcome(manifest, made, unusable + rejected)


def _make(task: Task, root: Path, todo: Sequence[Job], progress: Progress) -> Reasons:
    """Run jobs; returns unusable sources."""
    unusable: Reasons = []
    start: list[bool] = []  # whether each of the first images is flat
    task.load()

    for job in progress(todo, len(todo), "generate"):
        entry: dict[str, Any]
        try:
            entry = {"row": _saved(root, job, task.make(job))}
            start.append(False)
        except Rejected as error:
            entry = {"rejected": str(error)}
            start.append(isinstance(error, Flat))
        except (ImageReadError, ComposeError) as error:
            unusable.append((job.about, str(error)))
            continue

        if len(start) == _FLAT and all(start):
            raise GenerateError(f"the first {_FLAT} images are all flat, so numbers overflow: pass --dtype float32")
        with replacing(root / f"{job.name}.json", parents=True) as temporary:
            temporary.write_text(json.dumps(entry, ensure_ascii=False, sort_keys=True), encoding="utf-8")

    return unusable


def _saved(root: Path, job: Job, made: Made) -> dict[str, Any]:
    """Write the images of a job, and return its row."""
    row = {**job.row, "parameters": {**job.settings, **made.parameters}, "oracle": made.oracle}
    for column, image in (("mask", made.mask), ("part_mask", made.part_mask), ("path", made.image)):
        if image is not None:
            row[column] = f"{job.name}.png" if column == "path" else f"{job.name}.{column}.png"
            with replacing(root / row[column], parents=True) as temporary:
                image.save(temporary, "PNG")
    return {k: v for k, v in row.items() if v is not None or k == "identity"}


def _entry(root: Path, job: Job) -> dict[str, Any] | None:
    """A finished job's row, or the reason why its image was rejected; None if the job isn't finished."""
    try:
        entry: dict[str, Any] = json_file.read(root / f"{job.name}.json")
    except (OSError, ValueError):
        return None
    files = [entry["row"][name] for name in ("path", "mask", "part_mask") if name in entry.get("row", ())]
    return entry if all((root / file).is_file() for file in files) else None


# Plans


def job_from(
    parent: Row, index: int, role: str, engine: Engine, prompt: str, seed: int, settings: Mapping[str, Any], own: bool,
    **more: Any,
) -> Job:  # fmt: skip
    """The job that makes an image from a row of a manifest.

    Args:
        own: the image shows a new identity on its parent's background; otherwise it keeps the identity and gets a new
            background id.
        more: further values of its row.
    """
    job = Job(engine.name, prompt, seed, {**engine.settings, **settings}, parent.id, {}, index)
    identity: str | None = parent.identity
    background: str | None = job.name
    if own:
        identity, background = f"{parent.identity or parent.id}/{role}/{short_hash(job.name)}", parent.background
    row = {
        "id": job.name, "identity": identity, "role": role, "dataset": parent.dataset, "split": parent.split,
        "domain": parent.domain, "category": parent.category, "background": background, "parent": parent.id,
        "engine": job.engine, "text": job.prompt, "seed": job.seed, **more,
    }  # fmt: skip
    return replace(job, row=row)


def edit_jobs(
    manifest: Manifest, engine: Engine, words: Wording, role: str, seed: int, copies: int, class_column: str,
    settings: Mapping[str, Any],
) -> list[Job]:  # fmt: skip
    """`copies` jobs for each row, which make new identities by a prompt with the row's class.

    Args:
        settings: of the task; their `task` names the prompt.
    """
    require(manifest, "mask", class_column)
    return [
        job_from(
            row, index, role, engine, words.prompt(settings["task"], **{"class": str(getattr(row, class_column))}),
            frame_seed(seed, index, copy), settings, True,
        )
        for index, row in enumerate(manifest)
        for copy in range(copies)
    ]  # fmt: skip


def require(manifest: Manifest, *columns: str) -> None:
    """Check that every row has values in the columns."""
    ids = manifest.column("id")
    for column in columns:
        held = [manifest.column(n) for n in ((column, f"{column}_bytes") if column == "mask" else (column,))]
        lacking = [i for i in range(len(manifest)) if all(values[i] is None for values in held)]
        if lacking:
            listed = ", ".join(first_few([f"row {i + 1} ({ids[i]})" for i in lacking]))
            raise GenerateError(
                f"column {column!r} is empty in {len(lacking)} rows: {listed}; fill it in or filter these rows out"
            )


def read_source(manifest: Manifest, job: Job) -> tuple[Image.Image, Image.Image]:
    """Image (RGB) and mask ("L", 0 or 255) of the row that a job is made from, as `read_pair` reads them."""
    assert job.source is not None
    path, mask = (cast("str | bytes", manifest.source(job.source, column)) for column in ("path", "mask"))
    return read_pair(path, mask)


def frame_seed(seed: int, row: int, copy: int = 0) -> int:
    """ID-Sim's per-frame seed, `seed + row_id` (A.2.2), rows counted from 0; further copies of a row are 2^32 apart."""
    return seed + row + (copy << 32)


def text_seed(seed: int, *names: object) -> int:
    """A seed of 32 bits that depends on the seed and the names alone."""
    return int(_hash([seed, *names])[:8], 16)


def provenance(*models: Any) -> dict[str, Any]:
    """Versions and licenses of the models' weights, for the parameters of a row."""
    first, *others = models
    versions = {**first.versions, **{f"{m.name}.{k}": v for m in others for k, v in m.versions.items()}}
    return {"versions": versions, "licenses": {k: v for m in models for k, v in m.licenses.items()}}


def short_hash(value: object) -> str:
    """12 hex digits of a value's SHA-256."""
    return _hash(value)[:12]


def _hash(value: object) -> str:
    text = value if isinstance(value, str) else json.dumps(value, sort_keys=True, ensure_ascii=False)
    return hashlib.sha256(text.encode()).hexdigest()
