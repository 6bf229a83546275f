"""The time of an embedding stage by stage, and of a command from nothing to its first score."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from idmetric.cli.bench.rows import Row, over
from idmetric.cli.bench.setting import Setting
from idmetric.images.read import load_batch, read_image
from idmetric.models.embedder import Embedder

SCORE = "idmetric score --model tiny, two images"
TORCH = "import torch"


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


def start(setting: Setting) -> Iterator[Row]:
    """Measure whole processes: `idmetric score` with the packaged model on the CPU, `import torch`, and `--help`.

    The first round, which is not counted, brings the files that Python reads into the system's cache.
    """
    with tempfile.TemporaryDirectory() as folder:
        paths = [Path(folder, f"{k}.jpg") for k in range(2)]
        for path, data in zip(paths, setting.files, strict=False):
            path.write_bytes(data)
        score = ["-m", "idmetric.cli.score"]
        runs: dict[str, Callable[[], object]] = {
            TORCH: _process(["-c", "import torch"]),
            SCORE: _process([*score, "--model", "tiny", "--device", "cpu", *map(str, paths)]),
            "idmetric score --help": _process([*score, "--help"]),
        }
        found = setting.clock.alternate(runs)
    for what, timing in found.items():
        yield Row("start", "", what, timing, *over(found, what, TORCH))


def _process(words: list[str]) -> Callable[[], object]:
    environment = {**os.environ, "HF_HUB_OFFLINE": "1"}
    return lambda: subprocess.run([sys.executable, *words], check=True, capture_output=True, env=environment)
