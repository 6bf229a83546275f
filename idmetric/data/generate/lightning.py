"""Qwen-Image in 8 steps: the Lightning LoRA and the schedule that it was distilled for."""

from __future__ import annotations

import math
from typing import Any

from idmetric.data.generate.weights import Weights, WeightsError, load_tensors, need

# The release's schedule: a shift of exactly 3 at every resolution, and no terminal shift.
SCHEDULE = {
    "base_image_seq_len": 256, "base_shift": math.log(3), "invert_sigmas": False, "max_image_seq_len": 8192,
    "max_shift": math.log(3), "num_train_timesteps": 1000, "shift": 1.0, "shift_terminal": None,
    "stochastic_sampling": False, "time_shift_type": "exponential", "use_beta_sigmas": False,
    "use_dynamic_shifting": True, "use_exponential_sigmas": False, "use_karras_sigmas": False,
}  # fmt: skip


def scheduler() -> Any:
    """A FlowMatchEulerDiscreteScheduler with the release's schedule (ID-Sim, A.2.1; NearID, 0.B.1)."""
    need("diffusers")
    from diffusers import FlowMatchEulerDiscreteScheduler

    return FlowMatchEulerDiscreteScheduler.from_config(SCHEDULE)


def fuse(pipe: Any, weights: Weights) -> Any:
    """The pipeline with the LoRA merged into its transformer.

    Raises:
        WeightsError: if the file cannot be read, or any of its layers does not fit the transformer.
    """
    need("peft")
    state = load_tensors(weights)
    there = sum(key.endswith((".lora_down.weight", ".lora_A.weight")) for key in state)
    try:
        pipe.load_lora_weights(state)
        found = _layers(pipe.transformer)
        pipe.fuse_lora()
    except (ValueError, KeyError, RuntimeError, TypeError) as error:
        raise WeightsError(f"{weights} does not fit {type(pipe).__name__}: {error}") from error
    if not found or found != there:  # diffusers only warns about layers without a match
        raise WeightsError(f"{weights} does not fit {type(pipe).__name__}: {found} of its {there} layers match")
    pipe.unload_lora_weights()
    return pipe


def _layers(transformer: Any) -> int:
    """Number of the model's layers with a LoRA."""
    from peft.tuners.tuners_utils import BaseTunerLayer

    return sum(isinstance(module, BaseTunerLayer) for module in transformer.modules())
