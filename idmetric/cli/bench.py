"""`idmetric bench`: how fast models are on this machine, stage by stage; as table and JSON."""

from __future__ import annotations

import io
import os
import platform
import re
from argparse import Namespace
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from functools import partial
from importlib import metadata
from itertools import cycle, islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

from idmetric.cli import options
from idmetric.cli.command import Parser, check_output, codes, ended, fixable, say, write
from idmetric.cli.options import check_model
from idmetric.metric.files import StrPath
from idmetric.version import __version__

if TYPE_CHECKING:
    import torch
    from PIL import Image
    from torch import Tensor

    from idmetric.metric.models.embedder import Embedder

_EXAMPLES = """examples:
  idmetric bench
  idmetric bench --model dinov3_vitl16 --random-weights --batch-size 8
  idmetric bench --model nearid --images photos/ --device cuda --dtype bfloat16 --batch-size 64"""

SIZE = (960, 720)  # pixels of the generated photos, as from image generators and shops
_SECONDS = 2.0  # to measure each stage for, at least once


def build_parser(prog: str = "idmetric bench") -> Parser:
    """The parser of the command."""
    parser = Parser(
        prog=prog,
        description="Measure how fast models are on this machine: decode, preprocess, backbone, heads, and the whole.",
        epilog=f"{_EXAMPLES}\n\n{codes(0, 1, 2, 130, 143)}",
    )
    add = parser.add_argument
    add(
        "--model",
        action="append",
        default=[],
        metavar="NAME",
        help="as for `idmetric score --model`; may be repeated (default: tiny)",
    )
    add(
        "--random-weights",
        action="store_true",
        help="give published models random weights, which need no download and take the same time",
    )
    options.add_shared(parser, "--device")
    add("--dtype", choices=options.DTYPES[:3], default="float32", help="default: %(default)s")
    add("--batch-size", "--batch", **options.SHARED["--batch-size"] | {"dest": "batch", "default": 8})
    add("--images", metavar="DIR", help="photos to use (default: generated JPEG files of 960 x 720 pixels)")
    add("--json", metavar="FILE", help="also write all results there")
    parser.add_version()
    return parser


def main(argv: Sequence[str] | None = None, prog: str = "idmetric bench") -> int:
    """Run the command; returns the exit status."""
    parser = build_parser(prog)
    args = parser.parse_args(argv)
    return ended(partial(_run, args), parser, "measured models were printed")


def _run(args: Namespace) -> int:
    for name in args.model:
        check_model(name)
    check_output(args.json, "name a file with --json")
    with fixable(RuntimeError, in_one_line=True):
        results = _measured(args)
    if args.json:
        from idmetric.metric.files.json_file import text

        write(text(results, indent=1) + "\n", args.json)
        say(f"wrote {args.json}")
    return 0


def _measured(args: Namespace) -> dict[str, Any]:
    import torch

    from idmetric.metric.models.devices import auto_device

    device = torch.device(args.device or auto_device())
    if device.type == "cuda" and not torch.cuda.is_available():
        raise ValueError("--device cuda: torch sees no such device here: install its CUDA build, or choose cpu")
    machine = describe(device)  # before the load of this run
    print(line(machine), flush=True)

    files = read_files(args.images, args.batch) if args.images else make_files(args.batch)
    results: list[dict[str, Any]] = []
    for name in args.model or ["tiny"]:
        dtype = getattr(torch, args.dtype)
        metric = open_model(name, random_weights=args.random_weights, device=device, dtype=dtype)
        millions = sum(parameter.numel() for parameter in metric.parameters()) / 1e6
        rows = list(stages(metric, files, args.batch))
        print(f"\n{metric.label}, {metric.resolution}, {millions:.0f} M parameters, {args.dtype}")
        print(_table(rows), flush=True)
        results += [{"model": metric.label, **row} for row in rows]
    return {"machine": machine, "options": vars(args), "rows": results}


