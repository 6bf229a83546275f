"""`idmetric gallery`, also of galleries that moved, are read-only or were made by somebody else."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pandas as pd
import pytest
from PIL import Image

from idmetric import IDSim, load
from idmetric.cli.main import main
from idmetric.gallery import Gallery
from idmetric.scoring.calibration import calibration_of
from tests.gallery.parts import contents, detailed, files, flip_a_byte, parts
from tests.permissions import permissions_count
from tests.runner import Runner


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Runner:
    """The command, in a folder with photos."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "photos").mkdir()
    for number in range(3):
        detailed(number).save(tmp_path / "photos" / f"{number}.png")
    shutil.copy("photos/1.png", "photos/1 copy.png")
    return Runner(main, capsys, "gallery")


TINY = "--model tiny --device cpu"
ANSWERS = ("query photos/0.png", "dedupe", "cluster --threshold 1")


def test_the_command_builds_and_answers(run: Runner) -> None:
    run.says("4 images, 3 embedded, 4 new in g by IDSim:tiny", f"build photos/ -g g {TINY}", status=0)
    query = "query photos/1.png -g g -k 3 --device cpu"
    hits = json.loads(run.all(f"{query} --format json")[1])
    assert [hit["path"] for hit in hits][:2] == ["photos/1 copy.png", "photos/1.png"]
    run.prints("distance=joint", f"{query} --rerank 4 --distance joint")
    assert run("dedupe -g g --output d.csv --html d.html --device cpu") == 0
    table = pd.read_csv("d.csv")
    assert dict(zip(table["path"], table["keep"], strict=True)) == {"photos/1.png": True, "photos/1 copy.png": False}
    assert "photos/1 copy.png" in Path("d.html").read_text()
    run.prints("photos/2.png", "cluster photos --threshold 0.001 " + TINY)  # without a gallery
    assert not [path for path in Path().iterdir() if path.name not in ("photos", "g", "d.csv", "d.html")]


def test_thresholds_are_printed_with_their_source_and_basis(run: Runner) -> None:
    run(f"build photos -g g {TINY}")
    calibration = calibration_of(load("tiny"))
    assert calibration is not None
    limit = calibration.threshold_at(0.01)
    for words in ("query photos/0.png", "cluster"):
        out = run.prints(f"{limit.distance:.6g} (stored calibration, 1 % of pairs)", f"{words} -g g --device cpu")
        assert words == "cluster" or calibration.basis in out
        run.prints("0.02 (option --threshold)", f"{words} -g g --device cpu --threshold .02")
    run.prints("within 0.02 (option --max-distance)", "dedupe -g g --device cpu --max-distance .02")


def test_strangers_are_unknown(run: Runner) -> None:
    Path("new").mkdir()
    detailed(9).save("new/stranger.png")
    shutil.copy("photos/0.png", "new/known.png")
    Path("animals.csv").write_text("path,identity,date\nphotos/0.png,rex,2020-01-02\nphotos/2.png,ann,2020-01-03\n")
    run(f"build animals.csv -g g {TINY}")
    rows = json.loads(run.all("query new -g g -k 1 --threshold 0.001 --device cpu --format json")[1])
    assert {Path(row["query"]).stem: (row["answer"], row["date"]) for row in rows}["known"] == ("rex", "2020-01-02")
    assert [row["answer"] for row in rows if "stranger" in row["query"]] == ["unknown"]


def test_wrong_usage_is_refused_before_any_work(run: Runner) -> None:
    for words, name in (
        ("query photos/0.png", "--gallery"), ("build nowhere -g g", "nowhere"), ("cluster", "--gallery"),
        ("build photos -g g --batch-size 0", "--batch-size"), ("build photos -g g --mask-id 2", "--mask-id"),
        ("dedupe photos --output photos/0.png", "--output"), ("dedupe photos --html photos/0.png", "--html"),
    ):  # fmt: skip
        run.fails(name, words, status=2)
    run.fails("none", "query photos/0.png -g none --model tiny")
    assert not Path("none").exists()


