"""The names by which protocols open models, checked before torch is imported."""

from __future__ import annotations

from idmetric.checkpoints.errors import CheckpointError
from idmetric.models import names

BRANCHES = ("dino_vitb16", "clip_vitb32", "open_clip_vitb32", "dinov2_vitb14", "synclr_vitb16")  # of DreamSim
BASELINES = ("hsv", "pixels", "ssim", "lpips", "dreamsim", *(f"dreamsim:{branch}" for branch in BRANCHES))
DIFFSIM = ("diffsim", "diffsim:cute", "diffsim:dreambench++")
UNTRAINED, DUAL, JUDGE = "untrained:", "dual:", "judge:"


def check(source: str) -> None:
    """Refuse a name that `models.open_model` cannot open, whatever is on the Hub.

    Raises:
        CheckpointError: as `models.names.check`, and for an unknown kind of baseline.
    """
    if source in BASELINES or is_diffsim(source) or source.startswith((DUAL, JUDGE)):
        return
    family = source.partition(":")[0]
    variants = [name for name in (*BASELINES, *DIFFSIM) if name.partition(":")[0] == family]
    if variants:
        raise CheckpointError(f"unknown baseline {source!r}: choose {', '.join(variants)}")
    names.check(source.removeprefix(UNTRAINED))


def is_diffsim(source: str) -> bool:
    """Whether this is one of DiffSim's names, with or without a place."""
    return source.partition("@")[0] in DIFFSIM
