"""Speed next to other ways: timm's bare forward, loops, geomloss, LPIPS, DreamSim's encoders, CLIP, faster settings.

    python benchmarks/speed.py --only sinkhorn --sets 20 --tokens 784 --json sinkhorn.json

Functions that are compared take turns in one run; their ratio is given as median, lowest and highest round.
`bench.py` measures a model's stages, `bounds.py` the time of a new process to the first score.
"""

from __future__ import annotations

import argparse
import copy
import tempfile
import warnings
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import bench
import rows
import torch
import torch.nn.functional as F
from bench import make_files, open_model, pixels_of, prepared, read_files, trunk
from rows import Row, over
from timing import Clock, add_counts, parser_of
from torch import Tensor

from idmetric.metric.cosine import cosine_distance
from idmetric.metric.embedder import Embedder, auto_device
from idmetric.metric.files import in_order
from idmetric.metric.sinkhorn import sinkhorn as sinkhorn_of
from idmetric.scoring.references import CopyWarning
from idmetric.scoring.score import score
from idmetric.scoring.scores import Scores
from idmetric.stream import threads as reading_threads

BARE = "timm's forward"
LARGE = (4000, 3000)  # pixels of a phone's photo
_BATCHES = 5  # of files in a run; the first is decoded while the model waits
_DIFFERENT = 6  # photos that are generated
ALONE, READING = "model alone", "reading alone"
SETTINGS: dict[str, Any] = {"blur": 0.05, "scaling": 0.5, "diameter": 2.0}  # `idmetric.metric.distance`'s "patch"
LPIPS = {"LPIPS, AlexNet": "alex", "LPIPS, VGG": "vgg"}
# encoders in timm's names; DreamSim's default joins the features of DINO, CLIP and OpenCLIP (Fu et al. 2023)
ENCODERS = {
    "DreamSim's encoders": ("vit_base_patch16_224.dino", "vit_base_patch16_clip_224.openai",
                            "vit_base_patch16_clip_224.laion400m_e32"),
    "CLIP ViT-B/32": ("vit_base_patch32_clip_224.openai",),
}  # fmt: skip


@dataclass(frozen=True)
class Compared:
    """The input of all sections.

    Args:
        files: encoded images, as bytes. batch: images per pass. clock: measures the times. dtype: of the weights.
        sets, tokens, channels: sizes of the Sinkhorn comparison, sets x sets pairs of sets of tokens.
        references, candidates: numbers of images that are compared with each other.
        sample: number of pairs for functions that would take too long on all pairs.
    """

    files: tuple[bytes, ...]
    batch: int
    clock: Clock
    dtype: torch.dtype = torch.float32
    sets: int = 20
    tokens: int = 784  # 28 x 28: ID-Sim at 448 pixels and patches of 16
    channels: int = 1024  # of a ViT-L
    references: int = 4
    candidates: int = 16
    sample: int = 20

    def photos(self, count: int) -> list[Any]:
        """That many decoded images."""
        return bench.decoded(self.files, count)


def overhead(metric: Embedder, setting: Compared) -> Iterator[Row]:
    """Measure the whole pipeline, from images and from pixels, relative to timm's bare forward of the same batch."""
    bare, batch = trunk(metric), setting.batch
    if bare is None:
        yield Row("overhead", metric.label, "embed", note="this model has no encoder of timm's")
        return
    photos = setting.photos(batch)
    x = prepared(metric, photos)
    pixels = torch.rand(batch, 3, *metric.image_size, device=metric.device)
    runs: dict[str, Callable[[], Any]] = {
        BARE: lambda: bare(x),
        "embed decoded images": lambda: metric.embed(photos, batch_size=batch),
        "forward of pixels": lambda: metric(pixels),
    }
    found = setting.clock.alternate(runs, dict.fromkeys(runs, batch))
    for what, timing in found.items():
        yield Row("overhead", metric.label, what, timing, *over(found, what, BARE))


