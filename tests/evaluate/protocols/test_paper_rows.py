"""Every row of the papers' tables has a model here, or its absence is stated with the numbers."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path

import pytest
import timm

from idmetric.evaluate.protocols.common import models
from idmetric.evaluate.protocols.common.paper_numbers import HUMAN, PAPER_ROWS, missing_rows, open_points, row_of, rows
from idmetric.evaluate.protocols.common.result import Value, as_json
from idmetric.evaluate.protocols.common.scorers import Bound
from idmetric.evaluate.protocols.common.tables import FORMATS
from idmetric.metric.backbone import Backbone
from idmetric.metric.checkpoints import released
from idmetric.metric.named import NAMED

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


SMALL = {"embed_dim": 24, "depth": 1, "num_heads": 2}


@cache
def label_of(source: str) -> str:
    """The label of the model that a source opens; of an encoder, as a small one with random weights has it."""
    kind, _, name = source.partition(":")
    if kind == "timm" or source in NAMED:
        return Backbone(name if kind == "timm" else source, pretrained=False, backbone_args=SMALL, device="cpu").label
    if kind == "dual":
        return f"DualEncoder:{name}"
    if source in released.MODELS:
        family = {"dinov3": "IDSim", "nearid": "NearID", "visid_": "VisIDEmbed"}
        return f"{family[source[:6]]}:{source}"
    return source


@pytest.mark.parametrize(("protocol", "name", "source"), RUNNABLE)
def test_models_of_rows_can_be_opened_by_name(protocol: str, name: str, source: str) -> None:
    kind, _, rest = source.partition(":")
    if kind == "timm" or source in NAMED:
        encoder = NAMED[source].backbone if source in NAMED else rest
        assert timm.is_model_pretrained(encoder)
        assert timm.get_pretrained_cfg(encoder).hf_hub_id
    elif kind == "dual":
        assert rest.count("/") == 1
    elif kind != "judge":
        assert source in (*models.BASELINES, *models.DIFFSIM, *released.MODELS)


@pytest.mark.parametrize(("protocol", "name", "source"), RUNNABLE)
def test_the_numbers_of_a_row_stand_next_to_its_model(protocol: str, name: str, source: str) -> None:
    if source.startswith("judge:"):
        assert row_of(protocol, "judge") is None
    else:
        assert row_of(protocol, label_of(source)) == name


@pytest.mark.parametrize(
    ("protocol", "label"),
    [
        # exact GELU, which OpenAI's weights were not trained with
        ("idsim", "Backbone:vit_large_patch14_clip_224.openai"),
        ("retrieval", "Backbone:vit_large_patch14_clip_336.openai"),
        # class tokens before the projection, at other sizes, not by the Hub's processors
        ("nearid", "Backbone:vit_large_patch14_clip_224.openai"),
        ("nearid", "Backbone:vit_large_patch14_clip_quickgelu_224.openai"),
        ("nearid", "Backbone:vit_large_patch14_dinov2.lvd142m"),
        ("nearid", "Backbone:vit_so400m_patch14_siglip_378.v2_webli"),
        ("nearid", "Backbone:siglip2-mean:nearid"),
        # ratings of other encoders
        ("dreambench", "Backbone:vit_large_patch14_dinov2.lvd142m"),
        ("dreambench", "Backbone:dino-i:dreambench++[crop 0.875, bicubic]"),
        # other poolings, crops and ways of decoding
        ("idsim", "Backbone:vit_large_patch16_dinov3.lvd1689m[avg]"),
        ("idsim", "Backbone:vit_large_patch16_dinov3.lvd1689m[crop 1, bicubic]"),
        ("retrieval", "Backbone:vit_large_patch16_siglip_384.webli[avg]"),
        ("nearid", "NearID:mine"),
    ],
)
def test_another_encoder_pooling_or_transform_has_no_numbers_of_the_paper(protocol: str, label: str) -> None:
    assert row_of(protocol, label) is None


def test_the_release_s_reading_and_a_model_s_own_class_token_stay_the_paper_s_model() -> None:
    assert row_of("idsim", "IDSim:dinov3_vitl16[release preprocessing]") == "ID-Sim"
    assert row_of("idsim", "IDSim:chaenayo/id-sim_dinov3_vitl16_cls_patch") == "ID-Sim"
    assert row_of("nearid", "NearID:Aleksandar/nearid-siglip2") == "NearID"
    assert row_of("dreambench", "NearID:nearid") == "nearid"
    assert row_of("idsim", "Backbone:vit_large_patch16_dinov3.lvd1689m[cls]") == "DINOv3 ViT-L"


def test_what_a_paper_leaves_open_is_noted_with_its_numbers() -> None:
    [note] = open_points("idsim", "Backbone:vit_large_patch14_clip_quickgelu_224.openai")
    assert note.startswith("the paper's row CLIP ViT-L: the paper gives neither the input size")
    assert open_points("idsim", "IDSim:dinov3_vitl16") == open_points("idsim", "IDSim:tiny") == []
    assert open_points("folder", "lpips") == []  # a protocol without a paper's table


def test_single_branches_and_diffsim_have_no_numbers_of_others() -> None:
    for name in (*(f"dreamsim:{branch}" for branch in models.BRANCHES), "diffsim:cute"):
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
        text = FORMATS[name](results)
        assert text.count("missing row of the paper") == 1, name
        assert line in text
    found = json.loads(as_json(results))["results"]
    assert [one["missing"] for one in found] == [missing_rows("nearid")] * 2
    assert set(missing_rows("nearid")) == {"VSM"}
    assert set(missing_rows("idsim")) == {"UNED", "ID-Sim without patch supervision"}


def test_a_row_has_a_model_or_a_reason() -> None:
    for protocol_rows in PAPER_ROWS.values():
        for row in protocol_rows.values():
            assert row.keys() in ({"model"}, {"model", "open"}, {"missing"})


def test_the_page_of_protocols_names_every_missing_row_and_open_point() -> None:
    text = (Path(__file__).parents[3] / "docs/reports/releases.md").read_text(encoding="utf-8")
    without_model, left_open = (
        text.partition(f"## {title}")[2].partition("\n## ")[0]
        for title in ("Rows without a model", "Rows that a paper leaves open")
    )
    for protocol_rows in PAPER_ROWS.values():
        for name, row in protocol_rows.items():
            if "missing" in row:
                assert name in without_model
            if "open" in row:
                assert f"| {name} |" in left_open
