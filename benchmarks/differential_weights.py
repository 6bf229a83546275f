"""Small checkpoints with fixed random weights, for the cases of `differential_cases`, written without the package."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import timm
import torch
from differential_cases import fill, generator
from safetensors.torch import save_file
from torch import Tensor, nn

SMALL_VIT = {"depth": 2, "embed_dim": 48, "num_heads": 3}
# settings of small ID-Sims, one for each kind of backbone
IDSIM = {
    "dinov3": {"backbone": "vit_small_patch16_dinov3", "image_size": 64, "backbone_args": SMALL_VIT},
    "dinov2": {"backbone": "vit_small_patch14_dinov2", "image_size": 56, "backbone_args": SMALL_VIT},
    "cnn": {
        "backbone": "resnet18",
        "image_size": 64,
        "backbone_args": {"channels": [8, 16, 24, 32], "output_stride": 16},
    },
}
SIGLIP = {
    "hidden_size": 48,
    "intermediate_size": 100,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "image_size": 58,
    "patch_size": 14,
}
ADAPTED = ("attn.qkv", "attn.proj", "mlp.fc1", "mlp.fc2")
_QWEN_TOKENS = ("im_start", "im_end", "vision_start", "vision_end", "vision_pad", "image_pad", "video_pad")


class Head(nn.Module):
    """ID-Sim's head, as its checkpoints name the parts."""

    def __init__(self, width: int, hidden: int) -> None:
        super().__init__()
        self.ln = nn.LayerNorm(width)
        self.fc1 = nn.Linear(width, hidden)
        self.fc2 = nn.Linear(hidden, width)
        self.beta_logit = nn.Parameter(torch.zeros(()))


def filled(module: nn.Module, name: str) -> dict[str, Tensor]:
    """Fill a module and return its tensors."""
    fill(module, name)
    return {key: value.contiguous() for key, value in module.state_dict().items()}


def trunk_state(name: str, **arguments: Any) -> dict[str, Tensor]:
    """Return the tensors of a timm encoder, without its classifier unless the arguments ask for it."""
    return filled(timm.create_model(name, **{"num_classes": 0, **arguments}), name)


def write_json(file: Path, content: Any) -> None:
    """Write a JSON file, and its folder."""
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(json.dumps(content), encoding="utf-8")


def write_idsim(folder: Path, kind: str = "dinov3", name: str = "", **settings: Any) -> Path:
    """Write an ID-Sim as the package saves it; a name other than "" gives it other heads."""
    config: dict[str, Any] = {"model_type": "idsim", "format": 1, "hidden": 24, **IDSIM[kind], **settings}
    arguments = dict(config["backbone_args"])
    if kind != "cnn":
        arguments["img_size"] = config["image_size"]
    if kind == "dinov2":
        arguments["dynamic_img_size"] = False
    state = {f"backbone.{key}": value for key, value in trunk_state(config["backbone"], **arguments).items()}
    width = state["backbone.norm.weight"].numel() if kind != "cnn" else arguments["channels"][-1]
    for part in ("mlp_cls", "mlp_patch"):
        head = filled(Head(int(width), config["hidden"]), part + name)
        state |= {f"{part}.{key}": value for key, value in head.items()}
    write_json(folder / "config.json", config)
    save_file(state, folder / "model.safetensors", {"format": "pt"})
    return folder


def write_released_idsim(folder: Path, variant: str = "dinov2_vitb14", **adapter_config: Any) -> tuple[Path, Path]:
    """Write a small ID-Sim as its authors published it.

    Returns:
        The folder of a PEFT adapter and two heads, and the file with the backbone.
    """
    kind = variant.partition("_")[0]
    names = {"dinov2": "vit_base_patch14_dinov2.lvd142m", "dinov3": "vit_base_patch16_dinov3.lvd1689m"}
    trunk = trunk_state(names[kind], **SMALL_VIT)
    backbone = folder / "trunk.safetensors"
    adapter_folder = folder / f"{variant}_cls_patch"
    adapter_folder.mkdir(parents=True)
    save_file(trunk, backbone)

    rng = generator("adapter")
    adapter = {}
    for block in range(SMALL_VIT["depth"]):
        for layer in ADAPTED:
            outputs, inputs = trunk[f"blocks.{block}.{layer}.weight"].shape
            matrices = {"A": rng.standard_normal((4, inputs)) / inputs**0.5, "B": rng.standard_normal((outputs, 4)) / 8}
            for side, matrix in matrices.items():
                key = f"base_model.model.extractor.model.blocks.{block}.{layer}.lora_{side}.weight"
                adapter[key] = torch.from_numpy(matrix.astype("float32"))
    save_file(adapter, adapter_folder / "adapter_model.safetensors", {"format": "pt"})
    config = {"peft_type": "LORA", "r": 4, "lora_alpha": 8, "target_modules": list(ADAPTED), **adapter_config}
    write_json(adapter_folder / "adapter_config.json", config)
    for part in ("mlp_cls", "mlp_patch"):
        torch.save(filled(Head(SMALL_VIT["embed_dim"], 512), part), adapter_folder / f"{part}.pth")
    return adapter_folder, backbone


