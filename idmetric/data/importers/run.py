"""Run an importer: sources in, manifest out."""

from __future__ import annotations

import importlib
import math
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice
from pathlib import Path
from typing import Any

from idmetric.data.importers import KINDS, PACKAGE
from idmetric.data.importers.images import Images
from idmetric.data.importers.source import Shard, Source, SourceError, open_source
from idmetric.data.manifest.table import Manifest, Row
from idmetric.io.tables import first_few

# (items, total or None, name) -> the items, with progress shown
Progress = Callable[[Iterable[Any], int | None, str], Iterable[Any]]
Sources = str | os.PathLike[str] | Sequence[str | os.PathLike[str]]
_LONGEST = 2000  # characters of a column that parameters keep


@dataclass(frozen=True)
class Record:
    """A row of a table.

    Attributes:
        number: counted from 0 within its split.
        values: by the expected names of their columns; see `Job.columns`.
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

    def keep(self, value: Any, name: str | None, column: str = "path") -> dict[str, Any]:
        """`Images.keep` of one of its images."""
        return self.job.images.keep(value, name, self.source.locate, column)

    def about(self, *used: str) -> dict[str, Any]:
        """Where it comes from, and its short values apart from the columns used."""
        return {"source": self.source.label, "row": self.number, **scalars(self.values, *used)}

    def group(self, name: str, members: Mapping[str, tuple[Any, Mapping[str, Any]]], **shared: Any) -> Iterator[Row]:
        """The rows of a group of images; it is left out if one is missing.

        Args:
            members: slot -> image, and the columns of its row.
            shared: columns of all rows.
        """
        images = {slot: self.keep(image, f"{name}/{slot}") for slot, (image, _) in members.items()}
        if not all(images.values()):
            self.reject("an image of the group is missing")
            return
        common = {"dataset": self.job.name, "group": name, **shared}
        for slot, (_, columns) in members.items():
            yield Row(**{"identity": None, "id": f"{name}/{slot}", "slot": slot, **common, **columns, **images[slot]})


@dataclass(frozen=True)
class Job:
    """The task of an importer.

    Attributes:
        kind: name of the importer in `KINDS`.
        sources: files, folders or Hub ids.
        name: of the dataset; identities and ids start with it, which keeps merged manifests apart.
        images: stores the images.
        revision, files: as for `open_source`.
        columns: expected column -> its name in the source (`--map`).
        options: of `KINDS[kind].options`.
        limit: number of rows of each source to stop after.
        named: whether the user gave the name.
        rejected: rows that were left out, and the reasons; grows while the importer runs.
    """

    kind: str
    sources: tuple[str, ...]
    name: str
    images: Images
    revision: str | None = None
    files: str | None = None
    columns: Mapping[str, str] = field(default_factory=dict)
    options: Mapping[str, str] = field(default_factory=dict)
    limit: int | None = None
    named: bool = False
    progress: Progress = lambda items, total, what: items
    rejected: list[str] = field(default_factory=list)

    def open(self, source: str | None = None) -> Source:
        """Open a source, by default the first one, as a table."""
        return open_source(source or self.sources[0], self.revision, self.files)

    def folder(self, source: str | None = None) -> Path:
        """The path of a source, by default the first one, that must be a folder.

        Raises:
            SourceError: if it is not a folder.
        """
        path = Path(source or self.sources[0])
        if not path.is_dir():
            raise SourceError(f"{path}: no such folder; {KINDS[self.kind].line}")
        return path

    def limited(self, items: Sequence[Any], what: str) -> Iterable[Any]:
        """The items up to the limit, with progress shown."""
        found = items[: self.limit]
        return self.progress(found, len(found), what)

    def rows(self, source: Source, columns: Sequence[str] | None = None) -> Iterator[Record]:
        """The rows of a table, up to the limit.

        Args:
            columns: expected names of the columns to read; columns that the table lacks are skipped. None reads all.
        """
        names = None if columns is None else dict.fromkeys(self.column(c) for c in columns)
        wanted = None if names is None else [c for c in names if c in source.columns]
        total = source.count if self.limit is None else min(self.limit, source.count)
        shown = self.progress(islice(source.rows(wanted), self.limit), total, source.name)
        taken = {*self.columns.values(), *self.columns}
        counts: dict[str | None, int] = {}
        for shard, values in shown:
            number = counts.get(shard.split, 0)
            counts[shard.split] = number + 1
            mapped = {expected: values[name] for expected, name in self.columns.items() if name in values}
            yield Record(self, source, shard, number, {c: v for c, v in values.items() if c not in taken} | mapped)

    def column(self, expected: str) -> str:
        """The source's name of a column."""
        return self.columns.get(expected, expected)

    def expected(self, column: str) -> str:
        """The expected name of a source's column, under which `rows` gives its values."""
        return next((expected for expected, name in self.columns.items() if name == column), column)

    def need(self, source: Source, *expected: str) -> None:
        """Check that a table has these columns.

        Raises:
            SourceError: naming the columns of the table and the option to map them.
        """
        missing = [c for c in expected if not self.has(source, c)]
        if missing:
            found = ", ".join(source.columns) or "none"
            raise SourceError(
                f"{source.name}: no column {self.column(missing[0])!r}; there are {found}. Is {self.kind!r} the right "
                f"importer? If the column has another name, use --map {missing[0]}=NAME"
            )

    def has(self, source: Source, expected: str) -> bool:
        """Whether a table has a column."""
        return self.column(expected) in source.columns

    def number(self, option: str, default: float | None) -> Any:
        """The value of a numeric option.

        Raises:
            SourceError: if it is not a number.
        """
        text = self.options.get(option)
        try:
            return default if text is None else float(text)
        except ValueError as error:
            raise SourceError(f"option {option}={text}: not a number") from error

    def choice(self, option: str, *known: str) -> str:
        """The value of an option that is one of several words, the first of which is the default.

        Raises:
            SourceError: for another word.
        """
        word = self.options.get(option, known[0])
        if word not in known:
            raise SourceError(f"option {option}={word}: one of {', '.join(known)}")
        return word


