"""How to fix what an error message reports: the name that was probably meant, the extra that has to be installed."""

from __future__ import annotations

import difflib
import sys
from collections.abc import Iterable, Mapping
from importlib.util import find_spec


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """`"; did you mean 'tiny'?"` where a known name is close to the word, else an empty string."""
    near = difflib.get_close_matches(word, list(known), n=1)
    return f"; did you mean {near[0]!r}?" if near else ""


class MissingExtraError(ImportError):
    """An optional package that is not installed; the message has the command that installs it."""


def install(extra: str) -> str:
    """The command that installs an optional extra of this package.

    The first form works wherever the package is installed, from an index or from a copy of the repository: pip takes
    the installed package as it is and fetches the extra's dependencies.
    """
    return f"pip install 'idmetric[{extra}]' (in a copy of the repository: pip install '.[{extra}]')"


def need(extra: str, purpose: str, **packages: str) -> None:
    """Check that optional packages are installed, before any work and without importing them.

    Args:
        extra: the extra of this package that brings them. purpose: who needs them, e.g. "--html".
        packages: the name that Python imports -> the name to print, e.g. `sklearn="scikit-learn"`.
    """
    need_all(purpose, {extra: packages})


def need_all(purpose: str, extras: Mapping[str, Mapping[str, str]]) -> None:
    """As `need`, for packages of several extras: one error names all that are missing."""
    missing: dict[str, str] = {}  # name to print -> its extra
    for extra, packages in extras.items():
        missing |= {name: extra for module, name in packages.items() if not _is_there(module)}
    if missing:
        wanted = ",".join(dict.fromkeys(missing.values()))
        raise MissingExtraError(f"{purpose} needs {' and '.join(missing)}: {install(wanted)}")


def _is_there(module: str) -> bool:
    return sys.modules[module] is not None if module in sys.modules else find_spec(module) is not None
