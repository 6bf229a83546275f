"""Exported models: the graph is PyTorch's, scores are the metric's, torch is not loaded, other files are refused."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
import torch
from PIL import Image
from safetensors.torch import load_file

import idmetric
from idmetric import CheckpointError, Embedding, IDSim, ImageReadError, NearID, OnnxModel
from idmetric.calibration.apply import Calibration
from idmetric.calibration.curves import Platt
from idmetric.checkpoints.fingerprint import weights_digest
from idmetric.cli.main import main
from idmetric.distance import matrix
from idmetric.models.export import ExportError, export
from idmetric.models.idsim import IDSimConfig
from idmetric.models.nearid import NearIDConfig
from tests.conftest import random_model

DISTANCES = ("cls", "patch", "joint", "patch_pooled")


CONFIG = IDSimConfig(
    "resnet18", 64, 16, mean=(0.4, 0.5, 0.6), std=(0.2, 0.25, 0.3),
    backbone_args={"channels": [8, 8, 16, 16], "layers": [1, 1, 1, 1], "output_stride": 16},
)  # fmt: skip
BACKGROUND = (10, 200, 30)


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A saved model with a calibration, its ONNX file, a reference, candidates of other shapes, and masks."""
    root = tmp_path_factory.mktemp("onnx")
    torch.manual_seed(0)
    IDSim(CONFIG, device="cpu").save_pretrained(root / "model")
    model = idmetric.load(root / "model", device="cpu")
    calibration = Calibration(Platt(9.0, -7.0), model.calibrated_model(), "cls", 0.5, data={"origin": "photos"})
    calibration.write(root / "model" / "calibration.json")
    export(idmetric.load(root / "model", device="cpu", background=BACKGROUND), root / "model.onnx")

    rng = np.random.default_rng(3)
    (root / "gen").mkdir()
    (root / "masks").mkdir()
    for k, name in enumerate(("ref", "gen/a", "gen/b", "gen/c")):
        image = Image.fromarray(rng.integers(0, 256, (5, 4, 3), dtype=np.uint8)).resize((70 + 30 * k, 90))
        image.save(root / f"{name}.png")
        mask = np.zeros((90, 70 + 30 * k), np.uint8)
        mask[10:60, 20:50] = 255
        Image.fromarray(mask).save(root / "masks" / f"{Path(name).name}.png")
    return root


@pytest.fixture(scope="session")
def metric(folder: Path) -> IDSim:
    found = idmetric.load(folder / "model", device="cpu", background=BACKGROUND)
    assert isinstance(found, IDSim)
    return found


@pytest.fixture(scope="session")
def exported(folder: Path) -> OnnxModel:
    return OnnxModel(folder / "model.onnx")


@pytest.fixture(scope="session")
def images(folder: Path) -> list[str]:
    return [str(folder / "ref.png"), *(str(folder / "gen" / f"{name}.png") for name in "abc")]


def same_graph(metric: Any, path: Path) -> None:
    """The file in onnxruntime gives `metric(pixels)` for any batch and size: smaller, larger and the model's own."""
    session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    height, width = metric.image_size
    for batch, size in ((1, (height, width)), (5, (height, width)), (2, (40, 171)), (1, (2 * height + 1, width + 9))):
        pixels = torch.rand(batch, 3, *size)
        with torch.no_grad():
            expected = metric(pixels)
        cls, patches = session.run(["cls", "patches"], {"pixels": pixels.numpy()})
        assert np.abs(cls - expected.cls.numpy()).max() < 1e-4
        assert np.abs(patches - expected.patches.numpy()).max() < 1e-4
        assert np.abs(cls[0]).max() > 1e-2  # of unit length


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
def test_tiny_scores_photos_as_before_and_keeps_its_calibration(tmp_path: Path, photos: list[Path]) -> None:
    metric = IDSim("tiny", device="cpu")
    export(metric, tmp_path / "tiny.onnx")
    same_graph(metric, tmp_path / "tiny.onnx")
    exported = OnnxModel(tmp_path / "tiny.onnx")
    assert np.allclose(exported.pairwise(photos), metric.pairwise(photos).numpy(), atol=1e-5)
    before, now = metric.calibration, exported.calibration
    assert before is not None
    assert now is not None
    assert now.probability([0.1, 0.4]).tolist() == before.probability([0.1, 0.4]).tolist()


