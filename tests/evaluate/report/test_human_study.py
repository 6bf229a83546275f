"""The study with people of `examples/human_study.py`: its page in Chromium, and labels from answers."""

from __future__ import annotations

import json
import runpy
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from idmetric.data.manifest import read
from tests.browser_parts import Open, faults_of, overflows

EXAMPLE = Path(__file__).parents[3] / "examples" / "human_study.py"
SENTINELS = 4


@pytest.fixture(scope="module")
def script() -> dict[str, Any]:
    return runpy.run_path(str(EXAMPLE))


@pytest.fixture(scope="module")
def study(script: dict[str, Any], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Six pairs and four sentinels of three identities with three photos each."""
    root = tmp_path_factory.mktemp("study")
    rng = np.random.default_rng(0)
    for identity in range(3):
        (root / "photos" / f"<b>{identity}").mkdir(parents=True)
        for view in range(3):
            pixels = np.clip(90 * identity + rng.integers(0, 60, (40, 60, 3)), 0, 255)
            Image.fromarray(pixels.astype(np.uint8)).save(root / "photos" / f"<b>{identity}" / f"{view}.png")
    script["build"](root / "photos", root / "study", 6, SENTINELS)
    return root / "study"


def questions_of(study: Path) -> list[dict[str, Any]]:
    return list(json.loads((study / "study.json").read_text())["questions"])


def answer(made: Path, folder: Path, name: str, choices: dict[str, str], **changes: Any) -> None:
    """A file of answers with every sentinel right, unless `choices` says otherwise."""
    right = {q["id"]: q["answer"] for q in questions_of(made) if q["answer"]}
    record = {"study": json.loads((made / "study.json").read_text())["id"], "participant": name}
    record |= {"answers": right | choices} | changes
    folder.mkdir(exist_ok=True)
    (folder / f"{len(list(folder.iterdir()))}.json").write_text(json.dumps(record))


def test_half_of_the_pairs_show_one_identity_and_sentinels_have_both_answers(study: Path) -> None:
    pairs = [q for q in questions_of(study) if q["answer"] is None]
    assert sum(len(set(q["identities"])) == 1 for q in pairs) == len(pairs) / 2 == 3
    sentinels = [q for q in questions_of(study) if q["answer"]]
    assert {q["answer"] for q in sentinels} == {"same", "different"}
    for question in sentinels:
        assert (question["paths"][0] == question["paths"][1]) == (question["answer"] == "same")
        assert (len(set(question["identities"])) == 1) == (question["answer"] == "same")


def test_the_page_holds_neither_names_nor_right_answers(study: Path) -> None:
    page = (study / "page.html").read_text()
    shown = json.loads(page.split('id="study">')[1].split("</script>")[0])
    assert sorted(q["id"] for q in shown["questions"]) == sorted(q["id"] for q in questions_of(study))
    assert all(q.keys() == {"id", "images"} for q in shown["questions"])
    assert str(study.parent) not in page


def test_labels_are_shares_of_votes_of_those_who_missed_no_sentinel(
    script: dict[str, Any], study: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pairs = [q["id"] for q in questions_of(study) if q["answer"] is None]
    sentinel = next(q for q in questions_of(study) if q["answer"] == "same")
    answers = tmp_path / "answers"
    for n in range(4):  # pair k is the same to k of four people, and the last pair has two votes
        choices = {name: "same" if n < k else "different" for k, name in enumerate(pairs[:-1])}
        answer(study, answers, f"p{n}", choices | ({pairs[-1]: "same"} if n < 2 else {}))
    answer(study, answers, "p0", dict.fromkeys(pairs, "same"))  # again
    answer(study, answers, "careless", dict.fromkeys(pairs, "same") | {sentinel["id"]: "different"})
    answer(study, answers, "stranger", dict.fromkeys(pairs, "same"), study="0" * 16)
    answer(study, answers, "odd", dict.fromkeys(pairs, "maybe"))
    (answers / "broken.json").write_text("{")
    script["collect"](study, answers, tmp_path / "labels.csv")

    rows = read(tmp_path / "labels.csv")
    candidates = rows[rows["slot"] == "candidate"]
    labels = dict(zip(candidates["group"], candidates["label"], strict=True))
    assert labels == {name: k / 4 for k, name in enumerate(pairs[:-1])}
    assert all(Path(path).is_file() for path in rows["path"])
    out, err = capsys.readouterr()
    assert "4 participants" in out
    assert "5 of 6 pairs" in out
    assert err.count("left out") == 5
    assert "1 sentinels missed" in err


def test_answers_given_in_a_browser_can_be_collected(study: Path, tmp_path: Path, visit: Open) -> None:
    page = visit(study / "page.html", 390, 800)
    assert faults_of(page) == []
    assert not overflows(page)
    with page.expect_download() as download:
        for _ in questions_of(study):
            page.click("button[value=same]")
    download.value.save_as(tmp_path / "mine.json")
    record = json.loads((tmp_path / "mine.json").read_text())
    assert record["answers"] == dict.fromkeys((q["id"] for q in questions_of(study)), "same")
    assert "Thank you" in page.inner_text("#progress")
