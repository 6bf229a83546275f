"""Modules of version 0.1 under their old names."""

from __future__ import annotations

import importlib

import pytest

from idmetric.io.moved import MOVED, RENAMED


@pytest.mark.parametrize("old", MOVED)
def test_an_old_module_has_the_names_of_the_new_ones(old: str) -> None:
    with pytest.warns(DeprecationWarning, match=f"{old} has moved"):
        module = importlib.reload(importlib.import_module(old))
    for home in map(importlib.import_module, MOVED[old]):
        for name in getattr(home, "__all__", [name for name, value in vars(home).items() if isinstance(value, type)]):
            assert getattr(module, name) == getattr(home, name)
    with pytest.raises(AttributeError, match=old):
        _ = module.nothing_of_this_name


def test_renamed_functions_have_their_old_names_too() -> None:
    with pytest.warns(DeprecationWarning, match="has moved"):
        modules = [
            importlib.reload(importlib.import_module(name)) for name in ("idmetric.checkpoint", "idmetric.idsim")
        ]
    for old, new in RENAMED.items():
        found = [getattr(module, old) for module in modules if hasattr(module, old)]
        assert [one.__name__ for one in found] == [new]
