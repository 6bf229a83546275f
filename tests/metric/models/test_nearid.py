from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from PIL import Image
from safetensors.torch import load_file, save_file

from idmetric import CheckpointError, NearID, load
from idmetric.metric.checkpoints import released
from idmetric.metric.nearid import NearIDConfig
from tests.published import attention_pool, preprocess

SMALL = {"hidden_size": 48, "intermediate_size": 100, "num_hidden_layers": 3, "num_attention_heads": 4,
         "image_size": 58, "patch_size": 14}  # fmt: skip
PROCESSOR = {"do_resize": True, "do_rescale": True, "do_normalize": True, "rescale_factor": 1 / 255, "resample": 2,
             "image_mean": [0.5] * 3, "image_std": [0.5] * 3, "size": {"height": 58, "width": 58}}  # fmt: skip
CONFIG, PREPROCESSOR, WEIGHTS = "config.json", "preprocessor_config.json", "model.safetensors"
EXAMPLES = Path(__file__).parents[3] / "examples" / "images"


def official(folder: Path, vision: dict[str, Any], prefix: str = "backbone.vision_model.", seed: int = 0) -> Any:
    """A checkpoint as NearID's authors publish it, and transformers' own model of it."""
    transformers = pytest.importorskip("transformers")
    torch.manual_seed(seed)
    model = transformers.SiglipVisionModel(transformers.SiglipVisionConfig(**vision)).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim > 1:
                parameter.normal_(std=1.2 * parameter[0].numel() ** -0.5)
            else:
                parameter.add_(torch.randn_like(parameter) * 0.1)
        model = model.half().float()  # as the file will hold them
    state = {
        prefix + key.removeprefix("vision_model."): value.half().contiguous()
        for key, value in model.state_dict().items()
        if not key.endswith("position_ids")
    }
    folder.mkdir(parents=True, exist_ok=True)
    save_file(state, folder / WEIGHTS, {"format": "pt"})
    config = {"model_type": "nearid", "embed_dim": vision["hidden_size"], "normalize_embeddings": True,
              "auto_map": {"AutoModel": "modeling_nearid.NearID"},
              "vision_config": {**vision, "model_type": "siglip_vision_model"}}  # fmt: skip
    (folder / CONFIG).write_text(json.dumps(config))
    size = {"height": vision["image_size"], "width": vision["image_size"]}
    (folder / PREPROCESSOR).write_text(json.dumps({**PROCESSOR, "size": size}))
    return model


def edit(file: Path, **changes: Any) -> None:
    file.write_text(json.dumps({**json.loads(file.read_text()), **changes}))


@pytest.mark.parametrize(
    ("prefix", "resample"),
    [("backbone.vision_model.", "bilinear"), ("backbone.", "bicubic"), ("vision_model.", "bilinear")],
)
def test_pictures_get_the_published_forward(prefix: str, resample: str, tmp_path: Path) -> None:
    # Pillow and torchvision, transformers' encoder, the head written out; in double precision
    model = official(tmp_path, {**SMALL, "image_size": 114}, prefix).double()
    mean, std = [0.4, 0.5, 0.6], [0.3, 0.5, 0.4]  # not the published ones, which are all alike
    resampling = {"bilinear": 2, "bicubic": 3}[resample]
    edit(tmp_path / PREPROCESSOR, resample=resampling, image_mean=mean, image_std=std)
    metric = NearID(tmp_path, device="cpu", dtype=torch.float64)
    pictures = [EXAMPLES / name for name in ("mug_a.png", "mug_b.png", "box_a.png")]
    pixels = torch.cat([preprocess(path, 114, resample) for path in pictures]).double()
    with torch.no_grad():
        seen = model((pixels - pixels.new_tensor(mean).view(3, 1, 1)) / pixels.new_tensor(std).view(3, 1, 1))
        weights = {key.partition("head.")[2]: value for key, value in model.state_dict().items() if "head." in key}
        expected = attention_pool(seen.last_hidden_state, weights, SMALL["num_attention_heads"])
    assert (expected - seen.pooler_output).abs().max() <= 1e-12
    found = metric.embed(pictures)
    assert found.grid == (8, 8)  # 114 / 14, the rest dropped as there
    assert found.patches is not None
    unit = F.normalize(expected, dim=1)
    assert (found.cls - unit).abs().max() <= 1e-9
    assert (found.patches - F.normalize(seen.last_hidden_state, dim=-1)).abs().max() <= 1e-9
    distance = 1 - unit[1:] @ unit[0]
    assert (metric(pictures[0], pictures[1:]) - distance).abs().max() <= 1e-9
    assert distance.min() > 1e-3  # or the comparison would show nothing


