"""The folder of a run's parts: who made it, the lock on it, and its files."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from idmetric.io import json_file, output
from idmetric.io.lock import locked
from idmetric.scale.parts import Layout, held, is_same
from idmetric.scale.places import Place, ScaleError

HEAD = "_embed.json"  # readers of Parquet folders skip names with an underscore
LOCK = ".lock"
_PART = re.compile(r"part-[0-9a-f]{20}\.parquet")
_UNFINISHED = re.compile(r"\.part-[0-9a-f]{20}\.parquet\.[0-9a-f]{12}")


@contextmanager
def own_folder(folder: Place, layout: Layout, work: Mapping[str, Any]) -> Iterator[None]:
    """Create the folder, or check that it holds the same work, and lock it until the block ends.

    Object stores have no locks. Two runs of the same work then write the same parts, each atomically.

    Args:
        work: the sources and how they are cut, which decide with the model which part holds which images.

    Raises:
        ScaleError: if the folder belongs to another model or other sources, holds other files, or is in use.
    """
    wanted = {"made_by": layout.facts, **work}
    _check(folder, layout, wanted)
    folder.make()
    with ExitStack() as stack:
        if folder.system is None:
            busy = ScaleError(f"another run is writing to {folder.name!r}: wait for it, or name another folder")
            with output.writing(folder.name):
                stack.enter_context(locked(Path(folder.path) / LOCK, busy))
        if not _check(folder, layout, wanted):  # again, as another run may have created it just now
            with folder.child(HEAD).replacing() as head:
                head.write_text(json.dumps(wanted, indent=2))
        yield


def _check(folder: Place, layout: Layout, wanted: Mapping[str, Any]) -> bool:
    """Whether the folder holds work already; ScaleError if it is not the wanted work."""
    kind = folder.kind()
    if kind == "file":
        raise ScaleError(f"{folder.name!r} is a file: name a folder")
    at = folder.child(HEAD)
    if kind == "nothing" or at.kind() != "file":
        others = [name for name in folder.files() if name.endswith(".parquet")] if kind == "folder" else []
        if foreign := [name for name in others if not _PART.fullmatch(name)]:
            raise ScaleError(f"{folder.name!r} holds other Parquet files ({foreign[0]}, ...): name a folder of its own")
        for name in others[:1]:
            held(folder, name, layout)
        return False
    try:
        found = json_file.parse(at.read())
        made = found["made_by"]
        same = is_same(made, layout.facts)
    except (ValueError, TypeError, KeyError) as error:
        raise ScaleError(f"{at.name!r} is damaged ({error}): delete it, and run again") from error
    if different := [key for key in wanted if key != "made_by" and found.get(key) != wanted[key]]:
        change = f"{different[0]} {found.get(different[0])} instead of {wanted[different[0]]}"
        raise ScaleError(f"{folder.name!r} holds the embeddings of other work ({change}): name another folder")
    if not same:
        facts = [f"{k} {made.get(k)} instead of {v}" for k, v in layout.facts.items() if made.get(k) != v]
        raise ScaleError(f"{folder.name!r} was made otherwise ({'; '.join(facts)}): name another folder")
    return True


def clean(folder: Place, wanted: set[str]) -> int:
    """Delete parts that are not wanted, and half-written ones of killed runs; return the number of the former."""
    old = parts_of(folder) - wanted
    for name in old:
        folder.child(name).delete()
    if folder.system is None:  # this run holds the lock
        for path in Path(folder.path).iterdir():
            if _UNFINISHED.fullmatch(path.name):
                path.unlink()
    return len(old)


def parts_of(folder: Place) -> set[str]:
    """Return the names of the parts in a folder."""
    return {name for name in folder.files() if _PART.fullmatch(name)}
