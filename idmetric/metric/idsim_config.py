"""Settings of an `IDSim`."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal

from idmetric.metric.checkpoints.config import MOST_SIDE
from idmetric.metric.files import shown
from idmetric.metric.images import Preprocessing, check_interpolation
from idmetric.metric.tiny.trunk import SCALES


@dataclass(frozen=True)
class IDSimConfig:
    """Settings of an `IDSim`, saved in config.json. The defaults are those of the release.

    `mean` and `std` None means those of timm's backbone. `backbone_args` go to `timm.create_model`. `preprocessing`:
    see `IDSim`. The paper leaves open `features`, whether features are the last block's or the backbone's final ones
    (after its norm), `residual`, whether heads have a gated residual, and `center`, whether vectors are centered before
    they are normalized.

    A backbone of `SCALES`, as that of "tiny", needs the last four: the numbers of the feature maps from which patches
    are taken, and a second backbone, which sees images at `second_size`. The cosine of global features is the mean of
    both backbones' cosines, of which the second's counts `second_share`.
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
    patch_stages: tuple[int, ...] = ()
    second: str = ""
    second_size: int = 0
    second_share: float = 0.5

    def __post_init__(self) -> None:
        check_interpolation(self.interpolation)
        if self.backbone not in SCALES:
            if self.patch_stages or self.second:
                raise ValueError(f"backbone = {shown(self.backbone)} takes neither patch_stages nor a second")
            return
        has_second = self.second in SCALES and 0 < self.second_size <= MOST_SIDE and 0 < self.second_share < 1
        if not (has_second and self.patch_stages):
            raise ValueError(
                f"backbone = {self.backbone!r} needs patch_stages, a second of its kind, a second_size of 1 to "
                f"{MOST_SIDE} pixels, and a second_share between 0 and 1"
            )
