"""A world's folder: its lock, its plan, its finished identities and its manifest.

world.json holds the plan. Identity number N is finished once N/1000/N/rows.jsonl exists. Identities in progress, and
remains of killed runs, have hidden names.
"""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyarrow.parquet

from idmetric.data.manifest.table import PATHS, SCHEMA, Manifest, ManifestError, Row
from idmetric.io import json_file
from idmetric.io.lock import locked
from idmetric.io.output import replacing

ROWS = "rows.jsonl"
MANIFEST = "manifest.parquet"
_SETTINGS = "world.json"
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
            for left in list(folder.glob("[0-9]*/.[0-9]*-*")):
                shutil.rmtree(left, ignore_errors=True)
        yield


def place_of(number: int) -> str:
    """The folder of an identity, relative to the world's folder."""
    return f"{number // 1000:03d}/{number:06d}"


def finished(folder: Path) -> list[int]:
    """The numbers of the finished identities, in ascending order."""
    found = folder.glob(f"[0-9]*/[0-9]*/{ROWS}")
    names = [(path.parent.parent.name, path.parent.name) for path in found]
    return sorted(int(n) for group, n in names if n.isdecimal() and place_of(int(n)) == f"{group}/{n}")


def read_rows(folder: Path, number: int) -> list[Row]:
    """The rows of a finished identity, with paths relative to the world's folder.

    Raises:
        ValueError: naming the damaged file.
    """
    place = place_of(number)
    file = folder / place / ROWS
    try:
        lines = file.read_text(encoding="utf-8").splitlines()
        given = [json_file.parse(line) for line in lines]
        return [Row(**values | {c: f"{place}/{values[c]}" for c in PATHS if c in values}) for values in given]
    except (ValueError, TypeError) as error:
        raise _damaged(file, error) from error


def _damaged(file: Path, error: Exception) -> ValueError:
    return ValueError(f"{file} is damaged ({error}): delete its folder and run the same command again to render it")


def claim(folder: Path, plan: Mapping[str, Any], assets: Path | None) -> None:
    """Write the plan and the hashes of the assets to world.json, or compare them with an existing world.json.

    Raises:
        ValueError: if the folder holds another world, or its world.json is unreadable.
    """
    settings = json.loads(json.dumps({"plan": plan, "assets": _digests(assets)}))
    note = folder / _SETTINGS
    if not note.exists():
        if finished(folder):
            raise ValueError(f"{folder} holds images but no {_SETTINGS}: restore it, or take another folder")
        with replacing(note) as making:
            making.write_text(json.dumps(settings, indent=1) + "\n", encoding="utf-8")
        return

    try:
        noted = json_file.read(note)
        changed = [
            (kind, name)
            for kind, now in settings.items()
            for name in sorted({*noted[kind], *now})
            if noted[kind].get(name) != now.get(name)
        ]
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise ValueError(f"{note} is damaged: restore it, or take another folder ({error})") from error
    if changed:
        names = [name for kind, name in changed if kind == "plan"]
        names += [f"asset {name}" for kind, name in changed if kind == "assets"][:1]
        raise ValueError(f"{folder} holds a world with other settings ({', '.join(names)}); take another folder")


def _digests(assets: Path | None) -> dict[str, str]:
    """SHA-256 of every file that is read as an asset, by its path."""
    if assets is None:
        return {}
    found = [p for pattern in ("*/*", "*/*/*") for p in assets.glob(pattern)]
    files = {p.relative_to(assets).as_posix(): p for p in found if p.is_file() and p.name not in _STRAY}
    return {name: hashlib.sha256(files[name].read_bytes()).hexdigest() for name in sorted(files)}


def write_manifest(folder: Path) -> tuple[int, int]:
    """Write manifest.parquet with the rows of all finished identities by ascending number, chunk by chunk.

    Returns:
        The number of images, and the number of identities including edited ones.

    Raises:
        ValueError: naming the damaged file.
    """
    images = identities = 0
    chunk: list[Row] = []
    numbers = finished(folder)
    with replacing(folder / MANIFEST) as making, pyarrow.parquet.ParquetWriter(making, SCHEMA) as file:
        for number in numbers:
            rows = read_rows(folder, number)
            identities += len({row.identity for row in rows})
            images += len(rows)
            chunk += rows
            if len(chunk) >= _CHUNK or number == numbers[-1]:
                try:
                    file.write_table(Manifest.from_rows(chunk, folder).table)
                except ManifestError as error:
                    raise _damaged(folder / place_of(number) / ROWS, error) from error
                chunk = []
    return images, identities
