"""Shared parts of the diffusion examples: from a denoiser's output to pixels, and a pipeline small enough for tests.

The identity of a noisy image is that of the clean image which the denoiser predicts from it (Ho et al. 2020, Eq. 15):

    x0 = (x_t - sqrt(1 - a_t) eps) / sqrt(a_t),  a_t the product of 1 - beta up to step t

An error of eps becomes an error of x0 sqrt((1 - a_t) / a_t) times as large: 0.6 at step 250 of Stable Diffusion's 1000,
14 at the last, where x0 is a blur that has no identity yet. So the examples use low-noise steps only, weighed by a_t.
"""

from __future__ import annotations

import argparse
import math
import string
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from idmetric import IdentityLoss
from idmetric.metric.images import ImageReadError, to_pixels

PHOTOS = (".jpg", ".jpeg", ".png", ".webp")


def predicted_x0(scheduler: Any, output: Tensor, noisy: Tensor, timesteps: Tensor) -> Tensor:
    """Clean latents (B, 4, h, w) predicted by a denoiser's output, for any `prediction_type`."""
    kept = scheduler.alphas_cumprod.to(noisy.device, torch.float32)[timesteps].view(-1, 1, 1, 1)
    noisy, output = noisy.float(), output.float()
    kind = scheduler.config.prediction_type
    if kind == "epsilon":
        return (noisy - (1 - kept).sqrt() * output) / kept.sqrt()
    if kind == "v_prediction":  # Salimans and Ho 2022, appendix D
        return kept.sqrt() * noisy - (1 - kept).sqrt() * output
    if kind == "sample":
        return output
    raise _unknown(kind)


def _unknown(kind: str) -> ValueError:
    return ValueError(f"unknown prediction_type {kind!r}: flow-matching schedulers predict x0 in another way")


def decode(vae: Any, latents: Tensor) -> Tensor:
    """Latents to images (B, 3, H, W) in [-1, 1], in the VAE's own precision, recomputed in the backward pass."""
    vae.enable_gradient_checkpointing()  # at 512 px the decoder's activations are the largest of all
    with torch.autocast(latents.device.type, enabled=False):
        image: Tensor = vae.decode(latents.to(vae.dtype) / vae.config.scaling_factor).sample
    return image.clamp(-1, 1)  # decoders overshoot


def identity_term(
    loss: IdentityLoss, pipe: Any, output: Tensor, noisy: Tensor, timesteps: Tensor, below: int
) -> tuple[Tensor, Tensor]:
    """The identity loss of a training step, and the mean distance that it is made of, for the log.

    Args:
        loss: with reduction "none", for images in (-1, 1).
        output, noisy, timesteps: of the denoiser.
        below: only images at smaller timesteps count; the others are not decoded.

    Returns:
        sum over them of a_t * distance, divided by the batch; and the distances' mean (NaN without such steps).
    """
    low = (timesteps < below).nonzero().flatten()
    if not len(low):
        return output.new_zeros(()), torch.tensor(torch.nan)
    x0 = predicted_x0(pipe.scheduler, output[low], noisy[low], timesteps[low])
    distances = loss(decode(pipe.vae, x0))
    kept = pipe.scheduler.alphas_cumprod.to(distances)[timesteps[low].to(pipe.scheduler.alphas_cumprod.device)]
    return (kept.to(distances) * distances).sum() / len(timesteps), distances.detach().mean()


def line(number: int, values: Mapping[str, float]) -> str:
    """A step's values as text; the distance is measured only in steps with a low-noise image."""
    texts = {key: f"{value:.4f}" for key, value in values.items()}
    if math.isnan(values["distance"]):
        texts["distance"] = "not measured (no low-noise image)"
    return f"step {number}: " + ", ".join(f"{key} {text}" for key, text in texts.items())


def encode(vae: Any, images: Tensor, dice: torch.Generator) -> Tensor:
    """Images (B, 3, H, W) in [-1, 1] to latents, without graph."""
    with torch.no_grad():
        return vae.encode(images.to(vae.dtype)).latent_dist.sample(dice).float() * vae.config.scaling_factor


def describe(pipe: Any, prompts: list[str]) -> Tensor:
    """The text encoder's states (B, tokens, D) for prompts; with graph where it is trained."""
    words = pipe.tokenizer(
        prompts, padding="max_length", max_length=pipe.tokenizer.model_max_length, truncation=True, return_tensors="pt"
    )
    states: Tensor = pipe.text_encoder(words.input_ids.to(pipe.text_encoder.device))[0]
    return states


def denoising_loss(pipe: Any, output: Tensor, latents: Tensor, noise: Tensor, timesteps: Tensor) -> Tensor:
    """Mean squared error of what the denoiser predicts."""
    kind = pipe.scheduler.config.prediction_type
    if kind == "v_prediction":
        target = pipe.scheduler.get_velocity(latents, noise, timesteps)
    elif kind in ("epsilon", "sample"):
        target = noise if kind == "epsilon" else latents
    else:
        raise _unknown(kind)
    return torch.nn.functional.mse_loss(output.float(), target.float())


