"""The diffusion examples run on the real classes, and what they minimize is what they say."""

from __future__ import annotations

import importlib
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from torch import Tensor

from idmetric import IdentityLoss, IDSim

pytest.importorskip("diffusers")
pytest.importorskip("peft")

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
IMAGES = EXAMPLES / "images"


@pytest.fixture(autouse=True)
def _beside_each_other(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(EXAMPLES))


def example(name: str) -> ModuleType:
    return importlib.import_module(name)


@pytest.fixture(scope="module")
def tiny() -> IDSim:
    return IDSim("tiny", device="cpu")


@pytest.fixture
def pipe() -> Any:
    return example("latents").tiny_pipeline()


@pytest.fixture(scope="module")
def loss(tiny: IDSim) -> IdentityLoss:
    photos = [IMAGES / "mug_a.png", IMAGES / "mug_b.png"]
    return IdentityLoss(tiny, photos, reduction="none", value_range=(-1, 1), checkpoint=True)


# x0


@pytest.mark.parametrize("kind", ["epsilon", "v_prediction", "sample"])
def test_the_predicted_image_is_that_of_the_scheduler(kind: str) -> None:
    from diffusers import DDPMScheduler

    scheduler = DDPMScheduler(
        prediction_type=kind, clip_sample=False, beta_schedule="scaled_linear", beta_start=0.00085, beta_end=0.012
    )
    dice = torch.Generator().manual_seed(0)
    noisy, output = torch.randn(2, 3, 4, 8, 8, generator=dice)
    timesteps = torch.tensor([10, 400, 990])
    found = example("latents").predicted_x0(scheduler, output, noisy, timesteps)
    for i, t in enumerate(timesteps.tolist()):
        expected = scheduler.step(output[i : i + 1], t, noisy[i : i + 1]).pred_original_sample
        torch.testing.assert_close(found[i : i + 1], expected, rtol=1e-5, atol=1e-5)


def test_the_predicted_image_of_the_true_noise_is_the_image() -> None:
    from diffusers import DDPMScheduler

    latents, noise = torch.randn(2, 3, 4, 8, 8, generator=torch.Generator().manual_seed(0))
    for kind in ("epsilon", "v_prediction"):
        scheduler = DDPMScheduler(prediction_type=kind)
        timesteps = torch.tensor([0, 100, 500])
        noisy = scheduler.add_noise(latents, noise, timesteps)
        output = noise if kind == "epsilon" else scheduler.get_velocity(latents, noise, timesteps)
        found = example("latents").predicted_x0(scheduler, output, noisy, timesteps)
        torch.testing.assert_close(found, latents, rtol=0, atol=1e-4)


@pytest.mark.parametrize("kind", ["epsilon", "v_prediction", "sample"])
def test_the_denoising_loss_is_zero_where_the_predicted_image_is_the_image(pipe: Any, kind: str) -> None:
    latents = example("latents")
    pipe.scheduler.register_to_config(prediction_type=kind)
    dice = torch.Generator().manual_seed(3)
    clean, noise = torch.randn(2, 2, 4, 8, 8, generator=dice)
    timesteps = torch.tensor([50, 700])
    noisy = pipe.scheduler.add_noise(clean, noise, timesteps)
    kept = pipe.scheduler.alphas_cumprod[timesteps].view(-1, 1, 1, 1)
    right = {"epsilon": noise, "v_prediction": kept.sqrt() * noise - (1 - kept).sqrt() * clean, "sample": clean}[kind]
    assert latents.denoising_loss(pipe, right, clean, noise, timesteps) < 1e-10
    torch.testing.assert_close(latents.predicted_x0(pipe.scheduler, right, noisy, timesteps), clean, rtol=0, atol=1e-4)
    assert latents.denoising_loss(pipe, right + 0.5, clean, noise, timesteps).item() == pytest.approx(0.25, rel=1e-4)
    pipe.scheduler.register_to_config(prediction_type="flow")
    with pytest.raises(ValueError, match="unknown prediction_type 'flow'"):
        latents.denoising_loss(pipe, right, clean, noise, timesteps)


