"""Shared parts of the tests of protocols: pictures, a judge that follows a script, values of a result."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
from PIL import Image

from idmetric.data.manifest.table import Manifest
from idmetric.protocols.common.result import Result, Value
from idmetric.protocols.common.scorers import Settings

PLAIN = Settings(bootstrap=0)


def picture(path: Path, seed: int, shade: int = 0) -> str:
    """A file with a picture: identities differ in color, shades in a stripe."""
    path.parent.mkdir(parents=True, exist_ok=True)
    rng = np.random.default_rng(seed)
    array = np.broadcast_to(rng.integers(0, 255, 3), (32, 32, 3)).astype(np.uint8).copy()
    noise = np.random.default_rng([seed, shade]).integers(0, 255, (12, 32, 3))
    array[4 * (shade % 5) : 4 * (shade % 5) + 12] = noise
    Image.fromarray(array).save(path)
    return str(path)


def broken(folder: Path) -> Path:
    """A file that is not a picture."""
    path = folder / "broken.png"
    path.write_bytes(b"no picture")
    return path


def values(result: Result, **labels: str) -> dict[str, Value]:
    """The values of the row with these labels."""
    [row] = [r for r in result.rows if all(r.get(k) == v for k, v in labels.items())]
    return {k: v for k, v in row.items() if isinstance(v, Value)}


class Scripted:
    """A judge with scores from a function of the manifest and of both sides' rows; NaN = no answer."""

    def __init__(self, scores: Callable[[Manifest, np.ndarray, np.ndarray], np.ndarray]) -> None:
        self.scores = scores

    def signature(self) -> dict[str, str]:
        return {"model": "judge"}

    def bind(self, manifest: Manifest, settings: Settings, rows: Sequence[int] | None = None) -> Scripted:
        self.manifest = manifest
        return self

    def pairs(self, a: Sequence[int], b: Sequence[int]) -> np.ndarray:
        return self.scores(self.manifest, np.asarray(a), np.asarray(b))
