"""`idmetric bench`: how fast models are on this machine, stage by stage, and the first score; as table and JSON."""

from __future__ import annotations

import argparse
import io
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time
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
from idmetric.metric.files.output import writing
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
        description="Measure how fast models are on this machine: decode, preprocess, backbone, heads, and the whole;\n"
        "then how long a new process takes to the first score of the packaged model.",
        epilog=f"{_EXAMPLES}\n\n{codes(0, 1, 2, 130, 143)}",
    )
    text = "as for `idmetric score --model`; may be repeated (default: tiny)"
    parser.add_argument("--model", action="append", default=[], metavar="NAME", help=text)
    text = "give published models random weights, which need no download and take the same time"
    parser.add_argument("--random-weights", action="store_true", help=text)
    options.add_device(parser)
    parser.add_argument("--dtype", choices=options.DTYPES[:3], default="float32", help="default: %(default)s")
    options.add_batch_size(parser, "--batch", dest="batch", default=8)
    text = "photos to use (default: generated JPEG files of 960 x 720 pixels)"
    parser.add_argument("--images", metavar="DIR", help=text)
    parser.add_argument("--json", metavar="FILE", help="also write all results there")
    parser.add_version()
    return parser


def main(argv: Sequence[str] | None = None, prog: str = "idmetric bench") -> int:
    """Run the command; returns the exit status."""
    parser = build_parser(prog)
    args = parser.parse_args(argv)
    return ended(partial(_run, args), parser, "measured models were printed")


def _run(args: argparse.Namespace) -> int:
    for name in args.model:
        check_model(name)
    check_output(args.json, "name a file with --json")
    with fixable(RuntimeError, in_one_line=True):
        found = _measured(args)
    if args.json:
        from idmetric.metric.files.json_file import text

        write(text(found, indent=1) + "\n", args.json)
        say(f"wrote {args.json}")
    return 0


def _measured(args: argparse.Namespace) -> dict[str, Any]:
    import torch

    from idmetric.metric.models.devices import auto_device

    device = torch.device(args.device) if args.device else auto_device()
    if device.type == "cuda" and not torch.cuda.is_available():
        raise ValueError("--device cuda: torch sees no such device here: install its CUDA build, or choose cpu")
    machine = describe(device)  # before the load of this run
    print(line(machine), flush=True)

    files = read_files(args.images, args.batch) if args.images else make_files(args.batch)
    rows: list[dict[str, Any]] = []
    for name in args.model or ["tiny"]:
        dtype = getattr(torch, args.dtype)
        metric = open_model(name, random_weights=args.random_weights, device=device, dtype=dtype)
        millions = sum(p.numel() for p in metric.parameters()) / 1e6
        found = list(stages(metric, files, args.batch))
        print(f"\n{metric.label}, {metric.resolution}, {millions:.0f} M parameters, {args.dtype}")
        print(_table(found), flush=True)
        rows += [{"model": metric.label, **row} for row in found]
    found = list(start(files))
    print("\nThe first score of a new process, on the CPU")
    print(_table(found), flush=True)
    rows += [{"model": "IDSim:tiny", **row} for row in found]
    return {"machine": machine, "options": vars(args), "rows": rows}


def _table(rows: list[dict[str, Any]]) -> str:
    from idmetric.metric.files.tables import aligned

    cells = [[f"{cell:.4g}" if isinstance(cell, float) else cell for cell in row.values()] for row in rows]
    return "\n".join(aligned([list(rows[0]), *cells], right=range(1, len(rows[0]))))


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
    bare = trunk(metric)
    if bare is not None:
        x = prepared(metric, photos)
        steps["backbone"] = partial(metric.trunk_features if isinstance(metric, IDSim) else bare, x)
        if (heads := heads_of(metric, x)) is not None:
            steps["heads"] = heads
    steps["whole"] = lambda: metric.embed(photos, batch_size=batch)
    steps["whole, 1 image"] = lambda: metric.embed(photos[:1])

    cuda = metric.device.type == "cuda"  # Timer waits for it
    wait = torch.mps.synchronize if metric.device.type == "mps" else lambda: None
    for what, run in steps.items():
        if cuda:
            torch.cuda.reset_peak_memory_stats(metric.device)
        timer = Timer("run(); wait()", globals={"run": run, "wait": wait}, num_threads=torch.get_num_threads())
        with torch.no_grad():
            found = timer.blocked_autorange(min_run_time=seconds)
        count = 1 if what.endswith("1 image") else batch
        peak = {"peak MB": torch.cuda.max_memory_allocated(metric.device) / 1e6} if cuda else {}
        yield {"what": what, "images/s": count / found.median, "median ms": 1e3 * found.median,
               "IQR ms": 1e3 * found.iqr, **peak}  # fmt: skip


