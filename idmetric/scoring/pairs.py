"""What is compared with what: references and images, or pairs of images, as paths, in tables, or in memory.

Nothing here loads NumPy for paths, so that a command finds a mistake in them before anything heavy is imported.
"""

from __future__ import annotations

import math
import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import zip_longest
from pathlib import Path
from typing import TYPE_CHECKING, Any

from idmetric.metric import paths
from idmetric.metric.errors import RequestError
from idmetric.metric.files import MOST_BYTES, StrPath, file_id, shown
from idmetric.tables import TableError, read_cells

if TYPE_CHECKING:
    from idmetric.metric.embedding import Embedding

# columns of scores; other columns of a table of pairs may not have these names
COLUMNS = ("rank", "distance", "answer", "image", "reference", "probability", "copy", "copy_agreement",
           "model", "revision", "distance_name", "resolution", "dtype", "idmetric")  # fmt: skip
_PAIR = ("a", "b", "mask_a", "mask_b")
# as a table may call the columns of a pair
_SPELLINGS = dict(zip(_PAIR, _PAIR, strict=True))
_SPELLINGS |= {"ref": "a", "gen": "b", "mask_ref": "mask_a", "mask_gen": "mask_b"}
_SPELLINGS |= {"reference": "a", "image": "b", "mask_reference": "mask_a", "mask_image": "mask_b"}


@dataclass(frozen=True)
class RequestImage:
    """An image of a request; two of one name and mask are the same.

    Attributes:
        name: its path, or of an image in memory such as image[3].
        image: the path, or the image in memory. mask: of its subject, likewise; None without one.
        mask_name: as `name`; "" without a mask.
    """

    name: str
    image: Any = field(compare=False)
    mask: Any = field(default=None, compare=False)
    mask_name: str = ""


@dataclass(frozen=True)
class ToCompare:
    """Images to compare with the same references; for a pair, one with one.

    Attributes:
        references: those to read; none for an `Embedding`.
        extra: the other columns of a pair's line.
    """

    references: list[RequestImage]
    images: list[RequestImage]
    extra: dict[str, str] = field(default_factory=dict)

    @property
    def read(self) -> list[RequestImage]:
        """The images to read, in the order in which they are needed."""
        return [*self.references, *self.images]


@dataclass(frozen=True)
class ScoreRequest:
    """What is compared with what.

    Attributes:
        comparisons: one of all images, or one for each pair.
        references: of the subject; none for pairs.
        left_out: names of references among the images, which are not scored.
        embedding: of the references, if it was made before; they are not read then.
        skipped: lines of a file of pairs without two images, with the reason.
    """

    comparisons: list[ToCompare]
    references: list[RequestImage] = field(default_factory=list)
    left_out: list[str] = field(default_factory=list)
    embedding: Embedding | None = None
    skipped: dict[str, str] = field(default_factory=dict)

    @property
    def read(self) -> list[RequestImage]:
        """The images to read, each once, in the order of their first use."""
        images: dict[RequestImage, None] = {}
        for comparison in self.comparisons:
            images |= dict.fromkeys(comparison.read)
        return list(images)

    def batches(self, size: int) -> list[ToCompare]:
        """The comparisons in parts of at most so many images."""
        parts = []
        for comparison in self.comparisons:
            for start in range(0, len(comparison.images), size):
                images = comparison.images[start : start + size]
                parts.append(replace(comparison, images=images))
        return parts


def request_of(references: Any, images: Any, include_references: bool = False) -> ScoreRequest:
    """List references and images: paths, folders, patterns and images in memory, or lists of them.

    Args:
        references: also an Embedding, or its .idm file.
        include_references: keep references that are among the images.

    Raises:
        RequestError: for a reference that is not a file, or if no image is left.
    """
    embedding = _saved(references)
    if embedding is None:
        reference_images = _listed(references, "reference")
    else:
        names = list(embedding.names or ["reference"] * len(embedding))
        if len(set(names)) < len(names):  # such as those of arrays in memory
            names = [f"{name}[{row}]" for row, name in enumerate(names)]
        reference_images = [RequestImage(name, name) for name in names]
    candidates = _listed(images, "image")
    if not reference_images or not candidates:
        raise RequestError("give a reference and at least one image")
    if embedding is None:
        for image in reference_images:
            path = image.image
            if isinstance(path, str) and not os.path.isfile(path):
                raise RequestError(f"the reference {path!r} is not a file, a folder or a pattern that matches")
    left_out = []
    if not include_references:
        reference_ids = {_id_of(image) for image in reference_images} - {None}
        left_out = [image.name for image in candidates if _id_of(image) in reference_ids]
        candidates = [image for image in candidates if image.name not in left_out]
    if not candidates:
        raise RequestError("all images are references: name others, or score them too (include_references=True)")
    comparison = ToCompare([] if embedding is not None else reference_images, candidates)
    return ScoreRequest([comparison], reference_images, left_out, embedding)


