"""The files of a request: references and candidates, their masks, and all files that a run reads."""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from idmetric.metric import paths
from idmetric.metric.errors import RequestError
from idmetric.metric.files import file_id
from idmetric.scoring.in_memory import ImageInMemory
from idmetric.scoring.pairs import Pairs
from idmetric.scoring.scores import File, PathLike

if TYPE_CHECKING:
    from idmetric.metric.embedding import Embedding
    from idmetric.metric.images import ImageLike


@dataclass(frozen=True)
class Cross:
    """Every candidate against all references.

    Attributes:
        left_out: references among the candidates, which are not scored.
        embedding: of the references, of which `references` are the names then; they are not read.
    """

    references: list[str]
    candidates: list[str]
    left_out: tuple[str, ...] = ()
    embedding: Embedding | None = None

    @property
    def files(self) -> list[File]:
        """The files to read, references first, without masks of their own."""
        references = self.references if self.embedding is None else []
        return [(path, None) for path in (*references, *self.candidates)]

    @property
    def pictures(self) -> int:
        """The number of pictures on a page of the scores."""
        return len(self.references) + len(self.candidates)


def cross(
    references: ImageLike | Iterable[ImageLike] | Embedding,
    images: ImageLike | Iterable[ImageLike],
    include_references: bool = False,
) -> Cross:
    """List the images of a request: paths, folders, patterns and images in memory, or lists of them.

    Args:
        references: also an Embedding, or its .idm file.
        include_references: keep references that are among the images.

    Raises:
        RequestError: for a reference that is not a file, or if no candidate is left; as `all_listed`.
    """
    embedding = _saved(references)
    reference_paths = _listed(references, "reference") if embedding is None else _names(embedding)
    candidates = _listed(images, "image")
    if not reference_paths or not candidates:
        raise RequestError("give a reference and at least one image")
    for path in reference_paths:
        is_file = isinstance(path, ImageInMemory) or os.path.isfile(path)
        if embedding is None and not is_file:
            raise RequestError(f"the reference {path!r} is not a file, a folder or a pattern that matches")
    if include_references:
        return Cross(reference_paths, candidates, embedding=embedding)

    file_ids = {path: _id_of(path) for path in (*reference_paths, *candidates)}
    reference_ids = {file_ids[path] for path in reference_paths} - {None}
    left_out = dict.fromkeys(path for path in candidates if file_ids[path] in reference_ids)
    candidates = [path for path in candidates if path not in left_out]
    if not candidates:
        raise RequestError(
            "all candidates are references: name others, or score them too (--include-refs, include_references=True)"
        )
    return Cross(reference_paths, candidates, tuple(left_out), embedding)


def _saved(references: Any) -> Embedding | None:
    """The Embedding that stands for references; what reads its file is loaded only for one."""
    sources = references if isinstance(references, list | tuple) else [references]
    if all(isinstance(source, str) and not paths.is_embedding_file(source) for source in sources):
        return None
    from idmetric.metric.embedding import saved_embedding

    return saved_embedding(references)


def _names(embedding: Embedding) -> list[str]:
    """A name of each row, no two alike."""
    names = list(embedding.names or ["reference"] * len(embedding))
    if len(set(names)) < len(names):  # such as those of two arrays in memory
        names = [f"{name}[{row}]" for row, name in enumerate(names)]
    return names


def _listed(images: Any, name: str) -> list[str]:
    """The files, and images in memory, which are called by the name and their place in the list."""
    if isinstance(images, str | os.PathLike):
        return paths.all_listed([images])
    sources = [images] if _is_one(images) else list(images)
    if all(isinstance(source, str | os.PathLike) for source in sources):
        return paths.all_listed(sources)

    entries: dict[str, str] = {}
    for index, source in enumerate(sources):
        if isinstance(source, str | os.PathLike):
            entries |= {path: path for path in paths.all_listed([source])}
        elif _is_one(source):
            entry = ImageInMemory(f"{name}[{index}]", source)
            entries[entry] = entry
        else:
            raise RequestError(
                f"{name}[{index}] is a {type(source).__name__}: give one flat list of paths, bytes, PIL images, arrays "
                "or tensors"
            )
    return list(entries.values())


def _is_one(images: Any) -> bool:
    """Whether this is a path or one image, not a batch or a list."""
    from idmetric.metric.images import is_array, is_image_like

    return is_image_like(images) and not (is_array(images) and images.ndim == 4)


def _id_of(path: str) -> object:
    """Equal for two entries of one image: the object in memory, or the file."""
    if isinstance(path, ImageInMemory):
        return id(path.image)
    return file_id(path)


# Masks


def mask_path(mask_dir: PathLike | None, file: File) -> str | None:
    """Return the mask of an image: its own, or one in the folder; None without either."""
    path, mask = file
    if mask is None and mask_dir is not None:
        return paths.mask_of(mask_dir, path)
    return mask


def check_files(work: Cross | Pairs, on_error: str) -> None:
    """With on_error="fail", refuse the first image or mask that does not exist, before any work: ImageReadError."""
    absent = absent_files(work) if on_error == "fail" else []
    if absent:
        from idmetric.metric.images import check_paths

        check_paths(absent[0])


def absent_files(work: Cross | Pairs) -> list[str]:
    """The images and masks that do not exist; found without importing what reads them."""
    files = dict.fromkeys(path for file in work.files for path in file if path is not None)
    return [path for path in files if _is_absent(path) and not paths.is_address(path)]


def _is_absent(path: str) -> bool:
    if isinstance(path, ImageInMemory):
        return False
    try:
        os.stat(path)
    except (FileNotFoundError, NotADirectoryError):
        return True
    except OSError:  # such as a closed folder, of which the reader says more
        return False
    return False


def check_masks(work: Cross | Pairs, mask_dir: PathLike | None, has_label: bool, preprocessing: str) -> None:
    """Refuse masks for a model that takes none, a label without masks, and two images that would share a mask.

    Args:
        has_label: whether a `mask_id` is given. preprocessing: of the model.
    """
    masked = mask_dir is not None or any(mask for _, mask in work.files)
    if masked and preprocessing == "release":
        raise RequestError("the releases take no masks: leave out the masks, or preprocessing release")
    if has_label and not masked:
        raise RequestError("a mask's label needs masks: a folder of masks, or masks in the pairs")
    if mask_dir is None:
        return
    if not os.path.isdir(mask_dir):
        raise RequestError(f"there is no folder of masks {os.fspath(mask_dir)!r}")
    paths.masks_of(mask_dir, dict.fromkeys(path for path, mask in work.files if mask is None))
