"""A VisIDEmbed exported at one size: its constants are transformers', its scores the model's own at that size."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import torch
import torch.nn.functional as F
from PIL import Image
from torch import Tensor

import idmetric
from idmetric import IDSim, OnnxModel, VisIDEmbed
from idmetric.cli.main import main
from idmetric.models import visid_graph
from idmetric.models.export import ExportError, export
from idmetric.models.idsim import IDSimConfig
from idmetric.models.quantize import export_int8
from idmetric.models.visid import VisIDConfig
from idmetric.models.visid_graph import FixedSize, default_size
from tests.models.test_visid import make_qwen, make_tokenizer, photo

transformers = pytest.importorskip("transformers")

SIZE = (84, 140)  # 3 x 5 tokens in windows of 2 x 2: whole ones, and cut ones at two edges
PICTURES = {"ref": SIZE, "gen/same": SIZE, "gen/large": (600, 1000), "gen/tall": (140, 84)}
SMALL = VisIDConfig(min_pixels=28 * 28, max_pixels=16 * 28 * 28)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A saved model, and pictures of other sizes."""
    root = tmp_path_factory.mktemp("visid_export")
    made = make_qwen(tmp_path_factory.mktemp("qwen_for_export"), layers=1)
    VisIDEmbed(made, config=SMALL, device="cpu", dtype=torch.float32).save_pretrained(root / "model")
    (root / "gen").mkdir()
    for k, (name, size) in enumerate(PICTURES.items()):
        photo(*size, seed=k).save(root / f"{name}.png")
    return root


@pytest.fixture(scope="module")
def metric(folder: Path) -> VisIDEmbed:
    return VisIDEmbed(folder / "model", device="cpu")


@pytest.fixture(scope="module")
def exported(folder: Path) -> OnnxModel:
    given = [
        "--model",
        str(folder / "model"),
        "--out",
        str(folder / "model.onnx"),
        "--size",
        *map(str, SIZE),
        "--quiet",
    ]
    assert main(["export", *given]) == 0
    return OnnxModel(folder / "model.onnx")


def apart(metric: VisIDEmbed, found: Any, pixels: Tensor) -> float:
    """The largest difference of a feature from those of the model for pixels of the size; or infinity."""
    with torch.no_grad():
        expected = metric(pixels)
    assert expected.patches is not None
    assert expected.weights is not None
    cls, patches = (torch.as_tensor(x) for x in (found.cls, found.patches))
    shown = expected.patches[:, expected.weights[0] > 0]
    assert patches.shape == shown.shape
    assert cls.norm(dim=-1).sub(1).abs().max() < 1e-5
    return max(float((cls - expected.cls).abs().max()), float((patches - shown).abs().max()))


def make_qwen2(root: Path) -> Path:
    """A tiny Qwen2-VL, which has neither windows nor RMSNorm in its vision tower."""
    tokenizer = make_tokenizer(root)
    ids = {name: tokenizer.convert_tokens_to_ids(f"<|{name}|>") for name in ("image_pad", "video_pad", "vision_start")}
    config = transformers.Qwen2VLConfig(
        text_config={"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4,
                     "num_key_value_heads": 2, "vocab_size": len(tokenizer), "max_position_embeddings": 512,
                     "rope_scaling": {"type": "mrope", "mrope_section": [1, 1, 2]}},
        vision_config={"depth": 2, "embed_dim": 32, "hidden_size": 32, "num_heads": 2, "mlp_ratio": 2},
        image_token_id=ids["image_pad"], video_token_id=ids["video_pad"], vision_start_token_id=ids["vision_start"],
    )  # fmt: skip
    torch.manual_seed(0)
    transformers.Qwen2VLForConditionalGeneration(config).save_pretrained(root)
    transformers.Qwen2VLImageProcessor().save_pretrained(root)
    return root


# The constants of one size


@pytest.mark.parametrize(
    "settings",
    [
        SMALL,
        replace(SMALL, prompt_style="chat"),
        replace(SMALL, positions="vision", pooling="mean"),
        replace(SMALL, prompt_style="chat", positions="sequential", instruction=""),
    ],
)
def test_features_of_one_size_are_the_models(folder: Path, settings: VisIDConfig) -> None:
    metric = VisIDEmbed(folder / "model", config=settings, device="cpu")
    for size in (SIZE, (140, 84), (112, 112), (56, 28)):
        one = FixedSize(metric, size)
        for batch in (1, 3):
            pixels = torch.rand(batch, 3, *size)
            assert apart(metric, one.embed_pixels(pixels), pixels) < 1e-5


