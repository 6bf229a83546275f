"""The parts that `IDSim("tiny")` has and the paper's model lacks.

Patch tokens come from several feature maps of a convolutional backbone. A second backbone with a head of its own sees
the images at another size; the global feature holds both models' features side by side.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from idmetric.metric.checkpoints.config import MOST_SIDE
from idmetric.metric.files import shown
from idmetric.metric.idsim_config import IDSimConfig
from idmetric.metric.pixels import resize_antialiased
from idmetric.metric.timm_models import build
from idmetric.metric.tokens import Features, channels_last_on_cpu, final_tokens

TINY = Path(__file__).parent


@dataclass(frozen=True)
class TinyConfig(IDSimConfig):
    """Settings of an `IDSim` with convolutional backbones, such as "tiny"; it needs features="final".

    `patch_stages` are the feature maps from which patches are taken (`stage_tokens`), () the last one. `second` is the
    second backbone, or "", which sees images at `second_size`. The cosine of global features is the mean of both
    models' cosines, of which the second's counts `second_share`.
    """

    patch_stages: tuple[int, ...] = ()
    second: str = ""
    second_size: int = 0
    second_share: float = 0.5

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.second and not (0 < self.second_size <= MOST_SIDE and 0 < self.second_share < 1):
            raise ValueError(
                f"second = {shown(self.second)} needs a second_size of 1 to {MOST_SIDE} pixels, and a second_share "
                "between 0 and 1"
            )
        if self.features != "final":
            raise ValueError(f"patch_stages = {shown(self.patch_stages)} needs features = 'final'")


def config_class(config: Mapping[str, Any]) -> type[IDSimConfig]:
    """The settings class that has the fields of a config.json."""
    additional = {field.name for field in fields(TinyConfig)} - {field.name for field in fields(IDSimConfig)}
    if additional.isdisjoint(config):
        return IDSimConfig
    return TinyConfig


def extend(model: Any, config: TinyConfig, make_head: Callable[[int], nn.Module], *, empty: bool) -> None:
    """Give an `IDSim` the patch head for its feature maps, and the second backbone with its head.

    Args:
        model: with the paper's backbone and heads.
        make_head: from the number of channels to a head.
        empty: allocate no memory for the weights of the backbone, which are loaded afterwards.
    """
    if config.patch_stages:
        channels = stage_channels(model.backbone, config.patch_stages)
        model.mlp_patch = make_head(channels)
    if config.second:
        with torch.device("cpu"):  # also where the heads get no memory: tables that no file holds need some
            model.second = build(config.second, image_size=config.second_size, empty=empty)
        model.mlp_second = make_head(int(model.second.num_features))


def trunk_features(model: Any, config: TinyConfig, x: Tensor) -> Features:
    """See `IDSim.trunk_features`; with a second backbone, the global features of both side by side."""
    if config.patch_stages:
        features, patches, grid = stage_tokens(model.backbone, x, config.patch_stages)
    else:
        features, patches, grid = final_tokens(model.backbone, x)
    if config.second:
        size = (config.second_size, config.second_size)
        resized = channels_last_on_cpu(resize_antialiased(x, size, "bilinear"))
        second_features, _, _ = final_tokens(model.second, resized)
        features = torch.cat([features, second_features], -1)
    return features, patches, grid


def global_feature(model: Any, config: TinyConfig, features: Tensor, unit: Callable[[Tensor], Tensor]) -> Tensor:
    """The heads' output on the global features of both backbones, at unit length.

    Args:
        features: from `trunk_features`.
        unit: scales vectors to unit length.
    """
    channels = model.mlp_cls.fc2.out_features
    main_features, second_features = features.tensor_split([channels], dim=-1)
    main_unit = unit(model.mlp_cls(main_features))
    second_unit = unit(model.mlp_second(second_features))
    share = config.second_share
    main_part = (1 - share) ** 0.5 * main_unit
    second_part = share**0.5 * second_unit
    return torch.cat([main_part, second_part], -1)


def stage_tokens(model: Any, x: Tensor, stages: Sequence[int]) -> Features:
    """Output of a whole convolutional encoder, with patch tokens from the feature maps of some of its stages.

    Deep maps know what an object is, earlier ones are finer. The maps are resized to the first stage's grid, and the
    centered, unit-length vectors of each place are joined.

    Args:
        model, x: as in `last_tokens`.
        stages: numbers of timm's feature stages (`model.feature_info`), the finest first.

    Returns:
        As `last_tokens`, with D of the patches as `stage_channels`.
    """
    final, maps = model.forward_intermediates(
        channels_last_on_cpu(x), indices=list(stages), norm=False, output_fmt="NCHW"
    )
    rows, columns = maps[0].shape[-2:]
    tokens = []
    for feature_map in maps:
        resized = F.interpolate(feature_map, (rows, columns), mode="bilinear", align_corners=False)
        vectors = resized.flatten(2).mT
        centered = vectors - vectors.mean(-1, keepdim=True)
        tokens.append(F.normalize(centered, dim=-1))
    features = model.forward_head(final, pre_logits=True)
    return features, torch.cat(tokens, -1), (rows, columns)


def stage_channels(model: Any, stages: Sequence[int]) -> int:
    """Channels of the patch tokens of `stage_tokens`."""
    return sum(int(model.feature_info[stage]["num_chs"]) for stage in stages)
