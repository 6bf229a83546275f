"""Run an importer: sources in, manifest out."""

from __future__ import annotations

import hashlib
import importlib
import io
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

from PIL import Image

from idmetric.data.importers import KINDS
from idmetric.data.importers.source import Row, Source, name_of, open_source
from idmetric.data.manifest import PATHS, ManifestError, checked, warn_of_twins
from idmetric.metric.files import StrPath, replacing
from idmetric.metric.images import open_file
from idmetric.tables import first_few

if TYPE_CHECKING:
    import pandas as pd


@dataclass
class ImportJob:
    """The task of an importer.

    Attributes:
        kind: one of `KINDS`.
        sources: files, folders or Hub ids; "nearid" accepts several, because its sets belong together.
        images: folder for images that the source holds as bytes; a stopped import resumes.
        name: of the dataset (default: the kind's; for "folder" and "table" the source's). Identities and ids start
            with it, which keeps merged manifests apart.
        revision, files, columns: as for `open_source`.
        options: of `KINDS[kind].options`.
        limit: number of rows of each source to stop after.
        progress: (items, total, name) -> the items, with progress shown.
        dry: write no images.
        rejected: rows that were left out, and the reasons; grows while the importer runs.
        written: files of images, which are named by their content.

    Raises:
        ManifestError: for an unknown importer or option.
    """

    kind: str
    sources: Sequence[StrPath]
    images: StrPath | None = None
    name: str = ""
    revision: str | None = None
    files: str | None = None
    columns: Mapping[str, str] = field(default_factory=dict)
    options: Mapping[str, str] = field(default_factory=dict)
    limit: int | None = None
    progress: Callable[[Iterable[Any], int | None, str], Iterable[Any]] = lambda items, total, name: items
    dry: bool = False
    rejected: list[str] = field(default_factory=list, init=False)
    written: set[Path] = field(default_factory=set, init=False)

    def __post_init__(self) -> None:
        if self.kind not in KINDS:
            raise ManifestError(f"unknown importer {self.kind!r}; there are {', '.join(KINDS)}")
        kind = KINDS[self.kind]
        if len(self.sources) > 1 and not kind.several:
            raise ManifestError(
                f"{self.kind}: it takes one source; import each with its own --name, and merge the manifests"
            )
        for option in self.options:
            if option not in kind.options:
                options = ", ".join(kind.options) or "none"
                raise ManifestError(f"unknown option {option!r} of {self.kind}; there are {options}")

    @cached_property
    def dataset(self) -> str:
        """The name of the dataset."""
        default = Path(self.sources[0]).resolve().stem if self.kind in ("folder", "table") else self.kind
        return self.name or default

    # Reading

    def open(self, *columns: str, source: StrPath | None = None) -> Source:
        """Open a source, by default the first one, as a table that has these columns; raises as `Source.need`."""
        table = open_source(source or self.sources[0], self.revision, self.files, self.columns)
        table.need(*columns)
        return table

    def folder(self, source: StrPath | None = None) -> Path:
        """The path of a source, by default the first one; ManifestError if it is not a folder."""
        path = Path(source or self.sources[0])
        if not path.is_dir():
            raise ManifestError(f"{path}: no such folder; {KINDS[self.kind].line}")
        return path

    def choice(self, option: str, *words: str) -> str:
        """The value of an option that is one of several words, by default the first; ManifestError for others."""
        word = self.options.get(option, words[0])
        if word not in words:
            raise ManifestError(f"option {option}={word}: one of {', '.join(words)}")
        return word

    # Writing

    def rows(self, items: Source | Sequence[Any], rows_of: Callable[[Any], Iterable[Row]]) -> Iterator[Row]:
        """The rows of a manifest that `rows_of` makes of each item or record, up to the limit, with progress shown.

        Args:
            rows_of: returns rows in which `path` and masks may be bytes. An empty `path` cannot be used. Identity, id,
                group and parent get the dataset's name in front. ValueError: why an item gives no rows, which goes to
                `rejected`; a ManifestError stops the import.
        """
        locate = items.locate if isinstance(items, Source) else Path
        total = len(range(len(items))[: self.limit])
        for item in self.progress(islice(items, self.limit), total, self.dataset):
            try:
                yield from [self._row(columns, f"{item}", locate) for columns in rows_of(item)]
            except ManifestError:
                raise
            except ValueError as reason:
                self.rejected.append(f"{item}: {reason}")

    def _row(self, columns: Row, where: str, locate: Callable[[str], Path]) -> Row:
        row = {"dataset": self.dataset, **columns}
        for column in PATHS:
            file = self.keep(row.get(column), locate)
            row[column] = file and str(file)
        if "path" in columns and row["path"] is None:
            raise ValueError("an image of the group is missing" if "group" in columns else "no image")
        for column in ("identity", "id", "group", "parent"):
            name = name_of(row.get(column), f"{where}, column {column!r}")
            row[column] = name and f"{self.dataset}/{name}"
        return row

    def keep(self, image: Any, locate: Callable[[str], Path] = Path) -> Path | None:
        """The file of an image. Bytes are written to a file that is named by its content: equal images share a file.

        Args:
            image: bytes, text in a table, {"bytes": ..., "path": ...} as `datasets` stores images, a path, or None.
            locate: returns the file that a text names, such as `Source.locate`.

        Raises:
            ManifestError: for a value of another type, a forbidden path, or bytes without a folder to write them to.
            OutputError: if a file cannot be written.
        """
        if isinstance(image, dict):
            image = image.get("path") if image.get("bytes") is None else image["bytes"]
        if image is None or image == "":
            return None
        if isinstance(image, str | Path):
            file = image if isinstance(image, Path) else locate(image)
            return file.absolute()
        if not isinstance(image, bytes):
            raise ManifestError(f"a {type(image).__name__} is not an image; give bytes or a path")
        if self.images is None:
            raise ManifestError(f"{self.dataset} holds images as bytes; name a folder for them: images=FOLDER")

        digest = hashlib.sha256(image).hexdigest()
        file = Path(self.images, digest[:2], f"{digest[:32]}{_ending_of(image)}").absolute()
        self.written.add(file)
        if not self.dry and not file.is_file():
            with replacing(file, parents=True) as temporary:
                temporary.write_bytes(image)
        return file

    def run(self) -> pd.DataFrame:
        """Import."""
        kind = KINDS[self.kind]
        module = importlib.import_module(f"idmetric.data.importers.{kind.module}")
        importer = getattr(module, self.kind, None) or module.rows
        rows = [*importer(self)]
        if not rows:
            reason = f"; {self.rejected[0]}" if self.rejected else ""
            raise ManifestError(f"{', '.join(map(str, self.sources))}: nothing to import ({kind.line}){reason}")
        return checked(rows, name=self.dataset)


