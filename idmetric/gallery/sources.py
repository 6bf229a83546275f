"""The images of a gallery's sources: folders, image files, and tables with a column of paths."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

from idmetric.gallery.files import LEFT_OUT, GalleryError, dates_as_text, frame_of, refuse_names
from idmetric.metric.errors import RequestError
from idmetric.metric.files import StrPath
from idmetric.metric.paths import IMAGE_ENDINGS, absent_mask, claim, mask_of

if TYPE_CHECKING:
    import pandas as pd

GallerySource: TypeAlias = "StrPath | pd.DataFrame"


def list_images(sources: Sequence[GallerySource], masked: bool, mask_dir: StrPath | None) -> pd.DataFrame:
    """A row for each image of the sources, each with its mask once, in their order.

    Args:
        masked: whether masks are wanted: those of tables, those of `mask_dir` for other images (`paths.mask_of`), or
            without one those that folders hold, see `importers.folders`.

    Returns:
        Columns `path` as given; `_file` and `_mask`, the absolute paths or None; `identity`, by default the folders
        below the source without those of splits; and the tables' own.

    Raises:
        GalleryError: for a source that is missing, holds no images, or has a column that answers have as well, and for
            a mask of two images. ManifestError: for a table that is no manifest, a folder whose identities are not
            clear or that holds no images, and a column of several types.
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
    from idmetric.data.manifest import FORMATS, checked, read_columns, warn_of_twins

    if not isinstance(source, str | os.PathLike):
        given_paths = [os.fspath(path) for path in source["path"]] if "path" in source else []
        return _of_manifest(checked(source, ".", "the table"), given_paths, "the table", masked)

    path = Path(source)
    manifests = [path, *(path / f"manifest{ending}" for ending in FORMATS)]
    for file in manifests:
        if file.suffix.lower() in FORMATS and file.is_file():
            columns = read_columns(file)
            table = checked(columns, file.parent, str(file))
            warn_of_twins(table)
            given_paths = columns["path"].tolist() if "path" in columns else [None] * len(table)  # texts alone
            return _of_manifest(table, given_paths, str(file), masked)
    if path.is_dir():
        try:
            return _of_folder(path, masked, mask_dir)
        except OSError as error:
            folder = str(error.filename or path)
            raise GalleryError(f"cannot list the folder {folder!r}: {error.strerror or error}") from error
    if path.is_file():
        return _of_files([path], [None], [None], mask_dir)
    raise GalleryError(f"{os.fspath(source)!r} is no folder, image or table: name the place it has now")


def _of_folder(root: Path, masked: bool, mask_dir: StrPath | None) -> pd.DataFrame:
    """The images of a folder with their identities and masks, as data of `eval` has them."""
    from idmetric.data.importers.folders import identities_below, pictures

    images = pictures(root)
    folders_of, _ = identities_below(root, images)
    files = []
    identities = []
    masks = []
    for image in images:
        files.append(image.path)
        identities.append("/".join(folders_of[image]) or None)
        masks.append(str(image.mask) if masked and image.mask else None)
    return _of_files(files, identities, masks, mask_dir)


def _of_files(
    files: Sequence[Path],
    identities: Sequence[str | None],
    found_masks: Sequence[str | None],
    mask_dir: StrPath | None,
) -> pd.DataFrame:
    """Image files, with the masks that were found beside them, or those of `mask_dir`."""
    import pandas as pd

    taken: dict[str, str] = {}  # masks, and the images that have them
    masks: list[str | None] = []
    for file, mask in zip(files, found_masks, strict=True):
        if mask_dir is not None:
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
