"""Names and modules that are imported on first use, so that importing the package stays quick and loads no torch.

__getattr__, __dir__ = lazy(__name__, {"read_image": "idmetric.metric.images"})
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Mapping
from typing import Any


def lazy(package: str, names: Mapping[str, str]) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """The module functions `__getattr__` and `__dir__` (PEP 562) of a package.

    Args:
        package: the package's `__name__`. names: each public name and the module that defines it.
    """

    def get(name: str) -> Any:
        if name not in names:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        module = importlib.import_module(names[name])
        value = getattr(module, name)
        setattr(sys.modules[package], name, value)
        return value

    def listed() -> list[str]:
        return sorted(getattr(sys.modules[package], "__all__", names))

    return get, listed


class LazyModule:
    """Stands for a module, which is imported when one of its attributes is read."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __getattr__(self, attribute: str) -> Any:
        return getattr(importlib.import_module(self._name), attribute)
