"""What paths, folders and patterns name, in Python and in all commands."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from PIL import Image

from idmetric import IDSim
from idmetric.metric.errors import RequestError
from idmetric.metric.images import ImageReadError
from idmetric.metric.paths import listed, mask_of
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


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """refs/1.png, refs/2.png, refs/10.png; gen/a/0.png, gen/b/0.png, gen/b/1.png."""
    (tmp_path / "gen").mkdir()
    paths = pictures(tmp_path / "made", 6)
    for path, name in zip(paths, ("refs/1", "refs/2", "refs/10", "gen/a/0", "gen/b/0", "gen/b/1"), strict=True):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        path.rename(tmp_path / f"{name}.png")
    return tmp_path


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


def test_of_several_masks_the_most_specific_is_taken(folder: Path) -> None:
    image = folder / "gen/a/0.webp"
    assert mask_of(folder / "masks", image) is None
    for name in ("0.png", "a/0.png", "gen/a/0.png"):
        mask(folder / "masks" / name, (2, 2, 20, 20))
        assert mask_of(folder / "masks", image) == str(folder / "masks" / name)
