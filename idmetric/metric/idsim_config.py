"""Settings of an `IDSim`."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal

from idmetric.metric.images import Preprocessing
from idmetric.metric.resampling import check_interpolation


@dataclass(frozen=True)
class IDSimConfig:
    """Settings of an `IDSim`, saved in config.json. The defaults are those of the release.

    `mean` and `std` None means those of timm's backbone. `backbone_args` go to `timm.create_model`. `preprocessing`:
    see `IDSim`. The paper leaves open `features`, whether features are the last block's or the backbone's final ones
    (after its norm), `residual`, whether heads have a gated residual, and `center`, whether vectors are centered before
    they are normalized.
    """

    backbone: str = "vit_large_patch16_dinov3.lvd1689m"
    image_size: int = 448  # paper C.1
    hidden: int = 512  # width of the heads' hidden layer, paper C.1
    interpolation: str = "bicubic"
    mean: tuple[float, float, float] | None = None
    std: tuple[float, float, float] | None = None
    backbone_args: dict[str, Any] = field(default_factory=dict)
    features: Literal["last-block", "final"] = "last-block"
    residual: bool = True
    center: bool = True
    preprocessing: Preprocessing = "standard"

    def __post_init__(self) -> None:
        check_interpolation(self.interpolation)
