"""The model that a command's options name."""

from __future__ import annotations

from typing import Any

from idmetric.cli.exits import CommandError


def check_model(name: str) -> None:
    """Refuse a name that no model has, before anything heavy is imported.

    Raises:
        CommandError: naming the models.
    """
    from idmetric.checkpoints.errors import CheckpointError
    from idmetric.models import names
    from idmetric.protocols.common.models import BASELINES, is_diffsim

    if name in BASELINES or is_diffsim(name):
        raise CommandError(f"{name} is a baseline for tables: idmetric eval folder --data FOLDER --model {name}")
    try:
        names.check(name)
    except CheckpointError as error:
        raise CommandError(str(error)) from error


def load_options(
    dtype: str | None, revision: str | None, preprocessing: str | None = None, decode: str | None = None
) -> dict[str, Any]:
    """Keyword arguments of `idmetric.load` for those of --dtype, --revision, --preprocessing and --decode given."""
    if dtype:
        import torch

        dtype = getattr(torch, dtype)
    given = {"dtype": dtype, "revision": revision, "preprocessing": preprocessing, "decode": decode}
    return {name: value for name, value in given.items() if value}
