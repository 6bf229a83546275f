"""The time of an embedding: stage by stage, relative to timm's bare forward, and with faster settings."""

from __future__ import annotations

import copy
import tempfile
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from idmetric.cli.bench.rows import Row, over
from idmetric.cli.bench.setting import Setting
from idmetric.images.read import load_batch, read_image
from idmetric.models.embedder import Embedder

BARE = "timm's forward"


def stages(metric: Embedder, setting: Setting) -> Iterator[Row]:
    """Measure decode, preprocess, backbone, heads, and the whole; then backbone and whole for one image, as latency.

    "decode" reads the encoded files; "preprocess" turns decoded images into the normalized batch that the encoder
    takes, on its device; "heads" are the layers after the encoder.
    """
    clock, batch = setting.clock, setting.batch
    photos = setting.photos(batch)
    steps: dict[str, Callable[[], Any]] = {
        "decode": lambda: [read_image(data) for data in setting.files[:batch]],
        "preprocess": lambda: prepared(metric, photos),
    }
    bare = trunk(metric)
    if bare is not None:
        x = prepared(metric, photos)
        steps["backbone"] = lambda: bare(x)
        if (heads := heads_of(metric, x)) is not None:
            steps["heads"] = heads
    steps["whole"] = lambda: metric.embed(photos, batch_size=batch)
    for what, run in steps.items():
        yield Row("stages", metric.label, f"{what}, {batch} images", clock.time(run, batch))
    if batch > 1:
        yield Row("stages", metric.label, "whole, 1 image", clock.time(lambda: metric.embed(photos[:1])))
    if bare is None:
        yield Row("stages", metric.label, "backbone, heads", note="this model has no encoder of timm's")


def prepared(metric: Embedder, photos: list[Any]) -> Tensor:
    """Turn decoded images into the normalized batch (B, 3, *image_size) that the encoder takes."""
    return metric.normalize(pixels_of(metric, photos)).to(metric.dtype)


def pixels_of(metric: Embedder, photos: list[Any]) -> Tensor:
    """Turn decoded images into the model's pixels (B, 3, *image_size) in [0, 1], on its device."""
    return load_batch(
        photos, metric.image_size, background=metric.background, interpolation=metric.interpolation,
        device=metric.device, fit=metric.fit,
    )  # fmt: skip


def trunk(metric: Embedder) -> Any:
    """Return the model's timm encoder, or None."""
    found = getattr(metric, "backbone", None)
    return found if hasattr(found, "forward_features") else None


def heads_of(metric: Embedder, x: Tensor) -> Callable[[], Any] | None:
    """Return a function that runs ID-Sim's two heads on the tokens of a batch; None for models without heads."""
    from idmetric.models.idsim import IDSim

    if not isinstance(metric, IDSim):
        return None

    with torch.no_grad():
        features, patches, _ = metric.trunk_features(x)
    return lambda: metric.heads(features, patches)


def overhead(metric: Embedder, setting: Setting) -> Iterator[Row]:
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


def variants(metric: Embedder, setting: Setting) -> Iterator[Row]:
    """Measure faster settings relative to the plain one, from pixels, and how much they change distances.

    bfloat16 weights, memory in channels-last order, torch.compile with its default backend, exports to ONNX in float32
    and in 8 bits (`idmetric.models.export`), files read by threads while the model runs (`embed(workers=)`, which on
    CUDA also copies from pinned memory).
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


def _exported(metric: Embedder, images: list[Any] | None = None) -> Embedder:
    """The model exported to ONNX and opened again; with images, quantized to their ranges."""
    from idmetric.models.export import export
    from idmetric.models.onnx import OnnxModel
    from idmetric.models.onnx_embedder import OnnxEmbedder
    from idmetric.models.quantize import export_int8

    with tempfile.TemporaryDirectory(prefix="idmetric-") as folder:
        file = Path(folder) / "model.onnx"
        if images is None:
            export(metric, file)
        else:
            export_int8(metric, file, images)
        return OnnxEmbedder(OnnxModel(file))


_CHANGES: dict[str, Callable[[Embedder, list[Any]], Embedder]] = {
    "bfloat16": lambda metric, _: metric.to(torch.bfloat16),
    "channels-last": lambda metric, _: metric.to(memory_format=torch.channels_last),
    "compiled": lambda metric, _: _compiled(metric),
    "ONNX": lambda metric, _: _exported(metric),
    "ONNX, 8 bits": _exported,
}
