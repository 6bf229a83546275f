"""Light and background for an object, by IC-Light (ILGen, section 3.2), built from diffusers' Stable Diffusion 1.5.

IC-Light (Zhang et al. 2025) is in no release of diffusers. Its text-conditioned model "fc" is a UNet with 8 channels
in its first convolution: the noisy latent and the latent of the object on gray. The published file holds offsets that
are added to the weights of a Stable Diffusion 1.5 UNet.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar

import numpy as np
from PIL import Image

from idmetric.data.generate.engine import Engine, Request, checked, drawing
from idmetric.data.generate.weights import NO_CHECKER, Weights, load_pipeline, load_tensors

BASE = Weights("stablediffusionapi/realistic-vision-v51", "creativeml-openrail-m")
OFFSET = Weights("lllyasviel/ic-light", "creativeml-openrail-m", file="iclight_sd15_fc.safetensors")
GRAY = 127
_SCHEDULE = {  # DPM++ 2M SDE Karras, as IC-Light's demo has it
    "num_train_timesteps": 1000, "beta_start": 0.00085, "beta_end": 0.012, "algorithm_type": "sde-dpmsolver++",
    "use_karras_sigmas": True, "steps_offset": 1,
}  # fmt: skip


@dataclass(frozen=True)
class ICLight(Engine):
    """IC-Light "fc" with the defaults of its demo, as in ILGen (appendix A).

    25 steps at CFG 2, then the image is enlarged 1.5 times and denoised again with strength 0.5. The image keeps its
    own aspect ratio instead of the demo's 512 x 640, and the enlarged result is resized once, to the requested size.
    """

    base: Weights = BASE
    offset: Weights = OFFSET
    steps: int = 25
    guidance: float = 2.0
    highres_scale: float = 1.5
    highres_strength: float = 0.5
    added: str = "best quality"
    negative: str = "lowres, bad anatomy, bad hands, cropped, worst quality"

    name: ClassVar[str] = "iclight"
    native: ClassVar[int] = 512
    multiple: ClassVar[int] = 8

    @cached_property
    def pipe(self) -> tuple[Any, Any]:
        """The text-to-image and the image-to-image pipeline, which share their models."""
        import torch

        pipe = load_pipeline("StableDiffusionPipeline", self.base, self.place, torch.float32, **NO_CHECKER)
        from diffusers import DPMSolverMultistepScheduler, StableDiffusionImg2ImgPipeline

        add_offset(pipe.unet, load_tensors(self.offset), str(self.offset))
        pipe.scheduler = DPMSolverMultistepScheduler(**_SCHEDULE)
        for part in (pipe.unet, pipe.vae, pipe.text_encoder):
            torch.nn.Module.to(part, self.place.torch_dtype())
        pipe = self.place.settle(pipe)
        again = StableDiffusionImg2ImgPipeline(**pipe.components, requires_safety_checker=False)
        again.set_progress_bar_config(disable=True)

        return pipe, again

    def edit(self, request: Request) -> Image.Image:
        assert request.image is not None
        assert request.mask is not None
        front = on_gray(request.image, request.mask)
        guidance = self.guidance if request.guidance is None else request.guidance
        first, again = self.pipe
        words = {"prompt": f"{request.prompt}, {self.added}", "negative_prompt": request.negative or self.negative}

        with drawing(request, self.place) as generator:
            with conditioned(first.unet, self._latent(front)):
                low = first(
                    **words, width=front.width, height=front.height, num_inference_steps=self.steps,
                    guidance_scale=guidance, generator=generator, output_type="latent",
                ).images  # fmt: skip

            width, height = (max(64, round(s * self.highres_scale / 64) * 64) for s in front.size)
            large = (width, height)
            enlarged = self._decode(low).resize(large, Image.Resampling.LANCZOS)

            with conditioned(again.unet, self._latent(front.resize(large, Image.Resampling.LANCZOS))):
                high = again(
                    **words, image=self._latent(enlarged), strength=self.highres_strength,
                    num_inference_steps=round(self.steps / self.highres_strength), guidance_scale=guidance,
                    generator=generator, output_type="latent",
                ).images  # fmt: skip

            made = self._decode(high)

        return checked(made, request, self.name)

    def _latent(self, image: Image.Image) -> Any:
        """(1, 4, h, w): the mode of the encoding, scaled; pixels / 127 - 1 as in its code, so gray 127 is exactly 0."""
        import torch

        vae = self.pipe[0].vae
        signed = torch.from_numpy(np.array(image, np.float32)) / 127 - 1
        pixels = signed.permute(2, 0, 1)[None].to(self.place.torch_device(), vae.dtype)
        return vae.encode(pixels).latent_dist.mode() * vae.config.scaling_factor

    def _decode(self, latents: Any) -> Image.Image:
        vae = self.pipe[0].vae
        pixels = vae.decode(latents.to(vae.dtype) / vae.config.scaling_factor).sample[0]
        values = (pixels.float().cpu().permute(1, 2, 0).numpy() * 127.5 + 127.5).clip(0, 255)
        return Image.fromarray(np.nan_to_num(values).astype(np.uint8))


def on_gray(image: Image.Image, mask: Image.Image) -> Image.Image:
    """The object on gray 127, the value that IC-Light encodes as zero."""
    return Image.composite(image.convert("RGB"), Image.new("RGB", image.size, (GRAY, GRAY, GRAY)), mask.convert("L"))


def add_offset(unet: Any, offset: dict[str, Any], name: str) -> None:
    """Widen the UNet's first convolution to 8 input channels with zero weights, and add the offset to the weights."""
    import torch

    from idmetric.metric.checkpoints.weights import check_state

    old = unet.conv_in
    new = torch.nn.Conv2d(8, old.out_channels, old.kernel_size, old.stride, old.padding)
    with torch.no_grad():
        new.weight.zero_()
        new.weight[:, : old.in_channels] = old.weight
        new.bias = old.bias

    unet.conv_in = new  # the config keeps 4 channels, the number that the pipeline draws
    state = unet.state_dict()
    check_state(unet, offset, name)
    unet.load_state_dict({k: state[k] + offset[k].to(state[k].dtype) for k in state})


@contextmanager
def conditioned(unet: Any, latent: Any) -> Iterator[None]:
    """Within the context, every step gets the object's latent next to the noisy one."""
    import torch

    def widen(_: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
        sample = args[0] if args else kwargs["sample"]
        beside = latent.to(sample).expand(len(sample), -1, -1, -1)
        wide = torch.cat([sample, beside], dim=1)
        return ((wide, *args[1:]), kwargs) if args else (args, {**kwargs, "sample": wide})

    handle = unet.register_forward_pre_hook(widen, with_kwargs=True)
    try:
        yield
    finally:
        handle.remove()
