"""How fast models are on this machine, stage by stage: decode, preprocess, model, and the whole.

    python benchmarks/bench.py
    python benchmarks/bench.py --model dinov3_vitl16 --random-weights --batch 8
    python benchmarks/bench.py --model nearid --images photos/ --device cuda --dtype bfloat16 --json nearid.json

The first line describes the machine, and says whether other programs were running.
"""

from __future__ import annotations

import argparse
import io
import json
import os
import platform
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from functools import partial
from importlib import metadata
from itertools import cycle, islice
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor
from torch.utils.benchmark import Timer

from idmetric.metric.backbone import Backbone
from idmetric.metric.checkpoints import released
from idmetric.metric.embedder import Embedder, auto_device
from idmetric.metric.files import StrPath
from idmetric.metric.idsim import IDSim, IDSimConfig
from idmetric.metric.images import read_image
from idmetric.metric.load import load
from idmetric.metric.nearid import NearID, NearIDConfig
from idmetric.metric.paths import listed
from idmetric.tables import aligned
from idmetric.version import __version__

SIZE = (960, 720)  # pixels of the generated photos, as from image generators and shops
_SECONDS = 2.0  # to measure each stage for, at least once


def build_parser() -> argparse.ArgumentParser:
    """The parser of the command."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", action="append", help="as of `idmetric.load`; may be repeated (default: tiny)")
    parser.add_argument("--random-weights", action="store_true", help="published architectures without a download")
    parser.add_argument("--device")
    parser.add_argument("--dtype", choices=("float32", "bfloat16", "float16"), default="float32")
    parser.add_argument("--batch", type=int, default=8, help="images per pass (default: %(default)s)")
    parser.add_argument("--images", help="folder of photos (default: generated JPEG files of 960 x 720 pixels)")
    parser.add_argument("--json", type=Path, help="also write all results there")
    return parser


def main(argv: Sequence[str] | None = None) -> None:
    """Measure the models, and print a table of each."""
    args = build_parser().parse_args(argv)
    device = torch.device(args.device or auto_device())
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

    if args.json:
        options = {name: value for name, value in vars(args).items() if name != "json"}
        text = json.dumps({"machine": machine, "options": options, "rows": results}, indent=1)
        args.json.write_text(f"{text}\n", encoding="utf-8")


def _table(rows: list[dict[str, Any]]) -> str:
    lines = [list(rows[0])]
    for row in rows:
        what, *numbers = row.values()
        lines.append([what, *(f"{number:.4g}" for number in numbers)])
    return "\n".join(aligned(lines, right=range(1, len(rows[0]))))


# The stages


def stages(metric: Embedder, files: Sequence[bytes], batch: int, seconds: float = _SECONDS) -> Iterator[dict[str, Any]]:
    """Measure decode, preprocess, model, and the whole; then the whole for one image, as latency.

    "decode" reads the encoded files; "preprocess" turns decoded images into the normalized batch that the encoder
    takes, on its device.
    """
    photos = decoded(files, batch)
    steps: dict[str, Callable[[], Any]] = {
        "decode": lambda: [read_image(data) for data in files[:batch]],
        "preprocess": lambda: prepared(metric, photos),
    }
    if trunk(metric) is not None:
        steps["model"] = partial(metric.forward_features, prepared(metric, photos))
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
    pixels = [metric.load(photo)[0] for photo in photos]
    return torch.stack(pixels).to(metric.device)


def trunk(metric: Embedder) -> Any:
    """Return the model's timm encoder, or None."""
    encoder = getattr(metric, "backbone", None)
    return encoder if hasattr(encoder, "forward_features") else None


# Photos and models


def read_files(folder: StrPath, count: int) -> tuple[bytes, ...]:
    """Read the first `count` images below a folder in the order of their names, repeating them if there are fewer."""
    paths = listed(folder)
    for path in paths[:count]:
        read_image(path)
    return tuple(Path(path).read_bytes() for path in islice(cycle(paths), count))


def make_files(count: int, size: tuple[int, int] = SIZE) -> tuple[bytes, ...]:
    """Generate JPEG files with smooth shapes and grain, about as large as photos of that size; the same each time."""
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
    images = [read_image(data) for data in files[:count]]
    return list(islice(cycle(images), count))


def open_model(name: str, *, random_weights: bool = False, **options: Any) -> Embedder:
    """Open a model by name, as `idmetric.load` does.

    Args:
        random_weights: open the published architecture with random weights, which need no download and do not change
            times. Without effect on "tiny", which is in the package.
        options: device and dtype.
    """
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
    model.name = model.short_name = f"{name}, random weights"
    return model


# The machine, without which a measurement means little


def describe(device: torch.device) -> dict[str, Any]:
    """Describe processor, cores, threads, device, load and versions as plain JSON values.

    `busy` is the load average of the last minute per core, before the benchmark began. Above 0.2, other programs were
    running, and only ratios are meaningful. None if the system does not report it.
    """
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


if __name__ == "__main__":
    main()
