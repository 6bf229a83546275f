"""Settings that come from a file: their types and ranges are checked before anything is built from them."""

from __future__ import annotations

import math
import typing
from collections.abc import Mapping
from dataclasses import fields
from typing import Any

from idmetric.io.settings import accept, shown

MOST = 2**16  # of a whole number: no layer is wider, none deeper, no image larger
SIDE = 8192  # pixels
VIEWS = 8  # of one image
_LONGEST = 1000  # letters of a text, values of a list
_DEEPEST = 8
# of `timm.create_model`: what would read or fetch other files than the checkpoint's own, or make no encoder
_FETCHING = {
    "pretrained", "pretrained_cfg", "pretrained_cfg_overlay", "pretrained_strict", "pretrained_filter_fn",
    "checkpoint_path", "cache_dir", "model_name", "features_only",
}  # fmt: skip


def check(kind: type, values: Mapping[str, Any], numbers: bool = True) -> None:
    """Check values from a JSON file (lists as tuples) against the fields of a dataclass.

    Args:
        numbers: whether whole numbers must lie in 1..`MOST`, as those of a model's architecture do.

    Raises:
        ValueError: naming the field, the values that it takes, and the value found.
    """
    hints = typing.get_type_hints(kind)
    for name in (field.name for field in fields(kind) if field.name in values):
        value = values[name]
        accept(name, value, hints[name], finite=True)
        if isinstance(value, Mapping):
            _plain(value, name)
        elif isinstance(value, str) and len(value) > _LONGEST:
            raise ValueError(f"{name} has {len(value)} letters, more than {_LONGEST}")
        elif numbers and isinstance(value, int) and not isinstance(value, bool) and not 1 <= value <= MOST:
            raise ValueError(f"{name} = {shown(value)}: a whole number from 1 to {MOST} is needed")


def check_view(image_size: int, mean: typing.Sequence[float] | None, std: typing.Sequence[float] | None) -> None:
    """Check the resolution and normalization of images.

    Raises:
        ValueError: for a side beyond `SIDE` pixels, or a normalisation that divides by nothing.
    """
    if not 1 <= image_size <= SIDE:
        raise ValueError(f"image_size = {shown(image_size)}: 1 to {SIDE} pixels are possible")
    if mean is not None and not all(math.isfinite(x) for x in mean):
        raise ValueError(f"mean = {shown(mean)}: finite numbers are needed")
    if std is not None and not all(math.isfinite(x) and x > 0 for x in std):
        raise ValueError(f"std = {shown(std)}: finite numbers above 0 are needed")


def check_mirror_sizes(sides: typing.Sequence[int]) -> None:
    """Check the sizes at which mirrored images are additionally embedded.

    Raises:
        ValueError: for more than `VIEWS` of them, or a side outside 1..`SIDE` pixels.
    """
    if len(sides) > VIEWS:
        raise ValueError(f"mirror_sizes has {len(sides)} sizes, more than {VIEWS}")
    if not all(1 <= side <= SIDE for side in sides):
        raise ValueError(f"mirror_sizes = {shown(sides)}: sides of 1 to {SIDE} pixels are possible")


def check_arguments(args: Mapping[str, Any]) -> None:
    """Check a checkpoint's arguments of `timm.create_model`.

    Raises:
        ValueError: for one that would read other files or the network, or leads to no encoder.
    """
    if found := sorted(_FETCHING & args.keys()):
        raise ValueError(f"backbone_args may not hold {found[0]!r}: a checkpoint's weights are in its own folder")


def _plain(value: Any, name: str, depth: int = 0) -> None:
    """Check the values of an object with free keys: numbers, texts, and short lists and objects of them."""
    if depth > _DEEPEST:
        raise ValueError(f"{name} is nested too deeply")
    if isinstance(value, Mapping | list | tuple):
        if len(value) > _LONGEST:
            raise ValueError(f"{name} has {len(value)} values, more than {_LONGEST}")
        for key, part in value.items() if isinstance(value, Mapping) else enumerate(value):
            _plain(part, f"{name}.{shown(key)[:40]}", depth + 1)
    elif isinstance(value, str):
        if len(value) > _LONGEST:
            raise ValueError(f"{name} has {len(value)} letters, more than {_LONGEST}")
    elif isinstance(value, int | float) and not abs(value) <= MOST:
        raise ValueError(f"{name} = {shown(value)}: numbers from -{MOST} to {MOST} are possible")