# Without torch

SCORES = """
import json, sys
import numpy as np
import idmetric
metric = idmetric.load("model.onnx")
scores = idmetric.score(metric, "ref.png", "gen", calibration="stored")
pairs = idmetric.score_pairs(metric, [("ref.png", "gen/a.png")])
print(json.dumps([scores.to_dict(), pairs.to_dict(), metric("ref.png", "gen").tolist(), "torch" in sys.modules]))
"""


def test_scores_without_torch_are_those_with_it(folder: Path, metric: IDSim, images: list[str]) -> None:
    done = subprocess.run([sys.executable, "-c", SCORES], cwd=folder, capture_output=True, text=True, check=True)
    scores, pairs, distances, loaded = json.loads(done.stdout)
    assert not loaded
    expected = {Path(row["image"]).name: row for row in idmetric.score(
        metric, images[0], images[1:], calibration="stored").rows}  # fmt: skip
    for row in [*scores["rows"], *pairs["rows"]]:
        known = expected[Path(row["image"]).name]
        assert row["distance"] == pytest.approx(known["distance"], abs=1e-5)
        assert row["copy_agreement"] == known["copy_agreement"]
    assert scores["rows"][0]["probability"] == pytest.approx(
        expected[Path(scores["rows"][0]["image"]).name]["probability"], abs=1e-4
    )
    assert distances == pytest.approx([expected[f"{name}.png"]["distance"] for name in "abc"], abs=1e-5)


