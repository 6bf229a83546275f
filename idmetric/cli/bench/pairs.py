"""Comparisons of sets of images: the Sinkhorn matrix, `pairwise`, and other packages' metrics."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from idmetric.cli.bench.rows import Row, over
from idmetric.cli.bench.setting import Setting, open_model
from idmetric.cli.bench.stages import pixels_of
from idmetric.distance.sinkhorn import sinkhorn_distance, sinkhorn_matrix
from idmetric.models.embedder import Embedder

SETTINGS: dict[str, Any] = {"blur": 0.05, "scaling": 0.5, "diameter": 2.0}  # `idmetric.distance`'s "patch"
LPIPS = {"LPIPS, AlexNet": "alex", "LPIPS, VGG": "vgg"}
# encoders in timm's names; DreamSim's default joins the features of DINO, CLIP and OpenCLIP (Fu et al. 2023)
ENCODERS = {
    "DreamSim's encoders": ("vit_base_patch16_224.dino", "vit_base_patch16_clip_224.openai",
                            "vit_base_patch16_clip_224.laion400m_e32"),
    "CLIP ViT-B/32": ("vit_base_patch32_clip_224.openai",),
}  # fmt: skip


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


def sinkhorn(setting: Setting) -> Iterator[Row]:
    """Measure `sinkhorn_matrix` on all pairs of two lists of token sets, relative to loops of geomloss and of our own.

    The loops run on `sample` of the pairs, evenly chosen; times are per pair. The whole matrix is one run, and its time
    includes the self terms. The float32 values are compared with geomloss's.
    """
    n, sample = setting.sets, min(setting.sample, setting.sets**2)
    a, b = (make_tokens(n, setting.tokens, setting.channels, setting.clock.device, seed) for seed in (0, 1))
    chosen = [divmod(k * n * n // sample, n) for k in range(sample)]
    found: dict[str, Tensor] = {}
    matrix = f"sinkhorn_matrix, {n} x {n}"

    def whole() -> None:
        found[matrix] = sinkhorn_matrix(a, b, **SETTINGS)

    def loop(name: str, score: Callable[[Tensor, Tensor], Tensor]) -> Callable[[], None]:
        def run() -> None:
            found[name] = torch.cat([score(a[i : i + 1], b[j : j + 1]) for i, j in chosen])

        return run

    ours, theirs = "sinkhorn_distance, pair by pair", "geomloss, pair by pair"
    runs: dict[str, Callable[[], Any]] = {
        matrix: whole, ours: loop(ours, lambda x, y: sinkhorn_distance(x, y, **SETTINGS)),
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


def pairwise(metric: Embedder, setting: Setting) -> Iterator[Row]:
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


def metrics(metric: Embedder, setting: Setting) -> Iterator[Row]:
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
    from idmetric.distance.cosine import cosine_distance

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
    from idmetric.protocols.common.baselines import Lpips

    peer = Lpips(device, lpips.LPIPS(net=LPIPS[name], pnet_rand=True, verbose=False))
    return lambda: peer.compare(*(peer.prepare(image, None, "keep")[None] for image in (first, second)))
