"""Every row of the papers' tables has a model here, or its absence is stated with the numbers."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import timm

from idmetric.checkpoints import released
from idmetric.models.named import FROZEN
from idmetric.protocols.common import models
from idmetric.protocols.common.paper_numbers import HUMAN, PAPER_ROWS, missing_rows, row_of, rows
from idmetric.protocols.common.result import Value, as_json
from idmetric.protocols.common.scorers import Bound
from idmetric.protocols.common.tables import FORMATS, View

# protocol -> the rows with printed numbers
PRINTED = {
    "idsim": {*rows("idsim", "fig_25", "table_2b", "table_2a")},
    "sensitivity": {*rows("idsim", "fig_25")},
    "segmentation": {*rows("idsim", "table_2c")},
    "nearid": {*rows("nearid", "table_5", "table_7", "oracle")},
    "dreambench": {
        *rows("nearid", "fisher", "by_category"), *rows("idsim", "dreambench_fig_25", "dreambench_table_2b")
    } - {HUMAN},
    "retrieval": {*rows("ilgen", "table_5")},
    "mveb": {*rows("visme", "mveb")}, "mmeb": {*rows("visme", "mmeb")},
}  # fmt: skip

# rows that a paper compares without numbers in the tables above, as the text of its tables and sections names them
TEXT = {
    "idsim": {"DiffSim", "Gemini"},
    "nearid": {"VSM", "Qwen3-VL 4B", "Qwen3-VL 8B", "Qwen3-VL 30B"},
    "dreambench": {"DiffSim", "GPT-4o", "GPT-5", "Gemini"},
}

RUNNABLE = [
    (protocol, name, row["model"])
    for protocol, own in PAPER_ROWS.items()
    for name, row in own.items()
    if "model" in row
]


@pytest.mark.parametrize("protocol", PRINTED)
def test_every_row_of_a_paper_runs_or_is_missing_by_name(protocol: str) -> None:
    assert PAPER_ROWS[protocol].keys() == PRINTED[protocol] | TEXT.get(protocol, set())


def label_of(source: str) -> str:
    """The start of the label that the model of a source has."""
    kind, _, name = source.partition(":")
    if source in FROZEN:
        return f"Backbone:{FROZEN[source][0]}"
    if kind == "timm":
        return f"Backbone:{name}"
    if kind == "dual":
        return f"DualEncoder:{name}"
    if source in released.models():
        family = {"dinov3": "IDSim", "nearid": "NearID", "visid_": "VisIDEmbed"}
        return f"{family[source[:6]]}:{source}"
    return source


@pytest.mark.parametrize(("protocol", "name", "source"), RUNNABLE)
def test_models_of_rows_can_be_opened_by_name(protocol: str, name: str, source: str) -> None:
    kind, _, rest = source.partition(":")
    if kind == "timm" or source in FROZEN:
        encoder = FROZEN[source][0] if source in FROZEN else rest
        assert timm.is_model_pretrained(encoder)
        assert timm.get_pretrained_cfg(encoder).hf_hub_id
    elif kind == "dual":
        assert rest.count("/") == 1
    elif kind != "judge":
        assert source in (*models.BASELINES, *models.DIFFSIM, *released.models())


@pytest.mark.parametrize(
    ("protocol", "paper"),
    [("idsim", "idsim"), ("sensitivity", "idsim"), ("segmentation", "idsim"), ("nearid", "nearid"),
     ("retrieval", "ilgen"), ("mveb", "visme"), ("mmeb", "visme")],
)  # fmt: skip
def test_the_numbers_of_a_row_stand_next_to_its_model(protocol: str, paper: str) -> None:
    for name, row in PAPER_ROWS[protocol].items():
        if "model" in row and not row["model"].startswith("judge:") and name in PRINTED[protocol]:
            assert row_of(paper, label_of(row["model"])) == name


def test_single_branches_and_diffsim_have_no_numbers_of_others() -> None:
    for name in (*(f"dreamsim:{branch}" for branch in models.BRANCHES), *models.DIFFSIM):
        assert row_of("idsim", name) is None
    assert row_of("idsim", "dreamsim") == "DreamSim"


def test_missing_rows_are_in_every_form_of_a_result() -> None:
    class Scorer:
        def signature(self) -> dict[str, str]:
            return {"model": "tiny"}

    bound = Bound(None, {"a": Scorer(), "b": Scorer()}, ["a note"])  # type: ignore[arg-type, dict-item]
    results = [result for _, result in bound.results("nearid", {})]
    for result in results:
        result.rows.append({"source": "fill", "SSR": Value(0.5, None, None, 4)})
    line = f"missing row of the paper: VSM ({missing_rows('nearid')['VSM']})"
    for name in ("table", "markdown", "latex"):
        text = FORMATS[name](results, View())
        assert text.count("missing row of the paper") == 1, name
        assert line in text
    found = json.loads(as_json(results))["results"]
    assert [one["missing"] for one in found] == [missing_rows("nearid")] * 2
    assert set(missing_rows("nearid")) == {"VSM"}
    assert set(missing_rows("idsim")) == {"UNED", "ID-Sim without patch supervision"}


def test_a_row_has_a_model_or_a_reason() -> None:
    assert all(row.keys() in ({"model"}, {"missing"}) for own in PAPER_ROWS.values() for row in own.values())


def test_the_page_of_protocols_names_every_missing_row() -> None:
    text = (Path(__file__).parents[2] / "docs/reports/releases.md").read_text(encoding="utf-8")
    section = text.partition("## Rows without a model")[2].partition("\n## ")[0]
    for own in PAPER_ROWS.values():
        for name in (name for name, row in own.items() if "missing" in row):
            assert name in section
