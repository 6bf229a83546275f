"""Words, categories and backgrounds of generated images."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image, ImageDraw

from idmetric.data.chat import key_for
from idmetric.data.generate.categories import ask_categories, read_categories
from idmetric.data.generate.masks import CleanBackground
from idmetric.data.generate.wording import read_wording
from idmetric.metric.errors import RequestError
from tests.chat_server import fails, says, serving

# Words


def test_every_category_has_backgrounds_and_light() -> None:
    words = read_wording()
    for category in (*words.categories, "no such thing", None, "Hot_Dog"):
        scenes = words.scenes(category)
        assert len(scenes) == len(set(scenes)) >= 12, category
        prompts = {words.prompt("context", background=b, lighting=light) for b, light in scenes}
        assert len(prompts) == len(scenes)
    assert words.scenes("DOG") == words.scenes("dog") != words.scenes("car")
    assert words.scenes("no such thing") == words.scenes(None) == words.scenes("*")


def test_prompts_have_the_papers_slots() -> None:
    words = read_wording()
    context = words.prompt("context", background="a HARBOUR", lighting="blue DUSK")
    assert "a HARBOUR" in context
    assert "blue DUSK" in context
    assert "white" in context
    assert words.prompt("identity", "hot_dog") == "Photo of a hot dog"
    assert words.prompt("object", "table") == "a table in a clean background"  # ILGen, 3.2
    assert words.prompt("relight", "table") == "table"
    assert "watermark" in words.negative["sdxl_inpaint"]
    assert set(words.negative) == {"sdxl_inpaint"}  # NearID, 0.B.1: none for FLUX


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("templates", "{", "templates.json"),
        ("templates", "[]", "templates.json"),
        ("templates", '{"identity": "a {thing}"}', "'identity'.*'thing'"),
        ("templates", '{"object": "a {class"}', "'object'"),
        ("backgrounds", '{"pet": {"a rug": "cellar"}}', "cellar|no backgrounds"),
        ("categories", '{"dog": "beast"}', "'dog'"),
        ("grid", '{"background": {"a wall": 1}}', "grid.json"),
    ],
)
def test_wrong_words_are_named(tmp_path: Path, name: str, content: str, message: str) -> None:
    with pytest.raises(RequestError, match=r"none of templates.json"):
        read_wording(tmp_path)
    (tmp_path / f"{name}.json").write_text(content)
    with pytest.raises(RequestError, match=message):
        read_wording(tmp_path)


# Categories


def test_a_file_of_categories(tmp_path: Path) -> None:
    path = tmp_path / "objects.txt"
    path.write_text("\ufefftable\n\n# chairs\n  arm   chair \nclock\nTable", encoding="utf-8")
    assert read_categories(path) == ["table", "arm chair", "clock"]
    path.write_text("# nothing\n")
    with pytest.raises(RequestError, match="no categories"):
        read_categories(path)
    with pytest.raises(RequestError, match=r"absent.txt: not readable"):
        read_categories(tmp_path / "absent.txt")


DOMAINS = read_wording().domains


def test_categories_are_asked_for_until_there_are_enough() -> None:
    with serving(
        says("1. mug\n2. kettle\n3. Mug"),
        says("kettle\nlamp"),
        says("<think>a: b</think>## Kinds\nHere they are:\n- **clock**\n* bench.\n3) sofa"),
    ) as server:
        asked = ask_categories(server.url, "some-model", "generic", 5, DOMAINS, "secret")
        assert asked == ["mug", "kettle", "lamp", "clock", "bench"]
    assert server.headers[0]["Authorization"] == "Bearer secret"
    assert server.bodies[0]["model"] == "some-model"
    first = server.bodies[0]["messages"][0]["content"]
    assert "5 different kinds" in first
    assert DOMAINS["generic"]["domain"] in first
    assert DOMAINS["generic"]["examples"] in first
    again = server.bodies[2]["messages"]
    assert [m["role"] for m in again] == ["user", "assistant", "user"]
    assert again[1]["content"] == "mug\nkettle\nlamp"
    assert "2 more" in again[2]["content"]


def test_too_few_categories_are_an_error() -> None:
    with serving(says("mug\nkettle")) as server:
        with pytest.raises(RequestError, match=r"2 .* 50"):
            ask_categories(server.url, "m", "fossils", 50, DOMAINS)
        assert "fossils" in server.bodies[0]["messages"][0]["content"]
        assert server.count == 3  # two in a row brought nothing new
        assert "Authorization" not in server.headers[0]


def test_only_openais_own_address_gets_its_key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "secret")
    monkeypatch.setenv("MY_KEY", "mine")
    for url, is_own in (
        ("https://api.openai.com/v1", True),
        ("https://api.openai.com:443/v1/chat/completions", True),
        ("http://api.openai.com/v1", False),
        ("https://api.openai.com:8443/v1", False),
        ("https://api.openai.com@example.com/v1", False),
        ("https://api.openai.com.example.com/v1", False),
        ("http://localhost:8000/v1", False),
    ):
        assert key_for(url) == ("secret" if is_own else ""), url
        assert key_for(url, "MY_KEY") == "mine"
    with pytest.raises(RequestError, match="NO_SUCH_KEY"):
        key_for("http://localhost:8000/v1", "NO_SUCH_KEY")


def test_refusals_and_odd_answers_are_told() -> None:
    with pytest.raises(RequestError, match="file:///etc/hostname"):
        ask_categories("file:///etc/hostname", "m", "art", 5, DOMAINS)
    for act, message in (
        (fails(401, b"bad key secret-0123"), r"HTTP 401: bad key \*\*\*"),
        (fails(302, b"", Location="http://127.0.0.1:9/"), "HTTP 302"),  # the key would go with the redirect
        (fails(200, b'{"choices": []}'), "does not answer"),
        (fails(200, b'"hello"'), "does not answer"),
    ):
        with serving(act) as server:
            with pytest.raises(RequestError, match=message):
                ask_categories(server.url, "m", "art", 5, DOMAINS, "secret-0123")
            assert server.count == 1


# Backgrounds


def scene(shade: float = 0.0, noise: float = 2.0, hole: bool = False) -> tuple[Image.Image, np.ndarray[Any, Any]]:
    """A blue disc before a light background that falls off towards the lower right."""
    rng = np.random.default_rng(0)
    y, x = np.mgrid[:96, :128] / 96
    back = np.stack([235 - shade * (x + y), 230 - shade * (x + y), 225 - shade * x], -1)
    disc = Image.new("L", (128, 96))
    ImageDraw.Draw(disc).ellipse((40, 20, 90, 70), fill=255)
    truth = np.asarray(disc) > 0
    shown = truth.copy()
    if hole:
        shown[40:48, 60:70] = False
    pixels = np.where(shown[..., None], [40, 60, 160], back) + rng.normal(0, noise, (96, 128, 3))
    return Image.fromarray(pixels.clip(0, 255).astype(np.uint8)), truth


@pytest.mark.parametrize(("shade", "hole"), [(0.0, True), (60.0, False)])
def test_objects_before_clean_backgrounds_are_found(shade: float, hole: bool) -> None:
    image, truth = scene(shade, hole=hole)
    mask = np.asarray(CleanBackground().mask(image))
    assert ((mask > 0) == truth).mean() > 0.999


def test_what_touches_the_border_does_not_bend_the_fit() -> None:
    image, _ = scene()
    pixels = np.asarray(image).copy()
    pixels[70:, 50:80] = (40, 60, 160)  # a stand, down to the lower border
    mask = np.asarray(CleanBackground().mask(Image.fromarray(pixels))) > 0
    assert mask[80:, 52:78].all()
    assert not mask[:, :38].any()


def reason_against(image: Image.Image) -> str:
    """Why the object in a picture cannot be found."""
    reason = CleanBackground().mask(image)
    assert isinstance(reason, str)
    return reason


def test_backgrounds_that_are_not_clean_are_rejected() -> None:
    rng = np.random.default_rng(0)
    noise = Image.fromarray(rng.integers(0, 256, (64, 64, 3), dtype=np.uint8))
    assert "not clean" in reason_against(noise)
    assert "nothing but background" in reason_against(Image.new("RGB", (64, 64), (200, 200, 200)))
    speck = Image.new("RGB", (64, 64), (200, 200, 200))
    speck.paste((0, 0, 0), (30, 30, 33, 33))
    assert "covers 0.2% of the picture" in reason_against(speck)
    full = Image.new("RGB", (64, 64), (0, 0, 0))
    ImageDraw.Draw(full).rectangle((0, 0, 63, 63), outline=(255, 255, 255))
    assert re.search(r"covers 9\d\.\d% of the picture", reason_against(full))
    assert reason_against(Image.new("RGB", (1, 1)))
