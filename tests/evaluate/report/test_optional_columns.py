"""Pages, tables and plots of results in which a column is absent, each in turn: no page needs more than its first."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pandas import DataFrame

from idmetric.cli.eval import main
from idmetric.evaluate.protocols.common import tables
from idmetric.evaluate.protocols.common.models import open_model
from idmetric.evaluate.protocols.common.result import Result, Value
from idmetric.evaluate.protocols.common.scorers import EvalSettings
from idmetric.evaluate.protocols.generator.outputs import read as read_outputs
from idmetric.evaluate.protocols.generator_methods import GeneratorOptions
from idmetric.evaluate.protocols.generator_methods import run as run_generator
from idmetric.evaluate.report import evaluation
from tests.evaluate.protocols.parts import clip_folder, picture

pytest.importorskip("jinja2")
pytest.importorskip("matplotlib")

PATTERN = "{method}/{subject}/{prompt}_{seed}.png"


def outputs(root: Path, references: int) -> Path:
    """Two methods, two subjects, two seeds; training images, and so many references of each subject."""
    for s, subject in enumerate(("cat", "dog")):
        for m, method in enumerate(("100", "200")):
            for seed in range(2):
                picture(root / "out" / method / subject / f"x_{seed}.png", s + 10 * m, seed)
        for k in range(references):
            picture(root / "refs" / subject / f"{k}.png", s, 50 + k)
        picture(root / "train" / subject / "0.png", s, 70)
    return root


def test_one_reference_per_subject_gives_a_page(tmp_path: Path) -> None:
    outputs(tmp_path, references=1)
    words = ["generator", "--data", tmp_path / "out", "--pattern", PATTERN, "--references", tmp_path / "refs",
             "--model", "hsv", "--html", tmp_path / "page.html"]  # fmt: skip
    assert main([*map(str, words), "--device", "cpu"]) == 0
    assert "Real photos" not in (tmp_path / "page.html").read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def full(tmp_path_factory: pytest.TempPathFactory) -> tuple[Result, DataFrame]:
    """A result with every column that it can have, and its data."""
    root = outputs(tmp_path_factory.mktemp("full"), references=2)
    clip = open_model(f"dual:{clip_folder(root, 'clip')}", device="cpu")
    settings = EvalSettings(bootstrap=20)
    photos = {"references": str(root / "refs"), "training": str(root / "train")}
    methods = read_outputs(root / "out", PATTERN, **photos)  # type: ignore[arg-type]
    models = {"hsv": open_model("hsv"), "CLIP-T": clip}
    [result] = run_generator(methods, models, settings, GeneratorOptions(by=("subject",), threshold=0.5))
    return result, methods


def without_each(result: Result) -> Iterator[tuple[str, Result]]:
    """The result without each of its numbers, labels, tables of items and columns of items, but for needed ones."""
    columns = dict.fromkeys(name for row in result.rows for name in row)
    for name in columns.keys() - {"method", "group", "identity"}:
        rows = [{key: value for key, value in row.items() if key != name} for row in result.rows]
        yield name, Result(**{**vars(result), "rows": rows})
    rows_without_intervals: list[dict[str, Any]] = [
        {k: Value(v.value, None, None, v.count) if isinstance(v, Value) else v for k, v in row.items()}
        for row in result.rows
    ]
    yield "intervals", Result(**{**vars(result), "rows": rows_without_intervals})
    for table in result.items:
        if table != "images":
            items = {key: value for key, value in result.items.items() if key != table}
            yield f"items {table}", Result(**{**vars(result), "items": items})
    needed = {"image", "nearest", "method", "subject", "prompt", "seed", "identity"}
    for name in result.items["images"].keys() - needed:
        images = {key: value for key, value in result.items["images"].items() if key != name}
        yield f"images {name}", Result(**{**vars(result), "items": {**result.items, "images": images}})


def test_every_column_may_be_absent(full: tuple[Result, DataFrame], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("idmetric.evaluate.report.plots.save_figure", lambda figure, path: Path(path).touch())
    draw = evaluation._plots
    result, data = full
    absent = []
    for name, less in without_each(result):
        # plots read few of the columns, and are slow to draw
        is_drawn = name in ("real", "copies", "diversity", "CLIP-T", "intervals")
        monkeypatch.setattr(evaluation, "_plots", draw if is_drawn else lambda results: [])
        page = evaluation.eval_page([less], data)
        assert "100" in page, name
        texts = [tables.table([less], width=70), tables.markdown([less]), tables.latex([less])]
        assert all("identity" in text for text in texts), name
        absent.append(name)
    assert {"real", "copies", "same", "diversity", "CLIP-T", "intervals", "images copied"} <= set(absent)


def test_an_evaluation_by_tiny_is_called_a_smoke_test() -> None:
    rows: list[Any] = [{"dataset": "a", "mAP": Value(0.5, None, None, 3)}]
    page = evaluation.eval_page([Result("folder", "small", rows, {"model": "IDSim:tiny"})])
    assert "small is a smoke-test model, not for a paper</bdi>" in page
    assert "smoke-test" not in evaluation.eval_page([Result("folder", "tiny", rows, {"model": "IDSim:large"})])
