"""The time from photo files to scores: decoded exactly and fast, relative to decoding alone and to the bare model."""

from __future__ import annotations

import copy
import tempfile
import warnings
from collections import deque
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch

from idmetric.cli.bench.rows import Row, over
from idmetric.cli.bench.setting import Setting, make_files
from idmetric.cli.bench.stages import prepared
from idmetric.io.prefetch import in_order
from idmetric.models.embedder import Embedder
from idmetric.scoring.compare import score
from idmetric.scoring.copies import CopyWarning
from idmetric.scoring.scores import Scores
from idmetric.scoring.settings import Settings

LARGE = (4000, 3000)  # pixels of a phone's photo
_BATCHES = 5  # of files in a run; the first is decoded while the model waits
_DIFFERENT = 6  # photos that are generated
BARE, READING = "model alone", "reading alone, exact"


def files(metric: Embedder, setting: Setting) -> Iterator[Row]:
    """Measure scores of JPEG files of 12 megapixels against one of them.

    "Reading alone" decodes and resizes them in as many threads as scores do; "model alone" embeds prepared pixels.
    """
    fast = copy.deepcopy(metric)
    try:
        fast.decode = "fast"
    except ValueError as error:
        yield Row("files", metric.label, "scores", note=str(error))
        return
    batch, count = setting.batch, _BATCHES * setting.batch
    x = prepared(metric, setting.photos(batch))
    different = make_files(min(_DIFFERENT, count), LARGE)

    with tempfile.TemporaryDirectory() as folder:
        paths = [Path(folder, f"{k}.jpg") for k in range(count)]
        for k, path in enumerate(paths):
            path.write_bytes(different[k % len(different)])
        runs: dict[str, Callable[[], Any]] = {
            BARE: lambda: [_embedded(metric, x) for _ in range(_BATCHES)],
            READING: lambda: _read(metric, paths),
            "reading alone, fast": lambda: _read(fast, paths),
            "scores, exact": lambda: _scored(metric, paths, batch),
            "scores, fast": lambda: _scored(fast, paths, batch),
        }
        found = setting.clock.alternate(runs, dict.fromkeys(runs, count))
        far, near = (
            {row["image"]: row["distance"] for row in _scored(model, paths, batch).rows} for model in (metric, fast)
        )

    moved = {"largest change of a distance": max(abs(far[image] - near[image]) for image in far)}
    for what, against, numbers in (
        (BARE, BARE, None),
        (READING, READING, None),
        ("reading alone, fast", READING, None),
        ("scores, exact", READING, None),
        ("scores, exact", "scores, fast", None),
        ("scores, fast", BARE, moved),
    ):
        yield Row("files", metric.label, what, found[what], *over(found, what, against), numbers=numbers)


def _embedded(metric: Embedder, x: torch.Tensor) -> Any:
    with torch.no_grad():
        return metric.forward_features(x)


def _read(metric: Embedder, paths: list[Path]) -> None:
    threads = Settings().threads
    deque(in_order(metric.load_image, paths, threads=threads, waiting=2 * threads), maxlen=0)


def _scored(metric: Embedder, paths: list[Path], batch: int) -> Scores:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", CopyWarning)  # photos recur
        return score(metric, paths[0], paths[1:], batch_size=batch)
