"""Optional packages: the error for one that is not installed, and the extra that brings it."""

from __future__ import annotations

import sys
from importlib.util import find_spec


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
