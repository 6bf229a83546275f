"""The sources of a gallery that this user has named.

A gallery's own files list its source folders. Whoever can write to the gallery can add others, and an update would
read them. So the sources that the user has named are recorded outside the gallery, in the user's state folder
(`$XDG_STATE_HOME/idmetric`, else `~/.local/state/idmetric`; on Windows in `%LOCALAPPDATA%`).
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import sys
from collections.abc import Iterable, Sequence
from dataclasses import asdict
from pathlib import Path

from idmetric.gallery.errors import GalleryError
from idmetric.gallery.sources import Source
from idmetric.io import json_file
from idmetric.io.output import replacing

_SHOWN = 5


class UntrustedSourcesError(GalleryError):
    """A gallery names sources that this user has not named."""


def check_trusted(folder: Path, sources: Iterable[Source]) -> None:
    """Check that the user has named all these sources of a gallery.

    Raises:
        UntrustedSourcesError: listing the sources that the user has not named.
    """
    named = named_sources(folder)
    if others := [source for source in sources if source not in named]:
        paths = [repr(source.path) + (f" (masks {source.mask_dir!r})" if source.mask_dir else "") for source in others]
        more = f" and {len(paths) - _SHOWN} more" if len(paths) > _SHOWN else ""
        raise UntrustedSourcesError(
            f"the gallery {str(folder)!r} lists the sources {', '.join(paths[:_SHOWN])}{more}, which you have never "
            "given to it: give its sources again, or, if you trust these, add --trust-sources once (in Python "
            "update(trust_sources=True)); --no-update answers without reading them"
        )


def trust(folder: Path, sources: Sequence[Source]) -> None:
    """Record that the user has named these sources; if that fails, the user is asked again."""
    known = named_sources(folder)
    if all(source in known for source in sources):
        return
    kept = [asdict(source) for source in dict.fromkeys([*known, *sources])]
    path = _path(folder)
    with contextlib.suppress(OSError):
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        with replacing(path) as temporary:
            temporary.write_text(json.dumps({"gallery": os.path.realpath(folder), "sources": kept}, indent=2) + "\n",
                                 encoding="utf-8")  # fmt: skip


def forget(folder: Path) -> None:
    """Remove the record of a gallery's sources."""
    with contextlib.suppress(OSError):
        _path(folder).unlink(missing_ok=True)


def named_sources(folder: Path) -> list[Source]:
    """Return the sources that the user has named to a gallery."""
    try:
        return [Source(**source) for source in json_file.read(_path(folder))["sources"]]
    except (OSError, ValueError, TypeError, LookupError):
        return []


def _path(folder: Path) -> Path:
    if sys.platform == "win32":
        base = os.environ.get("LOCALAPPDATA") or "~/AppData/Local"
    else:
        base = os.environ.get("XDG_STATE_HOME") or "~/.local/state"
    name = hashlib.sha256(os.fsencode(os.path.realpath(folder))).hexdigest()[:32]
    return Path(base).expanduser() / "idmetric" / "galleries" / f"{name}.json"
