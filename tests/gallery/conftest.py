from __future__ import annotations

from pathlib import Path

import pytest

from idmetric import IDSim
from idmetric.gallery import Gallery
from tests.gallery.parts import flat


@pytest.fixture
def photos(tmp_path: Path) -> Path:
    """Nine pictures of two identities, a and b."""
    for number in range(9):
        path = tmp_path / "photos" / ("a" if number < 5 else "b") / f"{number}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        flat(number).save(path)
    return tmp_path / "photos"


@pytest.fixture
def index(tmp_path: Path) -> Path:
    return tmp_path / "index"


@pytest.fixture
def gallery(index: Path, metric: IDSim, photos: Path) -> Gallery:
    """The gallery of all nine."""
    gallery = Gallery(index, metric)
    gallery.build(photos)
    return gallery
