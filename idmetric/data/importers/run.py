"""Run an importer: sources in, manifest out."""

from __future__ import annotations

import hashlib
import importlib
import math
import os
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from itertools import islice
from pathlib import Path
from typing import Any

from idmetric.data.importers import KINDS, PACKAGE
from idmetric.data.importers.images import content, ending_of
from idmetric.data.importers.source import Shard, Source, open_source
from idmetric.data.old_manifest.check import Progress
from idmetric.data.old_manifest.schema import COLUMNS, ManifestError, text_of
from idmetric.data.old_manifest.table import Manifest, Row, warn_of_twins
from idmetric.metric.files import StrPath, parse_json, replacing, shown
from idmetric.metric.paths import matches, pattern_folder
from idmetric.tables import first_few, number_of

Columns = dict[str, Any]  # of a row

_LONGEST = 2000  # characters of a column that parameters keep
_FREE = "x_"  # how the names of free columns begin


@dataclass(frozen=True)
class Record:
    """A row of a table.

    Attributes:
        number: counted from 0 within its split.
        values: by the expected names of their columns (`--map`).
    """

    job: ImportJob
    source: Source
    shard: Shard
    number: int
    values: Columns

    @property
    def where(self) -> str:
        """The name of the row for messages, counted from 1."""
        row = f"{self.source.name}: row {self.number + 1}"
        return f"{row} of {self.shard.split}" if self.shard.split else row

    @property
    def origin(self) -> Columns:
        """Where it comes from, for the parameters of its rows."""
        return {"source": self.source.label, "row": self.number}

    def text(self, column: str) -> str | None:
        """The name or id in a column, see `text_of`; None if it is empty or missing."""
        return as_name(self.values.get(column), f"{self.where}, column {column!r}")

    def number_in(self, column: str) -> float:
        """The number in a column; ManifestError for another value, or none."""
        return self._number(self.values.get(column), column)

    def list_in(self, column: str) -> list[Any]:
        """The list in a column, in CSV as JSON; empty without one. ManifestError for other values."""
        cell = self.values.get(column)
        values = cell
        if isinstance(cell, str) and cell.startswith("["):
            with suppress(ValueError):
                values = parse_json(cell)
        if values is None:
            return []
        if not isinstance(values, list):
            raise ManifestError(f"{self.where}, column {column!r}: {shown(cell)} is not a list")
        return values

    def numbers_in(self, column: str) -> list[float]:
        """The list of numbers in a column; errors as `list_in` and `number_in`."""
        return [self._number(value, column) for value in self.list_in(column)]

    def _number(self, value: Any, column: str) -> float:
        try:
            return number_of(value) if isinstance(value, str) else float(value)
        except (TypeError, ValueError) as error:
            raise ManifestError(f"{self.where}, column {column!r}: {shown(value)} is not a number") from error

    def reject(self, reason: object) -> None:
        """Leave the row out."""
        self.job.rejected.append(f"{self.where}: {reason}")

    def keep(self, value: Any, column: str = "path") -> Columns:
        """`ImportJob.keep` of one of its images."""
        return self.job.keep(value, column, self.source.locate)

    def about(self, *used: str) -> Columns:
        """Its origin, and its short values apart from the columns used."""
        return {**self.origin, **scalars(self.values, *used)}

    def group(self, name: str, members: Mapping[str, tuple[Any, Columns]], **shared: Any) -> Iterator[Row]:
        """The rows of a group of images; it is left out if one is missing.

        Args:
            members: slot (or another end of the id) -> image, and the columns of its row.
            shared: columns of all rows.
        """
        images = {slot: self.keep(image) for slot, (image, _) in members.items()}
        if not all(images.values()):
            self.reject("an image of the group is missing")
            return
        for slot, (_, columns) in members.items():
            row = {"slot": slot, **shared, **columns, **images[slot]}
            yield self.job.row(row.pop("identity", None), f"{name}/{slot}", group=name, **row)


