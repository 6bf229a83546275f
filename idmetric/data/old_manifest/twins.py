"""Identities with names that differ by spaces, case or the composition of accents alone, and so may be meant as one."""

from __future__ import annotations

import unicodedata
from collections import defaultdict
from collections.abc import Iterable

_SHOWN = 5


def twins(names: Iterable[str | None]) -> list[list[str]]:
    """Groups of different names that are equal without case and surplus spaces, in composed Unicode (NFC)."""
    groups: dict[str, list[str]] = defaultdict(list)
    for name in dict.fromkeys(names):
        if name is not None:
            composed = unicodedata.normalize("NFC", name)
            words = [part.strip() for part in composed.casefold().split("/")]  # a data set's name may come first
            groups["/".join(words)].append(name)
    return [group for group in groups.values() if len(group) > 1]


def twins_note(names: Iterable[str | None]) -> str | None:
    """A note that names them; None if there are none. The names count as different identities."""
    groups = twins(names)
    if not groups:
        return None
    lines = [" and ".join(_shown(group)) for group in groups[:_SHOWN]]
    if len(groups) > _SHOWN:
        lines.append(f"{len(groups) - _SHOWN} more")
    listed = "; ".join(lines)
    return f"identities that differ by case, spaces or the coding of accents alone stay different: {listed}"


def _shown(names: list[str]) -> list[str]:
    """Names in quotes, in ASCII if they look alike otherwise."""
    looks = {unicodedata.normalize("NFC", name) for name in names}
    return [repr(name) if len(looks) == len(names) else ascii(name) for name in names]