def test_features_of_qwen2_are_the_models(tmp_path: Path) -> None:
    metric = VisIDEmbed(make_qwen2(tmp_path), config=SMALL, device="cpu", dtype=torch.float32)
    one, pixels = FixedSize(metric, SIZE), torch.rand(2, 3, *SIZE)
    assert apart(metric, one.embed_pixels(pixels), pixels) < 1e-5
    assert not any(one.windowed)


def test_windows_and_their_order_matter_and_are_those_of_transformers(metric: VisIDEmbed) -> None:
    pixels = torch.rand(2, 3, *SIZE)
    one = FixedSize(metric, SIZE)
    assert one.windowed == [True, False]
    assert sorted((one.windows == 0).sum(1).unique().tolist()) == [4, 8, 16]  # patches of a window
    # tokens by the rows of their windows
    assert one.order[::4].div(4).tolist() == [0, 1, 5, 6, 2, 3, 7, 8, 4, 9, 10, 11, 12, 13, 14]

    def changed(**values: Any) -> float:
        one = FixedSize(metric, SIZE)
        for name, value in values.items():
            setattr(one, name, value)
        return apart(metric, one.embed_pixels(pixels), pixels)

    assert changed() < 1e-5
    assert changed(order=torch.arange(60), back=torch.arange(15)) > 1e-3
    assert changed(order=one.order.roll(4)) > 1e-3
    assert changed(back=one.back.roll(1)) > 1e-3
    assert changed(windowed=[False, False]) > 1e-3
    assert changed(windowed=[True, True]) > 1e-3
    assert changed(turns=one.turns.roll(4, 1)) > 1e-3
    assert changed(angles=one.angles.roll(1, -2)) > 1e-3
    assert changed(causal=torch.zeros_like(one.causal)) > 1e-3
    assert changed(after=one.after.roll(1, 1)) > 1e-3


