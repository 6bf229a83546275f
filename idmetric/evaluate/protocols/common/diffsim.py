"""DiffSim: do two images attend to each other inside Stable Diffusion 1.5 as each does to itself?

After Song et al. 2024 (arXiv 2412.14580, "DiffSim: Taming Diffusion Models for Evaluating Visual Similarity") and their
released code (github.com/showlab/DiffSim at d023cb4). For an image with queries Q, keys K and values V in one
self-attention layer of the U-Net, at one denoising step,

    aligned(a, b) = cos(attention(Qa, Kb, Vb), attention(Qa, Ka, Va)),  similarity = (aligned(a, b) + aligned(b, a)) / 2

where the cosine is over all tokens and heads at once, of the passes with and without the prompt (guidance) together.

`NAME@PLACE` takes the pipeline from a folder, or from another repository of the Hub (owner/name, then @revision if
wanted).

All take the first up-block with attention (16 x 16 tokens of a 512 x 512 image) and seed 2334. A step counts 1,000 from
pure noise to none: with the repository's scheduler, step 600 is the timestep 401.

Differences from the code: every image gets the same noise, where the code draws one for the first and another for the
second image. So the similarity is symmetric, that of an image with itself is 1, and an image passes the U-Net once for
all its pairs. Noise comes from the CPU's generator, for the same values on every device, and weights are float32, where
the code has float16. On CUTE the code's prompt names the object's class; here the prompt is the code's default for all.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from PIL import Image
from torch import Tensor

from idmetric.data.generate.weights import NO_CHECKER, Place, Repository, load_pipeline, version
from idmetric.evaluate.protocols.common.baselines import DeviceLike, PairBaseline, signature_of
from idmetric.metric.files import need

BASE = Repository("stable-diffusion-v1-5/stable-diffusion-v1-5", "creativeml-openrail-m")
STEPS = 1000
_BATCH = 4  # images in one pass: at 512 pixels the VAE takes about a gigabyte for each
PROMPT = "High quality image"  # that the U-Net is conditioned on
SEED = 2334  # of the noise


class DiffSim(PairBaseline):
    """DiffSim's similarity of two images, -1..1; 1 = equal.

    Args:
        device: default CUDA, else MPS, else CPU.
        step: of 1,000, see `models.DIFFSIM`.
        base: a Stable Diffusion 1.5 in diffusers' format, on the Hub or a folder.
        side: of the image, in pixels.

    Raises:
        ImportError: if diffusers or transformers is missing.
        CheckpointError: if the weights cannot be loaded.
    """

    def __init__(
        self,
        device: DeviceLike | None = None,
        step: int = 600,
        base: Repository = BASE,
        side: int = 512,
    ) -> None:
        super().__init__(device)
        need("generate", "the baseline diffsim", diffusers="diffusers", transformers="transformers")
        self.step, self.base, self.side = step, base, side
        self.pipe = load_pipeline(
            "StableDiffusionPipeline",
            base,
            Place(str(self.device), "float32"),
            **NO_CHECKER,
        ).to(self.device)
        first_block = next(block for block in self.pipe.unet.up_blocks if hasattr(block, "attentions"))
        transformer = first_block.attentions[-1]
        self.attention = transformer.transformer_blocks[-1].attn1
        self.revision = version(base)
        self.pipe.scheduler.set_timesteps(STEPS)
        self.time: Tensor = self.pipe.scheduler.timesteps[step]
        with torch.no_grad():
            text, empty = self.pipe.encode_prompt(PROMPT, self.device, 1, True)
        self._words = torch.cat([empty, text])

    def signature(self) -> dict[str, str]:
        """Facts about the metric to report with a score."""
        return {
            **signature_of("diffsim", self.revision, "diffsim", f"{self.side}x{self.side}"),
            "base": str(self.base),
            "step": str(self.step),
            "prompt": PROMPT,
            "side": str(self.side),
            "seed": str(SEED),
        }

    def prepare(self, picture: Any, cover: Tensor | None, words: str | None = None) -> Tensor:
        """Pixels (3, side, side), uint8, by Pillow's Lanczos filter as in the released code."""
        resized = picture.resize((self.side, self.side), Image.Resampling.LANCZOS)
        pixels = torch.from_numpy(np.array(resized))
        return pixels.permute(2, 0, 1).contiguous()

    def features(self, images: Tensor) -> tuple[Tensor, ...]:
        """Queries, keys, values and the image's own attention, each (B, 2 heads, tokens, width of a head)."""
        starts = range(0, len(images), _BATCH)
        parts = [self._features(images[start : start + _BATCH]) for start in starts]
        return tuple(map(torch.cat, zip(*parts, strict=True)))

    def between(self, a: Sequence[Tensor], b: Sequence[Tensor]) -> Tensor:
        """Similarities (B,) of features; `a` may hold one image."""
        count = len(b[0])
        a = [feature.expand(count, -1, -1, -1) for feature in a]
        return (_aligned(a, b) + _aligned(b, a)) / 2

    @torch.no_grad()
    def _features(self, images: Tensor) -> tuple[Tensor, ...]:
        pixels = images.to(self.device).float() / 127.5 - 1
        noisy = self._noisy_latents(pixels)
        tokens = self._tokens(noisy)
        query = self._heads(self.attention.to_q(tokens))
        key = self._heads(self.attention.to_k(tokens))
        value = self._heads(self.attention.to_v(tokens))
        attended = F.scaled_dot_product_attention(query, key, value)
        return query, key, value, attended

    def _noisy_latents(self, pixels: Tensor) -> Tensor:
        """The VAE's samples of images in -1..1, scaled, with the noise of the step; the same draws for each image."""
        vae = self.pipe.vae
        posterior = vae.encode(pixels).latent_dist
        generator = torch.Generator().manual_seed(SEED)
        shape = posterior.mean[:1].shape
        draw = torch.randn(shape, generator=generator).to(self.device)
        noise = torch.randn(shape, generator=generator).to(self.device)

        sample = posterior.mean + posterior.std * draw
        latents = sample * vae.config.scaling_factor
        noises = noise.expand_as(latents)
        noisy: Tensor = self.pipe.scheduler.add_noise(latents, noises, self.time.reshape(1))
        return noisy

    def _tokens(self, noisy: Tensor) -> Tensor:
        """Input (2 B, tokens, width) of the attention layer, first without the prompt; later layers are not run."""
        inputs: list[Tensor] = []

        def stop(module: Any, arguments: tuple[Tensor, ...]) -> None:
            inputs.append(arguments[0])
            raise StopIteration

        twice = torch.cat([noisy, noisy])
        scaled = self.pipe.scheduler.scale_model_input(twice, self.time)
        words = self._words.repeat_interleave(len(noisy), 0)
        hook = self.attention.register_forward_pre_hook(stop)
        with hook, suppress(StopIteration):
            self.pipe.unet(scaled, self.time, encoder_hidden_states=words)
        return inputs[0]

    def _heads(self, tokens: Tensor) -> Tensor:
        """(2 B, tokens, width) as (B, 2 heads, tokens, width of a head)."""
        _, count, width = tokens.shape
        heads = self.attention.heads
        split = tokens.view(2, -1, count, heads, width // heads)
        return split.permute(1, 0, 3, 2, 4).flatten(1, 2)


def _aligned(a: Sequence[Tensor], b: Sequence[Tensor]) -> Tensor:
    """Cosine (B,) of a's attention to b with a's attention to itself."""
    query, _, _, attended = a
    _, key, value, _ = b
    crossed = F.scaled_dot_product_attention(query, key, value)
    return F.cosine_similarity(crossed.flatten(1), attended.flatten(1), dim=1)
