"""Jobs: one image to make from a source each, and their runs; a stop at any moment loses at most one image.

Images and masks are written atomically, and last a file NAME.json with the image's row. A job is done if NAME.json and
the image are there. A job's name follows from its source, prompt and all settings, so the same jobs over the same
folder resume; several processes may share them, each with a part of a task's jobs.

    task = distractor_task(table, open_engine("sdxl_inpaint"), read_wording())
    write(run_jobs(task, "images").table, "distractors.parquet")
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from PIL import Image

from idmetric.data.generate.compose import Pair, Parameters, read_pair
from idmetric.data.generate.engine import Engine
from idmetric.data.generate.wording import Wording
from idmetric.data.manifest import checked, numbered
from idmetric.metric.errors import RequestError
from idmetric.metric.files import StrPath, first_few, read_json_file, replacing
from idmetric.metric.images import ImageReadError

if TYPE_CHECKING:
    import pandas as pd

Progress = Callable[[Iterable[Any], int, str], Iterable[Any]]  # (items, total, name) -> items, with progress shown
_NEW = ("identity-edit", "distractor")  # roles of images that show a new identity
_COPIED = ("dataset", "split", "domain", "category")  # columns that an image has of its source
_FLAT = 3  # flat images at the start that end a run: the prompt is not the cause


@dataclass(frozen=True)
class Job:
    """One image to make; jobs are planned before any weights are loaded.

    Attributes:
        name: path of the image without extension, equal for equal jobs; see `job_name`.
        prompt, seed: input of the engine.
        settings: everything else that determines the pixels, as JSON values.
        row: values of the new row in the manifest.
        source: number of the row that the image is made from; -1 for an image from words alone.
    """

    name: str
    prompt: str
    seed: int
    settings: Parameters
    row: Parameters
    source: int = -1


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
    """A list of jobs.

    Attributes:
        make: runs one of them; returns the reason if its image is rejected.
        engine: that it uses.
        result: makes the task's manifest of that of its images.
    """

    jobs: Sequence[Job]
    make: Callable[[Job], Made | str]
    engine: Engine
    result: Callable[[pd.DataFrame], pd.DataFrame] = lambda made: made


@dataclass(frozen=True)
class Outcome:
    """The result of a run.

    Attributes:
        table: the manifest of all finished images, in the order of the jobs.
        made: number of images that this run made.
        left_out: (row or name, why) of unusable sources and of rejected images.
    """

    table: pd.DataFrame
    made: int
    left_out: list[tuple[str, str]]


# Runs


def run_jobs(
    task: GenerateTask,
    folder: StrPath,
    on_error: Literal["fail", "skip"] = "fail",
    progress: Progress = lambda items, total, what: items,
) -> Outcome:
    """Run the jobs that are not done.

    Args:
        folder: of the images; created if absent.
        on_error: treatment of sources that cannot be read or composed: "fail" lists them in an error once all other
            images have been made, "skip" leaves them out.

    Raises:
        RequestError: listing unusable sources, or if the first images are all flat.
    """

    root = Path(folder)
    todo = [job for job in task.jobs if _entry(root, job) is None]
    left_out = _run(task, root, todo, progress) if todo else []
    if left_out and on_error != "skip":
        listed = "".join(f"\n  {source}: {reason}" for source, reason in left_out)
        raise RequestError(
            f"{len(left_out)} sources cannot be used; fix them, or leave them out with --on-error skip:{listed}"
        )

    rows = []
    for job in task.jobs:
        entry = _entry(root, job) or {}
        if "row" in entry:
            rows.append(entry["row"])
        elif "rejected" in entry:
            left_out.append((job.name, entry["rejected"]))
    table = checked(rows, root)
    made = len({job.name for job in todo}.intersection(table["id"]))
    return Outcome(table, made, left_out)


def _run(task: GenerateTask, root: Path, jobs: Sequence[Job], progress: Progress) -> list[tuple[str, str]]:
    """Run jobs; returns unusable sources with the reasons."""
    _ = task.engine.pipe  # its weights are loaded, or refused, before the work
    unusable: dict[str, str] = {}
    finished = flat = 0
    for job in progress(jobs, len(jobs), "generate"):
        try:
            made = task.make(job)
        except FloatingPointError as error:
            made = str(error)
            flat += 1
        except ImageReadError as error:
            unusable[f"row {job.source + 1} ({job.row['parent']})"] = str(error)
            continue
        entry = {"rejected": made} if isinstance(made, str) else {"row": _saved(root, job, task, made)}
        finished += 1
        if finished == flat == _FLAT:
            raise RequestError(f"the first {_FLAT} images are all flat, so numbers overflow: pass --dtype float32")
        with replacing(root / f"{job.name}.json", parents=True) as temporary:
            temporary.write_text(json.dumps(entry, ensure_ascii=False, sort_keys=True), encoding="utf-8")
    return list(unusable.items())


def _saved(root: Path, job: Job, task: GenerateTask, made: Made) -> Parameters:
    """Write the images of a job, and return its row, with versions and licenses of the engine's weights."""
    parameters = {
        **job.settings,
        **made.parameters,
        "versions": task.engine.versions,
        "licenses": task.engine.licenses,
    }
    row = {**job.row, "parameters": parameters, "oracle": made.oracle}
    images = {"mask": made.mask, "part_mask": made.part_mask, "path": made.image}
    for column, image in images.items():
        if image is not None:
            row[column] = f"{job.name}.png" if column == "path" else f"{job.name}.{column}.png"
            with replacing(root / row[column], parents=True) as temporary:
                image.save(temporary, "PNG")
    return row


