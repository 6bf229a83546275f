"""benchmarks/speed.py: each comparison measures what it says."""

from __future__ import annotations

import sys
from collections.abc import Iterator

import pytest
import torch
from bench import make_files
from rows import Row
from timing import Clock

from benchmarks import speed
from idmetric import Backbone, IDSim

CLOCK = Clock(torch.device("cpu"), repeats=3, warmup=1)


@pytest.fixture(scope="module")
def setting() -> speed.Compared:
    return speed.Compared(
        make_files(8, (40, 30)), batch=2, clock=CLOCK, sets=3, tokens=30, channels=16, references=2, candidates=3,
        sample=4,
    )  # fmt: skip


@pytest.fixture(scope="module")
def resnet() -> Backbone:
    args = {"channels": [8, 8, 8, 8], "layers": [1, 1, 1, 1]}
    return Backbone("resnet18", pretrained=False, image_size=32, backbone_args=args, device="cpu")


def by_name(rows: Iterator[Row]) -> dict[str, Row]:
    return {row.what: row for row in rows}


def test_overhead_is_over_the_bare_forward_of_timm(resnet: Backbone, setting: speed.Compared) -> None:
    seen: list[str] = []
    trunk = resnet.backbone.forward
    resnet.backbone.forward = lambda x: seen.append("bare") or trunk(x)  # type: ignore[assignment]
    try:
        found = by_name(speed.overhead(resnet, setting))
    finally:
        del resnet.backbone.forward
    assert seen == ["bare"] * 4  # one to warm up, three rounds: the pipeline calls forward_features
    assert found[speed.BARE].ratio is None
    row = found["embed decoded images"]
    assert row.against == speed.BARE
    assert row.ratio is not None
    assert row.ratio.low <= row.ratio.median <= row.ratio.high


def test_scores_of_files(metric: IDSim, setting: speed.Compared, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(speed, "LARGE", (480, 400))
    rows = list(speed.files(metric, setting))
    compared = [(row.what, row.against) for row in rows if row.against]
    assert {("scores", speed.ALONE), ("scores", speed.READING)} <= set(compared)
    assert {row.timing.items for row in rows if row.timing is not None} == {10}


def test_the_sinkhorn_matrix_has_the_values_of_geomloss(setting: speed.Compared) -> None:
    pytest.importorskip("geomloss")
    found = by_name(speed.sinkhorn(setting))
    matrix = found.pop("sinkhorn, 3 x 3")
    assert matrix.timing is not None
    assert matrix.timing.items == 9
    assert set(found) == {"sinkhorn, pair by pair", "geomloss, pair by pair"}
    for row in found.values():
        assert row.timing is not None
        assert row.timing.items == 4
        assert row.numbers is not None
        assert row.numbers["largest difference from the matrix"] < 1e-6
    assert torch.is_grad_enabled()


def test_packages_that_are_missing_are_left_out_with_the_reason(
    metric: IDSim, setting: speed.Compared, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("lpips", "geomloss"):
        monkeypatch.setitem(sys.modules, name, None)
    monkeypatch.setattr(speed, "ENCODERS", {})
    found = by_name(speed.metrics(metric, setting))
    assert found["this metric"].timing is not None
    for name in speed.LPIPS:
        assert found[name].timing is None
        assert "pip install lpips" in found[name].note
    assert "pip install geomloss" in by_name(speed.sinkhorn(setting))["geomloss, pair by pair"].note


def test_the_pairwise_section_counts_what_is_embedded(metric: IDSim, setting: speed.Compared) -> None:
    found = by_name(speed.pairwise(metric, setting))
    assert found["pairwise, 2 x 3"].note == "5 embedded for all pairs"
    assert found["pair by pair"].note == "12 embedded for all pairs"
    assert "embed_pixels" not in vars(metric)  # the counter is gone
