"""DiffSim, on a Stable Diffusion of a few thousand random weights, against a slow recomputation."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from idmetric.evaluate.protocols.common import diffsim
from idmetric.evaluate.protocols.common.diffsim import PROMPT, SEED, DiffSim
from idmetric.evaluate.protocols.common.models import DIFFSIM, open_model
from idmetric.metric.errors import CheckpointError

pytest.importorskip("diffusers")
pytest.importorskip("transformers")

from tests.diffusion_parts import stable_diffusion


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """A pipeline with the scheduler of Stable Diffusion 1.5, and weights large enough that attention is uneven."""
    from diffusers import PNDMScheduler, UNet2DConditionModel

    folder = tmp_path_factory.mktemp("sd15")
    scheduler = PNDMScheduler(
        beta_start=0.00085, beta_end=0.012, beta_schedule="scaled_linear", set_alpha_to_one=False, skip_prk_steps=True,
        steps_offset=1,
    )  # fmt: skip
    stable_diffusion(folder, scheduler)
    unet = UNet2DConditionModel.from_pretrained(folder, subfolder="unet")
    with torch.no_grad():
        for name, value in unet.named_parameters():
            if "attn" in name and value.ndim == 2:
                value.mul_(6)
    unet.save_pretrained(folder / "unet")
    return replace(diffsim.BASE, repo=str(folder))


@pytest.fixture(scope="module")
def metric(base: Any) -> DiffSim:
    return DiffSim("cpu", base=base, side=32)


def picture(seed: int, size: tuple[int, int] = (40, 30)) -> Image.Image:
    values = np.random.default_rng(seed).integers(0, 256, (size[1] // 5, size[0] // 5, 3), dtype=np.uint8)
    return Image.fromarray(values).resize(size)


def prepared(metric: DiffSim, *seeds: int) -> torch.Tensor:
    return torch.stack([metric.prepare(picture(seed), None) for seed in seeds])


def slow_projections(folder: str, pixels: torch.Tensor, step: int) -> list[list[np.ndarray[Any, Any]]]:
    """Queries, keys and values (heads, tokens, width), without and with the prompt, by diffusers' parts one by one."""
    from diffusers import StableDiffusionPipeline

    pipe = StableDiffusionPipeline.from_pretrained(folder, safety_checker=None)
    moments = pipe.vae.quant_conv(pipe.vae.encoder(pixels[None].float() / 127.5 - 1))
    mean, log_variance = moments.chunk(2, 1)
    generator = torch.Generator().manual_seed(SEED)
    latent = mean + torch.exp(log_variance.clamp(-30, 20) / 2) * torch.randn(mean.shape, generator=generator)
    latent = latent * pipe.vae.config.scaling_factor

    # the 600th of 1,000 steps from pure noise; PNDM repeats its second one
    time = {600: 401, 750: 251}[step]
    betas = np.linspace(0.00085**0.5, 0.012**0.5, 1000) ** 2
    kept = float(np.prod(1 - betas[: time + 1]))
    noisy = kept**0.5 * latent + (1 - kept) ** 0.5 * torch.randn(mean.shape, generator=generator)

    found = []
    for text in ("", PROMPT):
        ids = pipe.tokenizer(text, padding="max_length", max_length=77, truncation=True, return_tensors="pt").input_ids
        outputs: dict[str, torch.Tensor] = {}
        block = pipe.unet.up_blocks[0].attentions[-1].transformer_blocks[-1].attn1
        hooks = [
            getattr(block, name).register_forward_hook(lambda m, x, y, n=name, held=outputs: held.update({n: y}))
            for name in ("to_q", "to_k", "to_v")
        ]
        pipe.unet(noisy, time, encoder_hidden_states=pipe.text_encoder(ids)[0])
        for hook in hooks:
            hook.remove()
        split = [outputs[n][0].unflatten(-1, (block.heads, -1)).transpose(0, 1) for n in ("to_q", "to_k", "to_v")]
        found.append([t.double().numpy() for t in split])
    return found


