"""Diffusion pipelines of a few thousand random weights, saved as the published ones are."""

from __future__ import annotations

import atexit
import functools
import shutil
import string
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file

LETTERS = string.ascii_letters + string.digits + string.punctuation


def _letters(*special: str) -> dict[str, int]:
    """A vocabulary of special tokens and single characters, alone and at the end of a word."""
    words = [*special, *LETTERS, *(c + "</w>" for c in LETTERS), "Ġ", "Ċ"]
    return {w: i for i, w in enumerate(dict.fromkeys(words))}


def clip_tokenizer(length: int = 77, *special: str) -> Any:
    """CLIP's tokenizer of single characters; special tokens come before its own."""
    from transformers import CLIPTokenizer

    vocab = _letters(*special, "<|startoftext|>", "<|endoftext|>")
    return CLIPTokenizer(vocab=vocab, merges=[], model_max_length=length)


def clip_text(hidden: int = 16, projection: int | None = None) -> Any:
    from transformers import CLIPTextConfig, CLIPTextModel, CLIPTextModelWithProjection

    config = CLIPTextConfig(
        bos_token_id=0, eos_token_id=1, pad_token_id=1, hidden_size=hidden, intermediate_size=16, num_attention_heads=2,
        num_hidden_layers=2, vocab_size=len(_letters("a", "b")), projection_dim=projection or hidden,
    )  # fmt: skip
    return (CLIPTextModelWithProjection if projection else CLIPTextModel)(config)


def vae(latents: int = 4, **more: Any) -> Any:
    from diffusers import AutoencoderKL

    return AutoencoderKL(
        block_out_channels=(4, 8), in_channels=3, out_channels=3, norm_num_groups=2, layers_per_block=1,
        down_block_types=["DownEncoderBlock2D"] * 2, up_block_types=["UpDecoderBlock2D"] * 2, latent_channels=latents,
        **more,
    )  # fmt: skip


def unet(channels: int, context: int, **more: Any) -> Any:
    from diffusers import UNet2DConditionModel

    return UNet2DConditionModel(
        block_out_channels=(4, 8), layers_per_block=1, sample_size=16, in_channels=channels, out_channels=4,
        norm_num_groups=2, down_block_types=("DownBlock2D", "CrossAttnDownBlock2D"), attention_head_dim=(2, 4),
        up_block_types=("CrossAttnUpBlock2D", "UpBlock2D"), cross_attention_dim=context, **more,
    )  # fmt: skip


def sdxl_inpaint(folder: Path) -> None:
    """Stable Diffusion XL for inpainting: 9 channels go into its UNet."""
    from diffusers import EulerDiscreteScheduler, StableDiffusionXLInpaintPipeline

    torch.manual_seed(0)
    net = unet(
        9, 32, use_linear_projection=True, addition_embed_type="text_time", addition_time_embed_dim=8,
        transformer_layers_per_block=(1, 1), projection_class_embeddings_input_dim=6 * 8 + 16,
    )  # fmt: skip
    scheduler = EulerDiscreteScheduler(
        beta_start=0.00085, beta_end=0.012, beta_schedule="scaled_linear", steps_offset=1, timestep_spacing="leading"
    )
    StableDiffusionXLInpaintPipeline(
        vae=vae(), text_encoder=clip_text(), text_encoder_2=clip_text(16, 16), tokenizer=clip_tokenizer(),
        tokenizer_2=clip_tokenizer(), unet=net, scheduler=scheduler, add_watermarker=False,
    ).save_pretrained(folder)  # fmt: skip


def stable_diffusion(folder: Path, scheduler: Any = None, channels: int = 4, kind: str = "") -> None:
    """Stable Diffusion 1.5 or Turbo."""
    import diffusers

    torch.manual_seed(0)
    scheduler = scheduler or diffusers.EulerDiscreteScheduler(
        beta_start=0.00085, beta_end=0.012, beta_schedule="scaled_linear", steps_offset=1, timestep_spacing="trailing"
    )
    getattr(diffusers, f"StableDiffusion{kind}Pipeline")(
        vae=vae(), text_encoder=clip_text(), tokenizer=clip_tokenizer(), unet=unet(channels, 16), scheduler=scheduler,
        safety_checker=None, feature_extractor=None, requires_safety_checker=False,
    ).save_pretrained(folder)  # fmt: skip


def iclight_offset(base: Path, file: Path) -> dict[str, torch.Tensor]:
    """What IC-Light adds to the UNet of a pipeline in `base`, as its published file holds it."""
    from diffusers import UNet2DConditionModel

    state = UNet2DConditionModel.from_pretrained(base, subfolder="unet").state_dict()
    generator = torch.Generator().manual_seed(1)
    offset = {k: 0.05 * torch.randn(v.shape, generator=generator) for k, v in state.items()}
    shape = state["conv_in.weight"].shape
    offset["conv_in.weight"] = 0.5 * torch.randn(shape[0], 8, *shape[2:], generator=generator)
    save_file(offset, file)
    return offset


