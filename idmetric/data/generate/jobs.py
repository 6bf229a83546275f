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
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import numpy as np
from PIL import Image

from idmetric.data.generate.compose import Pair, Parameters, read_pair
from idmetric.data.generate.engine import Engine
from idmetric.data.generate.weights import Rejection, Weighted
from idmetric.data.generate.wording import Wording
from idmetric.data.old_manifest.lineage import has_image
from idmetric.data.old_manifest.table import Manifest, Row
from idmetric.metric.errors import RequestError
from idmetric.metric.files import StrPath, read_json_file, replacing
from idmetric.metric.images import ImageReadError
from idmetric.tables import first_few

Progress = Callable[[Iterable[Any], int, str], Iterable[Any]]  # (items, total, name) -> items, with progress shown
_FLAT = 3  # flat images at the start that end a run: the prompt is not the cause


@dataclass(frozen=True)
class Job:
    """One image to make; jobs are planned before any weights are loaded.

    Attributes:
        name: path of the image without extension, equal for equal jobs; see `job_name`.
        prompt, seed: input of the engine.
        settings: everything else that determines the pixels, as JSON values.
        row: values of the new row in the manifest.
        source: number of the row that the image is made from; None for an image from words alone.
    """

    name: str
    prompt: str
    seed: int
    settings: Parameters
    row: Parameters
    source: int | None = None


@dataclass(frozen=True)
class Made:
    """The result of a job: the image, its masks ("L", 0 or 255), random draws and measurements, and the oracle score
    if only a part was repainted."""

    image: Image.Image
    mask: Image.Image | None = None
    part_mask: Image.Image | None = None
    parameters: Parameters = field(default_factory=dict)
    oracle: float | None = None


@dataclass(frozen=True)
class GenerateTask:
    """A list of jobs, the function that runs one of them, and the models that it uses."""

    jobs: Sequence[Job]
    make: Callable[[Job], Made | Rejection]
    models: Sequence[Weighted]


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
    left_out: list[tuple[str, str]]


# Runs


def run_jobs(
    task: GenerateTask,
    folder: StrPath,
    on_error: Literal["fail", "skip"] = "fail",
    progress: Progress = lambda items, total, what: items,
) -> Outcome:
    """Run the jobs that are not finished.

    Args:
        folder: of the images; created if absent.
        on_error: treatment of sources that cannot be read or composed: "fail" lists them in an error once all other
            images have been made, "skip" leaves them out.

    Raises:
        RequestError: listing unusable sources, or if the first images are all flat.
    """
    root = Path(folder)
    todo = [job for job in task.jobs if _entry(root, job) is None]
    unusable = _run(task, root, todo, progress) if todo else {}
    if unusable and on_error != "skip":
        listed = "".join(f"\n  {source}: {reason}" for source, reason in unusable.items())
        raise RequestError(
            f"{len(unusable)} sources cannot be used; fix them, or leave them out with --on-error skip:{listed}"
        )

    rows: dict[str, Row] = {}
    rejected: dict[str, str] = {}
    for job in task.jobs:
        entry = _entry(root, job) or {}
        if "row" in entry:
            rows[job.name] = Row(**entry["row"])
        elif "rejected" in entry:
            rejected[job.name] = entry["rejected"]
    manifest = Manifest.from_rows(rows.values(), root)
    made = sum(job.name in rows for job in todo)
    return Outcome(manifest, made, [*unusable.items(), *rejected.items()])


def _run(
    task: GenerateTask,
    root: Path,
    jobs: Sequence[Job],
    progress: Progress,
) -> dict[str, str]:
    """Run jobs; returns unusable sources with the reasons."""
    unusable: dict[str, str] = {}
    finished = flat = 0
    for model in task.models:
        model.load()

    for job in progress(jobs, len(jobs), "generate"):
        try:
            made = task.make(job)
        except ImageReadError as error:
            unusable[f"row {job.source + 1} ({job.row['parent']})"] = str(error)
            continue

        if isinstance(made, Rejection):
            entry: Parameters = {"rejected": made.reason}
            flat += made.is_flat
        else:
            entry = {"row": _saved(root, job, task, made)}

        finished += 1
        if finished == flat == _FLAT:
            raise RequestError(f"the first {_FLAT} images are all flat, so numbers overflow: pass --dtype float32")
        with replacing(root / f"{job.name}.json", parents=True) as temporary:
            text = json.dumps(entry, ensure_ascii=False, sort_keys=True)
            temporary.write_text(text, encoding="utf-8")

    return unusable


def _saved(
    root: Path,
    job: Job,
    task: GenerateTask,
    made: Made,
) -> Parameters:
    """Write the images of a job, and return its row."""
    parameters = {**job.settings, **made.parameters, **_provenance(task.models)}
    row = {**job.row, "parameters": parameters, "oracle": made.oracle}
    for column in ("mask", "part_mask", "path"):
        image = made.image if column == "path" else getattr(made, column)
        if image is not None:
            row[column] = f"{job.name}.png" if column == "path" else f"{job.name}.{column}.png"
            with replacing(root / row[column], parents=True) as temporary:
                image.save(temporary, "PNG")
    return {name: value for name, value in row.items() if value is not None or name == "identity"}


