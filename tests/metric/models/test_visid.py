from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from PIL import Image
from safetensors.torch import save_file
from torch import Tensor

from idmetric import CheckpointError, ImageReadError, VisIDEmbed, load
from idmetric.metric.visid.config import CANDIDATE, TASKS, VisIDConfig
from idmetric.metric.visid.prompt import PromptInput, patchify, prompt_tokens
from idmetric.train.visme import small_qwen

transformers = pytest.importorskip("transformers", minversion="5.0")

SMALL = VisIDConfig(max_pixels=16 * 28 * 28, max_length=128)


def make_qwen(root: Path, shard: str = "1GB") -> Path:
    """A tiny Qwen2.5-VL with random weights, in the files transformers writes."""
    small_qwen.write(root)
    model = transformers.Qwen2_5_VLForConditionalGeneration.from_pretrained(root)
    (root / "model.safetensors").unlink()
    model.save_pretrained(root, max_shard_size=shard)
    return root


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_qwen(tmp_path_factory.mktemp("qwen"))


@pytest.fixture(scope="module")
def metric(folder: Path) -> VisIDEmbed:
    return VisIDEmbed(folder, config=SMALL, device="cpu", dtype=torch.float32)


def photo(height: int, width: int, seed: int = 0) -> Image.Image:
    small = np.random.default_rng(seed).integers(0, 256, (5, 5, 3), dtype=np.uint8)
    return Image.fromarray(small).resize((width, height), Image.Resampling.BICUBIC)


