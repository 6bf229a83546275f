"""Settings that come from a file: ValueError for wrong types and ranges, before anything is built from them."""

from __future__ import annotations

import math
import typing
from collections.abc import Mapping, Sequence
from typing import Any

from idmetric.metric.files import accept, shown

MOST_SIDE = 2**14  # pixels of a side at which a model sees images

# arguments of `timm.create_model` that would read other files than the checkpoint's own, or make no encoder; so would
# all that begin with "pretrained"
_OTHER_FILES = ("checkpoint_path", "cache_dir", "model_name", "features_only")


def check_fields(kind: type, values: Mapping[str, Any]) -> None:
    """Check values from a JSON file (lists as tuples) against the types of a dataclass's fields."""
    hints = typing.get_type_hints(kind)
    for name in values.keys() & hints.keys():
        accept(name, values[name], hints[name])


def check_view(image_size: int, mean: Sequence[float] | None, std: Sequence[float] | None) -> None:
    """Check the resolution and normalization of images; None: those of the backbone."""
    if not 1 <= image_size <= MOST_SIDE:
        raise ValueError(f"image_size = {image_size}: 1 to {MOST_SIDE} pixels are possible")
    deviations = std or (1.0,)
    is_finite = all(math.isfinite(value) for value in [*(mean or ()), *deviations])
    if not is_finite or min(deviations) <= 0:
        raise ValueError(f"mean = {shown(mean)}, std = {shown(std)}: finite numbers are needed, those of std above 0")


def check_arguments(args: Mapping[str, Any]) -> None:
    """Refuse arguments of `timm.create_model` that would have timm read files: it reads pickles."""
    for name in args:
        if name.startswith("pretrained") or name in _OTHER_FILES:
            raise ValueError(f"backbone_args may not hold {name!r}: timm gets no files, weights= names them")