def test_the_command_scores_without_torch(folder: Path) -> None:
    code = (
        "import sys; sys.modules['torch'] = sys.modules['huggingface_hub'] = None\n"  # to import them is an error
        "from idmetric.cli.main import main\n"
        "assert main(['score', '--model', 'model.onnx', '--ref', 'ref.png', '--ref', 'gen/a.png', 'gen']) == 0\n"
        "assert main(['score', '--model', 'model.onnx', 'ref.png', 'gen', '--quiet']) == 0\n"
        "assert main(['score', '--model', 'model.onnx', 'ref.png', 'gen', '--distance', 'joint']) == 1\n"
        "assert main(['score', '--model', 'model.onnx', 'ref.png', 'gen', '--mask-dir', 'masks']) == 1\n"
        "print(*sorted({'timm', 'onnx', 'safetensors'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=folder, capture_output=True, text=True, check=True)
    assert done.stdout.endswith("\n\n")
    assert "IDSim:model[onnx]" in done.stdout
    for purpose in ("the distance 'joint'", "the model with masks or tensors"):
        assert f"{purpose} needs torch: pip install" in done.stderr


# The same answers everywhere


@pytest.mark.parametrize("distance", DISTANCES)
def test_distances_are_the_metrics(metric: IDSim, exported: OnnxModel, images: list[str], distance: str) -> None:
    expected = metric.pairwise(images, None, distance).numpy()
    found = exported.pairwise(images, None, distance, batch_size=3)
    assert isinstance(found, np.ndarray)
    assert np.allclose(found, expected, atol=1e-5)
    assert np.allclose(exported(images[0], images, distance), expected[0], atol=1e-5)
    tensors = exported.embedder().pairwise(images, None, distance)
    assert isinstance(tensors, torch.Tensor)
    assert np.allclose(tensors.numpy(), expected, atol=1e-5)


def test_images_of_all_kinds_are_seen_as_the_metric_sees_them(metric: IDSim, exported: OnnxModel) -> None:
    rng = np.random.default_rng(0)
    integers = rng.integers(0, 256, (50, 80, 4), dtype=np.uint8)
    floats = rng.random((50, 80, 3), dtype=np.float32)
    for image in (Image.fromarray(integers), integers, floats, torch.rand(3, 30, 90)):
        found = exported.embed(image)
        assert isinstance(found.cls, np.ndarray)
        assert np.allclose(found.cls, metric.embed(image).cls.numpy(), atol=1e-5)
    with pytest.raises(ImageReadError, match=r"nothing\.png"):
        exported.embed("nothing.png")


def test_scores_with_masks_a_cache_and_skipped_images_are_the_metrics(
    metric: IDSim, exported: OnnxModel, folder: Path, images: list[str], tmp_path: Path
) -> None:
    (tmp_path / "bad.png").write_bytes(b"no image")
    cases: list[dict[str, Any]] = [
        {"mask_dir": folder / "masks", "distance": "joint"},
        {"cache": tmp_path / "cache"},
        {"cache": tmp_path / "cache"},  # read again
        {"on_error": "skip", "images": [*images[1:], str(tmp_path / "bad.png")]},
        {"distance": "patch"},
    ]
    for options in cases:
        given = {"images": images[1:], **options}
        for references in (images[:1], images[:2]):
            expected = idmetric.score(metric, references, **{**given, "cache": None}).to_dict()
            found = idmetric.score(exported, references, **given).to_dict()  # type: ignore[arg-type]
            assert [row["image"] for row in found["rows"]] == [row["image"] for row in expected["rows"]]
            for a, b in zip(found["rows"], expected["rows"], strict=True):
                assert a["distance"] == pytest.approx(b["distance"], abs=1e-5)
            assert found["signature"]["model"] == "IDSim:model[onnx]"


def test_the_signature_names_original_and_file_and_embeddings_do_not_mix(
    metric: IDSim, exported: OnnxModel, images: list[str]
) -> None:
    signature = exported.signature()
    assert signature["model"] == f"{metric.label}[onnx]"
    assert signature["revision"].startswith(f"{metric.revision}+")
    assert exported.embedder().signature() == signature
    assert exported.embedder().model_id == exported.model_id
    assert exported.facts.weights == weights_digest(metric)
    for one, other in ((metric, exported), (exported, metric), (exported.embedder(), metric)):
        with pytest.raises(ValueError, match="was made by"):
            one(other.embed(images), images)
    assert exported(exported.embed(images), images).tolist() == pytest.approx([0] * len(images), abs=1e-6)


def test_a_calibration_of_the_original_holds_for_the_file_alone(
    metric: IDSim, exported: OnnxModel, images: list[str]
) -> None:
    own = exported.calibration
    assert own is not None
    embedder = exported.embedder()
    found = embedder.probability(images[0], images[1:])
    assert torch.allclose(found, metric.probability(images[0], images[1:]), atol=1e-4)
    with pytest.raises(ValueError, match="was made for"):
        metric.calibrate_with(own)


def test_an_onnx_model_has_no_gradients(exported: OnnxModel) -> None:
    with pytest.raises(ValueError, match="no gradients"):
        exported.embedder()(torch.rand(1, 3, 64, 64, requires_grad=True))


# Embeddings of arrays


def test_an_embedding_of_arrays_is_used_as_one_of_tensors(
    exported: OnnxModel, images: list[str], tmp_path: Path
) -> None:
    found = exported.embed(images)
    tensors = found.tensors()
    assert isinstance(tensors.cls, torch.Tensor)
    for index in (1, -1, slice(1, 3), [2, 0], []):
        assert np.array_equal(found[index].cls, tensors[index].cls.numpy())  # type: ignore[index]
        assert np.array_equal(found[index].patches, tensors[index].patches.numpy())  # type: ignore[index, union-attr]
    assert repr(found) == repr(tensors)
    found.save(tmp_path / "kept.safetensors")
    assert torch.equal(load_file(tmp_path / "kept.safetensors")["cls"], tensors.cls)
    assert found.cpu() is found.detach()
    bad = replace(found, cls=np.full_like(found.cls, np.nan))
    assert not bad.finite().any()
    assert found.finite().all()


def test_distances_of_arrays_are_those_of_tensors() -> None:
    rng = np.random.default_rng(1)
    a = np.concatenate([rng.normal(size=(4, 9)), np.zeros((1, 9)), 1e-5 * rng.normal(size=(1, 9))])
    b = np.concatenate([a[:2], -a[2:3], rng.normal(size=(1, 9)), np.zeros((1, 9)), a[5:]])
    for dtype, atol in ((np.float64, 1e-12), (np.float32, 1e-6), (np.float16, 2e-3)):
        x, y = Embedding(a.astype(dtype)), Embedding(b.astype(dtype))  # type: ignore[arg-type]
        for measure in (matrix.distance, matrix.distance_matrix):
            found = measure(x, y)
            expected = measure(x.tensors(), y.tensors()).numpy()
            assert np.allclose(found, expected, atol=atol, rtol=0)
            assert found.dtype == expected.dtype
    cosines = 1 - (a @ b.T) / np.maximum(np.outer(np.linalg.norm(a, axis=1), np.linalg.norm(b, axis=1)), 1e-12)
    assert np.allclose(matrix.distance_matrix(Embedding(a), Embedding(b)), cosines)  # type: ignore[arg-type]
    assert np.allclose(matrix.distance(Embedding(a), Embedding(b)), np.diag(cosines))  # type: ignore[arg-type]


# 8 bits


@pytest.mark.slow
def test_int8_has_its_own_label_and_stays_close(
    folder: Path, metric: IDSim, images: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "int8.onnx"
    assert main(["export", "--model", str(folder / "model"), "--out", str(out), "--int8", str(folder / "gen")]) == 0
    assert "in float32 on average" in capsys.readouterr().err
    model = OnnxModel(out)
    assert model.signature()["dtype"] == "int8"
    assert model.label == "IDSim:model[onnx int8]"
    assert model.calibration is None  # which was made for other distances
    found, expected = model.pairwise(images), metric.pairwise(images).numpy()
    assert 1e-6 < np.abs(found - expected).max() < 0.1
    assert out.stat().st_size < 0.6 * (folder / "model.onnx").stat().st_size


# Refusals


def changed(source: Path, target: Path, change: Callable[[Any], object]) -> Path:
    """A copy of an ONNX file, changed."""
    model = onnx.load(str(source))
    change(model)
    target.write_bytes(model.SerializeToString())
    return target


def with_facts(**values: Any) -> Callable[[Any], object]:
    def change(model: Any) -> None:
        found = {**json.loads(model.metadata_props[0].value), **values}
        model.metadata_props[0].value = json.dumps(found)

    return change


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda model: model.ClearField("metadata_props"), "not written by `idmetric export`"),
        (with_facts(format=2), "has format 2"),
        (with_facts(image_size=[64, 64, 64]), "damaged"),
        (with_facts(preprocessing="none"), "one of standard, release"),
        (with_facts(image_size=[2_000_000_000, 64]), "1 to 16384 pixels"),
        (with_facts(std=[0, 1, 1]), "finite numbers above 0"),
        (with_facts(interpolation="nearest"), "unknown interpolation 'nearest'"),
        (with_facts(background=[300, 0, 0]), "values from 0 to 255"),
        (with_facts(grid=[0, -2]), "rows and columns"),
        (with_facts(dim=10**30), "below 2"),
        (with_facts(calibration=[1]), "an object"),
        (with_facts(format="x" * 100_000), "has format 'xxx"),
        (with_facts(grid=None, surprise=1), "surprise"),
    ],
)
def test_other_or_damaged_metadata_are_refused(
    folder: Path, tmp_path: Path, change: Callable[[Any], object], message: str
) -> None:
    path = changed(folder / "model.onnx", tmp_path / "changed.onnx", change)
    with pytest.raises(CheckpointError, match=message) as error:
        idmetric.load(path)
    assert "changed.onnx" in str(error.value)
    assert len(str(error.value)) < 1100


