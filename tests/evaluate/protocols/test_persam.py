"""PerSAM's prompts and cascade, on a small SAM of the real class with random weights."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.torch import load_file, save_file

from idmetric import CheckpointError
from idmetric.evaluate.protocols.segmentation.persam import PerSAM, pick_points

transformers = pytest.importorskip("transformers")


def write_sam(folder: Path) -> None:
    """Write a SAM of 64 pixels, with weights large enough for its masks to follow its prompts, and its processor."""
    about: dict[str, Any] = {
        "vision_config": transformers.SamVisionConfig(
            hidden_size=16, output_channels=16, num_hidden_layers=2, num_attention_heads=2, image_size=64, patch_size=8,
            window_size=4, global_attn_indexes=[1], num_pos_feats=8, mlp_dim=32,
        ),
        "prompt_encoder_config": transformers.SamPromptEncoderConfig(
            hidden_size=16, image_size=64, patch_size=8, mask_input_channels=4
        ),
        "mask_decoder_config": transformers.SamMaskDecoderConfig(
            hidden_size=16, mlp_dim=32, num_hidden_layers=2, num_attention_heads=2, iou_head_hidden_dim=16
        ),
    }  # fmt: skip
    torch.manual_seed(0)
    model = transformers.SamModel(transformers.SamConfig(**{k: v.to_dict() for k, v in about.items()})).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim > 1:
                parameter.normal_(std=1.5 * parameter[0].numel() ** -0.5)
    size = {"height": 64, "width": 64}
    model.save_pretrained(folder)
    images = transformers.SamImageProcessor(size={"longest_edge": 64}, pad_size=size)
    transformers.SamProcessor(images).save_pretrained(folder)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("sam")
    write_sam(folder)
    return folder


@pytest.fixture
def sam(folder: Path) -> PerSAM:
    return PerSAM(folder, device="cpu")


def picture(height: int = 40, width: int = 100, seed: int = 0) -> Image.Image:
    return Image.fromarray(np.random.default_rng(seed).integers(0, 256, (height, width, 3), dtype=np.uint8))


def heat(height: int = 40, width: int = 100, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed + 100).normal(size=(height, width))


def test_points_are_the_hottest_and_the_coldest_place() -> None:
    values = heat()
    points = pick_points(values)
    (y, x), (v, u) = (np.unravel_index(k, values.shape) for k in (values.argmax(), values.argmin()))
    assert points.tolist() == [[x, y], [u, v]]
    assert pick_points(np.zeros((3, 4))).tolist() == [[0, 0], [0, 0]]  # the first of equal ones


def by_hand(sam: PerSAM, image: Image.Image, values: np.ndarray) -> tuple[np.ndarray, list[dict[str, Any]]]:
    """The three steps through SamProcessor and SamModel, pixels and all, with no help from the class."""
    model, processor = sam.model, sam.processor
    y, x = np.unravel_index(values.argmax(), values.shape)
    v, u = np.unravel_index(values.argmin(), values.shape)
    given: dict[str, Any] = {"input_points": [[[int(x), int(y)], [int(u), int(v)]]], "input_labels": [[1, 0]]}

    def call(multimask_output: bool, **prompts: Any) -> Any:
        boxes = {"input_boxes": prompts.pop("boxes")} if "boxes" in prompts else {}
        inputs = processor(images=image, return_tensors="pt", **given, **boxes)
        sizes = inputs.pop("original_sizes"), inputs.pop("reshaped_input_sizes")
        inputs = {k: t.float() if t.is_floating_point() else t for k, t in inputs.items()}
        with torch.no_grad():
            found = model(**inputs, **prompts, multimask_output=multimask_output)
        best = found.iou_scores[0, 0].argmax()
        masks = processor.post_process_masks(found.pred_masks, *sizes)[0][0, best]
        steps.append({**inputs, **prompts})
        return found.pred_masks[:, 0, best][:, None], masks.numpy()

    steps: list[dict[str, Any]] = []
    logits, _ = call(False)
    logits, mask = call(True, input_masks=logits)
    ys, xs = np.nonzero(mask)
    corners = [float(k) for k in (xs.min(), ys.min(), xs.max(), ys.max())]
    _, mask = call(True, input_masks=logits, boxes=[[corners]])
    return mask, steps


@pytest.mark.parametrize("size", [(40, 100), (90, 50), (64, 64)])
def test_the_cascade_is_persams(sam: PerSAM, size: tuple[int, int], monkeypatch: pytest.MonkeyPatch) -> None:
    image, values = picture(*size), heat(*size)
    expected, steps = by_hand(sam, image, values)
    calls: list[dict[str, Any]] = []
    plain = sam.model.forward

    def listen(*args: Any, **given: Any) -> Any:
        calls.append(given)
        return plain(*args, **given)

    monkeypatch.setattr(sam.model, "forward", listen)
    found = sam.segment(image, values)
    assert (found == expected).all()
    assert 0 < found.sum() < found.size
    assert len(calls) == 3
    assert [c["multimask_output"] for c in calls] == [False, True, True]
    for call, step in zip(calls, steps, strict=True):
        assert {"input_masks", "input_boxes"} & set(call) == {"input_masks", "input_boxes"} & set(step)
        for name in {"input_points", "input_labels", "input_masks", "input_boxes"} & set(step):
            assert call[name].shape == step[name].shape, name
            assert torch.allclose(call[name].double(), step[name].double(), atol=1e-4), name


def test_an_empty_mask_ends_the_cascade(sam: PerSAM, monkeypatch: pytest.MonkeyPatch) -> None:
    plain = sam.model.forward

    def empty(*args: Any, **given: Any) -> Any:
        found = plain(*args, **given)
        found.pred_masks = -found.pred_masks.abs() - 1
        return found

    monkeypatch.setattr(sam.model, "forward", empty)
    assert not sam.segment(picture(), heat()).any()


def test_anything_else_than_a_sam_is_refused(folder: Path, tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="neither an existing folder nor a Hub repository"):
        PerSAM(tmp_path / "nothing", device="cpu")
    shutil.copytree(folder, tmp_path / "sam")
    state = load_file(folder / "model.safetensors")
    removed = next(key for key in state if "mask_decoder" in key)
    save_file(
        {key: value for key, value in state.items() if key != removed}, tmp_path / "sam/model.safetensors",
        {"format": "pt"},
    )  # fmt: skip
    with pytest.raises(CheckpointError, match=f"missing {removed}"):
        PerSAM(tmp_path / "sam", device="cpu")
    transformers.ViTConfig(hidden_size=8, num_hidden_layers=1, num_attention_heads=1).save_pretrained(tmp_path / "vit")
    with pytest.raises(CheckpointError, match="of type 'vit', not a SAM"):
        PerSAM(tmp_path / "vit", device="cpu")


def test_clear_errors(sam: PerSAM) -> None:
    with pytest.raises(ValueError, match="map of"):
        sam.segment(picture(), heat(10, 10))
