"""Options that several commands share, each defined once: same name, same meaning, same help text everywhere."""

from __future__ import annotations

import argparse
import re
from functools import partial
from typing import TYPE_CHECKING, Any

from idmetric.cli.command import CommandError

if TYPE_CHECKING:
    from idmetric.metric.images import MaskId

# literals, as --help should not import torch; tests compare them with idmetric.metric.distance
DISTANCES = ("cls", "patch", "joint", "patch_pooled", "joint_pooled", "patch_biased")
DTYPES = ("float32", "float16", "bfloat16", "float64")
FORMATS = ("table", "json", "jsonl", "csv")
OUTSIDE = ("black", "white", "crop", "keep")
DEFAULT_MODEL = "dinov3_vitl16"
MODELS = (
    "published model, 'tiny' (in the package, no download), score such as 'dino-i:dreambooth', 'timm:NAME', folder, "
    "Hub repository, or 'package.module:Class'"
)


def natural(text: str, least: int = 0) -> int:
    """A whole number of at least 0, as the type of an option."""
    if not text.isdecimal() or int(text) < least:
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number, at least {least}")
    return int(text)


positive = partial(natural, least=1)


def parse_mask_id(text: str) -> MaskId:
    """A label as a command line or a gallery gives it: 7, or #ff0000; ValueError for others."""
    if re.fullmatch("#[0-9a-fA-F]{6}", text) and text != "#000000":
        return text.lower()
    if text.isdecimal() and int(text) > 0:
        return int(text)
    kind = "label: give a whole number above 0, or a color"
    if text.startswith("#"):
        kind = "color of a mask: give '#rrggbb', such as '#ff0000', and not black"
    raise ValueError(f"mask_id {text!r} is not a {kind}")


def mask_label(text: str) -> MaskId:
    """A label of a mask, as the type of an option."""
    try:
        return parse_mask_id(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from error


# option -> its arguments of argparse's `add_argument`
SHARED: dict[str, dict[str, Any]] = {
    "--model": {"default": DEFAULT_MODEL, "help": f"{MODELS} (default: %(default)s)"},
    "--revision": {"metavar": "COMMIT", "help": "commit of the model's Hub repository"},
    "--distance": {"choices": DISTANCES, "default": "cls", "help": "default: %(default)s"},
    "--device": {"help": "cuda, mps, cpu, ... (default: the best available)"},
    "--dtype": {"choices": DTYPES, "help": "default: float32; for visid_* that of the weights"},
    "--batch-size": {
        "type": positive,
        "default": 32,
        "metavar": "N",
        "help": "images per forward pass (default: %(default)s)",
    },
    "--cache": {
        "metavar": "DIR",
        "help": "keep embeddings there, by image content: the same command resumes, and others of the same model embed "
        "only new images (default: the environment's IDMETRIC_CACHE)",
    },
    "--workers": {
        "type": positive,
        "metavar": "N",
        "help": "threads that read images (default: one per core, at most 8)",
    },
    "--mask-dir": {
        "metavar": "DIR",
        "help": "compare subjects alone: folder with each image's mask, at its own path or with its file stem",
    },
    "--outside": {
        "choices": OUTSIDE,
        "default": "black",
        "help": "replacement for pixels outside a mask (default: black)",
    },
    "--mask-id": {
        "type": mask_label,
        "metavar": "LABEL",
        "help": "subject's label in masks with several: a number (palette index, gray value) or a color such as "
        "#ff0000",
    },
    "--on-error": {"choices": ("fail", "skip"), "default": "fail"},
    "--format": {"choices": FORMATS, "help": "format of the result (default: by --output, or table)"},
    "--output": {"metavar": "FILE", "help": "write the result there instead of to stdout"},
    "--calibration": {
        "metavar": "FILE",
        "help": "add the probability of the same identity, from `idmetric eval calibrate`; 'stored': saved with the "
        "model",
    },
    "--quiet": {"action": "store_true", "help": "no progress"},
}


def add_shared(options: argparse._ActionsContainer, *names: str, **changes: Any) -> None:
    """Add shared options to a parser or a group of its options.

    Args:
        changes: arguments of `add_argument` that differ for these options.
    """
    for name in names:
        options.add_argument(name, **SHARED[name] | changes)


# The model


def check_model(name: str) -> None:
    """Refuse a name that no model has, before anything heavy is imported."""
    from idmetric.metric.load import check_name, known

    if not known(name):
        from idmetric.evaluate.protocols.common.models import BASELINES, is_diffsim

        if name in BASELINES or is_diffsim(name):
            raise CommandError(f"{name} is a baseline for tables: idmetric eval folder --data FOLDER --model {name}")
    check_name(name)


def load_options(args: argparse.Namespace, **changes: Any) -> dict[str, Any]:
    """The keyword arguments of `idmetric.load` among a command's options, without those not given.

    Args:
        changes: values to take instead of the command line's.
    """
    names = ("device", "dtype", "revision", "preprocessing")
    values = {name: getattr(args, name, None) for name in names} | changes
    if values["dtype"]:
        import torch

        values["dtype"] = getattr(torch, values["dtype"])
    return {name: value for name, value in values.items() if value}
