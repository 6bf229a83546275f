"""The files of a request: references and candidates, their masks, and all files that a run reads."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import islice
from typing import NamedTuple

from idmetric.images import paths
from idmetric.io.output import file_id
from idmetric.scoring.pairs import Pairs
from idmetric.scoring.scores import File, RequestError

PathLike = str | os.PathLike[str]


class Names(NamedTuple):
    """Names of settings in messages: by default the arguments of `idmetric.score`; a command gives its options."""

    mask_dir: str = "mask_dir"
    mask_id: str = "mask_id"
    include_references: str = "include_references=True"
    release: str = "preprocessing='release'"


ARGUMENTS = Names()
_LOOKED = 10_000  # files of a request that `absent_files` looks for


@dataclass(frozen=True)
class Cross:
    """Every candidate against all references.

    Attributes:
        left_out: references among the candidates, which are not scored.
    """

    references: list[str]
    candidates: list[str]
    left_out: tuple[str, ...] = ()

    @property
    def files(self) -> Iterator[File]:
        """References and candidates, without masks of their own."""
        return ((path, None) for path in (*self.references, *self.candidates))

    @property
    def pictures(self) -> int:
        """The number of pictures on a page of the scores."""
        return len(self.references) + len(self.candidates)

    @property
    def masked(self) -> set[bool]:
        """Whether some images name a mask (True), and some do not (False)."""
        return {False}


def cross(
    references: PathLike | Iterable[PathLike],
    images: PathLike | Iterable[PathLike],
    include_references: bool = False,
    names: Names = ARGUMENTS,
) -> Cross:
    """List the files that references and images name: paths, folders, patterns, or lists of them.

    Args:
        include_references: keep references that are among the images.

    Raises:
        RequestError: for a reference that is not a file, or if no candidate is left.
    """
    try:
        known, candidates = paths.all_listed(_several(references)), paths.all_listed(_several(images))
    except paths.InputError as error:
        raise RequestError(str(error)) from error
    if not known or not candidates:
        raise RequestError("give a reference and at least one image")
    for path in known:
        if not os.path.isfile(path):
            raise RequestError(f"the reference {path!r} is not a file, a folder or a pattern that matches")

    left_out: list[str] = []
    if not include_references:
        own = {file_id(path) for path in known} - {None}
        left_out = [path for path in candidates if file_id(path) in own]
        again = set(left_out)
        candidates = [path for path in candidates if path not in again]
    if not candidates:
        raise RequestError(
            f"all candidates are references: name others, or score them too with {names.include_references}"
        )
    return Cross(known, candidates, tuple(left_out))


def _several(source: PathLike | Iterable[PathLike]) -> Iterable[PathLike]:
    return [source] if isinstance(source, str | os.PathLike) else source


def absent_files(work: Cross | Pairs) -> list[str]:
    """The images that do not exist, among the first; found without importing what reads them."""
    different = dict.fromkeys(path for path, _ in islice(work.files, _LOOKED))
    return [path for path in different if not os.path.exists(path) and not paths.is_address(path)]


# Masks


def mask_path(mask_dir: PathLike | None, file: File) -> str | None:
    """Return the mask of an image: its own, or one in the folder; None without either."""
    path, mask = file
    return mask if mask is not None or mask_dir is None else paths.mask_of(mask_dir, path)


def check_masks(
    work: Cross | Pairs, mask_dir: PathLike | None, has_label: bool, preprocessing: str, names: Names = ARGUMENTS
) -> None:
    """Refuse masks for a model that takes none, a label without masks, and two images that would share a mask.

    Args:
        has_label: whether a `mask_id` is given. preprocessing: of the model.

    Raises:
        RequestError: naming the fault.
    """
    masked = mask_dir is not None or True in work.masked
    if masked and preprocessing == "release":
        source = "the masks of the pairs" if mask_dir is None else names.mask_dir
        raise RequestError(f"the releases take no masks: leave out {source} or {names.release}")
    if has_label and not masked:
        raise RequestError(f"{names.mask_id} needs masks: {names.mask_dir}, or masks in the pairs")
    if mask_dir is None:
        return

    if not os.path.isdir(mask_dir):
        raise RequestError(f"{names.mask_dir}: there is no folder {os.fspath(mask_dir)!r}")
    try:
        paths.masks_of(mask_dir, dict.fromkeys(path for path, mask in work.files if mask is None))
    except paths.InputError as error:
        raise RequestError(f"{names.mask_dir}: {error}") from error


def files_read(work: Cross | Pairs, mask_dir: PathLike | None) -> Iterator[str]:
    """Yield images and masks in order."""
    for file in work.files:
        mask = mask_path(mask_dir, file)
        yield from (file[0], mask) if mask else (file[0],)
