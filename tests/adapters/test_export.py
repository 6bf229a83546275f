"""Exported models: the graph is that of PyTorch, the documented lines score with it, other models are refused."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import pytest
import torch
from PIL import Image

import idmetric
from idmetric import IDSim, NearID
from idmetric.adapters.export import export
from idmetric.metric.errors import RequestError
from idmetric.metric.files import OutputError
from idmetric.metric.fingerprint import weights_digest
from idmetric.metric.idsim import IDSimConfig
from idmetric.metric.nearid import NearIDConfig
from tests.conftest import random_model

PAGE = Path(__file__).parents[2] / "docs" / "use" / "export.md"
CONFIG = IDSimConfig(
    "resnet18", 64, 16, mean=(0.4, 0.5, 0.6), std=(0.2, 0.25, 0.3),
    backbone_args={"channels": [8, 8, 16, 16], "layers": [1, 1, 1, 1], "output_stride": 16},
)  # fmt: skip


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A saved model, its ONNX file, a reference, and candidates of other shapes."""
    root = tmp_path_factory.mktemp("onnx")
    torch.manual_seed(0)
    IDSim(CONFIG, device="cpu").save_pretrained(root / "model")
    export(idmetric.load(root / "model", device="cpu"), root / "model.onnx")
    rng = np.random.default_rng(3)
    (root / "gen").mkdir()
    for k, name in enumerate(("reference", "gen/a", "gen/b", "gen/c")):
        image = Image.fromarray(rng.integers(0, 256, (5, 4, 3), dtype=np.uint8)).resize((70 + 30 * k, 90))
        image.save(root / f"{name}.png")
    return root


@pytest.fixture(scope="module")
def metric(folder: Path) -> Any:
    return idmetric.load(folder / "model", device="cpu")


def session_of(path: Path) -> Any:
    return onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])


def facts_of(path: Path) -> dict[str, Any]:
    return dict(json.loads(session_of(path).get_modelmeta().custom_metadata_map["idmetric"]))


def same_graph(metric: Any, path: Path) -> None:
    """The file in onnxruntime gives `metric(pixels)` for any batch and size: smaller, larger and the model's own."""
    session = session_of(path)
    height, width = metric.image_size
    for batch, size in ((1, (height, width)), (5, (height, width)), (2, (40, 171)), (1, (2 * height + 1, width + 9))):
        pixels = torch.rand(batch, 3, *size)
        with torch.no_grad():
            expected = metric(pixels)
        cls, patches = session.run(["cls", "patches"], {"pixels": pixels.numpy()})
        assert np.abs(cls - expected.cls.numpy()).max() < 1e-4
        assert np.abs(patches - expected.patches.numpy()).max() < 1e-4
        assert np.abs(cls[0]).max() > 1e-2  # of unit length


def documented_embed(path: Path, size: int) -> Any:
    """The function `embed` of docs/use/export.md, for a file and its size."""
    [code] = re.findall(r"```python\n(import numpy.*?)\n\n\nreference = ", PAGE.read_text(encoding="utf-8"), re.DOTALL)
    names: dict[str, Any] = {}
    exec(code.replace('"tiny.onnx"', repr(str(path))).replace("(224, 224)", f"({size}, {size})"), names)
    return names["embed"]


def test_the_graph_is_the_metrics_for_any_batch_and_size(metric: IDSim, folder: Path) -> None:
    same_graph(metric, folder / "model.onnx")


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["dinov3", "nearid", "backbone"])
def test_the_graph_of_other_models_is_theirs(kind: str, tmp_path: Path) -> None:
    if kind == "nearid":
        parts = {"act_layer": "gelu_tanh", "depth": 2, "embed_dim": 48, "num_heads": 3}
        metric: Any = NearID(NearIDConfig("vit_base_patch16_siglip_224", 64, backbone_args=parts), device="cpu")
    elif kind == "backbone":
        parts = {"depth": 2, "embed_dim": 48, "num_heads": 3}
        metric = idmetric.Backbone(
            "vit_tiny_patch16_224", pretrained=False, image_size=64, resize="squash", backbone_args=parts, device="cpu"
        )
    else:
        metric = random_model(kind)
    export(metric, tmp_path / "model.onnx")
    same_graph(metric, tmp_path / "model.onnx")


@pytest.mark.slow
def test_the_documented_lines_score_photos_as_tiny_does(tmp_path: Path, photos: list[Path]) -> None:
    metric = IDSim("tiny", device="cpu")
    export(metric, tmp_path / "tiny.onnx")
    embed = documented_embed(tmp_path / "tiny.onnx", 224)
    features = np.stack([embed(path) for path in photos])
    assert np.abs(1 - features @ features.T - metric.pairwise(photos).numpy()).max() < 1e-4


def test_the_documented_lines_give_the_distances_of_the_metric(folder: Path, metric: IDSim) -> None:
    embed = documented_embed(folder / "model.onnx", 64)
    for name in ("a", "b", "c"):
        distance = 1 - embed(folder / "reference.png") @ embed(folder / "gen" / f"{name}.png")
        expected = metric(folder / "reference.png", folder / "gen" / f"{name}.png").item()
        assert distance == pytest.approx(expected, abs=1e-5)


def test_the_metadata_name_the_model_and_how_it_reads_images(folder: Path, metric: IDSim) -> None:
    facts = facts_of(folder / "model.onnx")
    assert (facts["model"], facts["revision"]) == (metric.label, metric.revision)
    assert facts["weights"] == weights_digest(metric)
    assert (facts["image_size"], facts["grid"], facts["interpolation"]) == ([64, 64], [4, 4], "bicubic")


def test_models_that_cannot_be_exported_say_why(metric: IDSim, tmp_path: Path) -> None:
    half = IDSim(metric.settings, device="cpu", dtype=torch.bfloat16)
    with pytest.raises(RequestError, match="open it in float32"):
        export(half, tmp_path / "half.onnx")
    cropping = idmetric.Backbone("resnet18", pretrained=False, resize="crop", device="cpu")
    with pytest.raises(RequestError, match="crops or pads"):
        export(cropping, tmp_path / "crop.onnx")
    own = type("Own", (IDSim,), {})
    with pytest.raises(RequestError, match="is a Own: only IDSim, NearID and Backbone"):
        export(own(metric.settings, device="cpu"), tmp_path / "own.onnx")
    assert not list(tmp_path.iterdir())


def test_a_wrong_graph_leaves_no_file(metric: IDSim, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("idmetric.adapters.export.TOLERANCE", -1.0)
    with pytest.raises(RequestError, match="differs from PyTorch"):
        export(metric, tmp_path / "new.onnx")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("name", ["reference.png", "model.onnx"])
def test_a_file_that_exists_or_has_another_ending_is_refused(folder: Path, metric: IDSim, name: str) -> None:
    before = (folder / name).read_bytes()
    with pytest.raises(OutputError, match=name):
        export(metric, folder / name)
    assert (folder / name).read_bytes() == before