def _flux(folder: Path, pipeline: str, channels: int) -> None:
    import diffusers
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast, T5Config, T5EncoderModel

    torch.manual_seed(0)
    transformer = diffusers.FluxTransformer2DModel(
        patch_size=1, in_channels=channels, out_channels=8, num_layers=1, num_single_layers=1, attention_head_dim=16,
        num_attention_heads=2, joint_attention_dim=16, pooled_projection_dim=16, axes_dims_rope=[4, 4, 8],
        guidance_embeds=True,
    )  # fmt: skip
    vocab = _letters("<pad>", "<unk>")
    words = Tokenizer(models.WordLevel(vocab, unk_token="<unk>"))
    words.pre_tokenizer = pre_tokenizers.Split("", "isolated")
    config = T5Config(vocab_size=len(vocab), d_model=16, d_kv=8, d_ff=16, num_layers=1, num_heads=2)
    getattr(diffusers, pipeline)(
        scheduler=diffusers.FlowMatchEulerDiscreteScheduler(), vae=vae(2, **_FLUX_VAE), text_encoder=clip_text(),
        tokenizer=clip_tokenizer(), text_encoder_2=T5EncoderModel(config), transformer=transformer,
        tokenizer_2=PreTrainedTokenizerFast(tokenizer_object=words, pad_token="<pad>", unk_token="<unk>"),
    ).save_pretrained(folder)  # fmt: skip


_FLUX_VAE = {
    "use_quant_conv": False, "use_post_quant_conv": False, "shift_factor": 0.0609, "scaling_factor": 1.5035,
}  # fmt: skip


def flux_fill(folder: Path) -> None:
    """FLUX.1 Fill: noise, masked image (2 latent channels each) and mask (one for each pixel of a latent), packed."""
    _flux(folder, "FluxFillPipeline", 4 * (2 + 2 + 2 * 2))


def flux_canny(folder: Path) -> None:
    """FLUX.1 Canny: noise and edges."""
    _flux(folder, "FluxControlInpaintPipeline", 4 * (2 + 2))


_SPECIAL = ("<|endoftext|>", "<|im_start|>", "<|im_end|>", "<|vision_start|>", "<|vision_end|>", "<|vision_pad|>",
            "<|image_pad|>", "<|video_pad|>")  # fmt: skip


def _qwen_words() -> tuple[Any, Any]:
    """Tokenizer and text encoder of Qwen2.5-VL's kind."""
    from transformers import Qwen2_5_VLConfig, Qwen2_5_VLForConditionalGeneration, Qwen2Tokenizer

    vocab = _letters(*_SPECIAL)
    tokenizer = Qwen2Tokenizer(vocab=vocab, merges=[])
    tokenizer.add_special_tokens({"additional_special_tokens": list(_SPECIAL[1:])})
    rope = {"rope_type": "default", "mrope_section": [1, 1, 2], "rope_theta": 1000000.0}
    config = Qwen2_5_VLConfig(
        text_config={
            "hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2,
            "num_key_value_heads": 2, "rope_scaling": rope, "rope_parameters": rope, "vocab_size": len(tokenizer) + 8,
        },
        vision_config={
            "depth": 1, "hidden_size": 16, "intermediate_size": 16, "num_heads": 2, "out_hidden_size": 16,
            "fullatt_block_indexes": [0],
        },
        image_token_id=vocab["<|image_pad|>"], video_token_id=vocab["<|video_pad|>"],
        vision_start_token_id=vocab["<|vision_start|>"], vision_end_token_id=vocab["<|vision_end|>"],
        vision_token_id=vocab["<|vision_pad|>"],
    )  # fmt: skip
    return tokenizer, Qwen2_5_VLForConditionalGeneration(config)


def _qwen_parts() -> dict[str, Any]:
    from diffusers import AutoencoderKLQwenImage, FlowMatchEulerDiscreteScheduler, QwenImageTransformer2DModel

    torch.manual_seed(0)
    tokenizer, text_encoder = _qwen_words()
    transformer = QwenImageTransformer2DModel(
        patch_size=2, in_channels=16, out_channels=4, num_layers=1, attention_head_dim=16, num_attention_heads=2,
        joint_attention_dim=16, guidance_embeds=False, axes_dims_rope=(8, 4, 4),
    )  # fmt: skip
    autoencoder = AutoencoderKLQwenImage(
        base_dim=12, z_dim=4, dim_mult=[1, 1, 1, 1], num_res_blocks=1, temperal_downsample=[False, True, True],
        latents_mean=[0.0] * 4, latents_std=[1.0] * 4,
    )  # fmt: skip
    return {
        "transformer": transformer, "vae": autoencoder, "scheduler": FlowMatchEulerDiscreteScheduler(),
        "text_encoder": text_encoder, "tokenizer": tokenizer,
    }  # fmt: skip


