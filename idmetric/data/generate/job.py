"""Jobs: one image to make from a source, its result, and the row of the new image."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, cast

import numpy as np
from PIL import Image

from idmetric.data.generate.compose import HALF, ComposeError, mask_image, read_pair
from idmetric.data.generate.engine import Engine
from idmetric.data.generate.weights import GenerateError
from idmetric.images.masks import read_mask
from idmetric.io.tables import first_few

if TYPE_CHECKING:
    from idmetric.data.generate.wording import Wording
    from idmetric.data.manifest.table import Manifest, Row

Progress = Callable[[Iterable[Any], int, str], Iterable[Any]]  # (items, total, name) -> items, with progress shown


@dataclass(frozen=True)
class Job:
    """One image to make; jobs are planned before any weights are loaded.

    Attributes:
        engine: name of the engine.
        prompt, seed: input of the engine.
        settings: everything else that determines the pixels, as JSON values.
        block: jobs with the same block go to the same worker.
        row: values of the new row in the manifest.
        parent: id of the row that the image is made from; None for an image from words alone.
        source: number of the parent's row.
    """

    engine: str
    prompt: str
    seed: int
    settings: Mapping[str, Any]
    block: str
    row: Mapping[str, Any]
    parent: str | None = None
    source: int | None = None

    @cached_property
    def name(self) -> str:
        """Path of the image without extension, equal for equal jobs.

        It consists of the engine, a hash of the parent, the seed, and a hash of the prompt and all settings.
        """
        parent = _hash(self.parent if self.parent is not None else self.block)[:12]
        rest = _hash([self.prompt, self.settings])[:10]
        return f"{self.engine}/{parent[:2]}/{parent}-seed{self.seed}-{rest}"


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
    """A list of jobs, and the functions that run them.

    Attributes:
        make: runs a job.
        load: loads the weights that `make` needs.
        sources: the manifest that images are made from; None for images from words alone.
        masked: whether a source needs a mask.
    """

    jobs: Sequence[Job]
    make: Callable[[Job], Made]
    load: Callable[[], None]
    sources: Manifest | None = None
    masked: bool = True


def frame_seed(seed: int, row: int, copy: int = 0) -> int:
    """ID-Sim's per-frame seed, `seed + row_id` (A.2.2), rows counted from 0; further copies of a row are 2^32 apart."""
    return seed + row + (copy << 32)


def text_seed(seed: int, *names: object) -> int:
    """A seed of 32 bits that depends on the seed and the names alone."""
    return int(_hash([seed, *names])[:8], 16)


def read_source(manifest: Manifest, job: Job) -> tuple[Image.Image, Image.Image]:
    """Image (RGB) and mask ("L", 0 or 255) of the row that a job is made from.

    Raises:
        ImageReadError: if one of them cannot be read.
        ComposeError: if their sizes differ, or the mask selects nothing or everything.
    """
    assert job.source is not None
    path, mask = (cast("str | bytes", manifest.source(job.source, column)) for column in ("path", "mask"))
    image, bits = read_pair(path, mask)
    return image, mask_image(bits)


def require(manifest: Manifest, column: str, why: str) -> None:
    """Check that every row has a value in the column.

    Raises:
        GenerateError: listing rows without one, counted from 1.
    """
    names = (column, f"{column}_bytes") if column == "mask" else (column,)
    columns = [manifest.column(n) for n in names]
    ids = manifest.column("id")
    lacking = [i for i in range(len(manifest)) if all(c[i] is None for c in columns)]
    if lacking:
        listed = ", ".join(first_few([f"row {i + 1} ({ids[i]})" for i in lacking]))
        raise GenerateError(f"column {column!r} is empty in {len(lacking)} rows: {listed}; {why}")


def job_from(
    parent: Row, index: int, role: str, engine: Engine, prompt: str, seed: int, settings: Mapping[str, Any],
    own: bool,
) -> Job:  # fmt: skip
    """The job that makes an image from a row of a manifest.

    With `own`, the image shows a new identity on its parent's background; otherwise it keeps the identity and gets a
    new background id.
    """
    job = Job(engine.name, prompt, seed, {**engine.settings, **settings}, parent.id, {}, parent.id, index)
    identity: str | None = parent.identity
    background: str | None = job.name
    if own:
        identity, background = f"{parent.identity or parent.id}/{role}/{short_hash(job.name)}", parent.background
    row = {
        "id": job.name, "identity": identity, "role": role, "dataset": parent.dataset, "split": parent.split,
        "domain": parent.domain, "category": parent.category, "background": background, "parent": parent.id,
        "engine": job.engine, "text": job.prompt, "seed": job.seed,
    }  # fmt: skip
    return replace(job, row=row)


def require_edited(manifest: Manifest, class_column: str, why: str) -> None:
    """Check that every row has a mask and a class.

    Raises:
        GenerateError: listing rows that lack one; `why` says what the mask is for.
    """
    require(manifest, "mask", f"{why}; add masks or filter these rows out")
    require(manifest, class_column, "the prompt names it; fill it in or filter these rows out")


def edit_jobs(
    manifest: Manifest, engine: Engine, words: Wording, role: str, seed: int, copies: int, class_column: str,
    settings: Mapping[str, Any],
) -> list[Job]:  # fmt: skip
    """`copies` jobs for each row, which make new identities by a prompt with the row's class.

    Args:
        settings: of the task; their `task` names the prompt.
    """
    return [
        job_from(
            row, index, role, engine, words.prompt(settings["task"], **{"class": str(getattr(row, class_column))}),
            frame_seed(seed, index, copy), settings, True,
        )
        for index, row in enumerate(manifest)
        for copy in range(copies)
    ]  # fmt: skip


def paste(made: Image.Image, original: Image.Image, mask: Image.Image) -> Image.Image:
    """The made image, resized by Lanczos, where the mask is 255, and the exact original elsewhere."""
    if made.size != original.size:
        made = made.resize(original.size, Image.Resampling.LANCZOS)
    return Image.composite(made.convert("RGB"), original, mask)


def scaled_mask(mask: Image.Image, size: tuple[int, int]) -> Image.Image:
    """The mask at (width, height): 255 where the mask covers at least half of a pixel.

    Raises:
        ComposeError: if the masked part is so thin that it vanishes.
    """
    bits = read_mask(mask, (size[1], size[0])).numpy() >= HALF
    if not bits.any():
        raise ComposeError(f"the masked part is so thin that it vanishes at {size[0]}x{size[1]} pixels")
    return mask_image(np.array(bits))


def provenance(engine: Engine) -> dict[str, Any]:
    """Versions and licenses of the engine's weights, for the parameters of a row."""
    return {"versions": engine.versions, "licenses": engine.licenses}


def short_hash(value: object) -> str:
    """12 hex digits of a value's SHA-256."""
    return _hash(value)[:12]


def _hash(value: object) -> str:
    text = value if isinstance(value, str) else json.dumps(value, sort_keys=True, ensure_ascii=False)
    return hashlib.sha256(text.encode()).hexdigest()
