"""Files of weights as `torch.save` writes them (`.pth`)."""

from __future__ import annotations

import os
import pickle

import torch
from torch import Tensor
from torch.torch_version import TorchVersion

from idmetric.metric.checkpoints.errors import CheckpointError
from idmetric.metric.files import StrPath

# the first torch whose weights_only runs no code of a file: CVE-2025-32434 before 2.6, CVE-2026-24747 before 2.10
SAFE_TORCH = "2.10"


def read_pickled(path: StrPath) -> dict[str, Tensor]:
    """The tensors of a file that `torch.save(state_dict, path)` wrote, on the CPU; no code of the file is run.

    Raises:
        CheckpointError: with a torch before `SAFE_TORCH`, or if the file holds anything else.
    """
    if TorchVersion(torch.__version__) < SAFE_TORCH:
        raise CheckpointError(
            f"cannot read weights {os.fspath(path)!r}: torch {torch.__version__} may run code of a .pth or .bin file; "
            "convert the file to safetensors (safetensors.torch.save_file), or upgrade: pip install 'torch>=2.10'"
        )
    try:
        with open(path, "rb") as file:  # of a path, torch goes by the ending
            tensors = torch.load(file, map_location="cpu", weights_only=True)
    except pickle.UnpicklingError:  # torch's own message advises to run the file's code
        tensors = None
    except Exception as error:  # of many kinds, for damaged files
        raise CheckpointError(f"cannot read weights {os.fspath(path)!r}: {error}") from error

    is_table = isinstance(tensors, dict)
    if not is_table or not all(isinstance(key, str) and _has_values(value) for key, value in tensors.items()):
        raise CheckpointError(
            f"cannot read weights {os.fspath(path)!r}: it does not hold a table of tensors alone; write one by "
            "torch.save(model.state_dict(), path)"
        )
    return dict(tensors)


def _has_values(value: object) -> bool:
    """Whether this is a plain tensor, neither sparse nor one without memory (torch's device "meta")."""
    return isinstance(value, Tensor) and value.layout is torch.strided and not value.is_meta
