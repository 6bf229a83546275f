"""The cost of commands around their model: over decoding and resizing, or over embedding the same files.

    python -m benchmarks.pipeline
    python -m benchmarks.pipeline --only score --size 512 512 --images 200
    python -m benchmarks.pipeline --photos photos/             real photos in place of generated ones

Commands run in this process, in turns with what they are compared with; processor time of all threads counts, which
other programs hardly change. The model of `score`, `eval generator` and `match` costs next to nothing (`NearFree`), so
that their own work shows; `gallery dedupe` runs with the packaged one.

- score: one candidate each against four references; over Pillow's decoding of the same files and its bicubic resize to
  the model's size.
- generator: two methods with an equal number of images of twelve subjects, four references for each; over embedding the
  same files by the stream, without a cache. With and without a page.
- dedupe: the whole command, embedding included; over embedding the same files.
- match: all frames of an H.264 clip of 720p as whole images (`--frames`); over PyAV's decoding of the same clip and
  Pillow's bicubic resize to the model's size.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import os
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from itertools import cycle, islice
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from PIL import Image
from torch import Tensor

sys.path.insert(0, os.path.dirname(__file__))  # scripts of this folder import each other
from match import write_clip
from timing import Clock, Timing, cpu_ratio

from idmetric.cli.main import main as idmetric
from idmetric.matching import match
from idmetric.metric.embedder import Embedder
from idmetric.metric.load import load
from idmetric.scoring.score import score as score_of
from idmetric.stream import Item, embedding_of

SIDE = 224
_CLIP_SIZE = (1280, 720)
_SUBJECTS = 12
_REFERENCES = 4  # of each subject
_POOLED = 8


class NearFree(Embedder):
    """A model that averages pixels: all that it costs is its preprocessing."""

    has_patches = False

    def __init__(self, **options: Any) -> None:
        super().__init__(
            name="near-free", revision="1", image_size=(SIDE, SIDE), mean=(0.5, 0.5, 0.5), std=(0.5, 0.5, 0.5)
        )
        self.scale = torch.nn.Parameter(torch.ones(1), requires_grad=False)
        self.take_revision()

    def config(self) -> dict[str, Any]:
        """See `Embedder`."""
        return {"pooled": _POOLED}

    def forward_features(self, x: Tensor) -> tuple[Tensor, None, None]:
        """See `Embedder`."""
        return F.adaptive_avg_pool2d(x * self.scale, _POOLED).flatten(1), None, None


# Files


def write_files(folder: Path, count: int, size: tuple[int, int], photos: Path | None) -> list[Path]:
    """Write JPEG files of clouds with grain, or link photos of a folder, again and again if there are fewer."""
    folder.mkdir(parents=True)
    sources: list[Path] = []
    if photos is not None:
        sources = sorted(path for path in photos.rglob("*") if path.suffix.lower() in (".jpg", ".jpeg", ".png"))
    paths = []
    rng = np.random.default_rng(count)
    for number, source in zip(range(count), cycle(sources or [None]), strict=False):
        path = folder / f"{number:04}.jpg"
        if source is None:
            path.write_bytes(_photo(rng, size))
        else:
            path.symlink_to(source.resolve())
        paths.append(path)
    return paths


def _photo(rng: np.random.Generator, size: tuple[int, int]) -> bytes:
    coarse = Image.fromarray(rng.integers(0, 256, (12, 16, 3), dtype=np.uint8))
    smooth = np.asarray(coarse.resize(size, Image.Resampling.BICUBIC), dtype=np.float32)
    grain = rng.normal(0, 8, smooth.shape).astype(np.float32)
    buffer = io.BytesIO()
    Image.fromarray((smooth + grain).clip(0, 255).astype(np.uint8)).save(buffer, "JPEG", quality=90)
    return buffer.getvalue()


# What is compared


def decoded_and_resized(paths: Sequence[Path]) -> None:
    """Decode files and resize them to the model's size by Pillow."""
    for path in paths:
        with Image.open(path) as image:
            image.convert("RGB").resize((SIDE, SIDE), Image.Resampling.BICUBIC)


def clip_decoded_and_resized(clip: Path) -> None:
    """Decode the frames of a video by PyAV and resize them to the model's size by Pillow."""
    import av

    with av.open(str(clip)) as container:
        container.streams.video[0].thread_type = "AUTO"
        for frame in container.decode(video=0):
            image = Image.fromarray(frame.to_ndarray(format="rgb24"))
            image.resize((SIDE, SIDE), Image.Resampling.BICUBIC)


def run(*arguments: object) -> None:
    """Run a command; RuntimeError if it fails."""
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()) as errors:
        status = idmetric([*map(str, arguments), "--quiet", "--device", "cpu"])
    if status:
        raise RuntimeError(f"{arguments}: {errors.getvalue()}")


def embedded_files(metric: Embedder, paths: Sequence[Path]) -> Callable[[], object]:
    """A function that embeds files by the stream."""
    return lambda: embedding_of([Item(str(path), str(path)) for path in paths], metric, patches=False)


