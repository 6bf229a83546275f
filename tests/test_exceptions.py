"""Exceptions and warnings travel between processes, as from the workers of a pool."""

from __future__ import annotations

import copy
import importlib
import pickle
import pkgutil
from typing import Any

import idmetric

# arguments of the classes with an `__init__` of their own
ARGUMENTS: dict[str, tuple[Any, ...]] = {
    "CheckpointError": ("a " * 10_000 + "\x1b",),
    "CommandError": ("name a file", 2),
    "ImageReadError": ("a.png", "it holds 2 values"),
    "NonFiniteError": ("a.png is NaN", [1]),
    "RequestError": ("no image", "a/*.png"),
}
SYSTEM = {"OutputError": (28, "cannot write 'a'", "a")}


def exceptions_of_the_package() -> list[type[BaseException]]:
    """All classes of exceptions and warnings, by name."""
    for module in pkgutil.walk_packages(idmetric.__path__, "idmetric."):
        importlib.import_module(module.name)
    kinds: set[type[BaseException]] = set()
    waiting = [BaseException]
    while waiting:
        for kind in waiting.pop().__subclasses__():
            waiting.append(kind)
            if kind.__module__.startswith("idmetric."):
                kinds.add(kind)
    return sorted(kinds, key=lambda kind: f"{kind.__module__}.{kind.__qualname__}")


def test_all_exceptions_can_be_pickled_and_copied() -> None:
    kinds = exceptions_of_the_package()
    assert {kind.__name__ for kind in kinds if "__init__" in vars(kind)} == set(ARGUMENTS)
    assert len(kinds) == 19
    for kind in kinds:
        error = kind(*(ARGUMENTS | SYSTEM).get(kind.__name__, ("what went wrong",)))
        for again in (pickle.loads(pickle.dumps(error)), copy.copy(error), copy.deepcopy(error)):
            assert type(again) is kind
            assert str(again) == str(error) != ""
            assert repr(vars(again)) == repr(vars(error))
