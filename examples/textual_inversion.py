"""Textual inversion with an identity term: one new word for a subject, the pipeline's weights frozen.

    python examples/textual_inversion.py --model REPO_OR_FOLDER --photos dog/ --word "<dog>" --out dog.safetensors
    python examples/textual_inversion.py --smoke

Gal et al. 2023: only the embedding of the new word is trained, by the denoising loss of prompts that contain it. Here,
the loss also has `--identity` times the identity distance of the predicted clean image (see latents.py).
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch
from latents import describe, line, load_photos, open_pipeline, tiny_pipeline, training_step
from safetensors.torch import save_file

import idmetric
from idmetric import IdentityLoss
from idmetric.metric.embedder import auto_device
from idmetric.metric.files import check_writable

TEMPLATES = ("a photo of a {}", "a rendering of a {}", "a cropped photo of the {}", "a close-up photo of a {}",
             "a bright photo of the {}", "a good photo of a {}")  # fmt: skip


def parse(argv: Sequence[str] | None) -> argparse.Namespace:
    """The options."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="stable-diffusion-v1-5/stable-diffusion-v1-5")
    parser.add_argument("--photos", type=Path, default=Path(__file__).parent / "images")
    parser.add_argument("--word", default="<subject>", help="the new word")
    parser.add_argument("--like", default="dog", help="a known word of one token, where its embedding starts")
    parser.add_argument("--out", type=Path, help="safetensors file, for pipe.load_textual_inversion")
    parser.add_argument("--metric", default="dinov3_vitl16")
    parser.add_argument("--distance", default="cls")
    parser.add_argument("--identity", type=float, default=0.1, help="weight of the identity term")
    parser.add_argument("--below", type=int, default=250, help="timesteps that the identity term looks at")
    parser.add_argument("--steps", type=int, default=3000)
    parser.add_argument("--batch", type=int, default=1)
    parser.add_argument("--rate", type=float, default=5e-4)
    parser.add_argument("--size", type=int, default=512)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--smoke", action="store_true", help="tiny random pipeline, IDSim('tiny'), three steps")
    args = parser.parse_args(argv)
    if args.out is None and not args.smoke:
        parser.error("--out is needed")
    if args.smoke:
        args.out = args.out or Path(tempfile.mkdtemp(prefix="idmetric-")) / "word.safetensors"
        args.metric, args.steps, args.batch, args.size, args.like = "tiny", min(args.steps, 3), 2, 32, "d"
    return args


def add_word(pipe: Any, word: str, like: str) -> int:
    """Add the word, its embedding a copy of another's; returns its token."""
    [*start] = pipe.tokenizer.encode(like, add_special_tokens=False)
    if len(start) != 1:
        raise SystemExit(f"--like {like!r} is {len(start)} tokens: choose a simpler word")
    if word in pipe.tokenizer.get_vocab():
        raise SystemExit(f"--word {word!r} is known already: choose another")
    pipe.tokenizer.add_tokens([word])
    token = int(pipe.tokenizer.convert_tokens_to_ids(word))
    pipe.text_encoder.resize_token_embeddings(len(pipe.tokenizer), mean_resizing=False)
    embeddings = pipe.text_encoder.get_input_embeddings().weight
    with torch.no_grad():
        embeddings[token] = embeddings[start[0]]
    embeddings.requires_grad_(True)
    return token


def prompts(args: argparse.Namespace, number: int) -> list[str]:
    """Those of a step: templates in turn."""
    return [TEMPLATES[(args.batch * number + i) % len(TEMPLATES)].format(args.word) for i in range(args.batch)]


def main(argv: Sequence[str] | None = None) -> list[dict[str, float]]:
    """Train, save the word, return what each step logged."""
    args = parse(argv)
    check_writable(args.out)  # before hours of work
    device = torch.device("cpu") if args.smoke else auto_device()
    dtype = torch.bfloat16 if device.type == "cuda" else torch.float32
    pipe = tiny_pipeline() if args.smoke else open_pipeline(args.model, device, dtype)
    pipe.text_encoder.float()  # holds the trained embedding
    photos = load_photos(args.photos, args.size).to(device)
    loss = IdentityLoss(
        idmetric.load(args.metric, device=device), photos, distance=args.distance, reduction="none",
        value_range=(-1, 1), checkpoint=True, autocast=dtype if dtype != torch.float32 else "off",
    )  # fmt: skip
    pipe.unet.enable_gradient_checkpointing()
    token = add_word(pipe, args.word, args.like)
    embeddings = pipe.text_encoder.get_input_embeddings().weight
    optimizer = torch.optim.Adam([embeddings], lr=args.rate)  # without decay: rows without gradient stay
    others = torch.arange(len(embeddings), device=embeddings.device) != token
    log = []
    for number in range(args.steps):
        denoising, identity, distance = training_step(
            pipe, loss, photos, partial(describe, pipe, prompts(args, number)), args, number
        )
        optimizer.zero_grad()
        (denoising + args.identity * identity).backward()
        embeddings.grad[others] = 0
        optimizer.step()
        log.append({"denoising": denoising.item(), "identity": identity.item(), "distance": distance.item()})
        if number % 100 == 0 or number == args.steps - 1:
            print(line(number, log[-1]))
    save_file({args.word: embeddings[token].detach().cpu().clone()}, args.out)
    print(f"wrote {args.out}: pipe.load_textual_inversion({str(args.out)!r}, token={args.word!r})")
    return log


if __name__ == "__main__":
    main()
