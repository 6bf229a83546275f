"""Images to embed, parts with embeddings, and a count of the images in memory."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from idmetric.metric.embedding import Embedding
from idmetric.store import Store


def pictures(folder: Path, count: int, start: int = 0) -> list[Path]:
    """So many small pictures."""
    folder.mkdir(parents=True, exist_ok=True)
    paths = []
    for number in range(start, start + count):
        coarse = np.random.default_rng(number).integers(0, 256, (5, 5, 3), dtype=np.uint8)
        paths.append(folder / f"{number:04}.png")
        Image.fromarray(coarse).resize((40, 30)).save(paths[-1])
    return paths


def stored(folder: Path, keys: Sequence[str], embedding: Embedding, patches: bool = False) -> Store:
    """A store with one part more."""
    store = Store(folder, patches=patches)
    store.add(keys, embedding)
    store.save()
    return store


class Live:
    """Counts the decoded images of a model, or class of models, that are alive."""

    def __init__(self, metric: Any, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = self.most = self.made = 0
        lock = threading.Lock()
        original = metric.prepare

        def gone() -> None:
            with lock:
                self.now -= 1

        def prepare(*args: Any, **options: Any) -> Any:
            pixels, mask = original(*args, **options)
            if any(isinstance(given, torch.Tensor) for given in args):
                return pixels, mask  # decoded before
            with lock:
                self.now, self.made = self.now + 1, self.made + 1
                self.most = max(self.most, self.now)
            weakref.finalize(pixels, gone)
            return pixels, mask

        monkeypatch.setattr(metric, "prepare", prepare)
