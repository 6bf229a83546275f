"""Folders of Qwen2-VL and Qwen2.5-VL models in transformers' format, with settings in visid.json."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from idmetric.metric.checkpoints import pretrained, released
from idmetric.metric.checkpoints.format import read_json
from idmetric.metric.errors import CheckpointError
from idmetric.metric.visid.config import VisIDConfig

SETTINGS = "visid.json"
# model_type -> transformers' class; the paper trains both (Table 1)
CLASSES = {"qwen2_5_vl": "Qwen2_5_VLForConditionalGeneration", "qwen2_vl": "Qwen2VLForConditionalGeneration"}


def open_model(
    kind: str,
    folder: Path,
    dtype: torch.dtype | None,
    device: torch.device | str,
) -> tuple[Any, Any]:
    """The model without its language head, and the tokenizer.

    Args:
        kind: a key of `CLASSES`.
    """
    # opened with its language head, so that transformers finds the names of either class; the file may lack the head
    whole = pretrained.open_model(
        CLASSES[kind],
        folder,
        ["qwen2_5_vl", "qwen2_vl"],
        dtype=dtype,
        device=device,
        unused=["lm_head."],
    )
    tokenizer = pretrained.open_processor("AutoTokenizer", folder)
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
