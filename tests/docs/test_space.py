from __future__ import annotations

import runpy
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from idmetric import IDSim, demo_images

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
IMAGES = EXAMPLES / "images"


@pytest.fixture(scope="module")
def demo() -> dict[str, Any]:
    return runpy.run_path(str(EXAMPLES / "space" / "app.py"))


@pytest.fixture(scope="module")
def tiny() -> IDSim:
    return IDSim("tiny", device="cpu")


@pytest.mark.parametrize("heat", [False, True])
def test_candidates_come_nearest_first_with_pictures(demo: dict[str, Any], tiny: IDSim, heat: bool) -> None:
    files = [str(IMAGES / name) for name in ("box_a.png", "mug_b.png", "mug_a.png")]
    rows, pictures = demo["compare"](tiny, Image.open(IMAGES / "mug_a.png"), files, "joint", heat)
    far = tiny(IMAGES / "mug_a.png", files, "joint")
    assert [row[1] for row in rows] == ["mug_a.png", "mug_b.png", "box_a.png"]
    assert [row[2] for row in rows] == pytest.approx(sorted(far.tolist()), abs=1e-4)
    assert [caption.split(":")[0] for _, caption in pictures] == ["1. mug_a.png", "2. mug_b.png", "3. box_a.png"]
    assert all(isinstance(picture, Image.Image) for picture, _ in pictures)


@pytest.mark.parametrize("heat", [False, True])
def test_pictures_are_shown_upright_as_the_model_sees_them(
    demo: dict[str, Any], tiny: IDSim, tmp_path: Path, heat: bool
) -> None:
    turned = Image.Exif()
    turned[0x0112] = 6
    Image.open(IMAGES / "mug_b.png").convert("RGB").resize((90, 60)).save(tmp_path / "turned.jpg", exif=turned)
    _, [(picture, _)] = demo["compare"](
        tiny, Image.open(IMAGES / "mug_a.png"), [str(tmp_path / "turned.jpg")], "cls", heat
    )
    assert picture.size == (60, 90)


def test_what_is_missing_is_said(demo: dict[str, Any], tiny: IDSim, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="at least one candidate"):
        demo["compare"](tiny, None, [], "cls", False)
    (tmp_path / "bad.png").write_text("no image")
    with pytest.raises(ValueError, match=r"bad\.png: it is not an image"):
        demo["compare"](tiny, Image.open(IMAGES / "mug_a.png"), [str(tmp_path / "bad.png")], "cls", False)


def test_the_page_is_built_and_its_button_compares(demo: dict[str, Any], tiny: IDSim) -> None:
    gradio = pytest.importorskip("gradio", reason="the demo's page needs gradio: pip install gradio")
    page = demo["build"](tiny)
    [function] = [f for f in page.fns.values() if f.api_name == "compare"]
    files = [str(IMAGES / "mug_b.png"), str(IMAGES / "box_a.png")]
    rows, pictures = function.fn(Image.open(IMAGES / "mug_a.png"), files, "cls", True)
    assert [row[1] for row in rows] == ["mug_b.png", "box_a.png"]
    assert len(pictures) == 2
    with pytest.raises(gradio.Error, match="at least one candidate"):
        function.fn(None, None, "cls", True)
    kinds = {component["type"] for component in page.get_config_file()["components"]}
    assert {"image", "file", "dropdown", "dataframe", "gallery", "button"} <= kinds


def test_rows_have_an_answer_where_the_model_has_a_calibration_of_the_distance(
    demo: dict[str, Any], tiny: IDSim
) -> None:
    reference, *files = map(str, demo_images().values())
    rows, _ = demo["compare"](tiny, Image.open(reference), files, "cls", False)
    assert [row[3] for row in rows] == ["same", "unsure", "different"]
    rows, _ = demo["compare"](tiny, Image.open(reference), files, "patch", False)
    assert [row[3] for row in rows] == ["", "", ""]


def test_the_space_names_its_program_and_installs_what_it_imports() -> None:
    folder = EXAMPLES / "space"
    _, header, _ = (folder / "README.md").read_text(encoding="utf-8").split("---\n", 2)
    settings = dict(line.split(": ", 1) for line in header.splitlines())
    assert (folder / settings["app_file"]).is_file()
    assert settings["sdk"] == "gradio"
    requirements = (folder / "requirements.txt").read_text(encoding="utf-8").splitlines()
    assert [line.split(">=")[0] for line in requirements] == ["idmetric[eval]", "gradio"]
