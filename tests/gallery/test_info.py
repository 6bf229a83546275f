from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from idmetric import IDSim
from idmetric.cli.gallery import main
from idmetric.gallery import Gallery, GalleryError
from idmetric.gallery.info import gallery_info


@pytest.fixture
def gallery(tmp_path: Path) -> Gallery:
    (tmp_path / "photos").mkdir()
    for k in range(4):
        pixels = np.random.default_rng(k).integers(0, 256, (30, 40, 3), dtype=np.uint8)
        Image.fromarray(pixels).save(tmp_path / "photos" / f"{k}.png")
    (tmp_path / "photos" / "broken.png").write_bytes(b"nothing")
    found = Gallery(tmp_path / "index", IDSim("tiny", device="cpu"), patches=True)
    found.update(tmp_path / "photos")
    return found


def test_info_describes_the_gallery(gallery: Gallery) -> None:
    (row,) = gallery_info(gallery.folder)
    assert (row["images"], row["unreadable"], row["missing"], row["changed"]) == (4, 1, 0, 0)
    assert row["dimension"] == gallery.vectors().shape[1]
    assert row["patches"] == 4
    assert row["bytes"] == sum(path.stat().st_size for path in gallery.folder.rglob("*") if path.is_file())
    assert {name: row[name] for name in ("model", "dtype", "resolution")} == {
        name: gallery.about[name] for name in ("model", "dtype", "resolution")
    }


def test_info_counts_missing_and_changed_files(gallery: Gallery, tmp_path: Path) -> None:
    photos = tmp_path / "photos"
    (photos / "0.png").unlink()
    (photos / "1.png").write_bytes((photos / "2.png").read_bytes())
    (photos / "3.png").touch()  # another time, the same content

    (row,) = gallery_info(gallery.folder)
    assert (row["missing"], row["changed"]) == (1, 2)


def test_the_command_prints_a_table_and_json(gallery: Gallery, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["info", "--gallery", str(gallery.folder)]) == 0
    lines = dict(line.split(maxsplit=1) for line in capsys.readouterr().out.splitlines() if len(line.split()) > 1)
    assert lines["images"] == "4"
    assert main(["info", "--gallery", str(gallery.folder), "--format", "json"]) == 0
    (row,) = json.loads(capsys.readouterr().out)
    assert row["images"] == 4


def test_a_folder_without_a_gallery_is_refused(tmp_path: Path) -> None:
    with pytest.raises(GalleryError, match="not a gallery"):
        gallery_info(tmp_path)
