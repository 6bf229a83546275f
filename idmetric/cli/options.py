"""Options that several commands share, each defined once: same name, same meaning, same help text everywhere."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from idmetric.cli.command import CommandError

if TYPE_CHECKING:
    from idmetric.metric.images.kinds import MaskId

# literals, as --help should not import torch; tests compare them with idmetric.metric.distance.matrix
DISTANCES = ("cls", "patch", "joint", "patch_pooled", "joint_pooled", "patch_biased")
DTYPES = ("float32", "float16", "bfloat16", "float64")
DECODES = ("exact", "fast")
FORMATS = ("table", "json", "jsonl", "csv")
OUTSIDE = ("black", "white", "crop", "keep")
DEFAULT_MODEL = "dinov3_vitl16"
MODELS = (
    "published model, 'tiny' (in the package, no download), score such as 'dino-i:dreambooth', 'timm:NAME', folder, "
    "Hub repository, or 'package.module:Class'"
)

Options = argparse._ActionsContainer  # a parser, or a group of its options


def natural(text: str, least: int = 0) -> int:
    """A whole number of at least 0, as the type of an option."""
    if not text.isdecimal() or int(text) < least:
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number, at least {least}")
    return int(text)


positive = partial(natural, least=1)


# The model


def add_model(options: Options, default: str | None = DEFAULT_MODEL, text: str = MODELS) -> None:
    """Add --model and --revision."""
    if default is not None:
        text += " (default: %(default)s)"
    options.add_argument("--model", default=default, help=text)
    options.add_argument("--revision", metavar="COMMIT", help="commit of the model's Hub repository")


def add_distance(options: Options, text: str = "default: %(default)s") -> None:
    options.add_argument("--distance", choices=DISTANCES, default="cls", help=text)


def add_device(options: Options) -> None:
    options.add_argument("--device", help="cuda, mps, cpu, ... (default: the best available)")


def add_dtype(options: Options, default: str = "float32; for visid_* that of the weights") -> None:
    options.add_argument("--dtype", choices=DTYPES, help=f"default: {default}")


def add_batch_size(options: Options, *names: str, dest: str = "batch_size", default: int = 32) -> None:
    options.add_argument(
        "--batch-size",
        *names,
        dest=dest,
        type=positive,
        default=default,
        metavar="N",
        help="images per forward pass (default: %(default)s)",
    )


def add_workers(options: Options, default: str = "one per core, at most 8") -> None:
    text = f"threads that read images (default: {default})"
    options.add_argument("--workers", type=positive, metavar="N", help=text)


def check_model(name: str) -> None:
    """Refuse a name that no model has, before anything heavy is imported."""
    from idmetric.metric.models import names

    if not names.known(name):
        from idmetric.evaluate.protocols.common.models import BASELINES, is_diffsim

        if name in BASELINES or is_diffsim(name):
            raise CommandError(f"{name} is a baseline for tables: idmetric eval folder --data FOLDER --model {name}")
    names.check(name)


def load_options(args: argparse.Namespace, **changes: Any) -> dict[str, Any]:
    """The keyword arguments of `idmetric.load` among a command's options, without those not given.

    Args:
        changes: values to take instead of the command line's.
    """
    names = ("device", "dtype", "revision", "preprocessing", "decode")
    values = {name: getattr(args, name, None) for name in names} | changes
    if values["dtype"]:
        import torch

        values["dtype"] = getattr(torch, values["dtype"])
    return {name: value for name, value in values.items() if value}


# Images


def add_decode(options: Options, default: str | None = "exact", more: str = "") -> None:
    """Add --decode; without a default it is the one of `more`."""
    text = f"fast: decode large JPEG files at a smaller size, which moves distances a little (default: {more}exact)"
    options.add_argument("--decode", choices=DECODES, default=default, help=text)


def add_mask_dir(options: Options) -> None:
    options.add_argument(
        "--mask-dir",
        metavar="DIR",
        help="compare subjects alone: folder with each image's mask, at its own path or with its file stem",
    )


def add_outside(options: Options, default: str | None = "black") -> None:
    """Add --outside and --mask-id."""
    options.add_argument(
        "--outside", choices=OUTSIDE, default=default, help="replacement for pixels outside a mask (default: black)"
    )
    add_mask_id(options)


def add_mask_id(options: Options) -> None:
    options.add_argument(
        "--mask-id",
        type=mask_label,
        metavar="LABEL",
        help="subject's label in masks with several: a number (palette index, gray value) or a color such as #ff0000",
    )


def mask_label(text: str) -> MaskId:
    """A label of a mask, as the type of an option."""
    from idmetric.metric.images.kinds import parse_mask_id

    try:
        return parse_mask_id(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from error


def add_on_error(options: Options, default: str = "fail", *, fail: str, skip: str) -> None:
    """Add --on-error.

    Args:
        fail: action at an unreadable image. skip: the alternative action.
    """
    if default == "fail":
        fail += " (default)"
    else:
        skip += " (default)"
    text = f"unreadable images: {fail}, or {skip}"
    options.add_argument("--on-error", choices=("fail", "skip"), default=default, help=text)


# Results


def add_format(options: Options, formats: Sequence[str] = FORMATS, default: str | None = "table") -> None:
    """Add --format; without a default it follows from --output."""
    shown_default = default or "by --output, or table"
    text = f"format of the result (default: {shown_default})"
    options.add_argument("--format", choices=formats, default=default, help=text)


def add_output(options: Options, *names: str) -> None:
    options.add_argument("--output", *names, metavar="FILE", help="write the result there instead of to stdout")


def add_calibration(options: Options) -> None:
    options.add_argument(
        "--calibration",
        metavar="FILE",
        help="add the probability of the same identity, from `idmetric eval calibrate`; 'stored': saved with the model",
    )


def add_quiet(options: Options, text: str = "no progress") -> None:
    options.add_argument("--quiet", action="store_true", help=text)