def qwen_edit(folder: Path) -> None:
    """Qwen-Image-Edit."""
    from diffusers import QwenImageEditPipeline
    from transformers import Qwen2VLImageProcessor, Qwen2VLProcessor, Qwen2VLVideoProcessor

    parts = _qwen_parts()
    images = Qwen2VLImageProcessor(min_pixels=28 * 28, max_pixels=56 * 56)
    processor = Qwen2VLProcessor(images, parts["tokenizer"], Qwen2VLVideoProcessor())
    QwenImageEditPipeline(**parts, processor=processor).save_pretrained(folder)


def qwen_image(folder: Path) -> None:
    """Qwen-Image in `folder`, and its inpainting ControlNet in `folder/controlnet`."""
    from diffusers import QwenImageControlNetModel, QwenImagePipeline

    parts = _qwen_parts()
    QwenImagePipeline(**parts).save_pretrained(folder)
    net = QwenImageControlNetModel(
        patch_size=2, in_channels=16, out_channels=4, num_layers=1, attention_head_dim=16, num_attention_heads=2,
        joint_attention_dim=16, axes_dims_rope=(8, 4, 4), extra_condition_channels=4,
    )  # fmt: skip
    for linear in (*net.controlnet_blocks, net.controlnet_x_embedder):  # they start at zero, and would do nothing
        torch.nn.init.normal_(linear.weight, std=0.5)
    net.save_pretrained(folder.with_name(folder.name + "-controlnet"))


def lightning_lora(file: Path) -> dict[str, torch.Tensor]:
    """A LoRA of rank 2 for the transformer above, keys and alpha as in the published Lightning files."""
    generator = torch.Generator().manual_seed(2)
    state = {}
    for name in ("to_q", "to_k", "add_q_proj"):
        key = f"transformer_blocks.0.attn.{name}"
        state[f"{key}.lora_down.weight"] = torch.randn(2, 32, generator=generator)
        state[f"{key}.lora_up.weight"] = torch.randn(32, 2, generator=generator)
        state[f"{key}.alpha"] = torch.tensor(1.0)
    save_file(state, file)
    return state


def sam2(folder: Path) -> None:
    """SAM 2."""
    from transformers import Sam2Config, Sam2ImageProcessor, Sam2Model, Sam2Processor

    torch.manual_seed(0)
    backbone = {
        "model_type": "sam2_hiera_det_model", "hidden_size": 8, "image_size": [64, 64], "num_attention_heads": 1,
        "blocks_per_stage": [1, 1, 2, 1], "embed_dim_per_stage": [8, 16, 32, 64],
        "num_attention_heads_per_stage": [1, 1, 2, 2], "window_size_per_stage": [8, 4, 4, 2],
        "global_attention_blocks": [3], "window_positional_embedding_background_size": [4, 4],
    }  # fmt: skip
    vision = {
        "backbone_config": backbone, "backbone_channel_list": [64, 32, 16, 8],
        "backbone_feature_sizes": [[16, 16], [8, 8], [4, 4]], "fpn_hidden_size": 16,
    }  # fmt: skip
    config = Sam2Config(
        vision_config=vision,
        prompt_encoder_config={"hidden_size": 16, "image_size": 64, "patch_size": 16, "mask_input_channels": 4},
        mask_decoder_config={
            "hidden_size": 16, "mlp_dim": 16, "num_attention_heads": 2, "iou_head_hidden_dim": 16,
        },
    )  # fmt: skip
    Sam2Model(config).save_pretrained(folder)
    images = Sam2ImageProcessor(size={"height": 64, "width": 64}, mask_size={"height": 16, "width": 16})
    Sam2Processor(images, target_size=64).save_pretrained(folder)


PARTS: dict[str, Callable[[Path], None]] = {
    "sdxl_inpaint": sdxl_inpaint, "flux_fill": flux_fill, "flux_canny": flux_canny, "qwen_edit": qwen_edit,
    "qwen_image": qwen_image, "stable_diffusion": stable_diffusion,
    "sam2": sam2,
}  # fmt: skip


@functools.cache
def saved() -> Path:
    """A folder with all of them, made once and removed at the end."""
    root = Path(tempfile.mkdtemp(prefix="diffusion-"))
    atexit.register(shutil.rmtree, root, ignore_errors=True)
    for name, save in PARTS.items():
        save(root / name)
    iclight_offset(root / "stable_diffusion", root / "offset.safetensors")
    lightning_lora(root / "lora.safetensors")
    return root