@pytest.mark.slow
def test_a_changed_window_index_is_noticed_before_a_file_is_written(
    metric: VisIDEmbed, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Changed(visid_graph._Seen):
        def __init__(self, *given: Any) -> None:
            super().__init__(*given)
            self.order = self.order.roll(4)

    monkeypatch.setattr(visid_graph, "_Seen", Changed)
    with pytest.raises(ExportError, match="differs from PyTorch"):
        export(metric, tmp_path / "model.pt2", "torch-export", SIZE)
    assert not list(tmp_path.iterdir())


# Files


def test_the_file_gives_the_models_features_for_any_batch(metric: VisIDEmbed, exported: OnnxModel) -> None:
    for batch, size in ((1, SIZE), (3, SIZE), (2, (60, 200)), (1, (300, 90))):
        pixels = torch.rand(batch, 3, *size)
        resized = F.interpolate(pixels, SIZE, mode="bicubic", antialias=True).clamp(0, 1)
        found = exported.run(pixels.numpy())
        assert found.grid == (3, 5)
        assert apart(metric, found, resized) < 1e-4


@pytest.mark.slow
def test_a_torch_export_archive_gives_the_models_features_for_any_batch(metric: VisIDEmbed, tmp_path: Path) -> None:
    assert export(metric, tmp_path / "model.pt2", "torch-export") < 1e-4
    module = torch.export.load(tmp_path / "model.pt2").module()
    height, width = default_size(metric)
    assert (height, width) == (112, 112)  # the largest square of 16 tokens
    for batch in (1, 3):
        pixels = torch.rand(batch, 3, height, width)
        cls, patches = module(pixels)
        assert apart(metric, idmetric.Embedding(cls, patches), pixels) < 1e-4


def test_scores_are_the_models_where_it_sees_images_at_the_size_and_are_of_another_model(
    folder: Path, metric: VisIDEmbed, exported: OnnxModel
) -> None:
    images = [str(folder / f"{name}.png") for name in PICTURES]
    assert [metric.size_for(*Image.open(x).size[::-1]) for x in images] == [SIZE, SIZE, SIZE, (140, 84)]
    for distance in ("cls", "patch", "joint"):
        found, expected = (
            exported.pairwise(images, distance=distance),
            metric.pairwise(images, distance=distance).numpy(),
        )
        assert np.abs(found - expected)[:3, :3].max() < 1e-4
        assert expected[0, 1:3].min() > 1e-2
        assert np.abs(found - expected)[:3, 3].max() > 1e-3  # squashed here, with its own shape there
    squashed = Image.open(images[3]).resize(SIZE[::-1], Image.Resampling.BICUBIC)
    assert np.allclose(exported(images[0], images[3]), metric(images[0], squashed), atol=1e-4)

    assert exported.label == f"{metric.label}[84x140][onnx]"
    assert exported.signature()["resolution"] == "84x140"
    assert exported.calibration is None
    for one, other in ((metric, exported), (exported, metric)):
        with pytest.raises(ValueError, match="was made by"):
            one(other.embed(images), images)


def test_a_file_scores_without_torch_and_transformers(folder: Path, metric: VisIDEmbed, exported: OnnxModel) -> None:
    code = (
        "import json, sys; sys.modules['torch'] = sys.modules['transformers'] = None\n"  # to import them is an error
        "import idmetric\n"
        "print(json.dumps(idmetric.load('model.onnx')('ref.png', ['gen/same.png', 'gen/large.png']).tolist()))"
    )
    assert exported.name == str(folder / "model.onnx")
    done = subprocess.run([sys.executable, "-c", code], cwd=folder, capture_output=True, text=True, check=True)
    expected = metric(folder / "ref.png", [folder / "gen/same.png", folder / "gen/large.png"])  # type: ignore[arg-type]
    assert json.loads(done.stdout) == pytest.approx(expected.tolist(), abs=1e-4)


def test_word_embeddings_are_left_out(metric: VisIDEmbed, exported: OnnxModel) -> None:
    words = metric.backbone.language_model.embed_tokens.weight.numel()
    rest = sum(p.numel() for p in metric.parameters()) - words
    assert sum(p.numel() for p in FixedSize(metric, SIZE).parameters()) == rest
    values = [int(np.prod(x.dims)) for x in onnx.load(exported.name).graph.initializer]
    assert words not in values
    assert rest <= sum(values) < rest + words  # and masks, angles, the prompt


@pytest.mark.parametrize("tokens", [(20, 24), (17, 24), (5, 8), (16, 16)])
def test_the_size_chosen_without_one_is_one_of_the_models(folder: Path, tokens: tuple[int, int]) -> None:
    least, most = (28 * 28 * count for count in tokens)
    metric = VisIDEmbed(folder / "model", config=replace(SMALL, min_pixels=least, max_pixels=most), device="cpu")
    size = default_size(metric)
    assert metric.size_for(*size) == size
    assert least <= size[0] * size[1] <= most


# Refusals


@pytest.mark.parametrize(
    ("settings", "size", "message"),
    [
        (SMALL, (84, 141), "sees images of 84 x 141 pixels at 84 x 140: choose"),
        (SMALL, (280, 280), "of 784 to 12544 pixels"),
        (SMALL, (0, 140), "choose 28 pixels or more on each side"),
        (SMALL, (-84, -140), "choose 28 pixels or more on each side"),
        (SMALL, (28, 28 * 201), "no side ratio above 200"),
        (replace(SMALL, max_length=12), SIZE, "max_length=12 tokens do not hold an image of 15"),
        (replace(SMALL, instruction="<|im_end|>"), SIZE, "control token"),
    ],
)
def test_sizes_that_do_not_fit_are_refused(
    folder: Path, tmp_path: Path, settings: VisIDConfig, size: tuple[int, int], message: str
) -> None:
    metric = VisIDEmbed(folder / "model", config=settings, device="cpu")
    with pytest.raises(ExportError, match=message):
        export(metric, tmp_path / "model.onnx", size=size)


def test_what_is_not_exported_says_why(
    folder: Path,
    metric: VisIDEmbed,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    with pytest.raises(ExportError, match="is not quantized"):
        export_int8(metric, tmp_path / "model.onnx", [])
    given = ["export", "--model", str(folder / "model"), "--out", str(tmp_path / "model.onnx"), "--size", "84", "140"]
    with pytest.raises(SystemExit):
        main([*given, "--int8", str(folder / "gen")])
    assert "leave out --int8" in capsys.readouterr().err
    resnet = IDSim(IDSimConfig("resnet18", 64, 16, backbone_args={"layers": [1, 1, 1, 1]}), device="cpu")
    with pytest.raises(ExportError, match="sees images at 64x64"):
        export(resnet, tmp_path / "model.onnx", size=SIZE)
    with monkeypatch.context() as patch:
        patch.setattr("idmetric.models.export.MOST", 1000)
        with pytest.raises(ExportError, match="use torch-export"):
            export(metric, tmp_path / "model.onnx", size=SIZE)
    run = visid_graph._run

    def other(*given: Any) -> Any:
        blocks, layers = run(*given)
        return [{key: value for key, value in x.items() if key != "cu_seqlens"} for x in blocks], layers

    monkeypatch.setattr(visid_graph, "_run", other)
    with pytest.raises(ExportError, match=r"transformers [\d.]+ lays out Qwen2_5_VLModel in a way.*'cu_seqlens'"):
        FixedSize(metric, SIZE)
    assert not list(tmp_path.iterdir())
