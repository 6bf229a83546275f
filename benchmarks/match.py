"""Speed of `match`: regions of images over embedding the same crops, and frames of a clip over the bare model.

    python benchmarks/match.py --only regions --images 100 --subjects 4 --regions 6
    python benchmarks/match.py --only clip --frames 1000 --size 1280 720

Functions that are compared take turns in one run; their ratio is given as median, lowest and highest round.
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Iterator, Sequence
from fractions import Fraction
from itertools import product
from pathlib import Path

import bench
import numpy as np
import rows
import torch
from bench import make_files, open_model
from rows import Row, over
from timing import Clock, add_counts, parser_of

from idmetric.matching import match
from idmetric.metric.embedder import Embedder, auto_device
from idmetric.metric.embedding import Embedding
from idmetric.metric.images import read_image

Box = tuple[int, int, int, int]
CROPS, FRAMES = "embedding the crops", "bare model"


def subjects_of(metric: Embedder, count: int) -> dict[str, Embedding]:
    """Subjects with four references each."""
    photos = [read_image(data) for data in make_files(4 * count, (320, 240))]
    return {f"subject {k}": metric.embed(photos[4 * k : 4 * k + 4]) for k in range(count)}


def boxes_of(size: tuple[int, int], count: int) -> list[Box]:
    """Boxes in two rows, of half of the sides of their cells."""
    width, height = size[0] // -(-count // 2), size[1] // 2
    corners = product(range(0, 2 * height, height), range(0, size[0] - width + 1, width))
    return [(left, top, left + width // 2, top + height // 2) for top, left in corners][:count]


def regions(metric: Embedder, args: argparse.Namespace, clock: Clock, folder: Path) -> Iterator[Row]:
    """Measure several subjects in the regions of image files, over reading, cutting and embedding the same crops."""
    size = tuple(args.size)
    paths = []
    for number, data in enumerate(make_files(args.images, size)):
        paths.append(folder / f"{number}.jpg")
        paths[-1].write_bytes(data)
    subjects = subjects_of(metric, args.subjects)
    boxes = boxes_of(size, args.regions)

    def crops() -> None:
        pieces = []
        for path in paths:
            picture = read_image(path)
            pieces += [picture.crop(box) for box in boxes]
        metric.embed(pieces, patches=False, batch_size=args.batch, workers=8)

    def matched() -> None:
        match(metric, subjects, paths, [boxes] * len(paths), batch_size=args.batch)

    what = f"match, {args.subjects} subjects x {args.regions} regions"
    timings = clock.alternate({CROPS: crops, what: matched}, {CROPS: len(paths), what: len(paths)})
    for name, timing in timings.items():
        yield Row("regions", metric.label, name, timing, *over(timings, name, CROPS))


def clip(metric: Embedder, args: argparse.Namespace, clock: Clock, folder: Path) -> Iterator[Row]:
    """Measure all frames of a video as whole images, over the model alone on pixels of its size in memory."""
    path = folder / "clip.mp4"
    write_clip(path, args.frames, tuple(args.size))
    subjects = subjects_of(metric, 1)
    pixels = torch.rand(args.batch, 3, *metric.image_size, device=metric.device, dtype=metric.dtype)

    def bare() -> None:
        for start in range(0, args.frames, args.batch):
            metric.embed_pixels(pixels[: args.frames - start])

    def matched() -> None:
        match(metric, subjects, path, batch_size=args.batch)

    what = f"match, frames of {args.size[0]} x {args.size[1]}"
    timings = clock.alternate({FRAMES: bare, what: matched}, {FRAMES: args.frames, what: args.frames})
    for name, timing in timings.items():
        share = {"share of the bare model's rate": timing.rate / timings[FRAMES].rate} if name == what else None
        yield Row("clip", metric.label, name, timing, *over(timings, name, FRAMES), numbers=share)


def write_clip(path: Path, count: int, size: tuple[int, int]) -> None:
    """Write an H.264 video of a photo that moves."""
    import av

    photo = read_image(make_files(1, size)[0])
    pixels = np.asarray(photo)
    with av.open(str(path), "w") as container:
        stream = container.add_stream("libx264", rate=Fraction(24))
        stream.width, stream.height, stream.pix_fmt = *size, "yuv420p"
        for number in range(count):
            frame = av.VideoFrame.from_ndarray(np.roll(pixels, 2 * number, axis=1), format="rgb24")
            container.mux(stream.encode(frame))
        container.mux(stream.encode())


SECTIONS = {"regions": regions, "clip": clip}


def build_parser() -> argparse.ArgumentParser:
    """The parser of the command."""
    parser = parser_of(__doc__, SECTIONS, seconds=300.0)
    parser.add_argument("--size", type=int, nargs=2, default=(1280, 720), metavar=("WIDTH", "HEIGHT"))
    add_counts(parser, images=100, subjects=4, regions=6, frames=1000, batch=32, repeats=3, warmup=1)
    return parser


def main(argv: Sequence[str] | None = None) -> list[Row]:
    """Measure the sections, and print each as a table."""
    args = build_parser().parse_args(argv)
    device = torch.device(args.device) if args.device else auto_device()
    print(bench.line(bench.describe(device)), flush=True)
    metric = open_model(args.model, random_weights=args.random_weights, device=device, dtype=getattr(torch, args.dtype))
    clock = Clock(device, args.repeats, args.warmup, args.seconds)
    measured: list[Row] = []
    for name in args.only or SECTIONS:
        with tempfile.TemporaryDirectory(prefix="idmetric-") as folder:
            part = list(SECTIONS[name](metric, args, clock, Path(folder)))
        print(f"\n{name}\n{rows.table(part)}", end="", flush=True)
        measured += part
    return measured


if __name__ == "__main__":
    main()
