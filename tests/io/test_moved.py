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


# modules of version 0.1 that are packages now: names that are not in their __all__
PACKAGES = {
    "idmetric.calibration": ("FORMAT", "KIND", "Model", "read"),
    "idmetric.data.curate": (
        "Strategy", "balanced", "cap", "choose", "datasets_of", "distinct", "hashed", "keep_identities", "keep_images",
        "lowest", "proportional", "two_views", "unique",
    ),
    "idmetric.data.frames": (
        "REASONS", "SAMPLINGS", "Pick", "Sampling", "Tally", "blur_score", "candidates", "places", "plan",
    ),
    "idmetric.data.manifest": (
        "COLUMNS", "FORMATS", "PATHS", "ROLES", "SCHEMA", "SLOTS", "Manifest", "ManifestError", "Row", "merge", "read",
    ),
    "idmetric.protocols.calibrate": (
        "RENDERER", "STORED", "Options", "add_arguments", "calibrations", "checked", "command", "run",
    ),
}  # fmt: skip


@pytest.mark.parametrize("package", PACKAGES)
def test_a_module_that_became_a_package_has_its_old_names(package: str) -> None:
    module = importlib.import_module(package)
    assert [name for name in PACKAGES[package] if not hasattr(module, name)] == []


def test_renamed_functions_have_their_old_names_too() -> None:
    with pytest.warns(DeprecationWarning, match="has moved"):
        modules = [
            importlib.reload(importlib.import_module(name)) for name in ("idmetric.checkpoint", "idmetric.idsim")
        ]
    for old, new in RENAMED.items():
        found = [getattr(module, old) for module in modules if hasattr(module, old)]
        assert [one.__name__ for one in found] == [new]