def test_a_gallery_of_two_models_asks_which(run: Runner) -> None:
    IDSim("tiny", device="cpu").save_pretrained("saved")
    for model in ("tiny", "saved"):
        run(f"build photos -g g --device cpu --model {model}")
    run.fails("--model", "query photos/0.png -g g --device cpu", status=2)


def test_a_byte_flipped_in_a_gallery_is_found_and_mended(run: Runner) -> None:
    run(f"build photos -g g {TINY}")
    query = "query photos/0.png -g g -k 4 --device cpu"
    _, expected, _ = run.all(query)
    [part] = parts(Path("g"))
    flip_a_byte(part)
    run.fails(part.name, query)
    error = run.fails("1 embedded", f"build photos -g g {TINY}", status=0)
    assert part.name in error
    assert run.all(query)[1] == expected


def test_a_moved_gallery_says_so_in_one_line(run: Runner) -> None:
    run(f"build photos -g g {TINY}")
    before = contents(Path("g"))
    Path("photos").rename("moved")
    for words in ("query moved/0.png", *ANSWERS[1:]):
        error = run.fails("idmetric gallery build FOLDER", f"{words} -g g --device cpu --html page.html")
        assert error.count("\n") == 1
    assert not Path("page.html").exists()
    assert contents(Path("g")) == before
    run.fails("0 embedded", f"build moved -g g {TINY}", status=0)


def test_missing_images_end_every_answer_with_status_4(run: Runner) -> None:
    run(f"build photos -g g {TINY}")
    Path("photos/2.png").unlink()
    for words in ANSWERS:
        error = run.fails("photos/2.png (missing)", f"{words} -g g --device cpu", status=4)
        assert error.count("left out") == 1


def test_a_read_only_gallery_answers(run: Runner) -> None:
    run(f"dedupe photos -g g {TINY}")  # which keeps what it needs of the pictures
    [store] = [path for path in Path("g").iterdir() if path.is_dir()]
    before = contents(Path("g"))
    for folder in (store, Path("g")):
        folder.chmod(0o500)
    with permissions_count():
        for words in ANSWERS:
            assert run(f"{words} -g g --device cpu --html page.html") == 0, words
        run.fails("g", f"build photos -g g {TINY}")
    for folder in (store, Path("g")):
        folder.chmod(0o700)
    assert contents(Path("g")) == before


def test_a_byte_flipped_in_a_cache_moves_no_score(run: Runner, capsys: pytest.CaptureFixture[str]) -> None:
    score = Runner(main, capsys, "score")
    words = (
        *map(str, files(Path("photos"))),
        "--cache",
        "cache",
        "--format",
        "csv",
        "--model",
        "tiny",
        "--device",
        "cpu",
    )
    _, expected, _ = score.all(*words)
    [part] = parts(Path("cache"))
    flip_a_byte(part)
    status, out, error = score.all(*words)
    assert (status, out) == (0, expected)
    assert error.count(f"{part.name}' is damaged") == 1


def test_a_gallery_is_opened_again_as_it_was_built(run: Runner) -> None:
    run(f"build photos -g g --outside white --masked {TINY}")  # no image has a mask: refused
    assert not parts(Path("g"))
    Path("masks").mkdir()
    mask = Image.new("L", (200, 160))
    mask.paste(255, (50, 40, 150, 120))
    mask.save("masks/0.png")
    Path("t.csv").write_text("path,mask\nphotos/0.png,masks/0.png\nphotos/2.png,masks/0.png\n")
    assert run(f"build t.csv -g g --outside white --masked {TINY}") == 0
    hits = json.loads(run.all("query photos/0.png --query-mask-dir masks -g g --device cpu --format json")[1])
    metric = IDSim("tiny", device="cpu")
    gallery = Gallery("g", metric, masked=True, outside="white")
    expected = gallery.query("photos/0.png", masks="masks/0.png")
    assert [hit["distance"] for hit in hits] == pytest.approx([row["distance"] for row in expected], abs=1e-6)
