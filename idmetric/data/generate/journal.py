"""Journals of a folder of generated images: one file per worker, one line per finished job."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO

from idmetric.data.generate.errors import GenerateError
from idmetric.io import json_file
from idmetric.io.lock import locked

Entry = dict[str, Any]
_PLACE = 48  # bits of a line's offset in its file; the file's number is in the bits above


class Journals:
    """The journals of all workers. Memory holds names and offsets only, which allows millions of lines.

    A name may have several lines, because old journals stay when the number of workers changes; the reader decides
    which lines are valid. Lines that a stop cut off are ignored.
    """

    def __init__(self, folder: str | os.PathLike[str]) -> None:
        self._paths = sorted(Path(folder).glob("journal*.jsonl"))
        self._files: dict[int, BinaryIO] = {}
        self._places: dict[str, tuple[int, ...]] = {}
        for number, path in enumerate(self._paths):
            place = number << _PLACE
            with path.open("rb") as file:
                for line in file:
                    if entry := _parsed(line):
                        self._places[entry["name"]] = (*self._places.get(entry["name"], ()), place)
                    place += len(line)

    def __len__(self) -> int:
        return len(self._places)

    def __enter__(self) -> Journals:
        return self

    def __exit__(self, *_: object) -> None:
        for file in self._files.values():
            file.close()
        self._files.clear()

    def entries(self, name: str) -> Iterator[Entry]:
        """All entries of a job, newest first within each file."""
        for place in reversed(self._places.get(name, ())):
            number = place >> _PLACE
            if number not in self._files:
                self._files[number] = self._paths[number].open("rb")
            self._files[number].seek(place - (number << _PLACE))
            if entry := _parsed(self._files[number].readline()):
                yield entry


@contextmanager
def open_journal(folder: Path, shard: tuple[int, int]) -> Iterator[BinaryIO]:
    """Open the worker's journal for appending, locked for this process; a line that a stop cut off is ended first.

    Raises:
        GenerateError: if another process has it open.
    """
    name = f"journal-{shard[0]}-of-{shard[1]}"
    busy = GenerateError(f"another run is using {folder}: wait for it to end, or share the work with --shard I/N")
    with locked(folder / f".{name}.lock", busy), (folder / f"{name}.jsonl").open("ab+") as file:
        if file.tell():
            file.seek(-1, os.SEEK_END)
            if file.read(1) != b"\n":
                file.write(b"\n")
        yield file


def add(journal: BinaryIO, entry: Entry) -> None:
    """Append an entry and flush it to disk."""
    journal.write(json.dumps(entry, ensure_ascii=False, sort_keys=True).encode() + b"\n")
    journal.flush()
    os.fsync(journal.fileno())


def _parsed(line: bytes) -> Entry | None:
    try:
        entry = json_file.parse(line)
    except ValueError:
        return None
    return entry if isinstance(entry, dict) and isinstance(entry.get("name"), str) else None
