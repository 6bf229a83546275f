"""A world's folder: its lock, its plan, its finished identities and its manifest.

world.json holds the plan. Identity number N is finished once N/1000/N/rows.jsonl exists. Identities in progress, and
remains of killed runs, have hidden names.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet

from idmetric.data.manifest.table import COLUMNS, PATHS, SCHEMA, Manifest, ManifestError, Row
from idmetric.data.manifest.values import first_few
from idmetric.io.lock import locked
from idmetric.io.output import replacing

ROWS = "rows.jsonl"
MANIFEST = "manifest.parquet"
_SETTINGS = "world.json"
_MAKING = ("[0-9]*/.[0-9]*-*", f".{_SETTINGS}-*", f".{MANIFEST}-*")
_CHUNK = 16384  # rows held as objects at once, about
_STRAY = (".DS_Store", "Thumbs.db", "desktop.ini")  # files that systems leave in folders

Values = dict[str, Any]


@contextmanager
def own_folder(folder: Path) -> Iterator[None]:
    """Lock the folder against other runs, and remove what killed runs left behind.

    On a file system without locks, other runs are not kept out, and nothing is removed: another run may still use it.

    Raises:
        ValueError: if another run is using the folder.
    """
    if folder.exists() and not folder.is_dir():
        raise ValueError(f"{folder} is a file; a world needs a folder")
    folder.mkdir(parents=True, exist_ok=True)
    busy = ValueError(
        f"another run is using {folder}: wait for it to end, or render into another folder "
        "(other identities of the same world can be merged with these)"
    )
    with locked(folder / ".world.lock", busy) as held:
        if held:
            for left in [path for pattern in _MAKING for path in folder.glob(pattern)]:
                remove(left)
        yield


def remove(path: Path) -> None:
    """Remove a file or folder; if part of it cannot be removed, that part stays under a hidden name.

    Renaming comes first and is atomic: a process of a killed run that is still alive cannot complete half a folder.
    """
    gone = path.with_name(f".{path.name.lstrip('.')}-{os.getpid()}-gone")
    try:
        path.rename(gone)
    except OSError:  # it is gone already, or open in another process (Windows)
        return
    if gone.is_dir():
        shutil.rmtree(gone, ignore_errors=True)
    else:
        gone.unlink(missing_ok=True)


def place_of(number: int) -> str:
    """The folder of an identity, relative to the world's folder."""
    return f"{number // 1000:03d}/{number:06d}"


def finished(folder: Path) -> list[int]:
    """The numbers of the finished identities, in ascending order."""
    found = folder.glob(f"[0-9]*/[0-9]*/{ROWS}")
    names = [(path.parent.parent.name, path.parent.name) for path in found]
    return sorted(int(n) for group, n in names if n.isdecimal() and place_of(int(n)) == f"{group}/{n}")


def read_rows(folder: Path, number: int) -> list[Values]:
    """The rows of a finished identity, with paths relative to its own folder.

    Raises:
        ValueError: naming the file that is damaged or missing.
    """
    place = folder / place_of(number)
    try:
        with (place / ROWS).open(encoding="utf-8") as file:
            rows = [_row(line, f"{place / ROWS}: line {k}", number) for k, line in enumerate(file, 1)]
    except UnicodeDecodeError as error:
        raise ValueError(f"{place / ROWS}: not UTF-8 text") from error
    if not rows:
        raise ValueError(f"{place / ROWS}: is empty")
    sizes = {entry.name: entry.stat().st_size for entry in os.scandir(place)}
    for name in (row[column] for row in rows for column in PATHS if column in row):
        if not sizes.get(name):
            raise ValueError(f"{place / str(name)}: {'is empty' if name in sizes else 'is missing'}")
    return rows


def _row(line: str, where: str, number: int) -> Values:
    try:
        row = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{where} is not JSON ({error})") from error
    if not isinstance(row, dict) or not all(isinstance(row.get(c), str) for c in ("identity", "id", "path")):
        raise ValueError(f"{where} is not a row with identity, id and path")
    if not set(row) <= set(COLUMNS) or not all(isinstance(row[c], str) for c in PATHS if c in row):
        raise ValueError(f"{where} holds unknown columns, or masks that are not file names")
    if not line.endswith("\n"):
        raise ValueError(f"{where} is cut off")
    if not row["id"].partition("/")[0].endswith(f"-{number:06d}"):
        raise ValueError(f"{where} is a row of another identity ({row['id']})")
    return row


