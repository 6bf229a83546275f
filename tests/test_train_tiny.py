from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors import safe_open

from idmetric import IDSim, load
from idmetric.train import tiny
from idmetric.train.tiny import Config, augment, main, photo_group, render, train

SHORT = ["--groups", "6", "--steps", "2", "--batch", "3", "--render-size", "32", "--warmup", "1", "--workers", "1",
         "--large-size", "32", "--small-size", "24"]  # fmt: skip


@pytest.fixture(autouse=True)
def small_model(monkeypatch: pytest.MonkeyPatch) -> None:
    args = {"channels": (8, 8, 16, 16), "output_stride": 16}
    monkeypatch.setattr(tiny, "MODEL", replace(tiny.MODEL, image_size=32, hidden=8, backbone_args=args))
    monkeypatch.setattr(tiny, "auto_device", lambda: torch.device("cpu"))


def test_the_command_trains_a_model_that_loads(tmp_path: Path) -> None:
    main([*SHORT, "--cache", str(tmp_path / "cache"), "--out", str(tmp_path / "out")])
    model = load(tmp_path / "out", device="cpu")
    assert isinstance(model, IDSim)
    assert model.dtype == torch.float32
    assert json.loads((tmp_path / "out" / "recipe.json").read_text())["steps"] == 2
    assert sorted(p.name for p in (tmp_path / "out").iterdir()) == ["config.json", "model.safetensors", "recipe.json"]
    groups = np.load(tmp_path / "cache" / "groups.npy")
    assert groups.shape == (6, 2, 3, 32, 32, 3)
    scores = model(groups[0, 0, 0], list(groups[0].reshape(6, 32, 32, 3)), "joint")
    assert scores[0].item() == pytest.approx(0, abs=1e-5)
    assert (scores[1:] > 0).all()


def test_seeds_reproduce_training_bit_for_bit() -> None:
    groups = np.random.default_rng(0).integers(0, 256, (6, 2, 3, 32, 32, 3), dtype=np.uint8)
    states = []
    for seed in (0, 0, 1):
        config = Config(seed=seed, steps=3, batch=3, warmup=1, patch_negatives=1, large_size=32, small_size=24)
        states.append(train(config, groups, torch.device("cpu")).state_dict())
    assert all(states[0][k].equal(states[1][k]) for k in states[0])
    assert not all(states[0][k].equal(states[2][k]) for k in states[0])
    torch.manual_seed(0)
    fresh = IDSim(tiny.MODEL, device="cpu").state_dict()
    assert not any(states[0][k].equal(fresh[k]) for k in fresh if k.endswith("fc1.weight"))


def test_resumed_training_equals_uninterrupted_training(tmp_path: Path) -> None:
    groups = np.random.default_rng(0).integers(0, 256, (7, 2, 3, 32, 32, 3), dtype=np.uint8)
    config = Config(steps=5, batch=3, warmup=1, patch_negatives=1, large_size=32, small_size=24, save_every=3)
    whole = train(config, groups, torch.device("cpu")).state_dict()
    file = tmp_path / "new" / "training.safetensors"
    train(config, groups, torch.device("cpu"), checkpoint=file)
    with safe_open(file, "pt") as saved:
        assert saved.metadata()["done"] == "3"  # the last two steps are not in it
    resumed = train(config, groups, torch.device("cpu"), checkpoint=file).state_dict()
    assert all(whole[name].equal(resumed[name]) for name in whole)
    with pytest.raises(ValueError, match="other settings"):
        train(replace(config, rate=0.1), groups, torch.device("cpu"), checkpoint=file)
    with pytest.raises(ValueError, match="other settings or data"):
        train(config, groups[:-1], torch.device("cpu"), checkpoint=file)


def test_batches_cover_the_groups_and_hold_none_twice() -> None:
    config = Config(batch=3)
    batches = [tiny._batch(step, 7, config) for step in range(4)]
    assert all(len(set(batch)) == 3 for batch in batches)
    assert not set(batches[0]) & set(batches[1])  # one epoch
    assert [list(b) for b in batches[2:]] != [list(b) for b in batches[:2]]  # the next one is shuffled anew
    with pytest.raises(ValueError, match="do not fill a batch"):
        train(config, np.zeros((2, 2, 3, 32, 32, 3), np.uint8), torch.device("cpu"))


