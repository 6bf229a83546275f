"""Opens by name the models that protocols compare: released ones, baselines, untrained twins and judges.

Names are checked before torch is imported.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from idmetric.metric.errors import CheckpointError
from idmetric.metric.load import check_name

if TYPE_CHECKING:
    import torch

    from idmetric.evaluate.protocols.common.scorers import Model
    from idmetric.metric.embedder import Embedder
    from idmetric.metric.idsim import IDSim

BRANCHES = ("dino_vitb16", "clip_vitb32", "open_clip_vitb32", "dinov2_vitb14", "synclr_vitb16")  # of DreamSim
BASELINES = ("hsv", "lpips", "dreamsim", *(f"dreamsim:{branch}" for branch in BRANCHES))
# -> step of 1,000 from pure noise: of the released code's README and cute_main.sh, and of dreambench_main.sh
DIFFSIM = {"diffsim": 600, "diffsim:cute": 600, "diffsim:dreambench++": 750}
UNTRAINED, DUAL, JUDGE = "untrained:", "dual:", "judge:"


def check(source: str) -> None:
    """Refuse a name that `open_model` cannot open, whatever is on the Hub.

    Raises:
        CheckpointError: as `models.names.check`, and for an unknown kind of baseline.
    """
    if source in BASELINES or is_diffsim(source) or source.startswith((DUAL, JUDGE)):
        return
    family = source.partition(":")[0]
    variants = [name for name in (*BASELINES, *DIFFSIM) if name.partition(":")[0] == family]
    if variants:
        raise CheckpointError(f"unknown baseline {source!r}: choose {', '.join(variants)}")
    check_name(source.removeprefix(UNTRAINED))


def is_diffsim(source: str) -> bool:
    """Whether this is one of DiffSim's names, with or without a place."""
    return source.partition("@")[0] in DIFFSIM


def open_model(
    source: str,
    *,
    device: torch.device | str | None = None,
    dtype: torch.dtype | None = None,
) -> Model:
    """Open a model by its name.

    Args:
        source: a baseline (hsv, lpips, dreamsim, a single branch such as dreamsim:dino_vitb16, diffsim,
            diffsim:dreambench++, diffsim@FOLDER); `untrained:SOURCE`, the same architecture with random weights;
            `dual:REPO`, CLIP or SigLIP with its text tower; `judge:FILE[@HOST]`, a multimodal language model (see
            `judges.scorer.open_judge`); or anything that `idmetric.load` opens, such as `timm:NAME`.

    Raises:
        CheckpointError, ImportError: if weights or a package are missing.
    """
    check(source)
    if source in BASELINES:
        from idmetric.evaluate.protocols.common.baselines import open_baseline

        return open_baseline(source, device)
    if is_diffsim(source):
        from idmetric.evaluate.protocols.common.diffsim import BASE, DiffSim

        name, _, folder = source.partition("@")
        weights = BASE
        if folder:
            weights = BASE.at(folder)
        return DiffSim(device, DIFFSIM[name], weights)
    if source.startswith(DUAL):
        from idmetric.evaluate.protocols.common.dual_encoder import DualEncoder

        return DualEncoder(source.removeprefix(DUAL), device=device, dtype=dtype)
    if source.startswith(JUDGE):
        from idmetric.evaluate.protocols.judges.scorer import open_judge

        return open_judge(source.removeprefix(JUDGE))

    from idmetric.metric.load import load

    options: dict[str, Any] = {"device": device}
    if dtype is not None:
        options["dtype"] = dtype
    model = load(source.removeprefix(UNTRAINED), **options)
    if source.startswith(UNTRAINED):
        return untrained_twin(model)
    return model


def untrained_twin(metric: Embedder, seed: int = 0) -> IDSim:
    """The same architecture with random weights.

    Raises:
        CheckpointError: if the model is not an IDSim.
    """
    import torch

    from idmetric.metric.idsim import IDSim

    if not isinstance(metric, IDSim):
        raise CheckpointError(f"only IDSim models have an untrained twin, and {metric.label} is not one")
    torch.manual_seed(seed)
    return IDSim(metric.settings, device=metric.device)