@dataclass
class ImportJob:
    """The task of an importer.

    Attributes:
        kind: one of `KINDS`.
        sources: files, folders or Hub ids; "nearid" accepts several, because its sets belong together.
        images: folder for images that the source holds as bytes; a stopped import resumes. None keeps bytes in the
            manifest and in memory, which suits small datasets.
        name: of the dataset (default: the kind's; for "folder" and "table" the source's). Identities and ids start
            with it, which keeps merged manifests apart.
        revision, files, columns: as for `open_source`.
        options: of `KINDS[kind].options`.
        limit: number of rows of each source to stop after.
        dry: write no images.
        named: whether the user named the dataset.
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
    progress: Progress = lambda items, total, what: items
    dry: bool = False
    named: bool = field(init=False)
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

        self.named = bool(self.name)
        if not self.named and self.kind in ("folder", "table"):
            source = os.fspath(self.sources[0])
            if matches(source):
                source = pattern_folder(source)
            self.name = Path(source).resolve().stem
        elif not self.named:
            self.name = self.kind

    # Reading

    def open(self, *columns: str, source: StrPath | None = None, known: Iterable[str] = ()) -> Source:
        """Open a source, by default the first one, as a table that has these columns; raises as `Source.need`.

        Args:
            known: further columns that the importer uses.
        """
        names = {*columns, *known, *COLUMNS}
        table = open_source(source or self.sources[0], self.revision, self.files, self.columns, names)
        table.need(*columns)
        return table

    def folder(self, source: StrPath | None = None) -> Path:
        """The path of a source, by default the first one; ManifestError if it is not a folder."""
        path = Path(source or self.sources[0])
        if not path.is_dir():
            raise ManifestError(f"{path}: no such folder; {KINDS[self.kind].line}")
        return path

    def limited(self, items: Sequence[Any], what: str) -> Iterable[Any]:
        """The items up to the limit, with progress shown."""
        items = items[: self.limit]
        return self.progress(items, len(items), what)

    def records(self, source: Source) -> Iterator[Record]:
        """The rows of a table, up to the limit, with progress shown."""
        rows = islice(source.rows(), self.limit)
        total = len(range(source.count)[: self.limit])
        counts: Counter[str | None] = Counter()
        for shard, values in self.progress(rows, total, source.name):
            yield Record(self, source, shard, counts[shard.split], values)
            counts[shard.split] += 1

    def choice(self, option: str, *words: str) -> str:
        """The value of an option that is one of several words, by default the first; ManifestError for others."""
        word = self.options.get(option, words[0])
        if word not in words:
            raise ManifestError(f"option {option}={word}: one of {', '.join(words)}")
        return word

    # Writing

    def keep(self, value: Any, column: str = "path", locate: Callable[[str], Path] = Path) -> Columns:
        """The columns of a row that hold this image; {} if there is no image. Equal images share a file.

        Args:
            value: bytes, a path, {"bytes": ..., "path": ...} as `datasets` stores images, or None.
            column: "path", "mask" or "part_mask".
            locate: returns the file of a path, such as `Source.locate`.

        Raises:
            ManifestError: for a value of another type, or a forbidden path.
            OutputError: if a file cannot be written.
        """
        data, path = content(value)
        if path is not None:
            return {column: str(locate(path).absolute())}
        if data is None:
            return {}
        if self.images is None:
            return {"image_bytes" if column == "path" else f"{column}_bytes": data}

        digest = hashlib.sha256(data).hexdigest()
        file = Path(self.images, digest[:2], f"{digest[:32]}{ending_of(data)}")
        self.written.add(file)
        if not self.dry and not file.is_file():
            with replacing(file, parents=True) as temporary:
                temporary.write_bytes(data)
        return {column: str(file.absolute())}

    def row(self, identity: object, name: str, file: Path | None = None, /, **columns: Any) -> Row:
        """A row; identity, id, group and parent get the dataset's name in front. `file` is the image, if it is one."""
        columns = {"dataset": self.name, **columns, "identity": identity, "id": name}
        for column in ("identity", "id", "group", "parent"):
            text = as_name(columns.get(column), f"{self.name}: {column!r} of {name!r}")
            if text is not None:
                columns[column] = f"{self.name}/{text}"
        if file is not None:
            columns["path"] = str(file.absolute())
        return Row(**columns)

    def run(self) -> Manifest:
        """Import; parameters named x_... become free columns."""
        kind = KINDS[self.kind]
        module = importlib.import_module(f"{PACKAGE}.{kind.module}")
        rows = getattr(module, self.kind, None) or module.rows

        free: dict[str, dict[int, Any]] = defaultdict(dict)  # column -> row -> value
        manifest = Manifest.from_rows(_without_free(rows(self), free), name=self.name)
        if not len(manifest):
            reason = f"; {self.rejected[0]}" if self.rejected else ""
            raise ManifestError(f"{', '.join(map(str, self.sources))}: nothing to import ({kind.line}){reason}")
        for name, values in sorted(free.items()):
            manifest = manifest.replace(**{name: [values.get(row) for row in range(len(manifest))]})
        return manifest


def _without_free(rows: Iterable[Row], free: dict[str, dict[int, Any]]) -> Iterator[Row]:
    """The rows without their parameters x_..., which are moved to `free`."""
    for number, row in enumerate(rows):
        parameters = dict(row.parameters or {})
        for name in [name for name in parameters if name.startswith(_FREE)]:
            free[name][number] = parameters.pop(name)
        yield replace(row, parameters=parameters or None)


def import_dataset(
    kind: str, sources: StrPath | Sequence[StrPath], *, on_error: str = "fail", **settings: Any
) -> Manifest:
    """The manifest of a published dataset or folder; its paths are absolute until it is written.

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
    manifest = job.run()
    if job.rejected and on_error != "skip":
        lines = "\n  ".join(first_few(job.rejected))
        raise ManifestError(
            f"{len(job.rejected)} rows cannot be imported; fix them, or leave them out (--on-error skip):\n  {lines}"
        )
    warn_of_twins(manifest)
    return manifest


def as_name(value: Any, where: str) -> str | None:
    """The text of a name or id, see `text_of`; ManifestError, which says where it stands, for other values."""
    try:
        return text_of(value)
    except (TypeError, UnicodeEncodeError) as error:
        raise ManifestError(f"{where}: {shown(value)} is not a name; give text or a whole number") from error


def scalars(values: Columns, *used: str) -> Columns:
    """The remaining short values of a row, for its parameters, without NaN and infinity."""
    short = {}
    for name, value in values.items():
        if name in used or not isinstance(value, str | int | float) or len(str(value)) > _LONGEST:
            continue
        if not isinstance(value, float) or math.isfinite(value):
            short[name] = value
    return short


def as_list(cell: Any) -> list[Any]:
    """The values of a cell that holds a list, one value or nothing."""
    if cell is None:
        return []
    return cell if isinstance(cell, list) else [cell]