def refuse_damaged(problems: Sequence[str]) -> None:
    """Raise a ValueError that lists the damaged files, if there are any."""
    if problems:
        raise ValueError(
            "files of finished identities are damaged; delete the numbered folders that contain them and run the same "
            "command again to render them:" + "".join(f"\n  {p}" for p in first_few(problems))
        )


def claim(folder: Path, plan: Mapping[str, Any], assets: Path | None) -> None:
    """Write the plan and the hashes of the assets to world.json, or compare them with an existing world.json.

    Raises:
        ValueError: if the folder holds another world, or its world.json is unreadable.
    """
    settings = json.loads(json.dumps({"plan": plan, "assets": _digests(assets)}))
    note = folder / _SETTINGS
    if note.exists():
        noted = _read_settings(note)
        if noted != settings:
            raise ValueError(
                f"{folder} holds a world with other settings ({_changed(noted, settings)}); take another folder"
            )
        return
    if finished(folder):
        raise ValueError(f"{folder} holds images but no {_SETTINGS}: restore it, or take another folder")
    with replacing(note) as making:
        making.write_text(json.dumps(settings, indent=1) + "\n", encoding="utf-8")


def _read_settings(note: Path) -> Values:
    try:
        noted = json.loads(note.read_text(encoding="utf-8"))
        if not isinstance(noted["plan"], dict) or not isinstance(noted["assets"], dict):
            raise TypeError
    except (ValueError, TypeError, KeyError, RecursionError) as error:
        way = "restore it, or take another folder" if finished(note.parent) else "delete it and run again"
        raise ValueError(f"{note} is damaged and doesn't hold the settings of a world: {way}") from error
    return dict(noted)


def _digests(assets: Path | None) -> dict[str, str]:
    """SHA-256 of every file that is read as an asset, by its path."""
    if assets is None:
        return {}
    found = [p for pattern in ("*/*", "*/*/*") for p in assets.glob(pattern)]
    files = {p.relative_to(assets).as_posix(): p for p in found if p.is_file() and p.name not in _STRAY}
    return {name: hashlib.sha256(files[name].read_bytes()).hexdigest() for name in sorted(files)}


def _changed(noted: Values, settings: Values) -> str:
    """The names of the settings that differ, and of the first asset that differs."""
    plans, assets = ((noted[k], settings[k]) for k in ("plan", "assets"))
    names, files = (
        sorted(k for k in {*old, *new} if old.get(k) != new.get(k) or (k in old) != (k in new))
        for old, new in (plans, assets)
    )
    more = f" and {len(files) - 1} more" if len(files) > 1 else ""
    return ", ".join([*names, *(f"asset {file}{more}" for file in files[:1])]) or "unknown ones"


def write_manifest(folder: Path) -> tuple[int, int]:
    """Write manifest.parquet with the rows of all finished identities by ascending number, chunk by chunk.

    Returns:
        The number of images, and the number of identities including edited ones.

    Raises:
        ValueError: naming the damaged file.
    """
    images = identities = 0
    with replacing(folder / MANIFEST) as making, pyarrow.parquet.ParquetWriter(making, SCHEMA) as file:
        for chunk in _chunks(folder):
            images += sum(len(rows) for rows in chunk.values())
            identities += sum(len({row.identity for row in rows}) for rows in chunk.values())
            file.write_table(_table(chunk, folder))
    return images, identities


def _chunks(folder: Path) -> Iterator[dict[int, list[Row]]]:
    """Rows of finished identities by number, thousands at a time, with paths relative to the world's folder."""
    chunk: dict[int, list[Row]] = {}
    held = 0
    for number in finished(folder):
        try:
            rows = read_rows(folder, number)
        except ValueError as error:
            refuse_damaged([str(error)])
        place = place_of(number)
        chunk[number] = [Row(**values | {c: f"{place}/{values[c]}" for c in PATHS if c in values}) for values in rows]
        held += len(rows)
        if held >= _CHUNK:
            yield chunk
            chunk, held = {}, 0

    if chunk:
        yield chunk


def _table(chunk: Mapping[int, list[Row]], folder: Path) -> pa.Table:
    try:
        return Manifest.from_rows((row for rows in chunk.values() for row in rows), folder).table
    except ManifestError:
        for number, rows in chunk.items():  # find the identity at fault
            try:
                Manifest.from_rows(rows, folder, str(folder / place_of(number) / ROWS))
            except ManifestError as error:
                refuse_damaged([str(error)])
        raise
