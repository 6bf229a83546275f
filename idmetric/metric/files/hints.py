"""How to fix what an error message reports: the name that was probably meant, the extra that has to be installed."""

from __future__ import annotations

import difflib
import inspect
import os
import sys
import sysconfig
import traceback
from collections.abc import Callable, Iterable
from importlib.util import find_spec
from itertools import islice
from typing import Any

from idmetric.metric.files import StrPath

_BOUNDARY = "idmetric.metric.files.boundary"
_MOST_NAMES = 2_000  # of a folder, among which a file of nearly the same name is looked for


def did_you_mean(word: str, names: Iterable[str], key: Callable[[str], str] = str.lower) -> str:
    """`"; did you mean 'tiny'?"` where one of the names is close to the word, else an empty string.

    Args:
        key: what of the names is compared.
    """
    name_of_key = {key(name): name for name in names}
    for match in difflib.get_close_matches(key(word), list(name_of_key), n=1):
        return f"; did you mean {name_of_key[match]!r}?"
    return ""


def near_file(path: StrPath, endings: tuple[str, ...]) -> str:
    """As `did_you_mean`, where a file next to an absent one has nearly its name, and one of these endings."""
    folder, name = os.path.split(os.fspath(path))
    try:
        with os.scandir(folder or os.curdir) as entries:
            names = [entry.name for entry in islice(entries, _MOST_NAMES) if entry.name.lower().endswith(endings)]
    except (OSError, ValueError):
        return ""
    ending = os.path.splitext(name)[1].lower()
    names.sort(key=lambda file: (file.lower().endswith(ending), file))  # the last of equal stems counts
    return did_you_mean(name, names, key=_lower_stem)


def _lower_stem(name: str) -> str:
    return os.path.splitext(name)[0].lower()


def for_the_caller(error: Exception, function: Callable[..., Any], options: Iterable[str]) -> Exception | None:
    """An error of a public function as its caller should see it; None for one that may be a fault of this package.

    Args:
        options: the keyword arguments of the call.
    """
    if _passes_through_user_code(error, function):
        return None
    if type(error).__module__.startswith("idmetric."):
        return error
    if not isinstance(error, TypeError):
        return None
    parameters = inspect.signature(function).parameters
    takes_any = any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters.values())
    unknown = [] if takes_any else [name for name in options if name not in parameters]
    if unknown:
        return TypeError(f"{error}{did_you_mean(unknown[0], parameters)}")
    if _raised_by_a_call(error):
        return error
    return None


def _passes_through_user_code(error: Exception, function: Callable[..., Any]) -> bool:
    """Whether a frame below a public function is neither this package's nor a library's, but its caller's."""
    folders = [sysconfig.get_path(name) for name in ("stdlib", "platstdlib", "purelib", "platlib")]
    libraries = tuple([os.path.join(folder, "") for folder in folders])
    for frame, _ in traceback.walk_tb(error.__traceback__):
        module = str(frame.f_globals.get("__name__", ""))
        file = frame.f_code.co_filename
        is_package = module.startswith("idmetric.") or frame.f_code is getattr(function, "__code__", None)
        is_library = file.startswith((*libraries, "<frozen"))
        if not is_package and not is_library:
            return True
    return False


def _raised_by_a_call(error: Exception) -> bool:
    """Whether the arguments of a public function, or of one that it passes them to, do not fit its signature."""
    *_, (frame, _) = traceback.walk_tb(error.__traceback__)
    return frame.f_globals.get("__name__") == _BOUNDARY


class MissingExtraError(ImportError):
    """An optional package that is not installed; the message has the command that installs it."""


def install(extra: str) -> str:
    """The command that installs an optional extra; its first form, wherever the package itself was installed from."""
    return f"pip install 'idmetric[{extra}]' (in a copy of the repository: pip install '.[{extra}]')"


def need(extra: str, purpose: str, **packages: str) -> None:
    """Check that optional packages are installed, before any work and without importing them.

    Args:
        extra: the extra of this package that brings them. purpose: who needs them, e.g. "--html".
        packages: the name that Python imports -> the name to print, e.g. `sklearn="scikit-learn"`.

    Raises:
        MissingExtraError: naming all that are missing.
    """
    missing = [name for module, name in packages.items() if not _is_installed(module)]
    if missing:
        raise MissingExtraError(f"{purpose} needs {' and '.join(missing)}: {install(extra)}")


def _is_installed(module: str) -> bool:
    if module in sys.modules:
        return sys.modules[module] is not None
    return find_spec(module) is not None