def test_saved_and_loaded_gives_equal_scores(tmp_path: Path) -> None:
    official(tmp_path / "official", SMALL)
    metric = NearID(tmp_path / "official", device="cpu")
    metric.save_pretrained(tmp_path / "ours")
    again = load(tmp_path / "ours", device="cpu")
    assert isinstance(again, NearID)
    assert again.settings == metric.settings
    x, y = torch.rand(2, 3, 80, 60), torch.rand(2, 3, 80, 60)
    assert again(x, y, "joint").equal(metric(x, y, "joint"))


@pytest.mark.parametrize(
    ("file", "setting", "value"),
    [
        (CONFIG, "model_type", "clip"), (CONFIG, "embed_dim", 64), (PREPROCESSOR, "resample", 0),
        (PREPROCESSOR, "size", {"height": 60, "width": 58}), (PREPROCESSOR, "size", {"shortest_edge": 58}),
        (PREPROCESSOR, "do_center_crop", True), (PREPROCESSOR, "image_mean", 0.5), (PREPROCESSOR, "do_resize", None),
        (PREPROCESSOR, "do_normalize", False), (PREPROCESSOR, "rescale_factor", 1.0),
    ],
)  # fmt: skip
def test_a_setting_that_is_not_the_published_formats_is_named(
    file: str, setting: str, value: Any, tmp_path: Path
) -> None:
    official(tmp_path, SMALL)
    edit(tmp_path / file, **{setting: value})
    with pytest.raises(CheckpointError, match=setting.removeprefix("image_")):
        NearID(tmp_path, device="cpu")


@pytest.mark.parametrize(
    ("setting", "value"), [("hidden_act", "relu"), ("layer_norm_eps", 1e-5), ("num_channels", 1)]
)  # fmt: skip
def test_a_trunk_that_is_not_supported_is_named(setting: str, value: Any, tmp_path: Path) -> None:
    official(tmp_path, SMALL)
    edit(tmp_path / CONFIG, vision_config={**SMALL, setting: value})
    with pytest.raises(CheckpointError, match=setting):
        NearID(tmp_path, device="cpu")


def test_missing_and_unknown_tensors_and_files_are_named(tmp_path: Path) -> None:
    official(tmp_path, SMALL)
    state = load_file(tmp_path / WEIGHTS)
    for missing, name in (
        ("encoder.layers.1.self_attn.k_proj.weight", r"blocks\.1\.attn\.k"),
        ("encoder.layers.2.mlp.fc1.bias", r"blocks\.2\.mlp\.fc1"),
        ("head.probe", r"attn_pool\.latent"),
    ):
        save_file({key: value for key, value in state.items() if not key.endswith(missing)}, tmp_path / WEIGHTS)
        with pytest.raises(CheckpointError, match=name):
            NearID(tmp_path, device="cpu")
    save_file({**state, "head.probe": state["backbone.vision_model.head.probe"].clone()}, tmp_path / WEIGHTS)
    with pytest.raises(CheckpointError, match="two names"):
        NearID(tmp_path, device="cpu")
    save_file({**state, "decoder.x": torch.zeros(1)}, tmp_path / WEIGHTS)
    with pytest.raises(CheckpointError, match=r"decoder\.x"):
        NearID(tmp_path, device="cpu")
    save_file(state, tmp_path / WEIGHTS)
    edit(tmp_path / CONFIG, vision_config={**SMALL, "num_hidden_layers": 2})
    with pytest.raises(CheckpointError, match=r"blocks\.2"):
        NearID(tmp_path, device="cpu")
    (tmp_path / PREPROCESSOR).unlink()
    with pytest.raises(CheckpointError, match=r"preprocessor_config\.json"):
        NearID(tmp_path, device="cpu")


def test_the_defaults_are_the_published_models() -> None:
    assert NearIDConfig().backbone == released.NEARID["nearid"].backbone
    metric = NearID(NearIDConfig(image_size=28, backbone_args={"depth": 1, "embed_dim": 24, "num_heads": 2}))
    assert not any(p.requires_grad for p in metric.parameters())
    assert metric.embed(Image.new("RGB", (9, 9))).cls.shape == (1, 24)
