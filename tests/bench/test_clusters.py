"""The benchmark of groups: scikit-learn's index of what `gallery cluster` finds."""

from __future__ import annotations

import sys
from pathlib import Path

import clusters
import numpy as np
import pytest
from PIL import Image


def test_the_index_and_number_of_groups_follow_the_threshold() -> None:
    angles = np.radians([0, 5, 40, 45, 90, 95])
    vectors = np.stack([np.cos(angles), np.sin(angles)], 1).astype(np.float32)
    identities = np.array(["a", "a", "b", "b", "c", "c"], dtype=object)
    assert clusters.agreement(vectors, identities, 0.0) == (0.0, 6)
    assert clusters.agreement(vectors, identities, 0.05) == (1.0, 3)
    index, groups = clusters.agreement(vectors, identities, 0.3)  # a and b together, or b and c
    assert groups == 2
    # the adjusted Rand index by its formula: 3 pairs of one identity in one group, of 3 and of 7, of 15 in all
    assert index == pytest.approx((3 - 3 * 7 / 15) / ((3 + 7) / 2 - 3 * 7 / 15))
    assert clusters.agreement(vectors, identities, 2.0) == (0.0, 1)


def test_the_command_prints_each_dataset_of_the_splits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    rng = np.random.default_rng(0)
    lines = ["split,dataset,identity,path"]
    for dataset in ("mugs", "cats"):
        for identity in range(2):
            color = rng.integers(0, 256, 3)
            for k in range(2):
                file = f"{dataset}-{identity}-{k}.png"
                pixels = np.broadcast_to(color, (40, 40, 3)) // (k + 1)
                Image.fromarray(pixels.astype(np.uint8)).save(tmp_path / file)
                lines.append(f"dev,{dataset},{identity},{file}")
    (tmp_path / "manifest.csv").write_text("\n".join(lines))
    arguments = ["clusters.py", str(tmp_path), "--split", "dev", "--threshold", "0.2", "--out", str(tmp_path / "out")]
    monkeypatch.setattr(sys, "argv", arguments)

    clusters.main()
    head, *rows = capsys.readouterr().out.splitlines()
    assert head.split() == ["threshold", "all", "mugs", "cats"]
    assert [row.split()[0] for row in rows] == ["0.200", "0.243", "0.363", "0.432"]