def _table(rows: list[dict[str, Any]]) -> str:
    from idmetric.metric.files.tables import aligned

    lines = [list(rows[0])]
    for row in rows:
        what, *numbers = row.values()
        lines.append([what, *(f"{number:.4g}" for number in numbers)])
    return "\n".join(aligned(lines, right=range(1, len(rows[0]))))


# The stages


def stages(metric: Embedder, files: Sequence[bytes], batch: int, seconds: float = _SECONDS) -> Iterator[dict[str, Any]]:
    """Measure decode, preprocess, backbone, heads, and the whole; then the whole for one image, as latency.

    "decode" reads the encoded files; "preprocess" turns decoded images into the normalized batch that the encoder
    takes, on its device; "heads" are the layers after the encoder.
    """
    import torch
    from torch.utils.benchmark import Timer

    from idmetric.metric.images.read import read_image
    from idmetric.metric.models.idsim import IDSim

    photos = decoded(files, batch)
    steps: dict[str, Callable[[], Any]] = {
        "decode": lambda: [read_image(data) for data in files[:batch]],
        "preprocess": lambda: prepared(metric, photos),
    }
    encoder = trunk(metric)
    if encoder is not None:
        pixels = prepared(metric, photos)
        steps["backbone"] = partial(metric.trunk_features if isinstance(metric, IDSim) else encoder, pixels)
        heads = heads_of(metric, pixels)
        if heads is not None:
            steps["heads"] = heads
    steps["whole"] = lambda: metric.embed(photos, batch_size=batch)
    steps["whole, 1 image"] = lambda: metric.embed(photos[:1])

    is_cuda = metric.device.type == "cuda"  # Timer waits for it
    wait = torch.mps.synchronize if metric.device.type == "mps" else lambda: None
    for name, step in steps.items():
        if is_cuda:
            torch.cuda.reset_peak_memory_stats(metric.device)
        timer = Timer("step(); wait()", globals={"step": step, "wait": wait}, num_threads=torch.get_num_threads())
        with torch.no_grad():
            times = timer.blocked_autorange(min_run_time=seconds)
        count = 1 if name.endswith("1 image") else batch
        row = {
            "what": name,
            "images/s": count / times.median,
            "median ms": 1e3 * times.median,
            "IQR ms": 1e3 * times.iqr,
        }
        if is_cuda:
            row["peak MB"] = torch.cuda.max_memory_allocated(metric.device) / 1e6
        yield row


def prepared(metric: Embedder, photos: list[Any]) -> Tensor:
    """Turn decoded images into the normalized batch (B, 3, *image_size) that the encoder takes, on its device."""
    return metric.normalize(pixels_of(metric, photos)).to(metric.dtype)


def pixels_of(metric: Embedder, photos: list[Any]) -> Tensor:
    """Turn decoded images into the model's pixels (B, 3, *image_size) in [0, 1], on its device."""
    import torch

    from idmetric.metric.images.read import to_pixels

    pixels = [to_pixels(photo, metric.image_size, **metric.preprocessor.reading) for photo in photos]
    return torch.stack(pixels).to(metric.device)


def trunk(metric: Embedder) -> Any:
    """Return the model's timm encoder, or None."""
    encoder = getattr(metric, "backbone", None)
    return encoder if hasattr(encoder, "forward_features") else None


def heads_of(metric: Embedder, pixels: Tensor) -> Callable[[], Any] | None:
    """Return a function that runs ID-Sim's two heads on the tokens of a batch; None for models without heads."""
    import torch

    from idmetric.metric.models.idsim import IDSim

    if not isinstance(metric, IDSim):
        return None
    with torch.no_grad():
        features, patches, _ = metric.trunk_features(pixels)
    return partial(metric.heads, features, patches)


# Photos and models


def read_files(folder: StrPath, count: int) -> tuple[bytes, ...]:
    """Read the first `count` images below a folder in the order of their names, repeating them if there are fewer."""
    from idmetric.metric.images.paths import listed
    from idmetric.metric.images.read import read_image

    paths = listed(folder)
    for path in paths[:count]:
        read_image(path)
    return tuple(Path(path).read_bytes() for path in islice(cycle(paths), count))


