"""MMEB: precision at 1 and all means again by loops, on embeddings of single items."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest
import torch
from pandas import DataFrame

from idmetric import VisIDEmbed
from idmetric.data.importers.run import import_dataset
from idmetric.data.manifest import with_columns
from idmetric.evaluate.protocols.common import paper_numbers
from idmetric.evaluate.protocols.common.dual_encoder import DualEncoder
from idmetric.evaluate.protocols.common.first_choice import means
from idmetric.evaluate.protocols.common.result import Result, Value
from idmetric.evaluate.protocols.common.scorers import EvalSettings
from idmetric.evaluate.protocols.mmeb_visme_table1 import MMEB, ask, run
from idmetric.metric.idsim import IDSim
from idmetric.metric.visid.prompt import PromptInput
from tests.evaluate.protocols.parts import PLAIN, broken, values
from tests.mmeb_files import write_eval
from tests.table_parts import where

pytest.importorskip("transformers")
PRINTED = paper_numbers.PAPERS["visme"]["mmeb"]["rows"]
SETS = {"ImageNet-1K": "Cls", "MSCOCO_t2i": "Ret", "OVEN": "Ret"}
OUT_OF_DOMAIN = {name for name in MMEB.task_of if MMEB.domain(name) == "OOD"}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_eval(tmp_path_factory.mktemp("MMEB-eval"))


@pytest.fixture(scope="module")
def data(folder: Path) -> DataFrame:
    return import_dataset("mmeb", folder, options={"image_dir": str(folder / "images")})


def slow(folder: Path, subset: str, vector: Callable[[str, str], np.ndarray]) -> list[bool]:
    """Whether each question of a table has its first candidate strictly nearest, item by item."""
    won = []
    for line in pq.read_table(folder / subset).to_pylist():
        query = vector(line["qry_text"], line["qry_img_path"])
        cells = list(zip(line["tgt_text"], line["tgt_img_path"], strict=True))
        scores = [float(query @ vector(*cell)) for cell in cells]
        won.append(all(scores[0] > s + 1e-9 for s, cell in zip(scores, cells, strict=True) if cell != cells[0]))
    return won


def share(result: Result, dataset: str) -> Value:
    return values(result, dataset=dataset)["P@1"]


# Numbers


def test_p_at_1_of_visid_is_that_of_single_embeddings_of_the_tables_items(
    reader: VisIDEmbed, folder: Path, data: DataFrame
) -> None:
    known: dict[tuple[str, str], np.ndarray] = {}

    def vector(text: str, path: str) -> np.ndarray:
        if (text, path) not in known:
            words = text.removeprefix("<|image_1|>")
            image = str(folder / "images" / path) if path else None
            found = reader.embed(image, texts=words, instruction="", patches=False)
            known[text, path] = found.cls[0].double().numpy()
        return known[text, path]

    [result] = run(data, {"r": reader}, PLAIN)
    expected = {subset: slow(folder, subset, vector) for subset in (*SETS, "Mine")}
    for subset, won in expected.items():
        items = result.items["questions"]
        own = [v for d, v in zip(items["dataset"], items["P@1"], strict=True) if d in (subset, f"mmeb/{subset}")]
        assert own == won
    assert any(sum(won) not in (0, len(won)) for won in expected.values())  # or the test would show little
    for subset, task in SETS.items():
        assert share(result, subset).value == pytest.approx(np.mean(expected[subset]))
        assert values(result, task=task, dataset=subset)
    assert [row["domain"] for row in result.rows[:4]] == ["IND", "IND", "OOD", "-"]
    assert "not among MMEB's sets, and in no mean over them: mmeb/Mine" in result.notes


def test_the_prompt_of_an_mmeb_text_is_that_of_vlm2vec(reader: VisIDEmbed) -> None:
    """VLM2Vec replaces <|image_1|> in the text by the model's token: the line break follows it, without a space."""
    ids = reader._tokens(PromptInput("\nRepresent the given image\n", torch.zeros(3, 56, 56)))
    text = "<|image_pad|>" * 4 + "\nRepresent the given image\n"
    assert ids == reader.tokenizer(text, add_special_tokens=False)["input_ids"]


def test_p_at_1_of_dual_encoders(dual: DualEncoder, folder: Path, data: DataFrame) -> None:
    from idmetric.metric.images import read_image

    def unit(x: torch.Tensor) -> np.ndarray:
        return (x / x.norm()).double().numpy()

    def vector(text: str, path: str) -> np.ndarray:
        parts = []
        words = text.removeprefix("<|image_1|>")
        if path:
            pixels, _ = dual.prepare(read_image(folder / "images" / path), None, None)
            assert pixels is not None
            parts.append(dual.images([pixels])[0])
        if words:
            parts.append(dual.texts([words])[0])
        return unit(torch.stack(parts).mean(0))

    [result] = run(data, {"d": dual}, PLAIN)
    for subset in SETS:
        assert share(result, subset).value == pytest.approx(np.mean(slow(folder, subset, vector)))