def training_step(
    pipe: Any, loss: IdentityLoss, photos: Tensor, words: Callable[[], Tensor], args: argparse.Namespace, number: int
) -> tuple[Tensor, Tensor, Tensor]:
    """Denoising loss, identity term and mean distance of one step; all its randomness follows from its number.

    Args:
        photos: (N, 3, H, W) in [0, 1]. words: gives the prompts' states (B, tokens, D).
        args: with batch, seed, identity (0: no term) and below.
    """
    dice = torch.Generator(photos.device).manual_seed(1_000_003 * args.seed + number)
    chosen = torch.randint(len(photos), (args.batch,), generator=dice, device=photos.device)
    latents = encode(pipe.vae, 2 * photos[chosen] - 1, dice)
    noise = torch.randn(latents.shape, generator=dice, device=latents.device)
    last = pipe.scheduler.config.num_train_timesteps
    timesteps = torch.randint(last, (args.batch,), generator=dice, device=latents.device)
    noisy = pipe.scheduler.add_noise(latents, noise, timesteps)
    half = pipe.unet.dtype != torch.float32
    with torch.autocast(noisy.device.type, dtype=torch.bfloat16, enabled=half):
        output = pipe.unet(noisy, timesteps, words()).sample
    identity, distance = identity_term(loss, pipe, output, noisy, timesteps, args.below if args.identity else 0)
    return denoising_loss(pipe, output, latents, noise, timesteps), identity, distance


def load_photos(folder: Path, size: int) -> Tensor:
    """All photos of a folder, (N, 3, size, size) in [0, 1], cut to their middle square."""
    paths = sorted(p for p in folder.glob("*") if p.suffix.lower() in PHOTOS)
    if not paths:
        raise ImageReadError(str(folder), f"it holds no photos ({', '.join(PHOTOS)})")
    found = []
    for path in paths:
        photo = to_pixels(path, None)
        side = min(photo.shape[1:])
        top, left = ((n - side) // 2 for n in photo.shape[1:])
        found.append(to_pixels(photo[:, top : top + side, left : left + side], (size, size)))
    return torch.stack(found)


def save_image(image: Tensor, path: Path) -> None:
    """One image (3, H, W) in [-1, 1] to a file."""
    from PIL import Image

    pixels = ((image.float() / 2 + 0.5).clamp(0, 1) * 255).round().byte().permute(1, 2, 0).cpu().numpy()
    Image.fromarray(np.ascontiguousarray(pixels)).save(path)


def open_pipeline(model: str, device: torch.device, dtype: torch.dtype) -> Any:
    """A Stable Diffusion 1 or 2 pipeline, all frozen; the VAE in float32, because it is differentiated through."""
    from diffusers import DDPMScheduler, StableDiffusionPipeline

    pipe = StableDiffusionPipeline.from_pretrained(model, torch_dtype=dtype, safety_checker=None, use_safetensors=True)
    pipe.scheduler = DDPMScheduler.from_config(pipe.scheduler.config, clip_sample=False)
    pipe.to(device)
    return _frozen(pipe)


def tiny_pipeline() -> Any:
    """The same classes with a few thousand random weights: 16 x 16 latents, images of 32 px. Needs no download."""
    from diffusers import AutoencoderKL, DDPMScheduler, StableDiffusionPipeline, UNet2DConditionModel
    from transformers import CLIPTextConfig, CLIPTextModel, CLIPTokenizer

    signs = string.ascii_letters + string.digits + string.punctuation
    words = ["<|startoftext|>", "<|endoftext|>", *signs, *(sign + "</w>" for sign in signs)]
    torch.manual_seed(0)
    text = CLIPTextConfig(
        bos_token_id=0, eos_token_id=1, pad_token_id=1, hidden_size=16, intermediate_size=16, num_attention_heads=2,
        num_hidden_layers=2, vocab_size=len(words), projection_dim=16,
    )  # fmt: skip
    vae = AutoencoderKL(
        block_out_channels=(8, 16), norm_num_groups=4, layers_per_block=1, latent_channels=4,
        down_block_types=["DownEncoderBlock2D"] * 2, up_block_types=["UpDecoderBlock2D"] * 2,
    )  # fmt: skip
    unet = UNet2DConditionModel(
        block_out_channels=(8, 16), layers_per_block=1, sample_size=16, norm_num_groups=4, cross_attention_dim=16,
        down_block_types=("DownBlock2D", "CrossAttnDownBlock2D"), attention_head_dim=(2, 4),
        up_block_types=("CrossAttnUpBlock2D", "UpBlock2D"),
    )  # fmt: skip
    scheduler = DDPMScheduler(
        beta_start=0.00085, beta_end=0.012, beta_schedule="scaled_linear", clip_sample=False, steps_offset=1
    )
    return _frozen(StableDiffusionPipeline(
        vae=vae, text_encoder=CLIPTextModel(text), unet=unet, scheduler=scheduler, safety_checker=None,
        tokenizer=CLIPTokenizer(vocab={w: i for i, w in enumerate(words)}, merges=[], model_max_length=77),
        feature_extractor=None, requires_safety_checker=False,
    ))  # fmt: skip


def _frozen(pipe: Any) -> Any:
    pipe.vae.float()
    for part in (pipe.vae, pipe.unet, pipe.text_encoder):
        part.requires_grad_(False).eval()
    pipe.set_progress_bar_config(disable=True)
    return pipe


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.parse_args()
    parser.exit(message="These are parts of the other examples: run guided_sampling.py or dreambooth_lora.py\n")
