"""Inpainting by FLUX.1 Fill: NearID's distractors and ID-Sim's identity edits."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from idmetric.data.generate.engine import Inpainter
from idmetric.data.generate.weights import Weights

BASE = Weights("black-forest-labs/FLUX.1-Fill-dev", "FLUX.1 [dev] Non-Commercial License")


@dataclass(frozen=True)
class FluxFill(Inpainter):
    """FLUX.1-Fill-dev: 50 steps, guidance 30.0, no negative prompt (NearID, 0.B.1); strength 1, diffusers' own.

    ID-Sim's identity edits take guidance 2.5 and a strength for each frame instead (A.2.2).
    """

    base: Weights = BASE
    steps: int = 50
    guidance: float = 30.0
    strength: float = 1.0

    name: ClassVar[str] = "flux_fill"
    pipeline: ClassVar[str] = "FluxFillPipeline"