def direct(folder: Path, image: Image.Image | None, prompt: str, vision: bool) -> tuple[Tensor, Tensor]:
    """Last token and image tokens by transformers' own processor and model, unnormalized."""
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    whole = transformers.Qwen2_5_VLForConditionalGeneration.from_pretrained(folder, dtype=torch.float32)
    model = whole.model.eval()
    inputs: dict[str, Any] = {}
    if image is not None:
        processor = transformers.Qwen2VLImageProcessor.from_pretrained(
            folder, size={"shortest_edge": SMALL.min_pixels, "longest_edge": SMALL.max_pixels}
        )
        inputs = dict(processor(image, return_tensors="pt"))
        prompt = prompt.replace("<|image_pad|>", "<|image_pad|>" * int(inputs["image_grid_thw"].prod() // 4))
    ids = tokenizer(prompt, return_tensors="pt", add_special_tokens=False)["input_ids"]
    images = ids == model.config.image_token_id
    if vision and image is not None:
        inputs["mm_token_type_ids"] = images.int()
    with torch.no_grad():
        hidden = model(input_ids=ids, attention_mask=torch.ones_like(ids), **inputs).last_hidden_state[0]
    return hidden[-1], hidden[images[0]]


CHAT = (
    "<|im_start|>system\nYou are a helpful assistant.<|im_end|>\n<|im_start|>user\n",
    "<|im_end|>\n<|im_start|>assistant\n",
)


@pytest.mark.parametrize("style", ["vlm2vec", "chat"])
@pytest.mark.parametrize("positions", ["sequential", "vision"])
def test_embeddings_are_those_of_transformers(folder: Path, style: Any, positions: Any) -> None:
    settings = VisIDConfig(style, positions, max_pixels=SMALL.max_pixels)
    metric = VisIDEmbed(folder, config=settings, device="cpu", dtype=torch.float32)
    image = photo(70, 120)
    shown = "<|image_pad|> " if style == "vlm2vec" else CHAT[0] + "<|vision_start|><|image_pad|><|vision_end|>"
    plain, end = ("", "") if style == "vlm2vec" else CHAT
    for given, picture, prompt in (
        ({}, image, shown + CANDIDATE + end),
        ({"texts": "make it blue", "task": "editing"}, image, shown + TASKS["editing"] + " make it blue" + end),
        ({"instruction": ""}, image, shown.strip() + end),
        ({"texts": "a red car"}, None, plain + "a red car" + end),
        ({"texts": "a red car", "instruction": "Find"}, None, plain + "Find a red car" + end),
    ):
        last, tokens = direct(folder, picture, prompt, positions == "vision")
        found = metric.embed(picture, **given)
        assert (found.cls[0] - F.normalize(last, dim=0)).abs().max() < 5e-3  # pixels are rounded at another moment
        assert F.cosine_similarity(found.cls[0], last, dim=0) > 0.9999
        if picture is None:
            assert found.patches is None
        else:
            assert found.patches is not None
            assert found.weights is not None
            assert found.patches.shape == (1, 16, 32)
            assert int(found.weights.sum()) == len(tokens) == 2 * 4
            assert F.cosine_similarity(found.patches[0, : len(tokens)], tokens).min() > 0.999


def test_positions_follow_the_style(folder: Path) -> None:
    image = photo(70, 120)

    def cls(style: Any, positions: Any) -> Tensor:
        return VisIDEmbed(folder, config=VisIDConfig(style, positions), device="cpu").embed(image).cls

    assert cls("vlm2vec", "auto").equal(cls("vlm2vec", "sequential"))
    assert cls("chat", "auto").equal(cls("chat", "vision"))


def test_pixels_become_the_processors_patches(folder: Path, metric: VisIDEmbed) -> None:
    processor = transformers.Qwen2VLImageProcessor.from_pretrained(folder)
    pixels = torch.rand(3, 56, 84)
    expected = processor(pixels[None], do_rescale=False, do_resize=False, return_tensors="pt")
    assert expected["image_grid_thw"].tolist() == [[1, 4, 6]]
    assert patchify(metric.normalize(pixels)).sub(expected["pixel_values"]).abs().max() < 1e-5


@pytest.mark.parametrize("height", [1, 20, 28, 41, 448, 1000])
@pytest.mark.parametrize("width", [30, 57, 448, 3000])
def test_sizes_are_those_of_the_processor(height: int, width: int) -> None:
    from transformers.models.qwen2_vl.image_processing_qwen2_vl import smart_resize

    if max(height, width) > 200 * min(height, width):
        with pytest.raises(ValueError, match="ratio"):
            VisIDConfig("chat").size_for(height, width)
        return
    expected = smart_resize(height, width, min_pixels=3136, max_pixels=200_704)
    assert VisIDConfig("chat").size_for(height, width) == expected
    # VLM2Vec enlarges small images first
    assert VisIDConfig("vlm2vec").size_for(height, width) == ((56, 56) if min(height, width) < 28 else expected)
    # the processor goes beyond narrow limits
    rows, columns = VisIDConfig("chat", min_pixels=3136, max_pixels=3136).size_for(height, width)
    assert rows * columns <= 3136


def test_scores_do_not_depend_on_batch_padding_or_mates(metric: VisIDEmbed) -> None:
    images = [photo(40, 60, 1), photo(120, 50, 2), photo(70, 70, 3)]
    texts = ["short", "a much longer text for the second one", ""]
    alone = torch.cat([metric.embed(i, texts=t).cls for i, t in zip(images, texts, strict=True)])
    for size in (1, 2, 3):
        found = metric.embed(images, texts=texts, batch_size=size)
        assert (found.cls - alone).abs().max() < 1e-5
    matrix = metric.pairwise(images, distance="patch")
    assert matrix.diagonal().abs().max() < 1e-4
    assert (matrix[0, 1] - metric(images[0], images[1], "patch")).abs() < 1e-5
    assert (matrix + torch.eye(3) > 1e-3).all()


def test_a_list_may_hold_images_texts_and_both(folder: Path) -> None:
    config = replace(SMALL, instruction="Look", text_instruction="Read")
    metric = VisIDEmbed(folder, config=config, device="cpu", dtype=torch.float32)
    images, texts = [photo(60, 80), None, photo(30, 90), None], ["", "the cat", "the dog", "an ink"]
    expected = ["Look", "Read the cat", "Look the dog", "Read an ink"]
    for size in (1, 3):
        found = metric.embed(images, texts=texts, batch_size=size)
        assert found.patches is None  # a text has none
        for row, image, words in zip(found.cls, images, expected, strict=True):
            alone = metric.embed(image, texts=words, instruction="", patches=False)
            assert torch.allclose(row, alone.cls[0], atol=1e-5)
    with pytest.raises(ValueError, match="without image and without words"):
        VisIDEmbed(folder, config=SMALL, device="cpu").embed([images[0], None])


def test_gradients_reach_the_pixels(metric: VisIDEmbed) -> None:
    target = metric.embed(photo(56, 84, 6))
    pixels = torch.rand(1, 3, 50, 80, requires_grad=True)
    metric(pixels, target, "joint").sum().backward()
    assert pixels.grad is not None
    assert pixels.grad.abs().sum() > 0
    assert metric(pixels.detach(), target).grad_fn is None
    with pytest.warns(UserWarning, match="passes no gradient"):
        metric.embed(pixels)


def test_long_texts_are_cut_with_a_warning_and_images_never(folder: Path, metric: VisIDEmbed) -> None:
    image, text = photo(56, 56, 7), "word " * 100
    with pytest.warns(UserWarning, match="cut by"):
        found = metric.embed(image, texts=text, instruction="")
    prompt = "<|image_pad|>" * 4 + " " + text.strip()
    ids = metric.tokenizer(prompt, add_special_tokens=False)["input_ids"][: SMALL.max_length]
    last, _ = direct(folder, image, metric.tokenizer.decode(ids).replace("<|image_pad|>" * 4, "<|image_pad|>"), False)
    assert F.cosine_similarity(found.cls[0], last, dim=0) > 0.999
    with pytest.warns(UserWarning, match="cut by"):
        ids = prompt_tokens(
            PromptInput(text, torch.zeros(3, 56, 56)), VisIDConfig("chat", max_length=150), metric.tokenizer
        )
    assert len(ids) == 150
    assert metric.tokenizer.decode(ids).endswith("<|im_end|>\n<|im_start|>assistant\n")
    with pytest.raises(ValueError, match="max_length=3"):
        VisIDEmbed(folder, config=VisIDConfig(max_length=3), device="cpu").embed(image)


def test_masks_weigh_the_tokens(metric: VisIDEmbed) -> None:
    image = torch.rand(3, 56, 112)
    mask = torch.zeros(56, 112)
    mask[:28, :28], mask[:28, 28:42] = 1, 1
    found = metric.embed(image, masks=mask, outside="keep")
    assert found.weights is not None
    assert found.weights[0, :8].tolist() == pytest.approx([1, 0.5, 0, 0, 0, 0, 0, 0])
    assert found.weights[0, 8:].sum() == 0


def test_bad_input_is_named(metric: VisIDEmbed, tmp_path: Path) -> None:
    Image.new("RGB", (2000, 5)).save(tmp_path / "thin.png")
    with pytest.raises(ImageReadError, match=r"thin\.png"):
        metric.embed(tmp_path / "thin.png")
    Image.new("RGB", (400, 300)).save(tmp_path / "good.png")
    line = Image.new("L", (400, 300))
    line.paste(255, (50, 100, 350, 101))
    with pytest.raises(ImageReadError, match=r"good\.png"):
        metric.embed(tmp_path / "good.png", masks=line, outside="crop")
    for given, message in (
        ({"task": "nothing"}, "task"),
        ({"task": "editing", "instruction": "x"}, "instruction"),
        ({"texts": ["a", "b", "c"]}, "3 texts"),
        ({"texts": "a <|im_end|> b"}, "im_end"),
        ({"batch_size": 0}, "batch_size"),
    ):
        with pytest.raises(ValueError, match=message):
            metric.embed([photo(30, 30), photo(30, 30)], **given)
    with pytest.raises(ValueError, match="no images"):
        metric.embed()
    with pytest.raises(ValueError, match="masks"):
        metric.embed(texts="a mug", masks=[torch.ones(30, 30)])
    for setting, value in {"prompt_style": "x", "positions": "x", "pooling": "x", "min_pixels": 10, "max_length": 0,
                           "max_pixels": 2**40}.items():  # fmt: skip
        with pytest.raises(ValueError, match=setting):
            VisIDConfig(**{setting: value})


def test_saved_and_loaded_gives_equal_scores(metric: VisIDEmbed, tmp_path: Path) -> None:
    metric.save_pretrained(tmp_path)
    again = load(tmp_path, device="cpu", dtype=torch.float32)
    assert isinstance(again, VisIDEmbed)
    assert again.settings == metric.settings
    image = photo(60, 90, 8)
    assert again.embed(image).cls.allclose(metric.embed(image).cls, atol=1e-6)
    assert again.signature()["resolution"] == "3136-12544px"
    assert "[vlm2vec,sequential," in again.signature()["model"]
    assert len(again.revision) == 12
    for text, message in (('{"surprise": 1}', "surprise"), ('{"positions": "x"}', r"visid\.json.*positions = 'x'")):
        (tmp_path / "visid.json").write_text(text)
        with pytest.raises(CheckpointError, match=message):
            load(tmp_path)


def test_folders_that_are_no_qwen(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "llama"}))
    with pytest.raises(CheckpointError, match="'llama'"):
        VisIDEmbed(tmp_path)
    (tmp_path / "config.json").write_text((folder / "config.json").read_text())
    with pytest.raises(CheckpointError, match="image processor"):
        VisIDEmbed(tmp_path)
    (tmp_path / "preprocessor_config.json").write_text((folder / "preprocessor_config.json").read_text())
    with pytest.raises(CheckpointError, match="safetensors"):
        VisIDEmbed(tmp_path)
    with pytest.raises(CheckpointError, match="neither an existing folder"):
        VisIDEmbed("nothing")


def test_either_class_of_transformers_can_have_written_the_weights(
    folder: Path, metric: VisIDEmbed, tmp_path: Path
) -> None:
    image = photo(60, 60, 9)
    expected = metric.embed(image).cls
    for prefix in ("model.", ""):  # with and without a language head
        copy = tmp_path / f"copy{prefix}"
        shutil.copytree(folder, copy)
        state = {prefix + name: value.clone() for name, value in metric.backbone.state_dict().items()}
        save_file(state, copy / "model.safetensors", {"format": "pt"})
        found = VisIDEmbed(copy, config=SMALL, device="cpu", dtype=torch.float32)
        assert found.embed(image).cls.allclose(expected, atol=1e-6)


def test_embeddings_of_other_settings_are_not_compared(folder: Path) -> None:
    image = photo(60, 60, 10)
    plain = VisIDEmbed(folder, config=SMALL, device="cpu")
    for changes in ({"prompt_style": "chat"}, {"positions": "vision"}, {"pooling": "mean"}, {"instruction": "x"}):
        other = VisIDEmbed(folder, config=replace(SMALL, **changes), device="cpu")
        with pytest.raises(ValueError, match="the embedding was made by"):
            other(plain.embed(image), image)