def _saved(references: Any) -> Embedding | None:
    """The Embedding that stands for references, read from its file; None for images."""
    sources = references if isinstance(references, list | tuple) else [references]
    are_paths = all(isinstance(source, str) for source in sources)
    if are_paths and not any(map(paths.is_embedding_file, sources)):
        return None
    from idmetric.metric.embedding import saved_embedding  # NumPy

    return saved_embedding(references)


def _listed(images: Any, name: str) -> list[RequestImage]:
    """The images of a request; those in memory are called by the name and their place in the list."""
    if not isinstance(images, list | tuple) and _is_single(images):
        images = [images]
    entries: dict[str, RequestImage] = {}
    for index, source in enumerate(images):
        label = f"{name}[{index}]"
        if isinstance(source, str | os.PathLike):
            for path in paths.all_listed([source]):
                entries[path] = RequestImage(path, path)
        elif _is_single(source):
            entries[label] = RequestImage(label, source)
        else:
            raise RequestError(f"{label} is a {type(source).__name__}: give one flat list of images")
    return list(entries.values())


def _is_single(source: Any) -> bool:
    """Whether this is a path or one image, not a batch or a list."""
    if isinstance(source, str | os.PathLike):
        return True
    from idmetric.metric.images import is_array, is_image_like  # NumPy

    if not is_image_like(source):
        return False
    return not is_array(source) or source.ndim in (2, 3)


def _id_of(image: RequestImage) -> object:
    """Equal for two entries of one image: the object in memory, or the file."""
    source = image.image
    return file_id(source) if isinstance(source, str) else id(source)


def absent_files(request: ScoreRequest) -> list[str]:
    """The images and masks that do not exist."""
    sources: dict[str, None] = {}
    for image in request.read:
        for source in (image.image, image.mask):
            if isinstance(source, str) and not paths.is_address(source):
                sources[source] = None
    return [path for path in sources if _is_absent(path)]


def _is_absent(path: str) -> bool:
    try:
        os.stat(path)
    except (FileNotFoundError, NotADirectoryError):
        return True
    except OSError:  # such as a closed folder, of which the reader says more
        return False
    return False


def check_masks(request: ScoreRequest, mask_dir: StrPath | None, mask_id: object) -> bool:
    """Refuse a label without masks, and two images that would share one; returns whether there are masks."""
    if mask_dir is not None:
        if not os.path.isdir(mask_dir):
            raise RequestError(f"there is no folder of masks {os.fspath(mask_dir)!r}")
        without_mask = [image.name for image in request.read if image.mask is None]
        paths.masks_of(mask_dir, without_mask)
    has_masks = mask_dir is not None or any(image.mask is not None for image in request.read)
    if mask_id is not None and not has_masks:
        raise RequestError("a mask's label needs masks: a folder of masks, or masks in the pairs")
    return has_masks


# Pairs


def pairs_of(pairs: Any, on_error: str = "fail") -> ScoreRequest:
    """Collect pairs: a file, tuples (a, b) or (a, b, mask_a, mask_b) of images, dicts, or a pandas DataFrame.

    The images in memory of the fourth pair are called reference[3] and image[3]; one object in several pairs is one
    image, with its first name.

    Raises:
        RequestError: naming the pair that is in none of these forms, or for no pairs.
    """
    if isinstance(pairs, str | os.PathLike):
        return read_pairs(pairs, on_error)
    if hasattr(pairs, "columns") and hasattr(pairs, "to_dict"):
        pairs = pairs.to_dict("records")  # of a DataFrame
    in_memory: dict[int, str] = {}  # name of an object by its address
    rows = []
    for number, pair in enumerate(pairs, 1):
        try:
            if isinstance(pair, str):
                raise RequestError("text is no pair")
            if isinstance(pair, Mapping):
                names = _columns(list(map(str, pair)))
                pair = list(pair.values())
            else:
                names = list(_PAIR)
            rows.append(_pair(names, pair, Path(), number, in_memory))
        except (RequestError, TypeError) as error:
            raise RequestError(
                f"pair {number}: {error}; a pair is (a, b) or (a, b, mask_a, mask_b) of images, or a dict or row of a "
                f"DataFrame with columns a and b, got {shown(pair)}"
            ) from error
    if not rows:
        raise RequestError("there are no pairs")
    return ScoreRequest(rows)