def _entry(root: Path, job: Job) -> Parameters | None:
    """A finished job's row, or the reason why its image was rejected; None if the job isn't finished."""
    try:
        entry: Parameters = read_json_file(root / f"{job.name}.json")
    except (OSError, ValueError):
        return None
    is_done = "rejected" in entry or (root / f"{job.name}.png").is_file()
    return entry if is_done else None


# Plans


def job_name(engine: Engine, origin: str, prompt: str, seed: int, settings: Parameters) -> str:
    """The engine, a hash of the origin, the seed, and a hash of the prompt and all settings.

    Args:
        origin: id of the row that the image is made from, or a name of what an image from words alone shows.
    """
    source = short_hash(origin)
    return f"{engine.name}/{source[:2]}/{source}-seed{seed}-{short_hash([prompt, settings])[:10]}"


def job_from(
    parent: Parameters,
    index: int,
    engine: Engine,
    prompt: str,
    seed: int,
    settings: Parameters,
    role: str,
    **more: Any,
) -> Job:
    """The job that makes an image from a row of a manifest.

    Args:
        parent: that row, number `index`.
        role: "identity-edit" and "distractor" show a new identity on their parent's background; others keep the
            identity and get a new background id.
        more: further values of its row.
    """
    settings = {**engine.settings, **settings}
    name = job_name(engine, parent["id"], prompt, seed, settings)
    row = {
        "id": name,
        "identity": parent["identity"],
        "role": role,
        "background": name,
        "parent": parent["id"],
        "engine": engine.name,
        "text": prompt,
        "seed": seed,
        **{column: parent[column] for column in _COPIED},
        **more,
    }
    if role in _NEW:
        row["identity"] = f"{parent['identity'] or parent['id']}/{role}/{short_hash(name)}"
        row["background"] = parent["background"]
    return Job(name, prompt, seed, settings, row, index)


def edit_jobs(
    table: pd.DataFrame,
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
    require(table, "mask", "category")
    jobs = []
    for index, row in enumerate(table.to_dict("records")):
        prompt = words.prompt(settings["task"], row["category"])
        for copy in range(copies):
            draw = frame_seed(seed, index, copy)
            jobs.append(job_from(row, index, engine, prompt, draw, settings, role))
    return jobs


def require(table: pd.DataFrame, *columns: str) -> None:
    """Check that every row has values in the columns."""
    table = numbered(table)
    for column in columns:
        missing = table["id"][table[column].isna()]
        if len(missing):
            listed = ", ".join(first_few([f"row {index + 1} ({name})" for index, name in missing.items()]))
            raise RequestError(
                f"column {column!r} is empty in {len(missing)} rows: {listed}; fill it in or filter these rows out"
            )


def read_source(table: pd.DataFrame, job: Job) -> Pair:
    """Image (RGB) and mask ("L", 0 or 255) of the row that a job is made from, as `read_pair` reads them."""
    row = table.iloc[job.source]
    return read_pair(row["path"], row["mask"])


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
