"""What paths, folders and patterns name, in Python and in all commands."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from idmetric import IDSim, load
from idmetric.cli import score
from idmetric.gallery.sources import GalleryError, GallerySource, entries
from idmetric.metric.errors import RequestError
from idmetric.metric.images import ImageReadError
from idmetric.metric.paths import listed, mask_of, masks_of
from tests.embed_parts import pictures

Run = Callable[..., tuple[int, str, str]]


def touch(root: Path, *names: str) -> Path:
    for name in names:
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_bytes(name.encode())
    return root


def mask(path: Path, box: tuple[int, int, int, int]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    image = Image.new("L", (40, 30))
    image.paste(255, box)
    image.save(path, "PNG")


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory, metric: IDSim) -> Path:
    folder = tmp_path_factory.mktemp("model")
    metric.save_pretrained(folder)
    return folder


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """refs/1.png, refs/2.png, refs/10.png; gen/a/0.png, gen/b/0.png, gen/b/1.png."""
    (tmp_path / "gen").mkdir()
    paths = pictures(tmp_path / "made", 6)
    for path, name in zip(paths, ("refs/1", "refs/2", "refs/10", "gen/a/0", "gen/b/0", "gen/b/1"), strict=True):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        path.rename(tmp_path / f"{name}.png")
    return tmp_path


@pytest.fixture
def run(folder: Path, saved: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Run:
    monkeypatch.chdir(folder)

    def call(*argv: str) -> tuple[int, str, str]:
        capsys.readouterr()
        try:
            status = score.main(["--model", str(saved), "--device", "cpu", *argv])
        except SystemExit as stop:
            status = int(stop.code or 0)
        done = capsys.readouterr()
        return status, done.out, done.err

    return call


def found(run: Run, *argv: str) -> dict[str, Any]:
    status, out, err = run(*argv, "--format", "json")
    assert status in (0, 3), err
    answer: dict[str, Any] = json.loads(out)
    return answer


def test_a_folder_and_a_pattern_are_the_same_list_in_natural_order(tmp_path: Path) -> None:
    touch(tmp_path, "g/10.png", "g/2.png", "g/sub/1.jpg", "g/notes.txt", "h [1]/x.png")
    expected = [str(tmp_path / "g" / name) for name in ("2.png", "10.png", "sub/1.jpg")]
    for source in ("g", "g/", "g/*", "g/**", "g/**/*.*g", "[g]"):
        assert listed(tmp_path / source if source != "g/" else f"{tmp_path}/g/") == expected, source
    assert listed(f"{tmp_path}/h [1]/*.png") == [f"{tmp_path}/h [1]/x.png"]  # brackets of a folder that is there
    assert listed("absent.png") == ["absent.png"]
    assert listed("https://example.org/a*.png") == ["https://example.org/a*.png"]
    with pytest.raises(RequestError, match=r"no\*\.png"):
        listed(tmp_path / "no*.png")


def test_python_takes_folders_and_patterns_as_lists(metric: IDSim, folder: Path) -> None:
    refs = [folder / "refs" / name for name in ("1.png", "2.png", "10.png")]
    expected = metric.embed(refs).cls
    assert metric.embed(folder / "refs").cls.equal(expected)
    assert metric.embed(str(folder / "refs" / "*.png")).cls.equal(expected)
    assert metric.pairwise(folder / "refs", folder / "gen").shape == (3, 3)
    assert metric(folder / "refs", folder / "gen" / "a").shape == (3,)  # of one image
    with pytest.raises(ImageReadError, match="made"):
        metric.embed(folder / "made")


def test_two_folders_are_paired_only_by_equal_names(metric: IDSim, folder: Path) -> None:
    with pytest.raises(ValueError, match=r"different names: pairwise\(\)"):
        metric(folder / "refs", folder / "gen")  # three and three
    for name in ("1", "2", "10"):
        Image.open(folder / "gen/a/0.png").rotate(int(name)).save(folder / "made" / f"{name}.webp", lossless=True)
    names = ("1", "2", "10")
    paired = metric([folder / "refs" / f"{n}.png" for n in names], [folder / "made" / f"{n}.webp" for n in names])
    assert metric(folder / "refs", str(folder / "made" / "*.webp")).equal(paired)


def test_a_folder_or_pattern_is_a_reference_in_the_command(run: Run, folder: Path) -> None:
    by_files = found(run, "--ref", "refs/1.png", "--ref", "refs/2.png", "--ref", "refs/10.png", "gen")
    assert list(by_files["real"]) == ["refs/1.png", "refs/2.png", "refs/10.png"]
    for given in (("--ref", "refs", "gen"), ("refs", "gen"), ("refs/*.png", "gen"), ("--ref", "refs/**", "gen/*")):
        assert found(run, *given) == by_files, given
    assert run("--ref", "made", "gen")[0] == run("--ref", "no*", "gen")[0] == 2


def test_references_among_the_candidates_are_left_out(run: Run, folder: Path) -> None:
    (folder / "gen" / "link.png").symlink_to(folder / "refs" / "2.png")
    alone = found(run, "refs", "gen/a", "gen/b")
    both = found(run, "refs", "gen", "refs")
    assert both.pop("references_left_out") == ["gen/link.png", "refs/1.png", "refs/2.png", "refs/10.png"]
    alone.pop("references_left_out")
    assert both == alone
    assert "left out, as references: gen/link.png" in run("refs", "gen")[1]
    status, _, err = run("refs", "refs/2.png")
    assert (status, "all images are references" in err) == (2, True)


def test_masks_are_found_by_the_images_own_path(run: Run, folder: Path, saved: Path) -> None:
    boxes = {"a/0.png": (2, 2, 20, 20), "b/0.png": (15, 5, 35, 28), "1.png": (0, 0, 30, 12)}
    for name, box in boxes.items():
        mask(folder / "masks" / name, box)
    assert mask_of("masks", "gen/b/0.png") == str(Path("masks/b/0.png"))
    rows = found(run, "refs/1.png", "gen/a", "gen/b/0.png", "--mask-dir", "masks", "--distance", "patch")["rows"]
    model = load(saved, device="cpu")
    for row in rows:
        own = folder / "masks" / Path(row["image"]).relative_to("gen")
        expected = model(
            folder / "refs/1.png", folder / row["image"], "patch", mask_a=folder / "masks/1.png", mask_b=own
        )
        assert row["distance"] == pytest.approx(expected.item(), abs=1e-6)
    masks = [folder / "masks" / name for name in ("a/0.png", "b/0.png")]
    given = [folder / "gen" / name for name in ("a/0.png", "b/0.png")]
    by_folder = model.embed(given, masks=folder / "masks")
    assert by_folder.cls.equal(model.embed(given, masks=masks).cls)


def test_one_mask_for_two_images_is_refused(run: Run, folder: Path, saved: Path) -> None:
    mask(folder / "masks/0.png", (2, 2, 20, 20))
    mask(folder / "masks/1.png", (2, 2, 20, 20))
    images = ("gen/a/0.png", "gen/b/0.png")
    status, out, err = run("refs/1.png", *images, "--mask-dir", "masks")
    assert (status, out) == (2, "")
    for name in (*images, "masks/0.png", "masks/a", "masks/b"):
        assert name in err
    (folder / "p.csv").write_text("refs/1.png,gen/a/0.png\nrefs/1.png,gen/b/0.png\n")
    assert run("--pairs", "p.csv", "--mask-dir", "masks")[0] == 2
    with pytest.raises(GalleryError, match="would be the mask of both"):
        list(entries([GallerySource(str(folder / "gen"), str(folder / "masks"))], masked=True))
    with pytest.raises(RequestError, match="would be the mask of both"):
        load(saved, device="cpu").embed([str(folder / name) for name in images], masks=folder / "masks")
    os.link(folder / "gen/a/0.png", folder / "gen/again.png")
    (folder / "masks/again.png").symlink_to("0.png")
    masks_of(folder / "masks", [str(folder / "gen/a/0.png"), str(folder / "gen/again.png")])  # one image


def test_of_several_masks_the_most_specific_is_taken(folder: Path) -> None:
    for name in ("0.tif", "a/0.tif", "a/0.png.webp"):
        mask(folder / "masks" / name, (2, 2, 20, 20))
        assert mask_of(folder / "masks", folder / "gen/a/0.png") == str(folder / "masks" / name)


def test_two_masks_that_are_as_specific_are_refused(run: Run, folder: Path) -> None:
    for name in ("0.jpg", "0.png"):
        mask(folder / "masks" / name, (2, 2, 20, 20))
    (folder / "gen/a/0.png").rename(folder / "gen/a/0.webp")
    says = f"both {Path('masks/0.jpg')} and {Path('masks/0.png')} may be its mask"
    with pytest.raises(RequestError, match=re.escape(says)):
        mask_of("masks", "gen/a/0.webp")
    status, _, err = run("refs/10.png", "gen/a/0.webp", "--mask-dir", "masks")
    assert (status, says in err) == (2, True)


def test_an_image_is_not_its_own_mask(folder: Path) -> None:
    assert mask_of(folder, folder / "gen/a/0.png") is None
    assert mask_of(folder / "gen", folder / "gen/a/0.png") is None
