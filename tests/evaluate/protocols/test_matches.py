"""The protocol `matches` against a slow computation."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from PIL import Image

from idmetric import IDSim
from idmetric.data.manifest.table import Manifest, Row
from idmetric.evaluate.protocols import matches
from idmetric.evaluate.protocols.common.models import open_model
from idmetric.evaluate.protocols.common.scorers import EvalSettings
from idmetric.evaluate.protocols.matches import MatchesOptions
from idmetric.stream.item import Look
from tests.evaluate.protocols.parts import values

PLAIN = EvalSettings(bootstrap=0, workers=1)


@pytest.fixture
def data(tmp_path: Path) -> Manifest:
    """Three things of two data sets with masks, of 2, 3 and 1 images, and an image without a mask."""
    rows = []
    for thing, dataset, count in (("a", "x", 2), ("b", "y", 3), ("c", "y", 1)):
        for view in range(count):
            rng = np.random.default_rng([ord(thing), view])
            image, mask = rng.integers(0, 80, (64, 64, 3), dtype=np.uint8), np.zeros((64, 64), np.uint8)
            top, left = rng.integers(4, 24, 2)
            mask[top : top + 36, left : left + 32] = 255
            image[mask > 0] = np.random.default_rng(ord(thing)).integers(0, 256, (mask > 0).sum())[:, None]
            Image.fromarray(image).save(tmp_path / f"{thing}{view}.png")
            Image.fromarray(mask).save(tmp_path / f"{thing}{view}-mask.png")
            files = f"{thing}{view}.png", f"{thing}{view}-mask.png"
            rows.append(Row(thing, files[0], id=f"{thing}{view}", dataset=dataset, mask=files[1]))
    Image.new("RGB", (64, 64)).save(tmp_path / "plain.png")
    rows.append(Row("a", "plain.png", id="a9", dataset="x"))
    return Manifest.from_rows(rows, tmp_path)


def share(metric: IDSim, root: Path, a: str, b: str, count: int, border: bool) -> float:
    """Of the strongest matches of a pair, those with both ends on the subject, by loops over a grid of 4 x 4."""
    ring = [p for p in range(16) if p // 4 in (0, 3) or p % 4 in (0, 3)]
    units, inside, unlike = [], [], []
    for name in (a, b):
        patches = metric.embed(root / f"{name}.png").patches
        assert patches is not None
        units.append(F.normalize(patches[0], dim=-1).half().float())
        mask = torch.from_numpy(np.asarray(Image.open(root / f"{name}-mask.png")) / 255)
        inside.append([float(mask[16 * r : 16 * r + 16, 16 * c : 16 * c + 16].mean()) >= 0.5
                       for r in range(4) for c in range(4)])  # fmt: skip
        likeness = [float(np.mean([float(u @ units[-1][k]) for k in ring])) if border else 0.0 for u in units[-1]]
        unlike.append([1 - min(max(value, 0.0), 1.0) for value in likeness])
    cosine = [[float(a @ b) for b in units[1]] for a in units[0]]
    crowd = [float(np.mean(sorted(row, reverse=True)[:10])) if border else 0.0 for row in cosine]
    found = []
    for j in range(16):
        i = int(np.argmax([2 * cosine[i][j] - crowd[i] + unlike[0][i] / 2 for i in range(16)]))
        found.append((-cosine[i][j] * unlike[0][i] * unlike[1][j], inside[0][i] and inside[1][j]))
    return float(np.mean([on for _, on in sorted(found, key=lambda one: one[0])[:count]]))


def test_shares_are_those_of_a_slow_computation(data: Manifest, metric: IDSim) -> None:
    [result] = matches.run(data, {"m": metric}, PLAIN, MatchesOptions(4))
    pairs = {"x": [("a0", "a1")], "y": [("b0", "b1"), ("b1", "b2"), ("b2", "b0")]}
    for dataset, of in pairs.items():
        row = values(result, dataset=dataset)
        for title, border in (("on subject", True), ("by cosine", False)):
            expected = np.mean([share(metric, data.root, a, b, 4, border) for a, b in of])
            assert row[title].value == pytest.approx(expected, abs=1e-6)
        assert row["area"].value == pytest.approx(0.1, abs=0.1)
    kept = result.items["pairs"]
    assert list(zip(kept["reference"], kept["image"], strict=True)) == pairs["x"] + pairs["y"]


def test_what_cannot_be_matched_is_refused(data: Manifest, metric: IDSim) -> None:
    with pytest.raises(ValueError, match="models without patches: hsv"):
        matches.run(data, {"hsv": open_model("hsv")}, PLAIN)
    with pytest.raises(ValueError, match="leave --subject out"):
        matches.run(data, {"m": metric}, EvalSettings(bootstrap=0, look=Look(masked=True)))
    with pytest.raises(ValueError, match="no identity has two images with masks"):
        matches.run(data.take(np.array([0, 5, 6])), {"m": metric}, PLAIN)
