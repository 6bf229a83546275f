"""Run an importer: sources in, manifest out."""

from __future__ import annotations

import hashlib
import importlib
import math
import os
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from typing import Any

from idmetric.data.importers import KINDS, PACKAGE
from idmetric.data.importers.images import content, ending_of
from idmetric.data.importers.source import Shard, Source, SourceError, open_source
from idmetric.data.manifest.table import Manifest, Row
from idmetric.metric.files.output import replacing
from idmetric.metric.files.tables import first_few

# (items, total or None, name) -> the items, with progress shown
Progress = Callable[[Iterable[Any], int | None, str], Iterable[Any]]
Sources = str | os.PathLike[str] | Sequence[str | os.PathLike[str]]
_LONGEST = 2000  # characters of a column that parameters keep


@dataclass(frozen=True)
class Record:
    """A row of a table.

    Attributes:
        number: counted from 0 within its split.
        values: by the expected names of their columns (`--map`).
    """

    job: Job
    source: Source
    shard: Shard
    number: int
    values: dict[str, Any]

    @property
    def where(self) -> str:
        """The name of the row for messages, counted from 1."""
        return f"{self.source.name}: row {self.number + 1}" + (f" of {self.shard.split}" if self.shard.split else "")

    def reject(self, reason: str) -> None:
        """Leave the row out."""
        self.job.rejected.append(f"{self.where}: {reason}")

    def keep(self, value: Any, column: str = "path") -> dict[str, Any]:
        """`Job.keep` of one of its images."""
        return self.job.keep(value, column, self.source.locate)

    def about(self, *used: str) -> dict[str, Any]:
        """Where it comes from, and its short values apart from the columns used."""
        return {"source": self.source.label, "row": self.number, **scalars(self.values, *used)}

    def group(self, name: str, members: Mapping[str, tuple[Any, Mapping[str, Any]]], **shared: Any) -> Iterator[Row]:
        """The rows of a group of images; it is left out if one is missing.

        Args:
            members: slot (or another end of the id) -> image, and the columns of its row.
            shared: columns of all rows.
        """
        images = {slot: self.keep(image) for slot, (image, _) in members.items()}
        if not all(images.values()):
            self.reject("an image of the group is missing")
            return
        common = {"identity": None, "dataset": self.job.name, "group": name, **shared}
        for slot, (_, columns) in members.items():
            yield Row(**{"id": f"{name}/{slot}", "slot": slot, **common, **columns, **images[slot]})


