"""The model that a command's options name."""

from __future__ import annotations

from typing import Any


def load_options(
    dtype: str | None, revision: str | None, preprocessing: str | None = None, decode: str | None = None
) -> dict[str, Any]:
    """Keyword arguments of `idmetric.load` for those of --dtype, --revision, --preprocessing and --decode given."""
    if dtype:
        import torch

        dtype = getattr(torch, dtype)
    given = {"dtype": dtype, "revision": revision, "preprocessing": preprocessing, "decode": decode}
    return {name: value for name, value in given.items() if value}
