"""Sample a frozen Stable Diffusion towards an identity, without training anything.

    python examples/guided_sampling.py --model REPO_OR_FOLDER --photos dog/ --prompt "a dog on a beach" --out gen/
    python examples/guided_sampling.py --smoke --how resample

guide      After each step of low noise the latents move against the gradient of the identity distance of the predicted
           clean image, through decoder and UNet: as in DPS (Chung et al. 2023) and universal guidance (Bansal et al.
           2023), here with the gradient scaled to a root mean square of 1, times --scale and sqrt(1 - a_t).
resample   Samples are particles. Every few steps they are resampled with probabilities softmax(--sharpness * gain),
           gain being how much nearer each predicted clean image came since the last time (the difference potential of
           Feynman-Kac steering, Singhal et al. 2025). No gradients; little memory.
best       Plain sampling: all samples, the nearest first.
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from latents import decode, describe, load_photos, open_pipeline, predicted_x0, save_image, tiny_pipeline
from torch import Tensor

import idmetric
from idmetric import IdentityLoss
from idmetric.metric.embedder import auto_device
from idmetric.metric.files import check_writable


def parse(argv: Sequence[str] | None) -> argparse.Namespace:
    """The options."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="stable-diffusion-v1-5/stable-diffusion-v1-5")
    parser.add_argument("--photos", type=Path, default=Path(__file__).parent / "images")
    parser.add_argument("--prompt", default="a photo of a dog")
    parser.add_argument("--how", choices=("guide", "resample", "best"), default="guide")
    parser.add_argument("--out", type=Path, help="folder for the images, nearest first")
    parser.add_argument("--metric", default="dinov3_vitl16")
    parser.add_argument("--distance", default="cls")
    parser.add_argument("--samples", type=int, default=4)
    parser.add_argument("--steps", type=int, default=50)
    parser.add_argument("--cfg", type=float, default=7.5, help="classifier-free guidance by the prompt")
    parser.add_argument("--below", type=int, default=700, help="timesteps at which the identity is looked at")
    parser.add_argument("--scale", type=float, default=0.05, help="of 'guide'")
    parser.add_argument("--sharpness", type=float, default=20.0, help="of 'resample'")
    parser.add_argument("--every", type=int, default=5, help="steps from one resampling to the next")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--smoke", action="store_true", help="tiny random pipeline and IDSim('tiny'), twelve steps")
    args = parser.parse_args(argv)
    if args.out is None and not args.smoke:
        parser.error("--out is needed")
    if args.smoke:
        args.out = args.out or Path(tempfile.mkdtemp(prefix="idmetric-")) / "images"
        args.metric, args.steps, args.cfg, args.every = "tiny", min(args.steps, 12), 1.5, 2
    return args


def denoise(pipe: Any, latents: Tensor, timestep: Tensor, words: Tensor, cfg: float) -> Tensor:
    """The UNet's output, guided by the prompt; words: those of the empty prompt and of the prompt."""
    count = len(latents)
    both = torch.cat([latents, latents]).to(pipe.unet.dtype)
    states = words.repeat_interleave(count, 0).to(pipe.unet.dtype)
    without, with_prompt = pipe.unet(both, timestep, states).sample.float().chunk(2)
    return without + cfg * (with_prompt - without)


def slope(
    pipe: Any, loss: IdentityLoss, latents: Tensor, timestep: Tensor, words: Tensor, cfg: float
) -> tuple[Tensor, Tensor]:
    """The UNet's output, and the gradient of the identity distance in the latents, of root mean square 1 per image."""
    with torch.enable_grad():
        x = latents.detach().requires_grad_()
        output = denoise(pipe, x, timestep, words, cfg)
        image = decode(pipe.vae, predicted_x0(pipe.scheduler, output, x, timestep.expand(len(x))))
        (gradient,) = torch.autograd.grad(loss(image).sum(), x)
    size = gradient.square().mean((1, 2, 3), keepdim=True).sqrt()
    return output.detach(), gradient / size.clamp_min(1e-12)