class Job:
    """The task of an importer.

    Args:
        kind: one of `KINDS`.
        sources: a file, folder or Hub id; "nearid" and "finer" accept several, because their sets belong together.
        images: folder for images that the source holds as bytes; a stopped import resumes. None keeps bytes in the
            manifest and in memory, which suits small datasets.
        name: of the dataset (default: the kind's; for "folder" and "table" the source's). Identities and ids start
            with it, which keeps merged manifests apart.
        revision, files, columns: as for `open_source`.
        options: of `KINDS[kind].options`.
        limit: number of rows of each source to stop after.
        dry: write no images.

    Attributes:
        rejected: rows that were left out, and the reasons; grows while the importer runs.
        written: files of images, which are named by their content.

    Raises:
        SourceError: for an unknown importer or option.
    """

    def __init__(
        self, kind: str, sources: Sources, *, images: str | os.PathLike[str] | None = None, name: str | None = None,
        revision: str | None = None, files: str | None = None, columns: Mapping[str, str] | None = None,
        options: Mapping[str, str] | None = None, limit: int | None = None,
        progress: Progress = lambda items, total, what: items, dry: bool = False,
    ) -> None:  # fmt: skip
        if kind not in KINDS:
            raise SourceError(f"unknown importer {kind!r}; there are {', '.join(KINDS)}")
        self.kind = kind
        self.sources = [os.fspath(s) for s in ([sources] if isinstance(sources, str | os.PathLike) else sources)]
        if len(self.sources) > 1 and not KINDS[kind].several:
            raise SourceError(f"{kind}: it takes one source; import each with its own --name, and merge the manifests")
        self.options, known = options or {}, KINDS[kind].options
        if unknown := [o for o in self.options if o not in known]:
            raise SourceError(f"unknown option {unknown[0]!r} of {kind}; there are {', '.join(known) or 'none'}")
        self.named = bool(name)
        self.name = name or (Path(self.sources[0]).resolve().stem if kind in ("folder", "table") else kind)
        self.images = None if images is None else Path(images)
        self.revision, self.files, self.columns = revision, files, columns or {}
        self.limit, self.progress, self.dry = limit, progress, dry
        self.rejected: list[str] = []
        self.written: set[Path] = set()

    # Reading

    def open(self, *columns: str, source: str | None = None) -> Source:
        """Open a source, by default the first one, as a table that has these columns; raises as `need`."""
        found = open_source(source or self.sources[0], self.revision, self.files, self.columns)
        self.need(found, *columns)
        return found

    def folder(self, source: str | None = None) -> Path:
        """The path of a source, by default the first one; SourceError if it is not a folder."""
        path = Path(source or self.sources[0])
        if not path.is_dir():
            raise SourceError(f"{path}: no such folder; {KINDS[self.kind].line}")
        return path

    def limited(self, items: Sequence[Any], what: str) -> Iterable[Any]:
        """The items up to the limit, with progress shown."""
        found = items[: self.limit]
        return self.progress(found, len(found), what)

    def rows(self, source: Source, columns: Sequence[str] | None = None) -> Iterator[Record]:
        """The rows of a table, up to the limit, with those of these columns that it has (None: all)."""
        total = source.count if self.limit is None else min(self.limit, source.count)
        counts: Counter[str | None] = Counter()
        for shard, values in self.progress(islice(source.rows(columns), self.limit), total, source.name):
            yield Record(self, source, shard, counts[shard.split], values)
            counts[shard.split] += 1

    def need(self, source: Source, *columns: str) -> None:
        """Check that a table has these columns; the SourceError names its columns and the option to map them."""
        if missing := [c for c in columns if c not in source.columns]:
            name, found = self.columns.get(missing[0], missing[0]), ", ".join(source.columns) or "none"
            raise SourceError(
                f"{source.name}: no column {name!r}; there are {found} (name another by --map {missing[0]}=NAME)"
            )

    def number(self, option: str, default: int) -> int:
        """The value of an option that is a whole number, else SourceError."""
        try:
            return int(self.options.get(option, default))
        except ValueError as error:
            raise SourceError(f"option {option}={self.options[option]}: not a whole number") from error

    def choice(self, option: str, *known: str) -> str:
        """The value of an option that is one of several words, the first of which is the default, else SourceError."""
        word = self.options.get(option, known[0])
        if word not in known:
            raise SourceError(f"option {option}={word}: one of {', '.join(known)}")
        return word

    # Images

    def keep(self, value: Any, column: str = "path", locate: Callable[[str], Path] = Path) -> dict[str, Any]:
        """The columns of a row that hold this image; {} if there is no image. Equal images share a file.

        Args:
            value: bytes, a path, {"bytes": ..., "path": ...} as `datasets` stores images, or None.
            column: "path", "mask" or "part_mask".
            locate: returns the file of a path, such as `Source.locate`.

        Raises:
            SourceError: for a value of another type, or a forbidden path.
            OutputError: if a file cannot be written.
        """
        data, path = content(value)
        if data is None:
            return {} if path is None else {column: str(locate(path).absolute())}
        if self.images is None:
            return {"image_bytes" if column == "path" else f"{column}_bytes": data}
        digest = hashlib.sha256(data).hexdigest()
        file = self.images / digest[:2] / f"{digest[:32]}{ending_of(data)}"
        self.written.add(file)
        if not self.dry and not file.is_file():
            with replacing(file, parents=True) as temporary:
                temporary.write_bytes(data)
        return {column: str(file.absolute())}

    # The manifest

    def row(self, identity: object, name: str, file: Path | None = None, **columns: Any) -> Row:
        """A row; its identity and id start with the dataset's name. `file` is the image, unless `columns` hold it."""
        own = {"dataset": self.name} if file is None else {"dataset": self.name, "path": str(file.absolute())}
        return Row(None if identity is None else f"{self.name}/{identity}", id=f"{self.name}/{name}", **own | columns)

    def run(self) -> Manifest:
        """Import; parameters named x_... become free columns."""
        module = importlib.import_module(f"{PACKAGE}.{KINDS[self.kind].module}")
        rows = getattr(module, self.kind, None) or module.rows
        free: dict[str, list[Any]] = {}
        manifest = Manifest.from_rows(_without_free(rows(self), free), name=self.name)
        if not len(manifest):
            why = f"; {self.rejected[0]}" if self.rejected else ""
            raise SourceError(f"{', '.join(self.sources)}: nothing to import ({KINDS[self.kind].line}){why}")
        return manifest.replace(**dict(sorted(free.items()))) if free else manifest


def import_dataset(kind: str, sources: Sources, *, on_error: str = "fail", **given: Any) -> Manifest:
    """The manifest of a published dataset or folder; its paths are absolute until it is written.

    Args:
        kind, sources, given: of `Job`, such as images, name, columns, options and limit.
        on_error: treatment of unusable rows, such as rows without an image: "fail" raises an error that lists all of
            them, "skip" leaves them out.

    Raises:
        SourceError: naming the columns or folders of the source, if they do not fit the importer.
        ManifestError: if values of the source break the rules of a manifest.
    """
    job = Job(kind, sources, **given)
    manifest = job.run()
    if job.rejected and on_error != "skip":
        lines = "\n  ".join(first_few(job.rejected))
        raise SourceError(
            f"{len(job.rejected)} rows cannot be imported; fix them, or leave them out (--on-error skip):\n  {lines}"
        )
    return manifest


def _without_free(rows: Iterable[Row], free: dict[str, list[Any]]) -> Iterator[Row]:
    """The rows without their parameters x_..., which are moved to `free` (name -> value of each row)."""
    for number, row in enumerate(rows):
        given = row.parameters or {}
        mine = {key: value for key, value in given.items() if key.startswith("x_")}
        for key in mine.keys() - free.keys():
            free[key] = [None] * number
        for key, values in free.items():
            values.append(mine.get(key))
        yield replace(row, parameters={k: v for k, v in given.items() if k not in mine} or None) if mine else row


def scalars(values: Mapping[str, Any], *used: str) -> dict[str, Any]:
    """The remaining short values of a row, for its parameters, without NaN and infinity."""
    short = {n: v for n, v in values.items() if isinstance(v, str | int | float) and len(str(v)) <= _LONGEST}
    return {n: v for n, v in short.items() if n not in used and (not isinstance(v, float) or math.isfinite(v))}