def test_queries_of_one_image_are_one_unit_of_intervals(data: DataFrame) -> None:
    is_image_query = data["path"].notna() & (data["slot"] == "query")
    same = data.assign(path=data["path"].mask(is_image_query, data["path"].dropna().iloc[0]))
    units = {found.dataset: len(set(found.owner.tolist())) for found in ask(same)[0]}
    assert units == {"ImageNet-1K": 1, "MSCOCO_t2i": 6, "OVEN": 1, "mmeb/Mine": 2}


# Means


def test_36_sets_in_four_meta_tasks_20_in_domain() -> None:
    counts = {task: list(MMEB.task_of.values()).count(task) for task in MMEB.sets}
    assert counts == {"Cls": 10, "VQA": 10, "Ret": 12, "Grd": 4}
    assert (len(MMEB.task_of), len(OUT_OF_DOMAIN)) == (36, 16)
    assert MMEB.known_name("mmeb/ImageNet_1K") == "ImageNet-1K"
    assert MMEB.known_name("MSCOCO") == "MSCOCO"
    assert MMEB.known_name("mmeb/MSCOCO_i2t") == "MSCOCO_i2t"
    assert MMEB.known_name("mine") is None


def test_means_over_meta_tasks_domains_and_all() -> None:
    rng = np.random.default_rng(0)
    shares = {name: float(rng.random()) for name in MMEB.task_of}
    rows = means({n: Value(v, None, None, 10) for n, v in shares.items()}, MMEB, "VisME (Qwen2.5-VL-3B)")
    found = {(str(row["task"]), str(row["domain"])): row["P@1"] for row in rows}
    assert all(isinstance(v, Value) for v in found.values())
    task_of = MMEB.task_of
    expected = {(t, "-"): [v for n, v in shares.items() if task_of[n] == t] for t in ("Cls", "VQA", "Ret", "Grd")}
    expected["-", "IND"] = [v for n, v in shares.items() if n not in OUT_OF_DOMAIN]
    expected["-", "OOD"] = [v for n, v in shares.items() if n in OUT_OF_DOMAIN]
    expected["-", "MMEB"] = list(shares.values())
    assert {k: v.value for k, v in found.items()} == pytest.approx({k: sum(v) / len(v) for k, v in expected.items()})  # type: ignore[union-attr]
    papers = {k: v.paper for k, v in found.items()}  # type: ignore[union-attr]
    assert papers == pytest.approx({
        ("Cls", "-"): 0.633, ("VQA", "-"): 0.674, ("Ret", "-"): 0.705, ("Grd", "-"): 0.878, ("-", "IND"): 0.751,
        ("-", "OOD"): 0.603, ("-", "MMEB"): 0.696,
    })  # fmt: skip


def test_the_average_of_table_1_is_over_the_36_sets() -> None:
    counts = [list(MMEB.task_of.values()).count(task) for task in MMEB.sets]
    off = {row: abs(float(np.average(printed[:4], weights=counts)) - printed[4]) for row, printed in PRINTED.items()}
    # UniME's is the mean of its four meta-tasks
    assert {row for row, gap in off.items() if gap > 0.1} == {"UniME (Phi-3.5-V)"}
    assert np.mean(PRINTED["UniME (Phi-3.5-V)"][:4]) == pytest.approx(64.2, abs=0.1)


# Models, settings and faults


def test_models_that_do_not_read_are_refused(model: IDSim, data: DataFrame) -> None:
    with pytest.raises(ValueError, match="models without a text tower: m"):
        run(data, {"m": model}, PLAIN)


def test_questions_with_unreadable_images_are_refused_or_left_out(
    reader: VisIDEmbed, data: DataFrame, tmp_path: Path
) -> None:
    paths, ids = data["path"].tolist(), data["id"].tolist()
    at = ids.index("mmeb/MSCOCO_t2i/test/candidate-000000")
    paths[at] = str(broken(tmp_path))
    spoilt = with_columns(data, path=paths)
    with pytest.raises(ValueError, match="1 images cannot be used"):
        run(spoilt, {"r": reader}, PLAIN)
    [result] = run(spoilt, {"r": reader}, EvalSettings(bootstrap=0, on_error="skip"))
    lists = dict(zip(ids, data["x_candidates"].tolist(), strict=True))
    lost = sum(0 in listed for name, listed in lists.items() if listed is not None and "/MSCOCO_t2i/" in name)
    assert share(result, "MSCOCO_t2i").count == 6 - lost
    assert f"MSCOCO_t2i: questions left out, as they need rows that are missing: {lost}" in result.notes


def test_manifests_without_lists_or_candidates_are_refused(data: DataFrame) -> None:
    with pytest.raises(ValueError, match="make the manifest by idmetric data import mmeb"):
        ask(data.drop(columns="x_candidates"))
    with pytest.raises(ValueError, match="row 1, column x_candidates"):  # as from a CSV file
        ask(data.assign(x_candidates="[0, 1]"))
    with pytest.raises(ValueError, match="which has no row in the manifest"):
        ask(where(data, slot="query"))
