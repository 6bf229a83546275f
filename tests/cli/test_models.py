"""`idmetric models`, and the page with its tables."""

from __future__ import annotations

import runpy
from pathlib import Path

import pytest

from idmetric.cli.list_models import facts, fitting_model, states
from idmetric.metric.checkpoints import released

ROOT = Path(__file__).parents[2]


def test_each_model_has_facts_and_a_state() -> None:
    names = [row[0] for row in facts()[1:]]
    assert names == ["tiny", "efficientnet-lite0", *released.MODELS]
    assert len(states()) == len(names)


def test_the_page_has_the_table_of_the_command() -> None:
    script = "docs/scripts/which_model.py"
    module = runpy.run_path(str(ROOT / script))
    text = (ROOT / "docs/models/which.md").read_text(encoding="utf-8")
    assert text == module["page"](), f"run: python {script}"
    for row in facts():
        assert f"| {' | '.join(row)} |\n" in text


@pytest.mark.parametrize(
    ("device", "gigabytes", "name"),
    [
        ("cuda", 80, "dinov3_vitl16"),
        ("cuda", 5.0, "dinov3_vitl16"),  # passes of 32 need 2.47 GB, half of 4.95
        ("cuda", 4.9, "dinov3_vitb16"),  # 1.29 GB, half of 2.59
        ("cuda", 2.6, "dinov3_vitb16"),
        ("cuda", 2.5, "tiny"),
        ("mps", 16, "dinov3_vitl16"),
        ("cpu", 64, "dinov3_vitb16"),
        ("cpu", 2.5, "tiny"),
        ("cpu", None, "dinov3_vitb16"),
        ("cpu", 137, "dinov3_vitb16"),
    ],
)
def test_the_fitting_model_needs_at_most_half_of_the_memory(device: str, gigabytes: float | None, name: str) -> None:
    chosen, reason = fitting_model(device, None if gigabytes is None else gigabytes * 1e9)
    assert chosen == name
    assert "\n" not in reason
    assert ("of unknown memory" if gigabytes is None else f"of {gigabytes:.3g} GB") in reason
    assert ("without a GPU" in reason) == (device == "cpu" and name != "tiny")
