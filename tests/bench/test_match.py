"""benchmarks/match.py: both sides of each comparison do the same work."""

from __future__ import annotations

import pytest

from benchmarks import match as benchmark
from idmetric.matching.frames import times

SMALL = ["--device=cpu", "--size", "96", "64", "--images=2", "--regions=3", "--subjects=2", "--frames=5", "--batch=4"]


def test_boxes_are_apart_and_inside() -> None:
    boxes = benchmark.boxes_of((96, 64), 6)
    assert len(set(boxes)) == 6
    assert all(0 <= left < right <= 96 and 0 <= top < bottom <= 64 for left, top, right, bottom in boxes)


def test_both_sides_embed_the_same_number_of_images(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of the one round that warms up; the matched side embeds its references before."""
    counts: dict[str, list[int]] = {}

    class Counter:
        def __init__(self, *_: object) -> None: ...

        def alternate(self, runs: dict, items: dict) -> dict:
            for name, run in runs.items():
                counts[name] = []
                seen = counts[name]
                monkeypatch.setattr(
                    benchmark.Embedder,
                    "embed_pixels",
                    lambda self, pixels, seen=seen: seen.append(len(pixels)) or embed_pixels(self, pixels),
                )
                run()
            monkeypatch.setattr(benchmark.Embedder, "embed_pixels", embed_pixels)
            assert set(items) == set(runs)
            return {}

    embed_pixels = benchmark.Embedder.embed_pixels
    monkeypatch.setattr(benchmark, "Clock", Counter)
    assert benchmark.main(SMALL) == []
    totals = {name: sum(sizes) for name, sizes in counts.items()}
    assert set(totals.values()) == {6, 5}  # 2 images x 3 regions; 5 frames
    assert list(totals.values()) == [6, 6, 5, 5]


def test_the_clip_has_its_frames(tmp_path) -> None:
    benchmark.write_clip(tmp_path / "clip.mp4", 7, (96, 64))
    assert len(times(tmp_path / "clip.mp4")) == 7