def test_training_lowers_the_loss_on_a_simple_world(capsys: pytest.CaptureFixture[str]) -> None:
    rng = np.random.default_rng(0)
    colours = rng.integers(0, 256, (12, 1, 1, 1, 1, 3))
    noise = rng.integers(-20, 20, (12, 2, 3, 32, 32, 3))
    groups = (colours + noise).clip(0, 255).astype(np.uint8)
    groups[:, 1] = 255 - groups[:, 1]  # twins: the opposite colour
    train(
        Config(steps=40, batch=6, warmup=4, patch_negatives=1, large_size=32, small_size=32),
        groups,
        torch.device("cpu"),
        report=10,
    )
    losses = [float(line.split("cls ")[1].split()[0]) for line in capsys.readouterr().out.splitlines()]
    assert losses[-1] < 0.6 * losses[0]


def test_rendered_groups_are_kept_and_follow_from_the_seed(tmp_path: Path) -> None:
    config = Config(groups=3, photo_groups=0, render_size=24, workers=1)
    first = np.array(render(config, None, tmp_path / "a"))
    stamp = (tmp_path / "a" / "groups.npy").stat().st_mtime_ns
    assert np.array_equal(render(config, None, tmp_path / "a"), first)
    assert (tmp_path / "a" / "groups.npy").stat().st_mtime_ns == stamp
    assert np.array_equal(render(replace(config, workers=2), None, tmp_path / "b"), first)
    other = np.array(render(replace(config, seed=1), None, tmp_path / "a"))
    assert not np.array_equal(other, first)


def test_photo_groups_are_crops(tmp_path: Path) -> None:
    files = []
    for k, colour in enumerate(((200, 30, 30), (30, 200, 30))):
        files.append(tmp_path / f"{k}.png")
        Image.new("RGB", (90, 60), colour).save(files[-1])
    group = photo_group(files, 0, 3, 3, 16)
    means = group.reshape(2, 3, -1, 3).mean(2)
    assert group.shape == (2, 3, 16, 16, 3)
    assert np.ptp(means, axis=1).max() < 1
    assert np.abs(means[1] - means[0]).max() > 100


def test_a_step_shows_thing_and_twin_in_the_same_contexts() -> None:
    groups = np.zeros((5, 2, 3, 1, 1, 3), np.uint8)
    for group in range(5):
        for twin in range(2):
            for view in range(3):
                groups[group, twin, view] = (group, twin, view)
    config = Config(batch=4)
    drawn = tiny.draw(groups, 0, config)[:, :, :, 0, 0]
    assert drawn.shape == (4, 2, 2, 3)
    assert np.array_equal(drawn[:, 0, :, 2], drawn[:, 1, :, 2])
    assert (drawn[:, 0, 0, 2] != drawn[:, 0, 1, 2]).all()
    assert (drawn[..., 0] == drawn[:, :1, :1, 0]).all()
    assert np.array_equal(drawn, tiny.draw(groups, 0, config)[:, :, :, 0, 0])


def test_the_global_loss_is_info_nce_over_ordered_pairs_of_views() -> None:
    features = torch.nn.functional.normalize(
        torch.randn(3, 2, 3, 5, generator=torch.Generator().manual_seed(0)), dim=-1
    )
    flat = [(b, t, v) for b in range(3) for t in range(2) for v in range(3)]
    terms = []
    for b, t, v in flat:
        anchor = features[b, t, v]
        wrong = sum((anchor @ features[k] / 0.1).exp() for k in flat if k[:2] != (b, t))
        for w in range(3):
            if w != v:
                right = (anchor @ features[b, t, w] / 0.1).exp()
                terms.append(-(right / (right + wrong)).log())
    assert tiny.global_loss(features, 0.1).item() == pytest.approx(torch.stack(terms).mean().item(), rel=1e-5)


def test_augmentation_is_seeded_bounded_and_keeps_most_of_the_colour() -> None:
    images = torch.zeros(64, 3, 40, 40)
    images[:, 0] = 0.7
    out = [augment(images, 32, torch.Generator().manual_seed(seed)) for seed in (0, 0, 1)]
    assert out[0].shape == (64, 3, 32, 32)
    assert out[0].equal(out[1])
    assert not out[0].equal(out[2])
    assert out[0].min() >= 0
    assert out[0].max() <= 1
    means = out[0].mean((2, 3))
    assert ((means[:, 0] > means[:, 1]) & (means[:, 0] > means[:, 2])).float().mean() > 0.95
    assert means[:, 0].std() > 0.03
