"""`idmetric models`, and the page with its tables."""

from __future__ import annotations

import runpy
from pathlib import Path

import pytest

from idmetric.cli.list_models import facts, fitting_model, needs, states
from idmetric.metric.checkpoints import released
from idmetric.metric.sizes import SIZES

ROOT = Path(__file__).parents[2]


def test_each_model_has_facts_needs_and_a_state() -> None:
    names = [row[0] for row in facts()[1:]]
    assert names == ["tiny", "efficientnet-lite0", *released.MODELS]
    assert [row[0] for row in needs()[1:]] == names == list(SIZES)
    assert len(states()) == len(names)


def test_the_page_has_the_tables_of_the_command() -> None:
    script = "docs/scripts/which_model.py"
    module = runpy.run_path(str(ROOT / script))
    text = (ROOT / "docs/models/which.md").read_text(encoding="utf-8")
    assert text == module["page"](), f"run: python {script}"
    for row in [*facts(), *needs()]:
        assert f"| {' | '.join(row)} |\n" in text


def test_a_row_of_needs_by_hand() -> None:
    """Memory: 305,183,746 x 4 bytes + batch x 39.18 MB. A100: 0.4 x 19.5e12 / 540.6e9 = 14.4; x 312e12: 231."""
    rows = {row[0]: row for row in needs()}
    assert rows["dinov3_vitl16"] == [
        "dinov3_vitl16", "305 M", "540", "1.3/1.5/2.5 GB", "0.18", "6/48", "14/230", "50/730"
    ]  # fmt: skip
    assert rows["visid_3b"][3:] == ["7.5/7.7/8.3 GB", "-", "9.1", "44", "140"]  # bfloat16 alone
    assert rows["tiny"][-3:] == ["-", "-", "-"]


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
    assert (
        "of unknown memory" if gigabytes is None else f"of {'140' if gigabytes == 137 else f'{gigabytes:.2g}'} GB"
    ) in reason
    assert ("without a GPU" in reason) == (device == "cpu" and name != "tiny")
