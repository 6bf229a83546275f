"""A very small Qwen2.5-VL or Qwen2-VL with random weights and a tokenizer of single bytes, for `--smoke` and tests."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

import torch
from safetensors.torch import save_file

from idmetric.metric.files import StrPath, need

_TOKENS = (
    "<|endoftext|>",
    "<|im_start|>",
    "<|im_end|>",
    "<|vision_start|>",
    "<|vision_end|>",
    "<|vision_pad|>",
    "<|image_pad|>",
    "<|video_pad|>",
)


def write(
    folder: StrPath,
    kind: Literal["qwen2_5_vl", "qwen2_vl"] = "qwen2_5_vl",
    *,
    seed: int = 0,
) -> None:
    """Write the model into a folder in the format of transformers, for `VisIDEmbed(folder)`. Needs no network.

    Args:
        seed: of the weights; torch's global random state does not change.
    """
    need("train", "Qwen", transformers="transformers")
    import transformers

    target = Path(folder)
    tokenizer = _tokenizer(transformers)
    tokenizer.save_pretrained(target)
    config = _config(transformers, tokenizer, kind)
    name = "Qwen2_5_VLForConditionalGeneration" if kind == "qwen2_5_vl" else "Qwen2VLForConditionalGeneration"
    with torch.random.fork_rng(devices=[]), torch.no_grad():
        torch.default_generator.manual_seed(seed)
        model = getattr(transformers, name)(config)
        for parameter in model.parameters():
            if parameter.ndim > 1:
                parameter.normal_(std=parameter[0].numel() ** -0.5)
    # model.save_pretrained writes only in the first of several processes, but each has its own folder
    state_dict = {name: value.detach().contiguous() for name, value in model.state_dict().items()}
    save_file(state_dict, target / "model.safetensors", {"format": "pt"})
    model.config.save_pretrained(target)
    transformers.Qwen2VLImageProcessor().save_pretrained(target)


def _tokenizer(transformers: Any) -> Any:
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers

    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    plain = Tokenizer(models.BPE({token: number for number, token in enumerate(alphabet)}, []))
    plain.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    plain.decoder = decoders.ByteLevel()
    plain.add_special_tokens(list(_TOKENS))
    return transformers.PreTrainedTokenizerFast(
        tokenizer_object=plain, pad_token=_TOKENS[0], eos_token=_TOKENS[2], additional_special_tokens=list(_TOKENS[1:])
    )


def _config(transformers: Any, tokenizer: Any, kind: str) -> Any:
    ids = {
        "image_token_id": tokenizer.convert_tokens_to_ids("<|image_pad|>"),
        "video_token_id": tokenizer.convert_tokens_to_ids("<|video_pad|>"),
        "vision_start_token_id": tokenizer.convert_tokens_to_ids("<|vision_start|>"),
    }
    text: dict[str, Any] = {
        "hidden_size": 32,
        "intermediate_size": 64,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "vocab_size": len(tokenizer),
        "max_position_embeddings": 1024,
        "rope_scaling": {"type": "mrope", "mrope_section": [1, 1, 2]},
        "bos_token_id": None,
        "eos_token_id": tokenizer.eos_token_id,
    }
    vision: dict[str, Any] = {"depth": 2, "hidden_size": 32, "num_heads": 2}
    if kind == "qwen2_vl":
        vision |= {"embed_dim": 32, "mlp_ratio": 2}
        return transformers.Qwen2VLConfig(text_config=text, vision_config=vision, **ids)
    vision |= {"intermediate_size": 64, "out_hidden_size": 32, "fullatt_block_indexes": [1], "window_size": 56}
    return transformers.Qwen2_5_VLConfig(text_config=text, vision_config=vision, **ids)