def start(files: Sequence[bytes], rounds: int = 3) -> Iterator[dict[str, Any]]:
    """Measure whole processes, which take turns; a round before brings what Python reads into the system's cache."""
    with tempfile.TemporaryDirectory(prefix="idmetric-") as folder:
        paths = [Path(folder, f"{k}.jpg") for k in range(2)]
        for path, data in zip(paths, (*files, *files), strict=False):
            with writing(path):
                path.write_bytes(data)
        runs = processes(list(map(str, paths)))
        seconds: dict[str, list[float]] = {name: [] for name in runs}
        for name in [*runs] * (1 + rounds):
            before = time.perf_counter()
            runs[name]()
            seconds[name].append(time.perf_counter() - before)
    medians = {name: statistics.median(found[1:]) for name, found in seconds.items()}
    for name, median in medians.items():
        yield {"what": name, "median ms": 1e3 * median, "over import torch": median / medians["import torch"]}


def processes(paths: Sequence[str]) -> dict[str, Callable[[], object]]:
    """The commands of `start` on two images, by name."""
    score, environment = ["-m", "idmetric.cli.score"], {**os.environ, "HF_HUB_OFFLINE": "1"}
    words = {
        "import torch": ["-c", "import torch"],
        "idmetric score --model tiny, two images": [*score, "--model", "tiny", "--device", "cpu", *paths],
        "idmetric score --help": [*score, "--help"],
    }
    run = partial(subprocess.run, check=True, capture_output=True, env=environment)
    return {name: partial(run, [sys.executable, *rest]) for name, rest in words.items()}


def prepared(metric: Embedder, photos: list[Any]) -> Tensor:
    """Turn decoded images into the normalized batch (B, 3, *image_size) that the encoder takes, on its device."""
    return metric.normalize(pixels_of(metric, photos)).to(metric.dtype)


def pixels_of(metric: Embedder, photos: list[Any]) -> Tensor:
    """Turn decoded images into the model's pixels (B, 3, *image_size) in [0, 1], on its device."""
    from idmetric.metric.images.read import load_batch

    return load_batch(photos, metric.image_size, device=metric.device, **metric.reading)


def trunk(metric: Embedder) -> Any:
    """Return the model's timm encoder, or None."""
    found = getattr(metric, "backbone", None)
    return found if hasattr(found, "forward_features") else None


def heads_of(metric: Embedder, x: Tensor) -> Callable[[], Any] | None:
    """Return a function that runs ID-Sim's two heads on the tokens of a batch; None for models without heads."""
    import torch

    from idmetric.metric.models.idsim import IDSim

    if not isinstance(metric, IDSim):
        return None
    with torch.no_grad():
        features, patches, _ = metric.trunk_features(x)
    return lambda: metric.heads(features, patches)


# Photos and models


def read_files(folder: str | os.PathLike[str], count: int) -> tuple[bytes, ...]:
    """Read the first `count` images below a folder in the order of their names, repeating them if there are fewer."""
    from idmetric.metric.images.paths import listed
    from idmetric.metric.images.read import read_image

    found = listed(folder)
    for path in found[:count]:
        read_image(path)
    return tuple(Path(path).read_bytes() for path in islice(cycle(found), count))


