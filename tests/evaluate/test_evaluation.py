"""Protocols from Python: the same numbers and the same page as by the command, as an object."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

import idmetric
from idmetric import IDSim
from idmetric.cli.eval import main
from idmetric.evaluate.protocols.common.result import Result, Value
from idmetric.metric.errors import RequestError
from tests.table_parts import a_table

PATTERN = "{method}/{subject}/{seed}.png"
pytest.importorskip("pyarrow")
pytest.importorskip("sklearn")


@pytest.fixture(scope="module")
def outputs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Outputs of two methods for two subjects, and their references."""
    folder = tmp_path_factory.mktemp("outputs")
    rng = np.random.default_rng(0)
    for subject in ("cat", "mug"):
        base = rng.integers(0, 256, (6, 6, 3))
        for role, count in (("references", 2), ("methods/one", 2), ("methods/two", 2)):
            for number in range(count):
                noise = rng.integers(-40 * len(role), 40 * len(role), (6, 6, 3)) // 4
                pixels = (base + noise).clip(0, 255).astype(np.uint8)
                path = folder / role / subject / f"{number}.png"
                path.parent.mkdir(parents=True, exist_ok=True)
                Image.fromarray(pixels).resize((64, 64)).save(path)
    return folder


def call(outputs: Path, models: Any, **options: Any) -> idmetric.Evaluation:
    options |= {"pattern": PATTERN, "references": outputs / "references", "bootstrap": 20}
    return idmetric.evaluation("generator", str(outputs / "methods"), models, **options)


def test_a_generators_page_takes_two_lines_and_is_the_commands(outputs: Path, tmp_path: Path, capsys: Any) -> None:
    pytest.importorskip("jinja2")
    pytest.importorskip("matplotlib")
    words = ["generator", "--data", str(outputs / "methods"), "--references", str(outputs / "references")]
    words += ["--pattern", PATTERN]
    words += ["--model", "tiny", "--bootstrap", "20", "--device", "cpu", "--format", "csv", "--quiet"]
    assert main([*words, "--html", str(tmp_path / "command.html")]) == 0
    printed = capsys.readouterr().out

    result = call(outputs, "tiny", device="cpu")
    result.write(tmp_path / "python.html")
    assert result.to_csv() == printed
    pages = [(tmp_path / f"{name}.html").read_text(encoding="utf-8") for name in ("command", "python")]
    assert pages[0] == pages[1]
    assert pages[0].count("data:image/jpeg") >= 12


def test_a_notebook_shows_the_numbers_of_each_method(outputs: Path, tmp_path: Path) -> None:
    result = call(outputs, IDSim("tiny", device="cpu"), pages=False)
    html = result._repr_html_()
    [row] = [row for row in result.results[0].rows if row["method"] == "one" and row.get("group", "all") == "all"]
    identity: Any = row["identity"]
    assert f"{identity.value:.4f}" in html
    assert "smoke-test model" in html
    assert "<script" not in html
    for ending, words in (
        (".csv", "protocol,model"),
        (".json", '"results"'),
        (".md", "|"),
        (".tex", r"\begin{tabular"),
    ):
        result.write(tmp_path / f"result{ending}")
        assert words in (tmp_path / f"result{ending}").read_text(encoding="utf-8")
    with pytest.raises(ValueError, match="ends in none of"):
        result.write(tmp_path / "result.xls")


def test_intervals_and_several_models_are_shown_and_names_escaped() -> None:
    results = [
        Result("folder", "<b>one</b>", [{"group": "all", "mAP": Value(0.5, 0.25, 0.75, 9)}]),
        Result("folder", "two", [{"group": "all", "mAP": Value(1.0, None, None, 9)}]),
    ]
    html = idmetric.Evaluation("folder", results, a_table([]))._repr_html_()
    assert "0.5000 [0.2500, 0.7500]" in html
    assert "&lt;b&gt;one&lt;/b&gt;" in html
    assert "<b>" not in html
    assert "1.0000<" in html


def test_a_notebook_shows_the_first_images_if_pictures_are_kept(outputs: Path) -> None:
    metric = IDSim("tiny", device="cpu")
    html = call(outputs, metric)._repr_html_()
    assert html.count("data:image/jpeg") == 6
    assert 'alt="one/cat/0.png"' in html
    assert "<script" not in html
    assert "data:image" not in call(outputs, metric, pages=False)._repr_html_()


def test_a_plot_has_a_number_with_its_interval_for_each_row() -> None:
    pytest.importorskip("matplotlib").use("Agg")
    results = [
        Result(
            "folder", "one", [{"group": "all", "mAP": Value(0.5, 0.25, 0.75, 9), "P@1": Value(0.25, None, None, 9)}]
        ),
        Result("folder", "two", [{"group": "all", "mAP": Value(1.0, None, None, 9)}]),
    ]
    evaluation = idmetric.Evaluation("folder", results, a_table([]))
    ax = evaluation.plot()
    assert ax.get_xlabel() == "mAP"
    assert ax.lines[0].get_xdata().tolist() == [0.5, 1.0]
    [interval] = ax.collections
    assert interval.get_segments()[0].tolist() == [[0.25, 0], [0.75, 0]]
    assert [label.get_text() for label in ax.get_yticklabels()] == ["one, all", "two, all"]
    assert evaluation.plot("P@1").lines[0].get_xdata().tolist() == [0.25]
    with pytest.raises(RequestError, match=r"no row has the number 'mAp'"):
        evaluation.plot("mAp")


def test_models_are_named_by_a_dict_and_data_may_be_a_manifest(outputs: Path) -> None:
    metric = IDSim("tiny", device="cpu")
    once = call(outputs, {"a": metric, "b": "tiny"}, device="cpu", pages=False)
    assert [result.model for result in once.results] == ["a", "b"]
    assert '<th style="' in once._repr_html_()
    again = idmetric.evaluation("generator", once.data, metric, bootstrap=20, pages=False)
    assert again.results[0].rows == once.results[0].rows


@pytest.mark.parametrize(
    ("protocol", "options", "words"),
    [
        ("generater", {}, "unknown protocol 'generater'"),
        ("generator", {"bootstap": 3}, "no option 'bootstap'"),
        ("generator", {"refrences": 3}, "no option 'refrences'"),
        ("folder", {}, "the protocol folder needs data"),
        ("folder", {"on_error": "sikp"}, "on_error must be 'fail' or 'skip', got 'sikp'"),
    ],
)
def test_mistyped_names_say_what_was_meant(protocol: str, options: Any, words: str) -> None:
    with pytest.raises(RequestError) as raised:
        idmetric.evaluation(protocol, None, [], **options)
    assert words in str(raised.value)


def test_a_single_value_stands_for_a_list_of_one(outputs: Path) -> None:
    metric = IDSim("tiny", device="cpu")
    grouped = call(outputs, metric, bootstrap=0, pages=False, by=["seed"])
    result = call(outputs, metric, bootstrap=0, pages=False, by="seed")
    assert result.results[0].rows == grouped.results[0].rows


def test_no_model_is_an_error() -> None:
    with pytest.raises(RequestError, match="no model is given"):
        idmetric.evaluation("folder", a_table([]), None)


def test_two_models_of_one_name_are_refused() -> None:
    metric = IDSim("tiny", device="cpu")
    with pytest.raises(RequestError, match="two models are called 'tiny'"):
        idmetric.evaluation("folder", a_table([]), [metric, metric])