def variants(metric: Embedder, setting: Compared) -> Iterator[Row]:
    """Measure faster settings relative to the plain one, from pixels, and how much they change distances.

    bfloat16 weights, memory in channels-last order, torch.compile with its default backend, and files read by threads
    while the model runs (`embed(workers=)`, which on CUDA also copies from pinned memory).
    """
    batch, clock = setting.batch, setting.clock
    photos, files = setting.photos(batch), list(setting.files[:batch]) * 3
    pixels = pixels_of(metric, photos)  # the changes leave decoding and resizing as they are
    base = metric.pairwise(pixels, batch_size=batch)
    for what, change in _CHANGES.items():
        try:
            changed = change(copy.deepcopy(metric), photos)
            with torch.no_grad():
                moved = (changed.pairwise(pixels, batch_size=batch) - base).abs().max()
        except Exception as error:  # compilers raise many kinds, such as for a missing C++ compiler or extra
            yield Row("variants", metric.label, what, note=f"{type(error).__name__}: {str(error).strip()[:200]}")
            continue
        both = {"plain": metric, what: changed}
        found = clock.alternate({name: partial(model.embed, pixels, batch_size=batch) for name, model in both.items()},
                                dict.fromkeys(both, batch))  # fmt: skip
        yield Row("variants", metric.label, what, found[what], *over(found, what, "plain"),
                  numbers={"largest change of a cls distance": float(moved)})  # fmt: skip
        del changed
    runs = {"files, one after another": partial(metric.embed, files, batch_size=batch),
            "files, read by threads": partial(metric.embed, files, batch_size=batch, workers=4)}  # fmt: skip
    found = clock.alternate(runs, dict.fromkeys(runs, len(files)))
    plain = next(iter(runs))
    for what, timing in found.items():
        yield Row("variants", metric.label, what, timing, *over(found, what, plain))


def _compiled(metric: Embedder) -> Embedder:
    metric.compile()
    return metric


_CHANGES: dict[str, Callable[[Embedder, list[Any]], Embedder]] = {
    "bfloat16": lambda metric, _: metric.to(torch.bfloat16),
    "channels-last": lambda metric, _: metric.to(memory_format=torch.channels_last),
    "compiled": lambda metric, _: _compiled(metric),
}


def files(metric: Embedder, setting: Compared) -> Iterator[Row]:
    """Measure scores of JPEG files of 12 megapixels against one of them.

    "Reading alone" decodes and resizes them in as many threads as scores do; "model alone" embeds prepared pixels.
    """
    batch, count = setting.batch, _BATCHES * setting.batch
    x = prepared(metric, setting.photos(batch))
    different = make_files(min(_DIFFERENT, count), LARGE)

    with tempfile.TemporaryDirectory() as folder:
        paths = [Path(folder, f"{k}.jpg") for k in range(count)]
        for k, path in enumerate(paths):
            path.write_bytes(different[k % len(different)])
        runs: dict[str, Callable[[], Any]] = {
            ALONE: lambda: [_forward(metric, x) for _ in range(_BATCHES)],
            READING: lambda: _read(metric, paths),
            "scores": lambda: _scored(metric, paths, batch),
        }
        found = setting.clock.alternate(runs, dict.fromkeys(runs, count))

    for what, against in ((ALONE, ALONE), (READING, READING), ("scores", READING), ("scores", ALONE)):
        yield Row("files", metric.label, what, found[what], *over(found, what, against))


def _forward(metric: Embedder, x: Tensor) -> Any:
    with torch.no_grad():
        return metric.forward_features(x)


def _read(metric: Embedder, paths: list[Path]) -> None:
    threads = reading_threads(None)
    deque(in_order(metric.load, paths, threads=threads, waiting=2 * threads), maxlen=0)


def _scored(metric: Embedder, paths: list[Path], batch: int) -> Scores:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", CopyWarning)  # photos recur
        return score(metric, paths[0], paths[1:], batch_size=batch)