def make_files(count: int, size: tuple[int, int] = SIZE) -> tuple[bytes, ...]:
    """Generate JPEG files with smooth shapes and grain, about as large as photos of that size; the same each time."""
    import numpy as np
    from PIL import Image

    found = []
    for seed in range(count):
        rng = np.random.default_rng(seed)
        coarse = Image.fromarray(rng.integers(0, 256, (12, 16, 3), dtype=np.uint8))
        smooth = np.asarray(coarse.resize(size, Image.Resampling.BICUBIC), dtype=np.float32)
        grain = rng.normal(0, 8, smooth.shape).astype(np.float32)
        buffer = io.BytesIO()
        Image.fromarray((smooth + grain).clip(0, 255).astype(np.uint8)).save(buffer, "JPEG", quality=90)
        found.append(buffer.getvalue())
    return tuple(found)


def decoded(files: Sequence[bytes], count: int) -> list[Image.Image]:
    """Decode that many images, repeating the files if there are fewer."""
    from idmetric.metric.images.read import read_image

    return list(islice(cycle([read_image(data) for data in files[:count]]), count))


def open_model(name: str, *, random_weights: bool = False, **chosen: Any) -> Embedder:
    """Open a model by name, as `idmetric.load` does.

    Args:
        random_weights: open the published architecture with random weights, which need no download and do not change
            times. Without effect on "tiny", which is in the package.
        chosen: device and dtype.
    """
    import torch

    from idmetric.metric.checkpoints import released
    from idmetric.metric.models.backbone import Backbone
    from idmetric.metric.models.idsim import IDSim, IDSimConfig
    from idmetric.metric.models.load import load
    from idmetric.metric.models.nearid import NearID, NearIDConfig

    if not random_weights or name == "tiny":
        return load(name, **chosen)
    torch.manual_seed(0)
    model: Embedder
    if name.startswith("timm:"):
        model = Backbone(name.removeprefix("timm:"), pretrained=False, **chosen)
    elif name in released.IDSIM:
        model = IDSim(IDSimConfig(released.IDSIM[name].backbone), **chosen)
    elif name in released.NEARID:
        model = NearID(NearIDConfig(), **chosen)
    else:
        known = ", ".join([*released.IDSIM, *released.NEARID])
        raise ValueError(f"no random weights for {name!r}: they can be made for {known} and timm:NAME")
    model.name = f"{name}, random weights"
    return model


# The machine, without which a measurement means little


def describe(device: torch.device) -> dict[str, Any]:
    """Describe processor, cores, threads, device, load and versions as plain JSON values.

    `busy` is the load average of the last minute per core, before the benchmark began. Above 0.2, other programs were
    running, and only ratios are meaningful. None if the system does not report it.
    """
    import torch

    load = os.getloadavg()[0] if hasattr(os, "getloadavg") else None
    cores = os.cpu_count() or 1
    names = [platform.processor() or platform.machine()]
    with suppress(OSError):  # Linux alone has the file
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")] or names
    return {
        "processor": names[0],
        "cores": cores,
        "threads": torch.get_num_threads(),
        "device": torch.cuda.get_device_name(device) if device.type == "cuda" else device.type,
        "busy": None if load is None else round(load / cores, 2),
        "system": f"{platform.system()} {platform.machine()}",
        "python": platform.python_version(),
        "idmetric": __version__,
        **{name: metadata.version(name) for name in ("torch", "timm", "torchvision", "pillow", "numpy")},
    }


def line(machine: dict[str, Any]) -> str:
    """Describe the machine in a sentence."""
    found = (
        f"{machine['processor']}, {machine['cores']} cores, {machine['threads']} threads; on {machine['device']}; "
        f"{machine['system']}, Python {machine['python']}, torch {machine['torch']}, timm {machine['timm']}, idmetric "
        f"{machine['idmetric']}"
    )
    if machine["busy"] is not None and machine["busy"] > 0.2:
        found += f"\nOther programs were running (load {machine['busy']} per core): trust ratios, not single times."
    return found
