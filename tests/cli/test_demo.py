"""`idmetric demo`: a first score without photos, and its pictures."""

from __future__ import annotations

from pathlib import Path

import pytest

from idmetric.cli.main import main
from idmetric.scoring.calibration import Calibration, Isotonic
from tests.test_structure import HEAVY, loaded_after

ROOT = Path(__file__).parents[2]


def test_the_demo_shows_a_clear_pair_first_and_the_next_command(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The same mug (0.12) is the same, another mug (0.45) unsure, a box (0.96) different; by tiny, and it says so."""
    monkeypatch.chdir(tmp_path)  # nothing of a clone is needed
    assert main(["demo", "--device", "cpu", "--html", "page.html"]) == 0
    shown = capsys.readouterr()

    rows = [line.split(maxsplit=3) for line in shown.out.splitlines() if line.startswith("0.")]
    assert [row[2:] for row in rows] == [
        ["same", "the same mug in another place"],
        ["unsure", "another mug"],
        ["different", "a box"],
    ]
    distances = [float(row[0]) for row in rows]
    probabilities = [float(row[1]) for row in rows]
    assert distances == pytest.approx([0.124, 0.451, 0.964], abs=0.01)
    assert probabilities == pytest.approx([0.99, 0.50, 0.005], abs=0.03)

    documented = (ROOT / "docs/quickstart.md").read_text(encoding="utf-8")
    assert [line.split(maxsplit=3)[1:] for line in documented.splitlines() if line.startswith("0.")] == [
        row[1:] for row in rows
    ]

    assert "by tiny, the small model in the package" in shown.out
    assert "where half of all pairs show one, by the calibration" in shown.out
    assert "idmetric score --model tiny reference.jpg photos/ --html page.html" in shown.out
    assert shown.err.endswith("wrote page.html\n")
    page = (tmp_path / "page.html").read_text(encoding="utf-8")
    assert page.count('src="data:image/') >= 4
    assert "another_mug.webp" in page


def test_a_page_that_cannot_be_written_is_refused_before_the_work(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["demo", "--html", str(tmp_path / "absent" / "page.html")]) == 1
    shown = capsys.readouterr()
    assert shown.out == ""
    assert "absent" in shown.err


def test_names_of_the_demo_load_no_torch() -> None:
    help_of_demo = "from idmetric.cli.main import main\ntry: main(['demo', '--help'])\nexcept SystemExit: pass"
    for code in (help_of_demo, "import idmetric\nidmetric.demo_images()"):
        assert loaded_after(code).isdisjoint(HEAVY)


@pytest.mark.parametrize(
    ("probability", "answer"),
    [(0.999, "same"), (0.901, "same"), (0.899, "unsure"), (0.5, "unsure"), (0.101, "unsure"), (0.099, "different")],
)
def test_an_answer_is_sure_from_nine_tenths_on(probability: float, answer: str) -> None:
    calibration = Calibration(Isotonic((0.0, 1.0), (1e-9, 1 - 1e-9)), "IDSim@1/8x8", "cls")
    assert calibration.answer(1 - probability) == answer