def read_pairs(path: StrPath, on_error: str = "fail") -> ScoreRequest:
    """Read the pairs of a CSV file, or of standard input for "-", in its order.

    Args:
        path: a table whose first row names the columns a,b[,mask_a,mask_b] or ref,gen[,mask_ref,mask_gen]; separated
            by commas, semicolons or tabs. Paths in it are relative to its folder; in a pipe, to the working directory.
            Other columns are carried through; a name that scores use already becomes `input_NAME`.
        on_error: "skip" leaves out pairs that lack an image, see `ScoreRequest.skipped`.

    Raises:
        RequestError: naming the file, and the pair that lacks an image, or two columns that mean the same.
    """
    source = Path(path)
    is_device = source.parts[:2] == ("/", "dev")
    folder = Path()
    if source.is_file() and not is_device:
        folder = source.parent
    pairs = []
    skipped = {}
    try:
        lines = _lines(path)
        names = _columns(lines[0]) if lines else []
        for number, line in enumerate(lines[1:], 1):
            try:
                pairs.append(_pair(names, line, folder, number, {}))
            except RequestError as error:
                if on_error != "skip":
                    raise RequestError(f"pair {number}: {error}") from error
                skipped[f"{path}, pair {number}"] = str(error)
        if not pairs:
            raise RequestError("it holds no pairs")
    except (RequestError, TableError, OSError) as error:
        raise RequestError(f"cannot read {str(path)!r}: {error}") from error
    return ScoreRequest(pairs, skipped=skipped)


def _lines(path: StrPath) -> list[list[str]]:
    """The cells of each line with any text, of a CSV file, or of standard input for "-"."""
    with sys.stdin.buffer if str(path) == "-" else Path(path).open("rb") as opened:
        data = opened.read(MOST_BYTES + 1)
    if len(data) > MOST_BYTES:
        raise RequestError(f"it has more than {MOST_BYTES} bytes")
    return [row.cells for row in read_cells(data)]


def _columns(header: Sequence[str]) -> list[str]:
    """The names of the columns, those of a pair as in `_PAIR`."""
    columns: dict[str, str] = {}  # name -> as the table calls it
    for number, cell in enumerate(header, 1):
        name = _SPELLINGS.get(cell.strip().lower(), "")
        if not name:
            name = cell or f"column_{number}"
            while name in COLUMNS:
                name = f"input_{name}"
        if name in columns:
            raise RequestError(f"the columns {columns[name]!r} and {cell!r} mean the same: rename or remove one")
        columns[name] = cell
    if not {"a", "b"} <= columns.keys():
        cells = ", ".join(map(shown, header[:5]))
        raise RequestError(f"the first row names no columns a and b, or ref and gen, of a pair's images: {cells}")
    if "mask" in columns:
        raise RequestError("the column 'mask' may belong to either image: call it mask_a or mask_b")
    return list(columns)


def _pair(
    names: Sequence[str], cells: Sequence[Any], folder: Path, number: int, in_memory: dict[int, str]
) -> ToCompare:
    """The pair in these cells; TypeError for other objects."""
    cells = list(cells)
    if len(cells) > len(names):
        raise RequestError(f"{len(cells)} cells for {len(names)} columns: quote cells that hold commas")
    values = dict(zip_longest(names, cells))
    sources = []
    for column, kind in zip(_PAIR, ("reference", "image", "mask_a", "mask_b"), strict=True):
        cell = values.pop(column, None)
        name = ""
        if _is_empty(cell):
            cell = None
        elif isinstance(cell, str | os.PathLike):
            name = cell = paths.with_slashes(str(folder / cell))
        elif _is_single(cell):
            name = in_memory.setdefault(id(cell), f"{kind}[{number - 1}]")
        else:
            raise TypeError(f"{type(cell).__name__} is no image")
        sources.append((name, cell))

    (name_a, a), (name_b, b), (mask_name_a, mask_a), (mask_name_b, mask_b) = sources
    if a is None or b is None:
        raise RequestError(f"two images are needed (separate columns by commas), found {shown(cells)}")
    extra = {}
    for name, value in values.items():
        extra[name] = "" if _is_empty(value) else str(value)
    image_a = RequestImage(name_a, a, mask_a, mask_name_a)
    image_b = RequestImage(name_b, b, mask_b, mask_name_b)
    return ToCompare([image_a], [image_b], extra)


def _is_empty(cell: Any) -> bool:
    """Whether a cell of a table is empty: None, NaN as pandas marks it, or empty text."""
    if isinstance(cell, float):
        return math.isnan(cell)
    return cell is None or (isinstance(cell, str) and not cell)