def import_dataset(kind: str, sources: Sources, *, on_error: str = "fail", **given: Any) -> Manifest:
    """The manifest of a published dataset or folder; its paths are absolute until it is written.

    Args:
        kind, sources, given: of `make_job`, such as images, name, columns, options and limit.
        on_error: treatment of unusable rows, such as rows without an image: "fail" raises an error that lists all of
            them, "skip" leaves them out.

    Raises:
        SourceError: naming the columns or folders of the source, if they do not fit the importer.
        ManifestError: if values of the source break the rules of a manifest.
    """
    job = make_job(kind, sources, **given)
    manifest = run(job)
    if job.rejected and on_error != "skip":
        raise SourceError(listed(job.rejected, "rows cannot be imported"))
    return manifest


def make_job(
    kind: str,
    sources: Sources,
    *,
    images: str | os.PathLike[str] | Images | None = None,
    name: str | None = None,
    columns: Mapping[str, str] | None = None,
    options: Mapping[str, str] | None = None,
    **given: Any,
) -> Job:
    """A job, checked as far as possible without reading the sources.

    Args:
        kind: one of `KINDS`.
        sources: a file, folder or Hub id; "nearid" and "finer" accept several, because their sets belong together.
        images: folder for images that the source holds as bytes; files of an earlier, stopped run are kept. None keeps
            bytes in the manifest and in memory, which suits small datasets.
        name: of the dataset (default: the kind's; for "folder" and "table" the source's).
        columns, options, given: as in `Job`: revision, files, limit, progress.

    Raises:
        SourceError: for an unknown importer or option.
    """
    if kind not in KINDS:
        raise SourceError(f"unknown importer {kind!r}; there are {', '.join(KINDS)}")
    paths = [os.fspath(s) for s in ([sources] if isinstance(sources, str | os.PathLike) else sources)]
    if len(paths) > 1 and not KINDS[kind].several:
        raise SourceError(
            f"{kind}: rows of {len(paths)} sources would share names; import them one by one, each with its own "
            "--name, and join the manifests with idmetric.data.manifest.table.merge"
        )
    known, options = KINDS[kind].options, options or {}
    if unknown := [o for o in options if o not in known]:
        raise SourceError(f"unknown option {unknown[0]!r} of {kind}; there are {', '.join(known) or 'none'}")

    own = Path(paths[0]).resolve().stem if kind in ("folder", "table") else kind
    store = images if isinstance(images, Images) else Images(None if images is None else Path(images))
    return Job(
        kind, tuple(paths), name or own, store, columns=columns or {}, options=options, named=bool(name), **given
    )


def run(job: Job) -> Manifest:
    """Run a job and return its manifest; `job.rejected` then lists the rows that were left out.

    Parameters named x_... become free columns.
    """
    module = importlib.import_module(f"{PACKAGE}.{KINDS[job.kind].module}")
    free: dict[str, list[Any]] = {}
    rows = getattr(module, job.kind, None) or module.rows
    manifest = Manifest.from_rows(_without_free(rows(job), free), name=job.name)
    if not len(manifest):
        why = f"; {job.rejected[0]}" if job.rejected else ""
        raise SourceError(f"{', '.join(job.sources)}: nothing to import ({KINDS[job.kind].line}){why}")
    return manifest.replace(**dict(sorted(free.items()))) if free else manifest


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


def listed(problems: Sequence[str], what: str) -> str:
    """A text with the number of problems, the first few of them, and the option to skip them."""
    lines = [f"  {line}" for line in first_few(problems)]
    return "\n".join([f"{len(problems)} {what}:", *lines, "fix them, or leave them out with --on-error skip"])


def scalars(values: Mapping[str, Any], *used: str) -> dict[str, Any]:
    """The remaining short values of a row, for its parameters, without NaN and infinity."""
    short = {n: v for n, v in values.items() if n not in used and isinstance(v, str | int | float)}
    return {
        name: value
        for name, value in short.items()
        if len(str(value)) <= _LONGEST and not (isinstance(value, float) and not math.isfinite(value))
    }