def import_dataset(
    kind: str, sources: StrPath | Sequence[StrPath], *, on_error: str = "fail", **settings: Any
) -> pd.DataFrame:
    """The manifest of a published dataset or folder.

    Args:
        kind, sources, settings: of `ImportJob`, such as images, name, columns, options and limit.
        on_error: treatment of unusable rows, such as rows without an image: "fail" raises an error that lists all of
            them, "skip" leaves them out.

    Raises:
        ManifestError: naming the columns or folders of the source, if they do not fit the importer.
        ManifestError: if values of the source break the rules of a manifest.
    """
    if isinstance(sources, str | os.PathLike):
        sources = [sources]
    job = ImportJob(kind, sources, **settings)
    table = job.run()
    if job.rejected and on_error != "skip":
        lines = "\n  ".join(first_few(job.rejected))
        raise ManifestError(
            f"{len(job.rejected)} rows cannot be imported; fix them, or leave them out (--on-error skip):\n  {lines}"
        )
    warn_of_twins(table)
    return table


def png(image: Image.Image) -> bytes:
    """An image as PNG, kept without loss."""
    file = io.BytesIO()
    image.save(file, "PNG")
    return file.getvalue()


def _ending_of(data: bytes) -> str:
    """The extension by content, because published names are often wrong; ".bin" if the bytes are not an image."""
    try:
        with open_file(io.BytesIO(data)) as image:
            kind = image.format or "bin"
    except Exception:  # plugins raise many kinds of error on damaged headers
        return ".bin"
    return {"JPEG": ".jpg", "MPO": ".jpg"}.get(kind, f".{kind.lower()}")
