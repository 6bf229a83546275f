"""Masks of the images of a manifest by a remover, which finds an object by its category's name (see `background`)."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from idmetric.data.generate.background import Remover
from idmetric.data.generate.errors import Rejected
from idmetric.data.generate.job import require, short_hash
from idmetric.images.kinds import ImageReadError
from idmetric.images.read import read_image
from idmetric.io.output import replacing, writing

if TYPE_CHECKING:
    from idmetric.data.manifest.table import Manifest

Progress = Callable[[Iterable[Any], int, str], Iterable[Any]]


def make_masks(
    manifest: Manifest, remover: Remover, folder: Path, class_column: str = "category",
    progress: Progress = lambda items, total, what: items,
) -> tuple[Manifest, dict[str, str]]:  # fmt: skip
    """The manifest with a mask of every image, and the rows without one: id -> reason.

    Rows that are a text without an image stay as they are.

    A mask's name is a hash of the image's pixels, the category and the remover's settings, so a stopped run resumes.

    Raises:
        GenerateError: if a row has no category.
        WeightsError: if the remover's weights cannot be loaded.
    """
    pictures = [k for k in range(len(manifest)) if manifest.source(k) is not None]
    why = "the remover looks for what it names; fill it in or filter these rows out"
    require(manifest.take(pictures), class_column, why)
    remover.load()
    key = short_hash({**remover.settings, "versions": remover.versions})
    ids, words = manifest.column("id"), manifest.column(class_column)
    new, data = list(manifest.column("mask")), list(manifest.column("mask_bytes"))
    problems: dict[str, str] = {}

    for k in cast("Iterable[int]", progress(pictures, len(pictures), "masks")):
        try:
            image = read_image(cast("str | bytes", manifest.source(k)))
            digest = hashlib.sha256(image.tobytes() + repr((image.size, words[k], key)).encode()).hexdigest()
            path = folder / digest[:2] / f"{digest[:32]}.png"
            if not path.is_file():
                found = remover.mask(image, words[k])
                with writing(path.parent):
                    path.parent.mkdir(parents=True, exist_ok=True)
                with replacing(path) as temporary:
                    found.save(temporary, "PNG")
        except (ImageReadError, Rejected) as error:
            problems[ids[k]] = str(error)
        else:
            new[k], data[k] = str(path.absolute()), None

    return manifest.at(manifest.root.absolute()).replace(mask=new, mask_bytes=data), problems
