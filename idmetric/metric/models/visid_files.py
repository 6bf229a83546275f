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
    """The revision of all files that decide an embedding."""
    files: list[Path] = []
    for pattern in FILES:
        files += folder.glob(pattern)
    if not any(path.suffix == ".safetensors" for path in files):
        raise CheckpointError(f"{str(folder)!r} has no safetensors file")
    return revision_of(*sorted(files))


def open_model(kind: str, folder: Path, dtype: torch.dtype | None) -> tuple[Any, Any]:
    """The model without its language head, and the tokenizer.

    Args:
        kind: a key of `CLASSES`.
    """
    import transformers

    local: dict[str, Any] = {"local_files_only": True, "trust_remote_code": False}
    # opened with its language head, so that transformers finds the names of either class
    architecture = getattr(transformers, CLASSES[kind])
    try:
        with quiet("transformers"):  # missing weights are reported below; the language head may be missing
            whole, report = architecture.from_pretrained(
                folder, dtype=dtype or "auto", use_safetensors=True, output_loading_info=True, **local
            )
        tokenizer = transformers.AutoTokenizer.from_pretrained(folder, **local)
    except (OSError, ValueError, RuntimeError, SafetensorError) as error:
        raise CheckpointError(f"transformers cannot open {str(folder)!r}: {error}") from error
    check_report(report, str(folder), unused="lm_head.")
    check_finite(whole.model.state_dict(), folder)
    return whole.model, tokenizer


def read_normalization(folder: Path) -> tuple[list[float], list[float]]:
    """Mean and deviation of the image processor's file, whichever name transformers gave it."""
    for name in (released.PROCESSOR, "processor_config.json"):
        path = folder / name
        if path.is_file():
            values = read_json(path)
            values = values.get("image_processor", values)
            if "image_mean" in values and "image_std" in values:
                return list(values["image_mean"]), list(values["image_std"])
    raise CheckpointError(f"{str(folder)!r} has no {released.PROCESSOR} with image_mean and image_std")


def read_settings(folder: Path) -> VisIDConfig:
    """The settings saved with a model, else the defaults."""
    path = folder / SETTINGS
    if not path.is_file():
        return VisIDConfig()
    try:
        return VisIDConfig(**read_json(path))
    except (TypeError, ValueError) as error:
        raise CheckpointError(f"{str(path)!r}: {error}") from error
