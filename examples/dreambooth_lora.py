"""DreamBooth with LoRA and an identity term: teach Stable Diffusion a subject from a few photos.

    python examples/dreambooth_lora.py --model REPO_OR_FOLDER --photos dog/ --prompt "a photo of sks dog" --out lora/
    python examples/dreambooth_lora.py --smoke      the same steps on a tiny random pipeline

Each step adds to DreamBooth's denoising loss (Ruiz et al. 2023) of LoRA layers (Hu et al. 2022) in the UNet's attention
`--identity` times the identity distance between the photos and the clean image that the UNet predicts,
for steps of low noise only (see latents.py). Without DreamBooth's prior preservation; plain torch, one device.
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from latents import describe, line, load_photos, open_pipeline, tiny_pipeline, training_step

import idmetric
from idmetric import IdentityLoss
from idmetric.metric.embedder import auto_device
from idmetric.metric.files import check_writable

SMOKE_PHOTOS = Path(__file__).parent / "images"


def parse(argv: Sequence[str] | None) -> argparse.Namespace:
    """The options."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="stable-diffusion-v1-5/stable-diffusion-v1-5")
    parser.add_argument("--photos", type=Path, default=SMOKE_PHOTOS, help="folder of the subject's photos")
    parser.add_argument("--prompt", default="a photo of sks dog")
    parser.add_argument("--out", type=Path, help="folder for the LoRA, for pipe.load_lora_weights")
    parser.add_argument("--metric", default="dinov3_vitl16", help="see idmetric models")
    parser.add_argument("--distance", default="cls")
    parser.add_argument("--identity", type=float, default=0.1, help="weight of the identity term; 0 = DreamBooth alone")
    parser.add_argument("--below", type=int, default=250, help="timesteps that the identity term looks at")
    parser.add_argument("--steps", type=int, default=800)
    parser.add_argument("--batch", type=int, default=1)
    parser.add_argument("--rate", type=float, default=1e-4)
    parser.add_argument("--rank", type=int, default=4)
    parser.add_argument("--size", type=int, default=512)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--smoke", action="store_true", help="tiny random pipeline, IDSim('tiny'), three steps")
    args = parser.parse_args(argv)
    if args.out is None and not args.smoke:
        parser.error("--out is needed")
    if args.smoke:
        args.out = args.out or Path(tempfile.mkdtemp(prefix="idmetric-")) / "lora"
        args.metric, args.steps, args.batch, args.size, args.rate = "tiny", min(args.steps, 3), 2, 32, 1e-2
    return args


def add_lora(unet: Any, rank: int) -> list[torch.nn.Parameter]:
    """LoRA on the attention layers, in float32; returns the trained parameters."""
    from diffusers.training_utils import cast_training_params
    from peft import LoraConfig

    layers = ["to_k", "to_q", "to_v", "to_out.0"]
    unet.add_adapter(LoraConfig(r=rank, lora_alpha=rank, init_lora_weights="gaussian", target_modules=layers))
    cast_training_params(unet, dtype=torch.float32)
    return [p for p in unet.parameters() if p.requires_grad]


def main(argv: Sequence[str] | None = None) -> list[dict[str, float]]:
    """Train, save the LoRA, return what each step logged."""
    args = parse(argv)  # before packages that take seconds to import

    from diffusers import StableDiffusionPipeline
    from diffusers.utils import convert_state_dict_to_diffusers
    from peft import get_peft_model_state_dict

    check_writable(args.out / "pytorch_lora_weights.safetensors", parents=True)  # before hours of work
    torch.manual_seed(args.seed)
    device = torch.device("cpu") if args.smoke else auto_device()
    dtype = torch.bfloat16 if device.type == "cuda" else torch.float32
    pipe = tiny_pipeline() if args.smoke else open_pipeline(args.model, device, dtype)
    photos = load_photos(args.photos, args.size).to(device)
    loss = IdentityLoss(
        idmetric.load(args.metric, device=device), photos, distance=args.distance, reduction="none",
        value_range=(-1, 1), checkpoint=True, autocast=dtype if dtype != torch.float32 else "off",
    )  # fmt: skip
    pipe.unet.enable_gradient_checkpointing()
    trained = add_lora(pipe.unet, args.rank)
    pipe.unet.train()
    optimizer = torch.optim.AdamW(trained, lr=args.rate)
    with torch.no_grad():
        words = describe(pipe, [args.prompt])
    log = []
    for number in range(args.steps):
        denoising, identity, distance = training_step(
            pipe, loss, photos, lambda: words.expand(args.batch, -1, -1), args, number
        )
        optimizer.zero_grad()
        (denoising + args.identity * identity).backward()
        optimizer.step()
        log.append({"denoising": denoising.item(), "identity": identity.item(), "distance": distance.item()})
        if number % 50 == 0 or number == args.steps - 1:
            print(line(number, log[-1]))
    state = convert_state_dict_to_diffusers(get_peft_model_state_dict(pipe.unet))
    StableDiffusionPipeline.save_lora_weights(args.out, unet_lora_layers=state)
    print(f"wrote {args.out}: pipe.load_lora_weights({str(args.out)!r})")
    return log


if __name__ == "__main__":
    main()
