"""The images of a gallery's sources: folders, image files, and tables with a column of paths."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

from idmetric.gallery.files import LEFT_OUT, GalleryError, arrow, dates_as_text, frame_of, refuse_names
from idmetric.metric.errors import RequestError
from idmetric.metric.files import StrPath
from idmetric.metric.paths import IMAGE_ENDINGS, absent_mask, claim, images_below, mask_of

if TYPE_CHECKING:
    import pandas as pd

GallerySource: TypeAlias = "StrPath | pd.DataFrame"


def list_images(sources: Sequence[GallerySource], masked: bool, mask_dir: StrPath | None) -> pd.DataFrame:
    """A row for each image of the sources, each with its mask once, in their order.

    Args:
        masked: whether masks are wanted: those of tables, and for other images of `mask_dir` (`paths.mask_of`).

    Returns:
        Columns `path` as given; `_file` and `_mask`, the absolute paths or None; `identity`, by default the folder
        below the source; and the tables' own.

    Raises:
        GalleryError: for a source that is missing, holds no images, or has a column that answers have as well, and for
            a mask of two images. ManifestError: for a table that is no manifest, and a column of several types.
    """
    import pandas as pd

    tables = []
    for source in sources:
        try:
            table = _table_of(source, masked, mask_dir)
        except RequestError as error:
            raise GalleryError(str(error)) from error
        if table.empty:
            raise GalleryError(f"{_name(source)!r} holds no images (files ending in {' '.join(IMAGE_ENDINGS)})")
        tables.append(table)
    joined = pd.concat([table.astype(object) for table in tables], ignore_index=True)
    images = frame_of({column: joined[column].tolist() for column in joined}, "the sources")
    return images.drop_duplicates(["_file", "_mask"], ignore_index=True)


def _name(source: GallerySource) -> str:
    return os.fspath(source) if isinstance(source, str | os.PathLike) else "the table"


def _table_of(source: GallerySource, masked: bool, mask_dir: StrPath | None) -> pd.DataFrame:
    from idmetric.data.manifest import FORMATS, checked, read

    if not isinstance(source, str | os.PathLike):
        given_paths = [os.fspath(path) for path in source["path"]] if "path" in source else []
        return _of_manifest(checked(source, ".", "the table"), given_paths, "the table", masked)

    path = Path(source)
    manifests = [path, *(path / f"manifest{ending}" for ending in FORMATS)]
    for file in manifests:
        if file.suffix.lower() in FORMATS and file.is_file():
            return _of_manifest(read(file), _given_paths(file), str(file), masked)
    if path.is_dir():
        try:
            return _of_files(images_below(path), path, masked, mask_dir)
        except OSError as error:
            folder = str(error.filename or path)
            raise GalleryError(f"cannot list the folder {folder!r}: {error.strerror or error}") from error
    if path.is_file():
        return _of_files([path], path.parent, masked, mask_dir)
    raise GalleryError(f"{os.fspath(source)!r} is no folder, image or table: name the place it has now")


def _of_files(files: Sequence[Path], root: Path, masked: bool, mask_dir: StrPath | None) -> pd.DataFrame:
    """Image files, whose folders below the root are their identities."""
    import pandas as pd

    taken: dict[str, str] = {}  # masks, and the images that have them
    masks: list[str | None] = []
    identities = []
    for file in files:
        folder = file.parent.relative_to(root).as_posix()
        identities.append(None if folder == "." else folder)
        mask = None
        if masked and mask_dir is not None:
            mask = mask_of(mask_dir, str(file)) or absent_mask(mask_dir, file)[0]
            claim(taken, str(file), mask, mask_dir)
        masks.append(mask and os.path.abspath(mask))
    columns = {
        "path": [str(file) for file in files],
        "_file": [os.path.abspath(file) for file in files],
        "_mask": masks,
        "identity": identities,
    }
    return pd.DataFrame(columns, dtype=object)


def _given_paths(file: Path) -> list[str | None]:
    """The column of paths as it stands in a table, by which answers and the table can be joined."""
    if file.suffix.lower() == ".parquet":
        given_paths: list[str | None] = arrow().parquet.read_table(file, columns=["path"])["path"].to_pylist()
        return given_paths
    from idmetric.tables import read_table

    return read_table(file, known=["path"]).column("path")


def _of_manifest(table: pd.DataFrame, given_paths: Sequence[str | None], name: str, masked: bool) -> pd.DataFrame:
    """The images of a checked manifest; texts without an image are left out."""
    own_columns = [column for column in table if column not in LEFT_OUT and table[column].notna().any()]
    refuse_names(own_columns, name)
    columns = {
        "path": given_paths,
        "_file": table["path"].tolist(),
        "_mask": table["mask"].tolist() if masked else [None] * len(table),
        "identity": table["identity"].tolist(),
    }
    for column in own_columns:
        columns[column] = dates_as_text(table[column])
    images = frame_of(columns, name)
    return images[images["_file"].notna()].reset_index(drop=True)