def score(args: argparse.Namespace, folder: Path) -> tuple[str, dict[str, Callable[[], object]]]:
    """Candidates against four references."""
    paths = write_files(folder / "photos", args.images, tuple(args.size), args.photos)
    references = paths[:_REFERENCES]
    images = paths[_REFERENCES:]
    words: list[object] = ["score", "--model", "benchmarks.pipeline:NearFree"]
    for reference in references:
        words += ["--ref", reference]
    base = "decode + resize"
    return base, {
        base: lambda: decoded_and_resized(paths),
        "score without copies": lambda: score_of(NearFree(), references, images, copies=False),
        "score": lambda: run(*words, *images),
    }


def generator(args: argparse.Namespace, folder: Path) -> tuple[str, dict[str, Callable[[], object]]]:
    """Images of two methods and references of twelve subjects."""
    paths = iter(write_files(folder / "photos", args.images, tuple(args.size), args.photos))
    files = []
    for subject in range(_SUBJECTS):
        for number, path in enumerate(islice(paths, _REFERENCES)):
            files.append(folder / "references" / f"subject{subject}" / f"{number}.jpg")
            _move(path, files[-1])
    for number, path in enumerate(paths):
        prompt, method = divmod(number, 2)
        name = f"method{method}/subject{prompt % _SUBJECTS}/prompt{prompt}_0.jpg"
        files.append(folder / "outputs" / name)
        _move(path, files[-1])

    words = ["eval", "generator", "--model", "benchmarks.pipeline:NearFree"]
    words += ["--data", folder / "outputs", "--references", folder / "references"]
    words += ["--pattern", "{method}/{subject}/{prompt}_{seed}.jpg", "--held-out"]
    base = "embedding"
    return base, {
        base: embedded_files(NearFree(), files),
        "eval generator": lambda: run(*words),
        "eval generator --html": lambda: run(*words, "--html", folder / "page.html"),
    }


def _move(source: Path, target: Path) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    shutil.move(source, target)


def dedupe(args: argparse.Namespace, folder: Path) -> tuple[str, dict[str, Callable[[], object]]]:
    """Near-duplicates of all photos."""
    paths = write_files(folder / "photos", args.images, tuple(args.size), args.photos)
    base = "embedding by tiny"
    metric = load("tiny", device="cpu")
    return base, {
        base: embedded_files(metric, paths),
        "gallery dedupe --model tiny": lambda: run("gallery", "dedupe", folder / "photos", "--model", "tiny"),
    }


def frames(args: argparse.Namespace, folder: Path) -> tuple[str, dict[str, Callable[[], object]]]:
    """All frames of a clip."""
    clip = folder / "clip.mp4"
    write_clip(clip, args.frames, _CLIP_SIZE)
    reference = write_files(folder / "photos", 1, _CLIP_SIZE, args.photos)
    metric = NearFree()

    base = "decode + resize"
    return base, {
        base: lambda: clip_decoded_and_resized(clip),
        "match": lambda: match(metric, {"subject": reference}, clip),
    }


SECTIONS = {"score": score, "generator": generator, "dedupe": dedupe, "match": frames}


def lines_of(timings: dict[str, Timing], base: str) -> Iterator[str]:
    """A line for each command, with its processor time over that of the base in each round."""
    for name, timing in timings.items():
        seconds = sorted(timing.cpu)[len(timing.cpu) // 2]
        ratio = cpu_ratio(timing, timings[base])
        shown = "" if ratio is None or name == base else f"{ratio.median:.2f} ({ratio.low:.2f} to {ratio.high:.2f})"
        yield f"| {name} | {seconds:.2f} | {base if shown else ''} | {shown} |"


def main(argv: Sequence[str] | None = None) -> None:
    """Measure the sections, and print each as a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", action="append", choices=SECTIONS, help="may be repeated (default: all)")
    parser.add_argument("--size", type=int, nargs=2, default=(1024, 1024), metavar=("WIDTH", "HEIGHT"))
    parser.add_argument("--images", type=int, default=240, help="files in all (default: %(default)s)")
    parser.add_argument("--frames", type=int, default=300, help="of the clip (default: %(default)s)")
    parser.add_argument("--photos", type=Path, help="folder of photos (default: generated ones)")
    parser.add_argument("--repeats", type=int, default=3, help="rounds (default: %(default)s)")
    args = parser.parse_args(argv)
    torch.set_num_threads(1)
    print("| what | CPU seconds | over | ratio (lowest to highest round) |\n|---|---|---|---|", flush=True)
    for name in args.only or SECTIONS:
        with tempfile.TemporaryDirectory(prefix="idmetric-") as folder:
            base, runs = SECTIONS[name](args, Path(folder).resolve())
            timings = Clock(torch.device("cpu"), args.repeats).alternate(runs)
        for line in lines_of(timings, base):
            print(line, flush=True)


if __name__ == "__main__":
    main()
