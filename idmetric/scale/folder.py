"""The folder of a run's parts: who made it, the lock on it, and its files."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from typing import Any

from idmetric.io import json_file, output
from idmetric.io.lock import locked
from idmetric.scale.parts import Layout, held, is_same
from idmetric.scale.places import Place, ScaleError

HEAD = "_embed.json"  # readers of Parquet folders skip names with an underscore
LOCK = ".lock"
_PART = re.compile(r"part-[0-9a-f]{20}\.parquet")
_UNFINISHED = re.compile(r"\.part-[0-9a-f]{20}\.parquet\.[0-9a-f]{12}")
_LEFT = 3600  # seconds after which a half-written file has no living writer


@contextmanager
def own_folder(folder: Place, layout: Layout, work: Mapping[str, Any]) -> Iterator[None]:
    """Create the folder, or check that it holds the same work, and lock it until the block ends.

    Object stores, and some file systems, have no locks. Two runs of the same work then write the same parts, each
    atomically.

    Args:
        work: the sources and how they are cut, which decide with the model which part holds which images.

    Raises:
        ScaleError: if the folder belongs to another model or other sources, holds other files, or is in use.
    """
    wanted = {"made_by": layout.facts, **work}
    _check(folder, layout, wanted)
    folder.make()
    with ExitStack() as stack:
        if folder.local is not None:
            busy = ScaleError(f"another run is writing to {folder.name!r}: wait for it, or name another folder")
            with output.writing(folder.name):
                stack.enter_context(locked(folder.local / LOCK, busy))
        if not _check(folder, layout, wanted):  # again, as another run may have created it just now
            with folder.child(HEAD).replacing() as head:
                head.write(json.dumps(wanted, indent=2).encode())
        yield


def _check(folder: Place, layout: Layout, wanted: Mapping[str, Any]) -> bool:
    """Whether the folder holds work already; ScaleError if it is not the wanted work."""
    kind = folder.info()[0]
    if kind == "file":
        raise ScaleError(f"{folder.name!r} is a file: name a folder")
    at = folder.child(HEAD)
    if kind == "nothing" or at.info()[0] != "file":
        others = [name for name in folder.files() if name.endswith(".parquet")] if kind == "folder" else []
        if foreign := [name for name in others if not _PART.fullmatch(name)]:
            raise ScaleError(f"{folder.name!r} holds other Parquet files ({foreign[0]}, ...): name a folder of its own")
        for name in others[:1]:
            held(folder, name, layout)
        return False
    try:
        found = json_file.parse(at.read())
        if not isinstance(found, dict) or not isinstance(found.get("made_by"), dict):
            raise ValueError("it does not say what made the embeddings")
    except ValueError as error:
        raise ScaleError(f"{at.name!r} is damaged ({error}): delete it, and run again") from error
    made = found["made_by"]
    if is_same(made, layout.facts):
        found["made_by"] = layout.facts
    different = [key for key in wanted if found.get(key) != wanted[key]]
    if different == ["made_by"]:
        facts = [f"{k} {made.get(k)} instead of {v}" for k, v in layout.facts.items() if made.get(k) != v]
        raise ScaleError(f"{folder.name!r} was made otherwise ({'; '.join(facts)}): name another folder")
    if different:
        change = f"{different[0]} {found.get(different[0])} instead of {wanted[different[0]]}"
        raise ScaleError(f"{folder.name!r} holds the embeddings of other work ({change}): name another folder")
    return True


def parts_of(folder: Place) -> list[str]:
    """Return the names of the parts in a folder."""
    return [name for name in folder.files() if _PART.fullmatch(name)]


def unfinished(folder: Place) -> list[str]:
    """Return the half-written parts of killed runs, but not of runs that may be alive."""
    found = {name: when for name, when in folder.hidden().items() if _UNFINISHED.fullmatch(name)}
    if folder.local is not None:  # this run holds the lock
        return list(found)
    return [name for name, when in found.items() if when is not None and time.time() - when > _LEFT]