def make_tokens(sets: int, tokens: int, channels: int, device: torch.device, seed: int = 0) -> Tensor:
    """Draw unit vectors (sets, tokens, channels) that change smoothly along each set, with noise, as patch tokens do.

    Independent vectors would all be equally far from each other, unlike those of images.
    """
    generator = torch.Generator().manual_seed(seed)
    coarse = torch.randn(sets, channels, max(2, tokens // 16), generator=generator)
    smooth = F.interpolate(coarse, tokens, mode="linear", align_corners=True).mT
    common = torch.randn(channels, generator=generator)
    noise = torch.randn(sets, tokens, channels, generator=generator)
    return F.normalize(smooth + 0.5 * common + 0.3 * noise, dim=-1).to(device)


def sinkhorn(setting: Compared) -> Iterator[Row]:
    """Measure `sinkhorn` on all pairs of two lists of token sets, relative to loops of geomloss and of our own.

    The loops run on `sample` of the pairs, evenly chosen; times are per pair. The whole matrix is one run, and its time
    includes the self terms. The float32 values are compared with geomloss's.
    """
    n, sample = setting.sets, min(setting.sample, setting.sets**2)
    a, b = (make_tokens(n, setting.tokens, setting.channels, setting.clock.device, seed) for seed in (0, 1))
    chosen = [divmod(k * n * n // sample, n) for k in range(sample)]
    found: dict[str, Tensor] = {}
    matrix = f"sinkhorn, {n} x {n}"

    def whole() -> None:
        found[matrix] = sinkhorn_of(a, b, matrix=True)

    def loop(name: str, score: Callable[[Tensor, Tensor], Tensor]) -> Callable[[], None]:
        def run() -> None:
            found[name] = torch.cat([score(a[i : i + 1], b[j : j + 1]) for i, j in chosen])

        return run

    ours, theirs = "sinkhorn, pair by pair", "geomloss, pair by pair"
    runs: dict[str, Callable[[], Any]] = {
        matrix: whole, ours: loop(ours, lambda x, y: sinkhorn_of(x, y)),
    }  # fmt: skip
    items = {matrix: n * n, ours: sample, theirs: sample}
    try:
        runs[theirs] = loop(theirs, _geomloss())
    except ImportError:
        yield Row("sinkhorn", "", theirs, note="geomloss is not installed: pip install geomloss")
    timings = setting.clock.alternate(runs, items)
    part = found[matrix][tuple(torch.tensor(chosen, device=a.device).T)]
    for what, timing in timings.items():
        difference = float((found[what] - part).abs().max()) if what != matrix else None
        numbers = None if difference is None else {"largest difference from the matrix": difference}
        note = f"{sample} of the {n * n} pairs; {setting.tokens} tokens of {setting.channels} channels"
        yield Row("sinkhorn", "", what, timing, *over(timings, what, matrix),
                  "" if what == matrix else note, numbers)  # fmt: skip


def _geomloss() -> Callable[[Tensor, Tensor], Tensor]:
    was = torch.is_grad_enabled()
    from geomloss import SamplesLoss

    loss = SamplesLoss("sinkhorn", p=2, backend="tensorized", **SETTINGS)

    def score(x: Tensor, y: Tensor) -> Tensor:
        found: Tensor = loss(x, y)
        torch.set_grad_enabled(was and torch.is_grad_enabled())  # geomloss switches it on for everyone
        return found

    return score


def pairwise(metric: Embedder, setting: Compared) -> Iterator[Row]:
    """Measure `pairwise` of references and candidates, relative to one call per pair, and count the embedded images.

    The loop runs on `sample` of the pairs; times are per pair.
    """
    n, m = setting.references, setting.candidates
    photos = setting.photos(n + m)
    references, candidates = photos[:n], photos[n:]
    sample = min(setting.sample, n * m)
    chosen = [divmod(k * n * m // sample, m) for k in range(sample)]
    runs: dict[str, Callable[[], Any]] = {
        f"pairwise, {n} x {m}": lambda: metric.pairwise(references, candidates, batch_size=setting.batch),
        "pair by pair": lambda: [metric(references[i], candidates[j]) for i, j in chosen],
    }
    whole, loop = runs
    items = {whole: n * m, loop: sample}
    seen = {what: _embedded(metric, run) for what, run in runs.items()}
    timings = setting.clock.alternate(runs, items)
    for what, timing in timings.items():
        images = round(seen[what] * n * m / items[what])
        yield Row("pairwise", metric.label, what, timing, *over(timings, what, whole),
                  f"{images} embedded for all pairs")  # fmt: skip


def _embedded(metric: Embedder, run: Callable[[], Any]) -> int:
    """Count the images that the model embeds during a run."""
    seen, encode = 0, metric.embed_pixels

    def counting(pixels: Tensor) -> Any:
        nonlocal seen
        seen += len(pixels)
        return encode(pixels)

    metric.embed_pixels = counting  # type: ignore[method-assign]  # on this instance, during the run
    try:
        run()
    finally:
        del metric.embed_pixels  # restores the class's method
    return seen


def metrics(metric: Embedder, setting: Compared) -> Iterator[Row]:
    """Measure other metrics on one pair of decoded images, relative to this one.

    All have random weights, which need no download and take the same time.
    """
    first, second = setting.photos(2)
    runs: dict[str, Callable[[], Any]] = {"this metric": lambda: metric(first, second)}
    for name in (*LPIPS, *ENCODERS):
        try:
            runs[name] = _other(name, metric.device, first, second)
        except ImportError as error:
            yield Row("metrics", metric.label, name, note=str(error))
    timings = setting.clock.alternate(runs)
    for what, timing in timings.items():
        yield Row("metrics", metric.label, what, timing, *over(timings, what, "this metric"))


def _other(name: str, device: torch.device, first: Any, second: Any) -> Callable[[], Any]:
    """A function that computes another metric of two images."""
    if name in ENCODERS:
        encoders = [open_model(f"timm:{one}", random_weights=True, device=device) for one in ENCODERS[name]]

        def distance() -> Any:
            pixels = pixels_of(encoders[0], [first, second])
            with torch.no_grad():
                both = torch.cat([encoder.embed_pixels(pixels).cls for encoder in encoders], -1)
            return cosine_distance(both[0], both[1])

        return distance
    try:
        import lpips
    except ImportError as error:
        raise ImportError("lpips is not installed: pip install lpips") from error
    from idmetric.evaluate.protocols.common.baselines import Lpips

    peer = Lpips(device, lpips.LPIPS(net=LPIPS[name], pnet_rand=True, verbose=False))
    return lambda: peer.compare(*(peer.prepare(image, None, "keep")[None] for image in (first, second)))


SECTIONS: dict[str, Callable[..., Iterator[Row]]] = {
    "overhead": overhead, "files": files, "sinkhorn": sinkhorn, "pairwise": pairwise, "metrics": metrics,
    "variants": variants,
}  # fmt: skip


def build_parser() -> argparse.ArgumentParser:
    """The parser of the command."""
    parser = parser_of(__doc__, SECTIONS, seconds=60.0)
    parser.add_argument("--images", help="folder of photos (default: generated ones)")
    parser.add_argument("--json", type=Path, help="also write all results there")
    add_counts(parser, batch=8, threads=0, repeats=10, warmup=1, sets=20, tokens=784, channels=1024)
    add_counts(parser, references=4, candidates=16, sample=20)
    return parser


def measure(args: argparse.Namespace) -> list[Row]:
    """Measure the sections, and print each as a table."""
    if args.threads:
        torch.set_num_threads(args.threads)
    device = torch.device(args.device) if args.device else auto_device()
    described = bench.describe(device)  # before the load of this run
    print(bench.line(described), flush=True)

    count = max(2, args.batch, args.references + args.candidates)
    sizes = ("sets", "tokens", "channels", "references", "candidates", "sample", "batch")
    setting = Compared(
        files=read_files(args.images, count) if args.images else make_files(count),
        clock=Clock(device, args.repeats, args.warmup, args.seconds),
        dtype=getattr(torch, args.dtype), **{name: getattr(args, name) for name in sizes},
    )  # fmt: skip
    metric = open_model(args.model, random_weights=args.random_weights, device=device, dtype=setting.dtype)

    found: list[Row] = []
    for name in args.only or SECTIONS:
        part = list(SECTIONS[name](setting) if name == "sinkhorn" else SECTIONS[name](metric, setting))
        print(f"\n{name}\n{rows.table(part)}", end="", flush=True)
        found += part
        if args.json:
            options = {name: str(value) for name, value in vars(args).items()}
            args.json.write_text(rows.as_json(described, options, found), encoding="utf-8")
    return found


if __name__ == "__main__":
    measure(build_parser().parse_args())