def test_the_identity_term_is_the_weighted_distance_of_low_noise_images(pipe: Any, loss: IdentityLoss) -> None:
    latents = example("latents")
    dice = torch.Generator().manual_seed(1)
    noisy, output = torch.randn(2, 3, 4, 16, 16, generator=dice)
    output.requires_grad_()
    timesteps = torch.tensor([20, 600, 240])
    term, mean = latents.identity_term(loss, pipe, output, noisy, timesteps, below=250)
    distances = []
    for i in (0, 2):
        x0 = latents.predicted_x0(pipe.scheduler, output[i : i + 1], noisy[i : i + 1], timesteps[i : i + 1])
        image = pipe.vae.decode(x0 / pipe.vae.config.scaling_factor).sample.detach()
        distances.append(loss.metric.pairwise((image / 2 + 0.5).clamp(0, 1), loss.references).mean())
    kept = pipe.scheduler.alphas_cumprod[[20, 240]]
    expected = (kept[0] * distances[0] + kept[1] * distances[1]) / 3
    assert term.item() == pytest.approx(expected.item(), abs=1e-5)
    assert mean.item() == pytest.approx(torch.stack(distances).mean().item(), abs=1e-5)
    (gradient,) = torch.autograd.grad(term, output)
    assert gradient[0].abs().max() > 0
    assert gradient[1].abs().max() == 0  # too noisy: not even decoded
    none, nothing = latents.identity_term(loss, pipe, output, noisy, torch.full((3,), 900), below=250)
    assert none.item() == 0
    assert nothing.isnan()


# DreamBooth with LoRA


def test_dreambooth_trains_the_lora_alone_and_it_loads_again(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    latents = example("latents")
    log = example("dreambooth_lora").main(["--smoke", "--out", str(tmp_path)])
    assert len(log) == 3
    assert all(torch.isfinite(torch.tensor(row["denoising"])) for row in log)
    assert any(row["identity"] > 0 for row in log)
    assert "load_lora_weights" in capsys.readouterr().out
    pipe = latents.tiny_pipeline()
    x, t = torch.randn(1, 4, 16, 16), torch.tensor([5])
    with torch.no_grad():
        words = latents.describe(pipe, ["a photo of sks dog"])
        before = pipe.unet(x, t, words).sample
        pipe.load_lora_weights(tmp_path)
        after = pipe.unet(x, t, words).sample
    assert (before - after).abs().max() > 1e-6


def test_the_identity_term_alone_trains_a_lora_to_predict_the_subject(pipe: Any, loss: IdentityLoss) -> None:
    module, latents = example("dreambooth_lora"), example("latents")
    frozen = {k: v.clone() for k, v in pipe.unet.state_dict().items()}
    torch.manual_seed(0)
    trained = module.add_lora(pipe.unet, 4)
    optimizer = torch.optim.Adam(trained, lr=3e-2)
    dice = torch.Generator().manual_seed(2)
    noisy, timesteps = torch.randn(2, 4, 16, 16, generator=dice), torch.tensor([100, 200])
    words = latents.describe(pipe, ["a mug"] * 2)
    values = []
    for _ in range(12):
        term, distance = latents.identity_term(
            loss, pipe, pipe.unet(noisy, timesteps, words).sample, noisy, timesteps, below=250
        )
        optimizer.zero_grad()
        term.backward()
        optimizer.step()
        values.append(distance.item())
    assert values[-1] < values[0] - 0.005
    kept = {k.replace(".base_layer", ""): v for k, v in pipe.unet.state_dict().items() if "lora" not in k}
    assert all(frozen[k].equal(v) for k, v in kept.items())
    assert kept.keys() == frozen.keys()


# Textual inversion


def test_textual_inversion_trains_one_word_alone_and_it_loads_again(tmp_path: Path) -> None:
    latents, module = example("latents"), example("textual_inversion")
    file = tmp_path / "word.safetensors"
    log = module.main(["--smoke", "--word", "<mug>", "--out", str(file)])
    assert any(row["identity"] > 0 for row in log)
    pipe = latents.tiny_pipeline()
    before = pipe.text_encoder.get_input_embeddings().weight.detach().clone()
    pipe.load_textual_inversion(str(file), token="<mug>")
    token = pipe.tokenizer.convert_tokens_to_ids("<mug>")
    after = pipe.text_encoder.get_input_embeddings().weight
    start = before[pipe.tokenizer.encode("d", add_special_tokens=False)[0]]
    assert after[: len(before)].equal(before)
    assert 1e-4 < (after[token] - start).abs().max() < 0.1


def test_no_other_row_of_the_vocabulary_changes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    module, latents = example("textual_inversion"), example("latents")
    made = latents.tiny_pipeline()
    before = made.text_encoder.get_input_embeddings().weight.detach().clone()
    monkeypatch.setattr(module, "tiny_pipeline", lambda: made)
    module.main(["--smoke", "--out", str(tmp_path / "word.safetensors")])
    after = made.text_encoder.get_input_embeddings().weight
    assert after[: len(before)].equal(before)
    assert len(after) == len(before) + 1


def test_a_word_that_is_known_or_a_start_of_two_tokens_is_refused(pipe: Any) -> None:
    add_word = example("textual_inversion").add_word
    with pytest.raises(SystemExit, match="2 tokens"):
        add_word(pipe, "<mug>", "ab")
    with pytest.raises(SystemExit, match="known already"):
        add_word(pipe, "a", "b")


# Sampling


@pytest.fixture(scope="module")
def sampled(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[Tensor]]:
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(EXAMPLES))
        run = example("guided_sampling").main
        folder = tmp_path_factory.mktemp("sampled")
        options = ["--smoke", "--steps", "8", "--samples", "3"]
        return {
            how: [run([*options, "--how", how, "--seed", str(s), "--out", str(folder / f"{how}{s}")]) for s in (0, 1)]
            for how in ("best", "guide")
        }