def write_released_nearid(folder: Path, prefix: str = "backbone.vision_model.") -> Path:
    """Write a small NearID as its authors published it; needs transformers."""
    import transformers

    model = transformers.SiglipVisionModel(transformers.SiglipVisionConfig(**SIGLIP))
    state = {}
    for key, value in filled(model, "nearid").items():
        if not key.endswith("position_ids"):
            state[prefix + key.removeprefix("vision_model.")] = value.half()
    config = {
        "model_type": "nearid",
        "embed_dim": SIGLIP["hidden_size"],
        "normalize_embeddings": True,
        "auto_map": {"AutoModel": "modeling_nearid.NearID"},
        "vision_config": {**SIGLIP, "model_type": "siglip_vision_model"},
    }
    processor = {
        "do_resize": True,
        "do_rescale": True,
        "do_normalize": True,
        "rescale_factor": 1 / 255,
        "resample": 2,
        "image_mean": [0.5, 0.5, 0.5],
        "image_std": [0.5, 0.5, 0.5],
        "size": {"height": SIGLIP["image_size"], "width": SIGLIP["image_size"]},
    }
    write_json(folder / "config.json", config)
    write_json(folder / "preprocessor_config.json", processor)
    save_file(state, folder / "model.safetensors", {"format": "pt"})
    return folder


def write_visid(folder: Path, **settings: Any) -> Path:
    """Write a small Qwen2.5-VL as transformers does, with settings in visid.json; needs transformers 5."""
    import transformers
    from tokenizers.pre_tokenizers import ByteLevel

    folder.mkdir(parents=True, exist_ok=True)
    merges = [("t", "h"), ("th", "e"), ("a", "n"), ("Ġ", "i")]
    tokens = [*sorted(ByteLevel.alphabet()), *("".join(pair) for pair in merges)]
    vocabulary = {token: number for number, token in enumerate(tokens)}
    special = [f"<|{name}|>" for name in _QWEN_TOKENS]
    tokenizer = transformers.Qwen2Tokenizer(vocab=vocabulary, merges=merges, extra_special_tokens=special)
    tokenizer.save_pretrained(folder)
    ids = {name: tokenizer.convert_tokens_to_ids(f"<|{name}|>") for name in _QWEN_TOKENS}
    config = transformers.Qwen2_5_VLConfig(
        text_config={
            "hidden_size": 32,
            "intermediate_size": 48,
            "num_hidden_layers": 2,
            "num_attention_heads": 4,
            "num_key_value_heads": 2,
            "vocab_size": len(tokenizer),
            "max_position_embeddings": 512,
            "rope_scaling": {"type": "mrope", "mrope_section": [1, 1, 2]},
        },
        vision_config={
            "depth": 2,
            "hidden_size": 32,
            "intermediate_size": 48,
            "num_heads": 2,
            "out_hidden_size": 32,
            "fullatt_block_indexes": [1],
            "window_size": 56,
        },
        image_token_id=ids["image_pad"],
        video_token_id=ids["video_pad"],
        vision_start_token_id=ids["vision_start"],
    )
    model = transformers.Qwen2_5_VLForConditionalGeneration(config)
    fill(model, "visid")
    model.save_pretrained(folder)
    transformers.Qwen2VLImageProcessor().save_pretrained(folder)
    if settings:
        write_json(folder / "visid.json", settings)
    return folder


def write_trunk(file: Path, name: str, **arguments: Any) -> Path:
    """Write a timm encoder's weights."""
    save_file(trunk_state(name, **arguments), file)
    return file
