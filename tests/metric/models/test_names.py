"""A folder next to the images cannot take the place of a published model."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from idmetric import Backbone, CheckpointError, IDSim, load
from idmetric.cli.gallery import main as gallery_main
from idmetric.cli.score import main
from idmetric.gallery import Gallery
from idmetric.metric.checkpoints import released
from idmetric.metric.load import known
from idmetric.metric.timm_models import is_timm
from tests.conftest import random_model
from tests.embed_parts import pictures

SMALL: dict[str, Any] = {"embed_dim": 24, "depth": 2, "num_heads": 2}
RELEASES = [
    *released.MODELS,
    *(release.repo for release in released.MODELS.values()),
    "dinov3_vitl16_cls_patch",
]


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The current directory, without a network."""
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize("name", RELEASES)
def test_a_folder_with_the_name_of_a_release_does_not_replace_it(name: str, here: Path) -> None:
    random_model("dinov3").save_pretrained(here / name)
    with pytest.raises(CheckpointError, match=r"cannot fetch|needs"):  # from the Hub
        load(name, device="cpu")


@pytest.mark.parametrize("name", [f"./{RELEASES[0]}", f"{RELEASES[0]}/", "./tiny"])
def test_the_folder_opens_by_its_path_and_is_labeled_as_one(name: str, here: Path) -> None:
    random_model("dinov3").save_pretrained(here / name)
    model = IDSim(name, device="cpu")
    assert model.label == f"IDSim:./{Path(name).name}"
    assert load(Path(name), device="cpu").label == model.label  # a Path is no name
    assert load((here / name).resolve(), device="cpu").label == model.label


def test_a_folder_named_tiny_is_not_scored_as_tiny(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    plain = IDSim("tiny", device="cpu")
    random_model("dinov3").save_pretrained(here / "tiny")
    assert IDSim("tiny", device="cpu").model_id == plain.model_id
    images = [str(path) for path in pictures(here / "photos", 2)]
    assert main([*images, "--model", "tiny", "--device", "cpu", "--quiet"]) == 0
    assert f"{plain(*images).item():.4f}" in capsys.readouterr().out

    assert gallery_main(["build", "photos", "--gallery", "index", "--model", "tiny", "--device", "cpu", "--quiet"]) == 0
    assert Gallery(here / "index", plain).build("photos").embedded == 0


@pytest.mark.parametrize("name", ["resnet18", "dino-i:dreambooth", "frozen:dinov3-b16"])
def test_a_folder_with_the_name_of_an_encoder_or_a_score_does_not_replace_it(name: str, here: Path) -> None:
    folder = here / name
    Backbone("vit_tiny_patch16_224", pretrained=False, image_size=32, backbone_args=SMALL).save_pretrained(folder)
    assert known(name) == "backbone" or is_timm(name)
    with pytest.raises(CheckpointError, match="cannot fetch"):
        load(name if known(name) else f"timm:{name}", device="cpu", cache_dir=here / "empty")
    assert Backbone(f"./{name}", device="cpu").label == f"Backbone:./{name}"


def test_a_folder_with_the_name_of_a_hub_repository_in_timms_format_does_not_replace_it(here: Path) -> None:
    folder = here / "owner/name"
    Backbone("vit_tiny_patch16_224", pretrained=False, image_size=32, backbone_args=SMALL).save_pretrained(folder)
    with pytest.raises(CheckpointError, match="cannot fetch"):
        load("hf-hub:owner/name", device="cpu")
    assert load("owner/name", device="cpu").label == "Backbone:name"  # a repository is labeled owner/name