def make_files(count: int, size: tuple[int, int] = SIZE) -> tuple[bytes, ...]:
    """Generate JPEG files with smooth shapes and grain, about as large as photos of that size; the same each time."""
    import numpy as np
    from PIL import Image

    files = []
    for seed in range(count):
        rng = np.random.default_rng(seed)
        coarse = Image.fromarray(rng.integers(0, 256, (12, 16, 3), dtype=np.uint8))
        smooth = np.asarray(coarse.resize(size, Image.Resampling.BICUBIC), dtype=np.float32)
        grain = rng.normal(0, 8, smooth.shape).astype(np.float32)
        buffer = io.BytesIO()
        Image.fromarray((smooth + grain).clip(0, 255).astype(np.uint8)).save(buffer, "JPEG", quality=90)
        files.append(buffer.getvalue())
    return tuple(files)


def decoded(files: Sequence[bytes], count: int) -> list[Image.Image]:
    """Decode that many images, repeating the files if there are fewer."""
    from idmetric.metric.images.read import read_image

    images = [read_image(data) for data in files[:count]]
    return list(islice(cycle(images), count))


def open_model(name: str, *, random_weights: bool = False, **options: Any) -> Embedder:
    """Open a model by name, as `idmetric.load` does.

    Args:
        random_weights: open the published architecture with random weights, which need no download and do not change
            times. Without effect on "tiny", which is in the package.
        options: device and dtype.
    """
    import torch

    from idmetric.metric.checkpoints import released
    from idmetric.metric.models.backbone import Backbone
    from idmetric.metric.models.idsim import IDSim, IDSimConfig
    from idmetric.metric.models.load import load
    from idmetric.metric.models.nearid import NearID, NearIDConfig

    if not random_weights or name == "tiny":
        return load(name, **options)
    torch.manual_seed(0)
    model: Embedder
    if name.startswith("timm:"):
        model = Backbone(name.removeprefix("timm:"), pretrained=False, **options)
    elif name in released.IDSIM:
        model = IDSim(IDSimConfig(released.IDSIM[name].backbone), **options)
    elif name in released.NEARID:
        model = NearID(NearIDConfig(), **options)
    else:
        names = ", ".join([*released.IDSIM, *released.NEARID])
        raise ValueError(f"no random weights for {name!r}: they can be made for {names} and timm:NAME")
    model.weights.name = model.weights.short_name = f"{name}, random weights"
    return model


# The machine, without which a measurement means little


def describe(device: torch.device) -> dict[str, Any]:
    """Describe processor, cores, threads, device, load and versions as plain JSON values.

    `busy` is the load average of the last minute per core, before the benchmark began. Above 0.2, other programs were
    running, and only ratios are meaningful. None if the system does not report it.
    """
    import torch

    cores = os.cpu_count() or 1
    machine = {
        "processor": platform.processor() or platform.machine(),
        "cores": cores,
        "threads": torch.get_num_threads(),
        "device": torch.cuda.get_device_name(device) if device.type == "cuda" else device.type,
        "busy": round(os.getloadavg()[0] / cores, 2) if hasattr(os, "getloadavg") else None,
        "system": f"{platform.system()} {platform.machine()}",
        "python": platform.python_version(),
        "idmetric": __version__,
    }
    with suppress(OSError):  # Linux alone has the file
        name = re.search(r"model name\s*: (.*)", Path("/proc/cpuinfo").read_text())
        if name:
            machine["processor"] = name[1]
    for package in ("torch", "timm", "torchvision", "pillow", "numpy"):
        machine[package] = metadata.version(package)
    return machine


def line(machine: dict[str, Any]) -> str:
    """Describe the machine in a sentence."""
    text = (
        "{processor}, {cores} cores, {threads} threads; on {device}; {system}, Python {python}, torch {torch}, timm "
        "{timm}, idmetric {idmetric}"
    ).format_map(machine)
    if machine["busy"] is not None and machine["busy"] > 0.2:
        text += f"\nOther programs were running (load {machine['busy']} per core): trust ratios, not single times."
    return text
