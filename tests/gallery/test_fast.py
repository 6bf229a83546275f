from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from PIL import Image, ImageOps
from scipy.fft import dctn

from idmetric.cli import gallery as command
from idmetric.gallery import fast
from idmetric.gallery.fast import MOST_BITS, fast_duplicates, perceptual_hash
from tests.gallery.test_clusters import animated, groups, picture
from tests.runner import Runner


def test_the_hash_is_the_sign_of_the_low_frequencies_of_the_dct() -> None:
    gray = np.random.default_rng(0).uniform(0, 255, (32, 32))
    both = perceptual_hash(gray)
    assert both is not None
    for turned, bits in zip((gray, gray[:, ::-1]), both, strict=True):
        low = dctn(turned, norm="ortho")[1:9, 1:9].ravel()
        assert np.array_equal(bits > 0, low > np.median(low))
    assert perceptual_hash(np.full((32, 32), 90.0)) is None


def test_copies_are_found_by_hash_alone(tmp_path: Path) -> None:
    for number in range(40):
        picture(number).save(tmp_path / f"{number}.png")
    first = picture(0)
    first.save(tmp_path / "jpeg.jpg", quality=40)
    first.resize((100, 80)).save(tmp_path / "small.png")
    first.resize((400, 320)).save(tmp_path / "large.png")
    ImageOps.mirror(first).save(tmp_path / "mirrored.png")
    (tmp_path / "again.png").write_bytes((tmp_path / "3.png").read_bytes())
    animated(tmp_path / "still.gif", 5, 6, duration=50)
    for color in ("white", "silver"):
        Image.new("RGB", (90, 70), color).save(tmp_path / f"{color}.png")
    (tmp_path / "white_again.png").write_bytes((tmp_path / "white.png").read_bytes())
    (tmp_path / "bad.png").write_text("no image")

    found, problems = fast_duplicates([tmp_path])
    assert [Path(place).name for place in problems] == ["bad.png"]
    assert groups(found) == [
        {"0.png", "jpeg.jpg", "small.png", "large.png", "mirrored.png"}, {"3.png", "again.png"}, {"5.png", "still.gif"},
        {"white.png", "white_again.png"},
    ]  # fmt: skip
    rows = {row["name"]: row for row in found}
    assert {name for name, row in rows.items() if row["keep"]} == {
        "large.png", "3.png", "5.png", "still.gif", "white.png",
    }  # fmt: skip
    assert {row["reason"] for row in found} == {"kept", "hash", "same bytes", "first frame only"}
    assert [name for name, row in rows.items() if row["mirrored"]] == ["mirrored.png"]
    assert all(row["bits"] <= MOST_BITS for row in found)
    assert rows["again.png"]["bits"] == 0


def test_the_first_of_many_alike_takes_them_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fast, "_ROWS", 3)
    for k in range(4):
        picture(1, (200 - k, 160)).save(tmp_path / f"a{k}.png")
        ImageOps.mirror(picture(2, (100 - k, 80))).save(tmp_path / f"b{k}.png")
    picture(2).save(tmp_path / "b.png")
    found, _ = fast_duplicates([tmp_path])
    assert groups(found) == [
        {"b.png", "b0.png", "b1.png", "b2.png", "b3.png"},
        {"a0.png", "a1.png", "a2.png", "a3.png"},
    ]
    assert [row["name"] for row in found if row["keep"]] == ["b.png", "a0.png"]
    assert [row["name"] for row in found if row["mirrored"]] == ["b0.png", "b1.png", "b2.png", "b3.png"]


def test_links_to_a_file_that_is_kept_are_kept(tmp_path: Path) -> None:
    (tmp_path / "set").mkdir()
    picture(1).save(tmp_path / "set" / "z.png")
    (tmp_path / "set" / "a.png").symlink_to("z.png")
    (tmp_path / "again").symlink_to("set")
    found, _ = fast_duplicates([tmp_path / "set", tmp_path / "again"])
    assert sorted((row["reason"], row["keep"]) for row in found) == [("kept", True), *[("same file", True)] * 3]


def test_the_command_hashes_without_a_model(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(command, "_open", lambda args: pytest.fail("opened a model"))
    run = Runner(command.main, capsys)
    Path("set").mkdir()
    picture(1).save("set/a.png")
    picture(1).resize((100, 80)).save("set/b.png")
    out = run.prints("1 group by hash alone, 1 could go", "dedupe set --fast")
    assert [line.split()[-1] for line in out.splitlines()[1:3]] == ["set/a.png", "set/b.png"]  # as given
    assert str(tmp_path / "set" / "a.png") in run.prints("hash", "dedupe --fast", tmp_path / "set")
    Path("set/c.png").write_text("no image")
    assert "c.png" in run.all("dedupe set --fast")[2]
    assert run("dedupe set --fast --quiet") == 4
    run.fails("--fast needs folders", "dedupe --fast -g index", status=2)
    run.fails("hashes whole images alone", "dedupe set --fast --keep sharpest", status=2)
    run.fails("hashes whole images alone", "dedupe set --fast --mask-dir set", status=2)