def _provenance(models: Sequence[Weighted]) -> Parameters:
    """Versions and licenses of the models' weights; the names of all but the first model's begin with its name."""
    versions: dict[str, str] = {}
    licenses: dict[str, str] = {}
    for model in models:
        prefix = "" if model is models[0] else f"{model.name}."
        versions |= {prefix + name: version for name, version in model.versions.items()}
        licenses |= model.licenses
    return {"versions": versions, "licenses": licenses}


def _entry(root: Path, job: Job) -> Parameters | None:
    """A finished job's row, or the reason why its image was rejected; None if the job isn't finished."""
    try:
        entry: Parameters = read_json_file(root / f"{job.name}.json")
    except (OSError, ValueError):
        return None
    row = entry.get("row", {})
    files = [row[name] for name in ("path", "mask", "part_mask") if name in row]
    return entry if all((root / file).is_file() for file in files) else None


# Plans


def job_name(
    engine: Engine,
    origin: str,
    prompt: str,
    seed: int,
    settings: Parameters,
) -> str:
    """The engine, a hash of the origin, the seed, and a hash of the prompt and all settings.

    Args:
        origin: id of the row that the image is made from, or a name of what an image from words alone shows.
    """
    source = short_hash(origin)
    return f"{engine.name}/{source[:2]}/{source}-seed{seed}-{short_hash([prompt, settings])[:10]}"


def job_from(
    parent: Row,
    index: int,
    engine: Engine,
    prompt: str,
    seed: int,
    settings: Parameters,
    role: str,
    is_new: bool = False,
    **more: Any,
) -> Job:
    """The job that makes an image from a row of a manifest.

    Args:
        is_new: the image shows a new identity on its parent's background; otherwise it keeps the identity and gets a
            new background id.
        more: further values of its row.
    """
    settings = {**engine.settings, **settings}
    name = job_name(engine, parent.id, prompt, seed, settings)
    row = {
        "id": name,
        "identity": parent.identity,
        "role": role,
        "dataset": parent.dataset,
        "split": parent.split,
        "domain": parent.domain,
        "category": parent.category,
        "background": name,
        "parent": parent.id,
        "engine": engine.name,
        "text": prompt,
        "seed": seed,
        **more,
    }
    if is_new:
        row["identity"] = f"{parent.identity or parent.id}/{role}/{short_hash(name)}"
        row["background"] = parent.background
    return Job(name, prompt, seed, settings, row, index)


def edit_jobs(
    manifest: Manifest,
    engine: Engine,
    words: Wording,
    role: str,
    seed: int,
    copies: int,
    settings: Parameters,
) -> list[Job]:
    """`copies` jobs for each row, which make new identities by a prompt with the row's category.

    Args:
        settings: of the task; their `task` names the prompt.
    """
    require(manifest, "mask", "category")
    jobs = []
    for index, row in enumerate(manifest):
        prompt = words.prompt(settings["task"], row.category)
        for copy in range(copies):
            draw = frame_seed(seed, index, copy)
            jobs.append(job_from(row, index, engine, prompt, draw, settings, role, is_new=True))
    return jobs


def require(manifest: Manifest, *columns: str) -> None:
    """Check that every row has values in the columns."""
    ids = manifest.column("id")
    for column in columns:
        missing = [index for index, value in enumerate(manifest.column(column)) if value is None]
        if column == "mask":
            missing = np.flatnonzero(~has_image(manifest, "mask")).tolist()
        if missing:
            listed = ", ".join(first_few([f"row {index + 1} ({ids[index]})" for index in missing]))
            raise RequestError(
                f"column {column!r} is empty in {len(missing)} rows: {listed}; fill it in or filter these rows out"
            )


def read_source(manifest: Manifest, job: Job) -> Pair:
    """Image (RGB) and mask ("L", 0 or 255) of the row that a job is made from, as `read_pair` reads them."""
    assert job.source is not None
    image = manifest.source(job.source) or b""
    mask = manifest.source(job.source, "mask") or b""
    return read_pair(image, mask)


def frame_seed(seed: int, row: int, copy: int = 0) -> int:
    """ID-Sim's per-frame seed, `seed + row_id` (A.2.2), rows counted from 0; further copies of a row are 2^32 apart."""
    return seed + row + (copy << 32)


def text_seed(seed: int, *names: object) -> int:
    """A seed of 32 bits that depends on the seed and the names alone."""
    return int(short_hash([seed, *names])[:8], 16)


def short_hash(value: object) -> str:
    """12 hex digits of the SHA-256 of a text, or of a value as JSON."""
    if not isinstance(value, str):
        value = json.dumps(value, sort_keys=True, ensure_ascii=False)
    return hashlib.sha256(value.encode()).hexdigest()[:12]