def slow_attention(query: Any, key: Any, value: Any) -> np.ndarray[Any, Any]:
    out = np.zeros_like(query)
    for head in range(len(query)):
        for token in range(query.shape[1]):
            weights = [np.exp(query[head, token] @ other / query.shape[2] ** 0.5) for other in key[head]]
            out[head, token] = sum(w * v for w, v in zip(weights, value[head], strict=True)) / sum(weights)
    return out


def slow_similarity(one: Any, two: Any) -> float:
    """The formula of the module's head."""
    aligned = []
    for a, b in ((one, two), (two, one)):
        crossed = np.concatenate([slow_attention(x[0], y[1], y[2]).ravel() for x, y in zip(a, b, strict=True)])
        own = np.concatenate([slow_attention(*x).ravel() for x in a])
        aligned.append(crossed @ own / np.linalg.norm(crossed) / np.linalg.norm(own))
    return float(np.mean(aligned))


@pytest.mark.parametrize("name", ["diffsim:cute", "diffsim:dreambench++"])
def test_similarities_are_those_of_the_formula_computed_slowly(base: Any, name: str) -> None:
    metric = DiffSim("cpu", DIFFSIM[name], base, side=32)
    a, b = prepared(metric, 1, 2)
    with torch.no_grad():
        expected = slow_similarity(*(slow_projections(base.repo, x, DIFFSIM[name]) for x in (a, b)))
    found = float(metric.between(metric.features(a[None]), metric.features(b[None]))[0])
    assert found == pytest.approx(expected, abs=1e-5)
    assert found < 0.999  # random weights still tell the two apart


def test_images_are_squashed_by_pillows_lanczos(metric: DiffSim) -> None:
    found = metric.prepare(picture(3), None).permute(1, 2, 0).numpy()
    np.testing.assert_array_equal(found, np.asarray(picture(3).resize((32, 32), Image.Resampling.LANCZOS)))


def test_the_metric_is_symmetric_and_independent_of_the_batch(metric: DiffSim) -> None:
    images = prepared(metric, *range(6))
    features = metric.features(images)
    forth = metric.between([t[:1] for t in features], features)
    back = torch.cat([metric.between(metric.features(image[None]), metric.features(images[:1])) for image in images])
    torch.testing.assert_close(forth, back, atol=1e-4, rtol=0)  # convolutions of other batches round otherwise
    assert float(forth[0]) == pytest.approx(1, abs=1e-6)
    assert (forth[1:] < 0.9999).all()


@pytest.mark.parametrize("name", ["diffsim:foo", "diffsim:foo@base", "dreamsim:foo"])
def test_an_unknown_variant_of_a_baseline_lists_those_there_are(name: str) -> None:
    known = "diffsim:dreambench" if name.startswith("diffsim") else "dreamsim:dino_vitb16"
    with pytest.raises(CheckpointError, match=f"unknown baseline '{name}': choose .*{known}"):
        open_model(name)


def test_a_name_may_give_a_folder_for_the_weights(base: Any, tmp_path: Path) -> None:
    opened = open_model(f"diffsim:dreambench++@{base.repo}", device="cpu")
    assert opened.step == 750
    assert opened.signature()["revision"] == DiffSim("cpu", base=base, side=32).signature()["revision"]
    with pytest.raises(CheckpointError, match="is not a folder"):
        open_model(f"diffsim@{tmp_path / 'none'}", device="cpu")


def test_weights_that_cannot_be_fetched_are_named_with_the_option(monkeypatch: pytest.MonkeyPatch) -> None:
    import diffusers

    def unreachable(*_: Any, **__: Any) -> None:
        raise OSError("no network")

    monkeypatch.setattr(diffusers.DiffusionPipeline, "download", unreachable)
    with pytest.raises(CheckpointError, match=r"cannot fetch stable-diffusion-v1-5.*no network"):
        open_model("diffsim", device="cpu")


def test_missing_packages_and_weights_are_named(base: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(CheckpointError, match="as StableDiffusionPipeline"):
        DiffSim("cpu", base=replace(base, repo=str(tmp_path)), side=32)
    monkeypatch.setitem(sys.modules, "diffusers", None)
    with pytest.raises(ImportError, match=r"the baseline diffsim needs diffusers: pip install 'idmetric\[generate\]'"):
        open_model("diffsim", device="cpu")