@pytest.mark.slow
def test_guided_samples_are_nearer_than_those_of_the_same_noise(sampled: dict[str, list[Tensor]]) -> None:
    for plain, guided in zip(sampled["best"], sampled["guide"], strict=True):
        assert guided.mean() < plain.mean() - 0.01
        assert guided.equal(guided.sort().values)


def test_resampling_writes_as_many_images_and_is_repeatable(tmp_path: Path) -> None:
    run = example("guided_sampling").main
    options = ["--smoke", "--steps", "6", "--samples", "3", "--how", "resample", "--out", str(tmp_path)]
    first, again = run(options), run(options)
    assert first.equal(again)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["00.png", "01.png", "02.png"]


def test_particles_are_drawn_by_what_they_gained() -> None:
    draw_again = example("guided_sampling").draw_again
    gain = torch.tensor([0.0, 0.1, 0.2]).repeat_interleave(2000)
    dice = torch.Generator().manual_seed(0)
    chosen = gain[draw_again(gain, 10.0, dice)]
    shares = torch.stack([(chosen == g).float().mean() for g in (0.0, 0.1, 0.2)])
    torch.testing.assert_close(shares, torch.tensor([0.0, 1.0, 2.0]).softmax(0), rtol=0, atol=0.03)


@pytest.mark.parametrize("name", ["dreambooth_lora", "textual_inversion", "guided_sampling"])
def test_a_place_that_cannot_be_written_is_told_before_the_work(name: str, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(OSError, match="is a file"):
        example(name).main(["--model", "never/opened", "--out", str(tmp_path / "file" / "x")])


def test_a_folder_without_photos_is_named(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="holds no photos"):
        example("latents").load_photos(tmp_path, 32)


# Does it do what it says?


def contrast(similarity: Tensor) -> float:
    """How much more alike prints are to their own targets than those made for other targets."""
    others = similarity[~torch.eye(len(similarity), dtype=torch.bool)]
    return (similarity.diagonal().mean() - others.mean()).item()


def optimized(what: str) -> dict[str, Tensor]:
    """See examples/optimize_identity.py."""
    found: dict[str, Tensor] = example("optimize_identity").main(["--what", what, "--identities", "2", "--steps", "20"])
    return found


@pytest.mark.slow
def test_similarity_rises_most_where_noise_cannot_please_the_metric() -> None:
    found = {what: optimized(what) for what in ("painter", "pixels", "fixed")}
    gains = {what: (f["after"] - f["before"]).diagonal().mean().item() for what, f in found.items()}
    assert (found["painter"]["last"] < 0.6 * found["painter"]["first"]).all()
    assert abs(contrast(found["painter"]["before"])) < 0.1
    assert contrast(found["painter"]["after"]) > 0.3
    assert gains["pixels"] > 0.2
    assert gains["painter"] > 0.05
    assert gains["fixed"] < 0.7 * gains["pixels"]
    assert found["fixed"]["last"].mean() < found["pixels"]["last"].mean()  # though the metric is pleased more
    assert contrast(found["pixels"]["after"]) > contrast(found["fixed"]["after"]) + 0.1
    assert contrast(found["painter"]["after"]) > contrast(found["fixed"]["after"]) + 0.05
    assert found["painter"]["after"].argmax(1).tolist() == [0, 1]
