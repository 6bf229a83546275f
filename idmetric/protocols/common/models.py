"""Opens by name the models that protocols compare: released ones, baselines, untrained twins and judges."""

from __future__ import annotations

from typing import Any

import torch

from idmetric.checkpoints.errors import CheckpointError
from idmetric.models.embedder import Embedder
from idmetric.models.idsim import IDSim
from idmetric.models.load import load_embedder
from idmetric.protocols.common import baselines, diffsim, dual_encoder, model_names


def open_model(
    source: str, *, device: torch.device | str | None = None, dtype: torch.dtype | None = None, decode: str = "exact"
) -> Any:
    """Open a model by its name.

    Args:
        source: a baseline (hsv, pixels, ssim, lpips, dreamsim, a single branch such as dreamsim:dino_vitb16, diffsim,
            diffsim:dreambench++, diffsim@FOLDER); `untrained:SOURCE`, the same architecture with random weights;
            `dual:REPO`, CLIP or SigLIP with its text tower; `judge:FILE`, a multimodal language model (see
            `judges.file`); or anything that `idmetric.load` opens, such as `timm:NAME`.
        decode: of models that `idmetric.load` opens, see `Embedder.decode`; all others decode all pixels.

    Raises:
        CheckpointError, WeightsError, ImportError: if weights or a package are missing.
    """
    model_names.check(source)
    if source in model_names.BASELINES:
        return baselines.open_baseline(source, device)
    if model_names.is_diffsim(source):
        return diffsim.open_diffsim(source, device)
    if source.startswith(model_names.DUAL):
        return dual_encoder.open_dual(source, device=device, dtype=dtype)

    if source.startswith(model_names.JUDGE):
        from idmetric.protocols.judges.file import open_judge  # needs httpx or transformers

        return open_judge(source.removeprefix(model_names.JUDGE), device=device, dtype=dtype)

    options: dict[str, Any] = {"decode": decode} if dtype is None else {"decode": decode, "dtype": dtype}
    if source.startswith(model_names.UNTRAINED):
        return untrained_twin(load_embedder(source.removeprefix(model_names.UNTRAINED), device=device, **options))
    return load_embedder(source, device=device, **options)


def untrained_twin(metric: Embedder, seed: int = 0) -> IDSim:
    """The same architecture with random weights.

    Raises:
        CheckpointError: if the model is not an IDSim.
    """
    if not isinstance(metric, IDSim):
        raise CheckpointError(f"only IDSim models have an untrained twin, and {metric.label} is not one")
    torch.manual_seed(seed)
    twin = IDSim(metric.settings, device=metric.device)
    twin.decode = metric.decode
    return twin
