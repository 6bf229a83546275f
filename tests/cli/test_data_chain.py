"""A recipe's commands in a row, on the procedural world: each reads the manifest that the one before wrote."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from idmetric.cli.data import main
from idmetric.data.manifest.split import leaks
from idmetric.data.manifest.table import read


@pytest.mark.slow
def test_idsims_recipe_from_rendering_to_triplets(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)

    def cli(*arguments: str) -> None:
        assert main([*arguments, "--quiet"]) == 0

    small = ["--size", "48", "--distractors", "0"]
    cli("world", "-o", "photos", "-n", "12", *small)
    cli("world", "-o", "clips", "-n", "20", "--seed", "1", *small, "--views", "2", "--context-edits", "1",
        "--identity-edits", "1", "--strengths", "0.75")  # fmt: skip
    cli("info", "clips/manifest.parquet", "--decode", "--need-masks", "--strict")
    cli("curate", "photos/manifest.parquet", "-o", "real.parquet", "--recipe", "idsim", "--count", "11")
    cli("mine", "negatives", "real.parquet", "-o", "mined.parquet", "--model", "tiny", "--device", "cpu")
    cli("split", "clips/manifest.parquet", "-o", "edits.parquet", "--part", "train=10", "--part", "val=10")
    cli("mine", "triplets", "mined.parquet", "--context", "edits.parquet", "--identity", "edits.parquet",
        "--split", "train", "--count", "27", "-o", "mixture.parquet")  # fmt: skip

    real, mixture = read("real.parquet"), read("mixture.parquet")
    assert Counter(real.column("split")) == {"train": 20, "val": 2}
    assert leaks(real) == leaks(read("edits.parquet")) == {}
    assert Counter(mixture.column("x_mixture")) == {"real": 27, "context": 27, "identity": 27}
    for group in dict.fromkeys(mixture.column("group")):
        rows = {r.slot: r for r in mixture.filter(group=group)}
        assert rows["anchor"].identity == rows["positive"].identity != rows["negative"].identity
        assert rows["anchor"].id != rows["positive"].id
    for k in range(len(mixture)):
        assert mixture.image(k).size == (48, 48)
