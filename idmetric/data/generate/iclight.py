"""Light and background for an object, by IC-Light (ILGen, section 3.2), built from diffusers' Stable Diffusion 1.5.

IC-Light (Zhang et al. 2025) is in no release of diffusers. Its text-conditioned model "fc" is a UNet with 8 channels
in its first convolution: the noisy latent and the latent of the object on gray. The published file holds offsets that
are added to the weights of a Stable Diffusion 1.5 UNet.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
from PIL import Image

from idmetric.data.generate.engine import Engine, Request, checked_image, drawing
from idmetric.data.generate.weights import NO_CHECKER, Repository, load_pipeline, load_tensors

GRAY = 127


@dataclass(frozen=True)
class ICLight(Engine):
    """IC-Light "fc" with the defaults of its demo, as in ILGen (appendix A).

    25 steps at CFG 2, then the image is enlarged 1.5 times and denoised again with strength 0.5. The image keeps its
    own aspect ratio instead of the demo's 512 x 640, and the enlarged result is resized once, to the requested size.
    """

    base: Repository = Repository("stablediffusionapi/realistic-vision-v51", "creativeml-openrail-m")
    offset: Repository = Repository("lllyasviel/ic-light", "creativeml-openrail-m", file="iclight_sd15_fc.safetensors")
    steps: int = 25
    guidance: float = 2.0
    highres_scale: float = 1.5
    highres_strength: float = 0.5
    added: str = "best quality"
    negative: str = "lowres, bad anatomy, bad hands, cropped, worst quality"

    name = "iclight"
    native = 512
    multiple = 8

    @cached_property
    def pipe(self) -> Any:
        import torch

        # the offset is added in float32
        pipe = load_pipeline("StableDiffusionPipeline", self.base, replace(self.place, dtype="float32"), **NO_CHECKER)
        add_offset(pipe.unet, load_tensors(self.offset), str(self.offset))
        for model in (pipe.unet, pipe.vae, pipe.text_encoder):
            torch.nn.Module.to(model, self.place.torch_dtype())

        from diffusers import DPMSolverMultistepScheduler

        # DPM++ 2M SDE Karras, as in IC-Light's demo
        pipe.scheduler = DPMSolverMultistepScheduler(
            num_train_timesteps=1000,
            beta_start=0.00085,
            beta_end=0.012,
            algorithm_type="sde-dpmsolver++",
            use_karras_sigmas=True,
            steps_offset=1,
        )
        return self.place.settle(pipe)

    def edit(self, request: Request) -> Image.Image:
        from diffusers import StableDiffusionImg2ImgPipeline

        assert request.image is not None
        assert request.mask is not None
        foreground = on_gray(request.image, request.mask)
        pipe = self.pipe
        refiner = StableDiffusionImg2ImgPipeline(**pipe.components, requires_safety_checker=False)
        refiner.set_progress_bar_config(disable=True)

        with drawing(request, self.place) as generator:
            shared = {
                "prompt": f"{request.prompt}, {self.added}",
                "negative_prompt": self.negative,
                "guidance_scale": self.guidance,
                "generator": generator,
                "output_type": "latent",
            }
            with conditioned(pipe.unet, self._latent(foreground)):
                latent = pipe(
                    **shared,
                    width=foreground.width,
                    height=foreground.height,
                    num_inference_steps=self.steps,
                ).images

            size = (self._enlarged(foreground.width), self._enlarged(foreground.height))
            enlarged = self._decode(latent).resize(size, Image.Resampling.LANCZOS)
            foreground = foreground.resize(size, Image.Resampling.LANCZOS)
            with conditioned(pipe.unet, self._latent(foreground)):
                latent = refiner(
                    **shared,
                    image=self._latent(enlarged),
                    strength=self.highres_strength,
                    num_inference_steps=round(self.steps / self.highres_strength),
                ).images

            image = self._decode(latent)

        return checked_image(image, request, self.name)

    def _enlarged(self, side: int) -> int:
        return max(1, round(side * self.highres_scale / 64)) * 64

    def _latent(self, image: Image.Image) -> Any:
        """(1, 4, h, w): the mode of the encoding, scaled; pixels / 127 - 1 as in its code, so gray 127 is exactly 0."""
        import torch

        vae = self.pipe.vae
        pixels = np.array(image, np.float32) / GRAY - 1
        batch = torch.from_numpy(pixels).permute(2, 0, 1)[None]
        batch = batch.to(self.place.torch_device(), vae.dtype)
        latent = vae.encode(batch).latent_dist.mode()
        return latent * vae.config.scaling_factor

    def _decode(self, latent: Any) -> Image.Image:
        vae = self.pipe.vae
        scaled = latent.to(vae.dtype) / vae.config.scaling_factor
        [pixels] = vae.decode(scaled).sample
        values = pixels.float().cpu().permute(1, 2, 0).numpy()
        values = values * 127.5 + 127.5
        finite = np.nan_to_num(values.clip(0, 255))
        return Image.fromarray(finite.astype(np.uint8))


def on_gray(
    image: Image.Image,
    mask: Image.Image,
) -> Image.Image:
    """The object on gray 127, the value that IC-Light encodes as zero."""
    gray = Image.new("RGB", image.size, (GRAY, GRAY, GRAY))
    return Image.composite(image, gray, mask)


def add_offset(
    unet: Any,
    offset: Mapping[str, Any],
    name: str,
) -> None:
    """Widen the UNet's first convolution to 8 input channels with zero weights, and add the offset to the weights."""
    import torch

    from idmetric.metric.checkpoints.weights import check_state

    narrow = unet.conv_in
    wide = torch.nn.Conv2d(
        8,
        narrow.out_channels,
        narrow.kernel_size,
        narrow.stride,
        narrow.padding,
    )
    with torch.no_grad():
        wide.weight.zero_()
        wide.weight[:, : narrow.in_channels] = narrow.weight
    wide.bias = narrow.bias
    unet.conv_in = wide  # the config keeps 4 channels, the number that the pipeline draws

    check_state(unet, offset, name)
    state = unet.state_dict()
    for key, value in state.items():
        value += offset[key].to(value.dtype)  # in place, so in the UNet


@contextmanager
def conditioned(unet: Any, latent: Any) -> Iterator[None]:
    """Within the context, every step gets the object's latent next to the noisy one."""
    import torch

    def widen(_: Any, args: tuple[Any, ...]) -> tuple[Any, ...]:
        sample, *others = args
        condition = latent.to(sample).expand(len(sample), -1, -1, -1)
        return (torch.cat([sample, condition], dim=1), *others)

    handle = unet.register_forward_pre_hook(widen)
    try:
        yield
    finally:
        handle.remove()