def test_files_that_are_no_models_are_refused(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="there is no file"):
        idmetric.load(tmp_path / "none.onnx")
    (tmp_path / "text.onnx").write_text("no model")
    with pytest.raises(CheckpointError, match="not an ONNX file"):
        idmetric.load(tmp_path / "text.onnx")


@pytest.mark.parametrize("location", ["../secret.bin", "secret.bin", "/{}/secret.bin"])
def test_weights_in_other_files_are_never_read(
    folder: Path, tmp_path: Path, location: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    inner = tmp_path / "inner"
    inner.mkdir()
    monkeypatch.chdir(inner)

    def change(model: Any) -> None:
        weight = next(x for x in model.graph.initializer if len(x.raw_data) > 256)
        for place in (tmp_path, inner):
            (place / "secret.bin").write_bytes(weight.raw_data)
        weight.ClearField("raw_data")
        weight.data_location = onnx.TensorProto.EXTERNAL
        weight.external_data.add(key="location", value=location.format(tmp_path))

    path = changed(folder / "model.onnx", inner / "outside.onnx", change)
    with pytest.raises(CheckpointError, match="can run"):
        idmetric.load(path)


def test_options_that_the_file_fixes_are_refused(folder: Path) -> None:
    with pytest.raises(ValueError, match="takes no preprocessing"):
        idmetric.load(folder / "model.onnx", preprocessing="release")
    with pytest.raises(CheckpointError, match="choose cpu"):
        idmetric.load(folder / "model.onnx", device="tpu")


def test_a_file_names_no_path_of_the_machine_that_wrote_it(folder: Path) -> None:
    data = (folder / "model.onnx").read_bytes()
    assert b"site-packages" not in data
    assert str(Path(idmetric.__file__).parent).encode() not in data


def test_models_that_cannot_be_exported_say_why(metric: IDSim, tmp_path: Path) -> None:
    half = IDSim(metric.settings, device="cpu", dtype=torch.bfloat16)
    with pytest.raises(ExportError, match="open it in float32"):
        export(half, tmp_path / "half.onnx")
    cropping = idmetric.Backbone("resnet18", pretrained=False, resize="crop", device="cpu")
    with pytest.raises(ExportError, match="crops or pads"):
        export(cropping, tmp_path / "crop.onnx")
    own = type("Own", (IDSim,), {"size_for": lambda self, height, width: (32, 32)})
    with pytest.raises(ExportError, match="is a Own: only IDSim, NearID and Backbone"):
        export(own(metric.settings, device="cpu"), tmp_path / "own.onnx")
    assert not list(tmp_path.iterdir())


def test_a_wrong_graph_leaves_no_file(metric: IDSim, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("idmetric.models.export.TOLERANCE", -1.0)
    with pytest.raises(ExportError, match="differs from PyTorch"):
        export(metric, tmp_path / "new.onnx")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("words", "message", "status"),
    [
        (["--out", "ref.png"], "must end in .onnx", 1),
        (["--out", "model.onnx"], "exists and would be overwritten", 1),
        (["--out", "new.onnx", "--int8", "nothing/"], "there is no 'nothing/'", 2),
        (["--out", "new.onnx", "--model", "model.onnx"], "exported already", 2),
        (["--out", "new.onnx", "--model", "tinny"], "did you mean 'tiny'", 1),
    ],
)
def test_the_command_refuses_in_one_line_before_the_work(
    folder: Path, words: list[str], message: str, status: int,
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    monkeypatch.chdir(folder)
    before = {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    try:
        found = main(["export", "--model", "model", *words])
    except SystemExit as error:
        found = int(str(error.code))
    printed = capsys.readouterr()
    assert found == status
    assert message in printed.err
    assert printed.err.count("\n") == 1
    assert before == {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_a_missing_extra_is_named(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("onnxscript", "onnxruntime"):
        monkeypatch.setitem(sys.modules, name, None)
    assert main(["export", "--model", "tiny", "--out", str(folder / "new.onnx")]) == 1
    assert "idmetric[onnx]" in capsys.readouterr().err
    assert main(["score", "--model", str(folder / "model.onnx"), str(folder / "ref.png"), str(folder / "gen")]) == 1
    assert "onnxruntime: pip install 'idmetric[onnx]'" in capsys.readouterr().err


def test_fast_decoding_is_part_of_its_name(folder: Path, tmp_path: Path) -> None:
    exact, fast = (idmetric.load(folder / "model.onnx", decode=decode) for decode in ("exact", "fast"))
    large = Image.open(folder / "ref.png").resize((900, 800))
    large.save(tmp_path / "large.jpg")
    assert fast.read_image(tmp_path / "large.jpg", whole=False).size == (225, 200)
    assert exact.read_image(tmp_path / "large.jpg", whole=False).size == (900, 800)
    assert fast.read_image(tmp_path / "large.jpg").size == (900, 800)
    assert fast.label == f"{exact.label}[fast decoding]"
    assert fast.signature()["model"] == fast.label
    assert exact.calibration is not None
    assert fast.calibration is None  # it is for all pixels

    embedder: Any = fast.embedder()  # type: ignore[operator]  # of an OnnxModel
    assert (embedder.label, embedder.decode) == (fast.label, "fast")
    assert np.allclose(embedder.embed(tmp_path / "large.jpg").cls, fast.embed(tmp_path / "large.jpg").cls, atol=1e-5)
    assert not np.array_equal(exact.embed(tmp_path / "large.jpg").cls, fast.embed(tmp_path / "large.jpg").cls)