def draw_again(gain: Tensor, sharpness: float, dice: torch.Generator) -> Tensor:
    """Indices of as many particles, drawn with probabilities softmax(sharpness * gain)."""
    return torch.multinomial((sharpness * gain).softmax(0).cpu(), len(gain), replacement=True, generator=dice)


@torch.no_grad()
def sample(pipe: Any, loss: IdentityLoss, args: argparse.Namespace, side: int) -> tuple[Tensor, Tensor]:
    """Images (N, 3, H, W) in about [-1, 1] and their identity distances (N,), the nearest first."""
    device = pipe.unet.device
    dice = torch.Generator().manual_seed(args.seed)  # on the CPU: the same noise on any device
    latents = torch.randn(args.samples, pipe.unet.config.in_channels, side, side, generator=dice).to(device)
    words = describe(pipe, ["", args.prompt])
    pipe.scheduler.set_timesteps(args.steps, device=device)
    latents = latents * pipe.scheduler.init_noise_sigma
    before: Tensor | None = None
    for number, timestep in enumerate(pipe.scheduler.timesteps):
        looking = int(timestep) < args.below
        if args.how == "guide" and looking:
            output, gradient = slope(pipe, loss, latents, timestep, words, args.cfg)
        else:
            output, gradient = denoise(pipe, latents, timestep, words, args.cfg), None
        if args.how == "resample" and looking and number % args.every == 0:
            x0 = predicted_x0(pipe.scheduler, output, latents, timestep.expand(len(latents)))
            distances = loss(decode(pipe.vae, x0))
            if before is not None:
                chosen = draw_again(before - distances, args.sharpness, dice).to(device)
                latents, output, distances = latents[chosen], output[chosen], distances[chosen]
            before = distances
        noise = torch.randn(latents.shape, generator=dice).to(device)
        # resampled twins must part again, which takes fresh noise in each step (eta = 1)
        eta = 1.0 if args.how == "resample" else 0.0
        latents = pipe.scheduler.step(output, timestep, latents, eta=eta, variance_noise=noise).prev_sample
        if gradient is not None:
            spread = (1 - pipe.scheduler.alphas_cumprod[timestep.cpu()]).sqrt().to(latents)
            latents = latents - args.scale * spread * gradient
    images = torch.cat([decode(pipe.vae, one[None]) for one in latents])
    distances = loss(images)
    order = distances.argsort()
    return images[order], distances[order]


def main(argv: Sequence[str] | None = None) -> Tensor:
    """Sample, write the images, return their identity distances, the nearest first."""
    args = parse(argv)  # before packages that take seconds to import

    from diffusers import DDIMScheduler

    check_writable(args.out / "00.png", parents=True)
    device = torch.device("cpu") if args.smoke else auto_device()
    dtype = torch.bfloat16 if device.type == "cuda" else torch.float32
    pipe = tiny_pipeline() if args.smoke else open_pipeline(args.model, device, dtype)
    pipe.scheduler = DDIMScheduler.from_config(pipe.scheduler.config, clip_sample=False, set_alpha_to_one=False)
    pipe.unet.enable_gradient_checkpointing()
    side = int(pipe.unet.config.sample_size)
    photos = load_photos(args.photos, 32 if args.smoke else 8 * side)
    loss = IdentityLoss(
        idmetric.load(args.metric, device=device), photos, distance=args.distance, reduction="none",
        value_range=(-1, 1), checkpoint=True,
    )  # fmt: skip
    images, distances = sample(pipe, loss, args, side)
    args.out.mkdir(parents=True, exist_ok=True)
    for i, (image, distance) in enumerate(zip(images, distances, strict=True)):
        save_image(image, args.out / f"{i:02d}.png")
        print(f"{args.out / f'{i:02d}.png'}: identity distance {distance:.4f}")
    return distances


if __name__ == "__main__":
    main()
