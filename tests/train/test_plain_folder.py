"""A plain folder of photos, `photos/NAME/*.png`: how each recipe trains on it, as its page says."""

from __future__ import annotations

from pathlib import Path

import pytest

from idmetric.cli.main import main
from idmetric.data.painter import Painter
from idmetric.metric.images import read_image

PAGES = Path(__file__).resolve().parents[2] / "docs" / "train"


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of 6 identities with 3 photos each; its manifest lies beside it."""
    folder = tmp_path_factory.mktemp("plain")
    painted = Painter(size=64, views=3).paint(folder / "painted", 6)
    for number in range(len(painted)):
        photo = folder / "photos" / str(painted["identity"][number]).replace("/", "-") / f"{number}.png"
        photo.parent.mkdir(parents=True, exist_ok=True)
        read_image(painted["path"][number]).save(photo)
    assert main(["data", "import", "folder", str(folder / "photos"), "-o", str(folder / "photos.csv")]) == 0
    return folder / "photos"


def train(recipe: str, data: Path, out: Path, *options: str) -> int:
    """Train the small random model of --smoke on data."""
    quick = ["--smoke", "--cpu", "--workers", "0", "--quiet"]
    return main(["train", recipe, "--data", str(data), "--out", str(out), *quick, *options])


def mining(plain: Path) -> list[str]:
    """The command that mines negatives; a file to write follows."""
    photos = str(plain.with_suffix(".csv"))
    return ["data", "mine", "negatives", photos, "--model", "tiny", "--device", "cpu", "--quiet", "-o"]


def test_ilgen_trains_on_a_plain_folder(plain: Path, tmp_path: Path) -> None:
    assert train("ilgen", plain, tmp_path / "run", "--images", "3", "--classes", "6", "--epochs", "1") == 0


def test_idsim_names_the_command_that_mines_triplets_of_a_plain_folder(
    plain: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert train("idsim", plain, tmp_path / "run") == 1
    assert "for a folder of photos alone `idmetric data mine negatives` does" in capsys.readouterr().err
    mined = tmp_path / "mined.csv"
    assert main([*mining(plain), str(mined)]) == 0
    assert train("idsim", mined, tmp_path / "run", "--epochs", "1", "--validate-every", "0") == 0
    assert "idmetric data mine negatives photos.parquet" in (PAGES / "idsim.md").read_text(encoding="utf-8")


def test_nearid_names_the_options_that_need_no_distractors(
    plain: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert train("nearid", plain, tmp_path / "run") == 1
    assert "a folder of photos alone trains by --objective info-nce --mask-prob 0" in capsys.readouterr().err
    options = ["--objective", "info-nce", "--mask-prob", "0"]
    assert train("nearid", plain, tmp_path / "run", *options, "--batch-size", "6", "--epochs", "1") == 0
    assert " ".join(options) in (PAGES / "nearid.md").read_text(encoding="utf-8")


def test_visme_trains_on_a_plain_folder(plain: Path, tmp_path: Path) -> None:
    pytest.importorskip("transformers")
    assert train("visme", plain, tmp_path / "run", "--batch-size", "6", "--samples", "6", "--steps", "1") == 0


@pytest.mark.parametrize("recipe", ["ilgen", "idsim", "nearid", "visme"])
def test_a_batch_that_the_photos_do_not_fill_is_refused_with_its_option(
    recipe: str, plain: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    options = {
        "ilgen": ["--images", "3", "--classes", "7"],
        "idsim": ["--batch-size", "10", "--accumulation", "2"],
        "nearid": ["--objective", "info-nce", "--mask-prob", "0", "--batch-size", "7"],
        "visme": ["--batch-size", "7", "--samples", "7"],
    }[recipe]
    data = plain
    if recipe == "visme":
        pytest.importorskip("transformers")
    if recipe == "idsim":
        data = tmp_path / "mined.csv"
        assert main([*mining(plain), str(data)]) == 0
    assert train(recipe, data, tmp_path / "run", *options) == 1
    named = "--classes" if recipe == "ilgen" else "--batch-size"
    assert named in capsys.readouterr().err
