"""Folders of Qwen2-VL and Qwen2.5-VL models in transformers' format, with settings in visid.json."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError

from idmetric.metric.checkpoints import released
from idmetric.metric.checkpoints.errors import CheckpointError
from idmetric.metric.checkpoints.format import read_json
from idmetric.metric.checkpoints.revision import revision_of
from idmetric.metric.checkpoints.weights import check_finite, check_report
from idmetric.metric.files.quiet import quiet
from idmetric.metric.models.visid_config import VisIDConfig

SETTINGS = "visid.json"
FILES = ["*.json", "*.safetensors", "*.txt", "*.jinja"]  # of a Hub repository: no code, no pickles
# model_type -> transformers' class; the paper trains both (Table 1)
CLASSES = {"qwen2_5_vl": "Qwen2_5_VLForConditionalGeneration", "qwen2_vl": "Qwen2VLForConditionalGeneration"}


def folder_revision(folder: Path) -> str:
    files = [path for pattern in FILES for path in folder.glob(pattern)]
    if not any(path.suffix == ".safetensors" for path in files):
        raise CheckpointError(f"{str(folder)!r} has no safetensors file")
    return revision_of(*sorted(files))


def open_model(architecture: Any, transformers: Any, folder: Path, dtype: torch.dtype | None) -> tuple[Any, Any]:
    try:
        # with its language head, so that transformers finds the names of either class; the head is dropped
        with quiet("transformers"):  # missing weights are reported below; the language head may be missing
            loaded: Any = architecture.from_pretrained(
                folder, dtype=dtype or "auto", local_files_only=True, use_safetensors=True, trust_remote_code=False,
                output_loading_info=True,
            )  # fmt: skip
        tokenizer = transformers.AutoTokenizer.from_pretrained(folder, local_files_only=True, trust_remote_code=False)
    except (OSError, ValueError, RuntimeError, SafetensorError) as error:
        raise CheckpointError(f"transformers cannot open {str(folder)!r}: {error}") from error
    whole, report = loaded
    check_report(report, str(folder), unused="lm_head.")
    check_finite(whole.model.state_dict(), folder)
    return whole.model, tokenizer


def read_normalization(folder: Path) -> tuple[list[float], list[float]]:
    """Mean and deviation of the image processor's file, whichever name transformers gave it."""
    for name in (released.PROCESSOR, "processor_config.json"):
        if (folder / name).is_file():
            found = read_json(folder / name)
            found = found.get("image_processor", found)
            if "image_mean" in found and "image_std" in found:
                return list(found["image_mean"]), list(found["image_std"])
    raise CheckpointError(f"{str(folder)!r} has no {released.PROCESSOR} with image_mean and image_std")


def read_settings(folder: Path) -> VisIDConfig:
    if not (folder / SETTINGS).is_file():
        return VisIDConfig()
    values = read_json(folder / SETTINGS)
    try:
        return VisIDConfig(**values)
    except (TypeError, ValueError) as error:
        raise CheckpointError(f"{str(folder / SETTINGS)!r}: {error}") from error
