"""The NearID recipe: its tuples, its loss, what trains, its switches, the cache of features, and what it refuses."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from pandas import DataFrame
from PIL import Image
from safetensors.torch import load_file, save_file
from torch import Tensor

from idmetric import CheckpointError, NearID, load
from idmetric.cli.train import main
from idmetric.data.manifest import ManifestError, checked, read, take, write
from idmetric.metric import timm_models
from idmetric.train import state
from idmetric.train.batches import generator
from idmetric.train.features import FeatureCache, picture_keys, trunk_id
from idmetric.train.loop import TrainError, TrainSettings, fit
from idmetric.train.losses.near_id import Tuples, near_id
from idmetric.train.losses.near_id_objectives import circle_ranked, oracle_info_nce, sigmoid_ranked, symmetric_info_nce
from idmetric.train.nearid import siglip
from idmetric.train.nearid.config import SMOKE, NearIDTraining
from idmetric.train.nearid.data import MISSING, Shape, draw, find, items
from idmetric.train.nearid.recipe import NearIDRecipe, build
from idmetric.train.processes import Processes
from tests.table_parts import a_row, a_table, with_row
from tests.train_parts import (
    a_minute_offline,
    in_two_processes,
    launched,
    picture,
    read_log,
)

MODEL = {name: SMOKE[name] for name in ("backbone", "backbone_weights", "backbone_args", "image_size")}
SMALL: dict[str, Any] = {**MODEL, "precision": "no", "batch_size": 4, "lr": 1e-3}
STILL = {**SMALL, "augment": False}


def saved(folder: Path, name: str, seed: int) -> str:
    picture(seed, 40, 32, (5, 5)).save(folder / f"{name}.png")
    return f"{name}.png"


def made(folder: Path, things: int = 6, parts: int = 2, splits: tuple[str | None, ...] = (None,)) -> DataFrame:
    """Things of 2 and 3 views with distractors by two engines, and others of 2 views with two part-edits each."""
    folder.mkdir(parents=True, exist_ok=True)
    cover = np.zeros((32, 40), np.uint8)
    cover[8:24, 10:30] = 255
    Image.fromarray(cover).save(folder / "mask.png")
    rows = []
    for n in range(things + parts):
        split, views = splits[n % len(splits)], 2 if n >= things else 2 + n % 2
        for v in range(views):
            view = f"t{n}v{v}"
            rows.append(a_row(f"t{n}", saved(folder, view, 100 * n + v), id=view, mask="mask.png", split=split))
            made = [("part-edit", "SDXL")] * 2 if n >= things else [("distractor", "Flux"), ("distractor", "Qwen")]
            for k, (role, engine) in enumerate(made):
                rows.append(
                    a_row(f"{view}e{k}", saved(folder, f"{view}e{k}", 100 * n + 10 + 4 * v + k), id=f"{view}e{k}",
                        parent=view, role=role, engine=engine, split=split, oracle=0.9 - 0.2 * k - 0.1 * v)
                )  # fmt: skip
    write(a_table(rows, folder), folder / "data.parquet")
    return read(folder / "data.parquet")


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> DataFrame:
    return made(tmp_path_factory.mktemp("data"))


def recipe(data: DataFrame, **config: Any) -> NearIDRecipe:
    return build(NearIDTraining(**{**STILL, **config}), data, Processes(config.get("precision", "no"), cpu=True))


def random_model(seed: int = 0) -> NearID:
    """As the smoke run starts."""
    return siglip.start(NearIDTraining(**MODEL, seed=seed))


def losses(run: NearIDRecipe, steps: int) -> list[float]:
    return [float(run.step(run.load(step))["loss"]) for step in range(steps)]


def loss(run: NearIDRecipe) -> float:
    return losses(run, 1)[0]


def once(data: DataFrame, objective: str, **config: Any) -> NearIDRecipe:
    """All identities in one batch, each of them once."""
    beta = 0.1 if objective == "nearid" else 0.0
    return recipe(data, objective=objective, batch_size=8, repeat=1, **{"beta": beta, "chunk": 5, **config})


def unlike(a: float, b: float) -> bool:
    return a != pytest.approx(b, rel=1e-3)


def gradients(run: NearIDRecipe, step: int = 0) -> dict[str, Tensor]:
    run.model.zero_grad()
    run.step(run.load(step))
    return {n: p.grad.clone() for n, p in run.model.named_parameters() if p.grad is not None}


# The command


@pytest.mark.slow
def test_the_smoke_run_ends_within_a_minute_and_opens_as_the_public_class(tmp_path: Path) -> None:
    out = tmp_path / "run"
    with a_minute_offline():
        assert main(["nearid", "--smoke", "--out", str(out), "--cpu", "--workers", "0"]) == 0
    model = load(out, device="cpu")
    assert isinstance(model, NearID)
    fresh = random_model()
    before, after = fresh.state_dict(), model.state_dict()
    assert before.keys() == after.keys() == load_file(out / "model.safetensors").keys()
    moved = {name for name in before if not before[name].equal(after[name])}
    assert moved
    assert all(name.startswith("backbone.attn_pool.") for name in moved)
    assert isinstance(load(out / "best", device="cpu"), NearID)
    log = read_log(out / "log.jsonl")
    assert {"loss", "discrimination", "ranking", "validation/ssr", "validation/part_ssr"} <= log.keys()
    assert model.embed(Image.new("RGB", (50, 40))).cls.norm().item() == pytest.approx(1, abs=1e-5)


# Tuples


def test_a_tuple_holds_an_anchor_its_other_views_and_distractors_in_the_anchors_background(data: DataFrame) -> None:
    names, parents = data["id"].tolist(), data["parent"].tolist()
    identities, notes = find(data)
    assert (len(identities), notes) == (8, [])
    assert Counter(len(x.views) for x in identities) == {2: 5, 3: 3}
    assert [x.parts for x in identities] == [False] * 6 + [True] * 2
    anchors = Counter()
    for step in range(200):
        thing = identities[step % 8]
        rows, masked = draw(thing, Shape(), generator(3, step))
        anchor, positive, near = rows[0], rows[1:3], rows[3:]
        anchors[names[anchor]] += 1
        assert sorted({anchor, *positive} - {MISSING}) == sorted(thing.views)  # each once
        assert (positive == MISSING).sum() == 3 - len(thing.views)
        assert len(set(near)) == 3  # two distractors, and an empty slot
        assert [parents[r] for r in near if r != MISSING] == [names[anchor]] * 2
        assert not masked[rows == MISSING].any()
    assert len(anchors) == 19  # each view is an anchor now and then


def test_distractors_of_each_view_as_the_released_code_takes_them(data: DataFrame) -> None:
    names, parents = data["id"].tolist(), data["parent"].tolist()
    thing = find(data)[0][1]
    seen = set()
    for step in range(50):
        rows, _ = draw(thing, Shape(near="views"), generator(0, step))
        assert [parents[r] for r in rows[3:]] == [names[r] for r in rows[:3]]
        seen.update(rows[3:].tolist())
    assert seen == {r for rows in thing.near for r in rows}  # either engine's


def test_backgrounds_are_black_as_often_as_the_paper_says(data: DataFrame) -> None:
    thing = find(data)[0][1]
    for gate, expected in ((1.0, (0.5, 0.2, 0.2, 0.6, 0.6)), (0.5, (0.25, 0.1, 0.1, 0.3, 0.3)), (0.0, (0.0,) * 5)):
        found = [draw(thing, Shape(mask_prob=gate), generator(0, step))[1][:5] for step in range(3000)]
        assert np.mean(found, 0) == pytest.approx(expected, abs=0.03)


def test_identities_with_part_edits_alone_come_four_times_an_epoch(data: DataFrame) -> None:
    identities, _ = find(data)
    assert Counter(items(identities, 4).tolist()) == {**dict.fromkeys(range(6), 1), 6: 4, 7: 4}
    run = recipe(data, batch_size=7, epochs=3)
    assert run.steps == 6  # 14 tuples an epoch
    for epoch in range(3):
        met = Counter(int(n) for k in (0, 1) for n in run.batches.tuples(2 * epoch + k)[2])
        assert met == {**dict.fromkeys(range(6), 1), 6: 4, 7: 4}
    assert recipe(data, batch_size=7, epochs=3, repeat=1).steps == 3


def test_the_same_image_twice_is_no_other_view(data: DataFrame) -> None:
    again = with_row(data, {**data.iloc[0], "id": "copy"})
    assert [x.views for x in find(again)[0]] == [x.views for x in find(data)[0]]


def test_only_training_rows_are_drawn_and_notes_say_what_is_left_out(data: DataFrame) -> None:
    where = {"t0": "test", "t1": "val"}
    split = [where.get(name[:2], "train") for name in data["id"].tolist()]
    identities, _ = find(checked(data.assign(split=split)))
    assert len(identities) == 6
    names = data["id"].tolist()
    assert not {n for x in identities for r in x.views for n in [names[r]]} & {"t0v0", "t0v1", "t1v0"}
    lone = take(data, np.array([name not in ("t0v1", "t2v0e0", "t2v0") for name in names]))
    found, notes = find(lone)
    assert len(found) == 6
    assert notes == ["3 distractors without their view", "2 identities with a single view"]


# The loss


def embedded(run: NearIDRecipe, data: DataFrame) -> tuple[list[Any], list[list[Any]], list[list[Any]]]:
    """Anchors, positives and distractors of the first batch, each image read and embedded by itself; None = missing."""
    rows, masked, _ = run.batches.tuples(0)
    assert masked.any()

    def embedding(row: int, dark: bool) -> Any:
        if row == MISSING:
            return None
        pixels = np.array(Image.open(data["path"][row]).convert("RGB"))
        if dark:
            pixels[np.array(Image.open(data["mask"][0])) == 0] = 0
        return run.model.embed(Image.fromarray(pixels)).cls[0].double().numpy()

    found = [
        [embedding(int(r), bool(m)) for r, m in zip(*pair, strict=True)] for pair in zip(rows, masked, strict=True)
    ]
    first = 1 + run.config.shape.positives
    return [x[0] for x in found], [x[1:first] for x in found], [x[first:] for x in found]


def loss_by_hand(run: NearIDRecipe, data: DataFrame) -> float:
    """The objective, which tests/train/losses compare with its equation, of images embedded one by one."""
    config, (anchor, positive, near) = run.config, embedded(run, data)
    of = {"temperature": config.temperature}

    def slots(rows: list[list[Any]]) -> tuple[Tensor, Tensor]:
        found = np.array([[np.zeros_like(anchor[0]) if x is None else x for x in row] for row in rows])
        valid = torch.tensor([[x is not None for x in row] for row in rows])
        return torch.from_numpy(found.reshape(*valid.shape, -1)), valid

    (g, g_valid), (r, r_valid) = slots(positive), slots(near) if near[0] else (torch.zeros(8, 0, len(anchor[0])), None)
    tuples = Tuples(torch.from_numpy(np.stack(anchor)), g, r, g_valid, r_valid)
    if config.objective == "nearid":
        return near_id(tuples, alpha=config.alpha, beta=0.1, **of).item()
    distractors = {"distractors": config.objective.endswith("-distractors")}
    if config.objective.startswith("info-nce"):
        return symmetric_info_nce(tuples, **distractors, **of).item()
    if config.objective.startswith("oracle"):
        scores, rows = data["oracle"].tolist(), run.batches.tuples(0)[0][:, 2:]
        oracle = torch.tensor([[scores[r] if r != MISSING else np.nan for r in row] for row in rows])
        return oracle_info_nce(tuples, oracle, alpha=config.alpha, **distractors, **of).item()
    if config.objective == "siglip":
        return sigmoid_ranked(tuples, alpha=config.alpha, per_anchor=config.sigmoid_per_anchor, **of).item()
    return circle_ranked(tuples, alpha=config.alpha, **of).item()


OBJECTIVES = ("nearid", "info-nce", "info-nce-distractors", "oracle", "oracle-distractors", "siglip", "circle")


@pytest.mark.parametrize("objective", OBJECTIVES)
def test_a_steps_loss_is_that_of_its_images_embedded_one_by_one(objective: str, data: DataFrame) -> None:
    run = once(data, objective)
    assert loss(run) == pytest.approx(loss_by_hand(run, data), rel=2e-4)


@pytest.mark.parametrize(
    ("objective", "changed"),
    [
        ("nearid", {"temperature": 0.2, "alpha": 1.3}), ("siglip", {"alpha": 1.3}), ("circle", {"alpha": 1.3}),
        ("siglip", {"sigmoid_per_anchor": True}), ("info-nce-distractors", {"temperature": 0.2}),
        ("oracle", {"alpha": 1.3}),
    ],
)  # fmt: skip
def test_temperature_weight_and_reading_of_the_loss_count(
    objective: str, changed: dict[str, Any], data: DataFrame
) -> None:
    run = once(data, objective, **changed)
    assert loss(run) == pytest.approx(loss_by_hand(run, data), rel=2e-4)
    assert unlike(loss(run), loss(once(data, objective)))


def test_gradients_are_the_same_for_any_chunk(data: DataFrame) -> None:
    whole = gradients(recipe(data, chunk=100))
    for chunk in (1, 7):
        for name, grad in gradients(recipe(data, chunk=chunk)).items():
            assert (grad - whole[name]).norm() <= 1e-4 * whole[name].norm() + 1e-4, name


# What trains


def test_the_head_alone_trains_and_nothing_else_moves(data: DataFrame, tmp_path: Path) -> None:
    run = recipe(data, steps=3)
    before = {name: value.clone() for name, value in run.model.state_dict().items()}
    trained = {name for name, p in run.model.named_parameters() if p.requires_grad}
    assert trained == {name for name in before if name.startswith("backbone.attn_pool.")}
    assert not run.model.backbone.blocks.training
    fit(run, tmp_path / "run", TrainSettings(workers=0, max_grad_norm=1.0), run.processes)
    after = run.model.state_dict()
    moved = {name for name in before if not before[name].equal(after[name])}
    assert moved == trained
    assert all(p.grad is None for name, p in run.model.named_parameters() if name not in trained)
    stored = load_file(state.checkpoints(tmp_path / "run")[3])
    assert {name for name in stored if name.startswith("model/")} == {f"model/{name}" for name in trained}


def test_the_head_is_3_6_percent_of_the_full_model() -> None:
    model = timm_models.build("vit_so400m_patch14_siglip_384", image_size=384, empty=True)
    sizes = {name: p.numel() for name, p in model.named_parameters()}
    head = sum(size for name, size in sizes.items() if name.startswith(("attn_pool.", "fc_norm.", "head.")))
    assert (head, sum(sizes.values())) == (15_238_352, 428_225_600)  # "approximately 15M of roughly 428M", section 4.1


def test_the_rate_warms_up_and_falls_as_a_cosine(data: DataFrame) -> None:
    run = recipe(data, steps=1100)
    assert [run.lr_factor(step) for step in (0, 49, 99, 100)] == pytest.approx([0.01, 0.5, 1.0, 1.0])
    assert run.lr_factor(600) == pytest.approx(0.5)
    assert 0 < run.lr_factor(1099) < 1e-4
    assert recipe(data, steps=20).lr_factor(1) == 1.0  # at most a tenth of the run


# Switches


def test_the_defaults_are_the_papers() -> None:
    papers = {
        "alpha": 0.5, "temperature": 0.07, "beta": 0.0, "objective": "nearid", "lr": 1e-4, "weight_decay": 1e-4,
        "warmup": 100, "batch_size": 128, "epochs": 11, "mask_prob": 1.0, "repeat": 4,
        "precision": "fp16", "augment": True, "backbone": "google/siglip2-so400m-patch14-384",
    }  # fmt: skip
    assert asdict(NearIDTraining()).items() >= papers.items()


def test_objectives_differ_and_infonce_reads_no_distractors(data: DataFrame) -> None:
    assert len({round(loss(recipe(data, objective=name, batch_size=14)), 4) for name in OBJECTIVES}) == 7
    run = recipe(data, objective="info-nce")
    roles = data["role"].tolist()
    assert {roles[row] for row in run.load(0)["rows"]} == {"real"}
    assert run.config.shape.positives == 1


def test_an_identity_twice_in_a_batch_is_not_its_own_negative(data: DataFrame) -> None:
    run = recipe(data, batch_size=14)  # all of an epoch: part-edits four times
    batch = run.load(0)
    assert len(set(batch["identity"].tolist())) == 8
    apart = {**batch, "identity": torch.arange(14)}
    assert float(run.step(apart)["ranking"]) > float(run.step(batch)["ranking"]) + 0.05


def test_other_switches_change_what_they_say(data: DataFrame) -> None:
    engines, roles = data["engine"].tolist(), data["role"].tolist()

    def rows(**config: Any) -> set[int]:
        run = recipe(data, **config)
        return {row for step in range(6) for row in run.load(step)["rows"]}

    flux = rows(engines=("Flux",))
    assert {engines[r] for r in flux if roles[r] == "distractor"} == {"Flux"}
    assert any(roles[r] == "part-edit" for r in flux)
    slots = [len(recipe(data, positives=p, distractors=k).load(0)["valid"][0]) for p, k in ((2, 3), (1, 3), (2, 1))]
    assert slots == [6, 5, 4]
    seeds = [recipe(data, seed=s).batches.tuples(0)[0] for s in (0, 0, 1)]
    assert np.array_equal(seeds[0], seeds[1])
    assert not np.array_equal(seeds[0], seeds[2])
    still, moving = recipe(data).load(0)["pictures"], recipe(data, augment=True).load(0)["pictures"]
    assert not still.equal(moving)
    assert moving.equal(recipe(data, augment=True).load(0)["pictures"])


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        ({"cache": "c", "augment": True}, "--no-augment"), ({"beta": 0.1, "objective": "siglip"}, "--beta"),
    ],
)  # fmt: skip
def test_settings_that_cannot_be_are_refused(wrong: dict[str, Any], says: str) -> None:
    with pytest.raises(ValueError, match=says):
        NearIDTraining(**{**STILL, **wrong})


# Runs


def share_of_two(folder: Path, rank: int, port: str) -> None:
    """Write the averaged gradients of a step, as one of two processes."""
    launched(rank, port)
    run = recipe(read(folder / "data.parquet"), batch_size=6, chunk=3, augment=True)
    values = run.step(run.load(0))
    run.processes.average_gradients(run.model.parameters())
    grads = {n: p.grad for n, p in run.model.named_parameters() if p.grad is not None}
    save_file({**grads, "loss": values["loss"].reshape(1)}, folder / f"plain-{rank}.safetensors")
    cached = recipe(read(folder / "data.parquet"), batch_size=6, steps=2, cache=str(folder / "cache"))
    cached.prepare(folder)
    save_file({"loss": cached.step(cached.load(0))["loss"].reshape(1)}, folder / f"cached-{rank}.safetensors")
    run.processes.close()


def test_two_processes_have_the_gradients_of_one(tmp_path: Path) -> None:
    data = made(tmp_path)
    assert in_two_processes(share_of_two, tmp_path) == [0, 0]
    one = recipe(data, batch_size=6, chunk=3, augment=True)
    assert len({len(one.batches.load(0, rank, 2)["rows"]) for rank in (0, 1)}) == 2  # unequal shares
    expected = gradients(one)
    for rank in (0, 1):
        found = load_file(tmp_path / f"plain-{rank}.safetensors")
        assert found.pop("loss").item() == pytest.approx(loss(one), rel=1e-5)
        assert found.keys() == expected.keys()
        for n, grad in expected.items():
            assert (found[n] - grad).norm() <= 1e-4 * grad.norm() + 1e-4, n
    cached = [load_file(tmp_path / f"cached-{rank}.safetensors")["loss"].item() for rank in (0, 1)]
    assert cached == pytest.approx([loss(recipe(data, batch_size=6))] * 2, rel=1e-5)


# The cache of features


def trunk_passes(run: NearIDRecipe, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    passes: list[int] = []
    plain = run.model.backbone.forward_features

    def counted(x: Tensor) -> Tensor:
        passes.append(len(x))
        return plain(x)

    monkeypatch.setattr(run.model.backbone, "forward_features", counted)
    return passes


@pytest.mark.parametrize("precision", ["no", "bf16"])
def test_a_cache_changes_no_loss_and_the_trunk_sees_each_picture_once(
    precision: Any, data: DataFrame, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    options = {"precision": precision, "steps": 6, "cache": str(tmp_path / "cache")}
    expected = losses(recipe(data, precision=precision, steps=6), 6)
    run = recipe(data, **options)
    passes = trunk_passes(run, monkeypatch)
    run.prepare(tmp_path)
    needed = run.batches.needed(6)
    assert sum(passes) == len(needed)
    assert f"features of {len(needed)} of {len(needed)} pictures go to" in capsys.readouterr().out
    passes.clear()
    assert losses(run, 6) == pytest.approx(expected, rel=1e-5 if precision == "no" else 2e-2)
    assert not passes
    again = recipe(data, **options)  # another run finds all there
    passes = trunk_passes(again, monkeypatch)
    again.prepare(tmp_path)
    assert losses(again, 6) == losses(run, 6)
    assert not passes
    assert again.settings == recipe(data, precision=precision, steps=6).settings


def test_features_are_named_by_content_and_by_trunk(tmp_path: Path) -> None:
    data = made(tmp_path, things=2, parts=0)
    before = picture_keys(data, [(0, False), (0, True), (3, False), (3, True)])
    assert len(set(before.values())) == 4
    (tmp_path / "moved.png").write_bytes((tmp_path / "t0v0.png").read_bytes())
    moved = checked(data.assign(path=[str(tmp_path / "moved.png"), *data["path"][1:]]))
    assert picture_keys(moved, [(0, True)]) == {(0, True): before[0, True]}
    Image.new("RGB", (40, 32)).save(tmp_path / "t0v0.png")
    after = picture_keys(data, [(0, False), (0, True), (3, False)])
    assert after[0, False] != before[0, False]
    assert after[0, True] != before[0, True]
    assert after[3, False] == before[3, False]
    (tmp_path / "t0v0.png").unlink()
    with pytest.raises(TrainError, match=r"t0v0\.png cannot be read: No such file"):
        picture_keys(data, [(0, False)])
    a, b = random_model(0), random_model(1)
    names = [trunk_id(m, siglip.trunk_state(m), p) for m, p in ((a, "no"), (a, "bf16"), (b, "no"))]
    assert len(set(names)) == 3
    with torch.no_grad():
        a.backbone.attn_pool.latent.add_(1.0)  # the head is no part of it
    assert trunk_id(a, siglip.trunk_state(a), "no") == names[0]


def cache_of(folder: Path, keys: Sequence[str] = (), trunk: str = "trunk") -> FeatureCache:
    """A cache, with features of these keys: their letters as numbers."""
    cache = FeatureCache(folder, trunk)
    cache.fill(keys, lambda part: (torch.full((2, 3), float(ord(key))) for key in part), Processes(cpu=True))
    return cache


def test_a_damaged_cache_and_one_that_cannot_be_written_are_reported(tmp_path: Path) -> None:
    assert cache_of(tmp_path, "ab").get("b").tolist() == [[98.0] * 3] * 2
    [file] = (tmp_path / "trunk").iterdir()
    file.write_bytes(file.read_bytes()[:-4])
    with pytest.warns(UserWarning, match=file.name):
        assert cache_of(tmp_path, "b").get("b").tolist() == [[98.0] * 3] * 2  # computed again
    cache = cache_of(tmp_path, "c", "flipped")
    [file] = (tmp_path / "flipped").iterdir()
    file.write_bytes(file.read_bytes()[:-1] + b"\0")
    with pytest.raises(TrainError, match="damaged"), pytest.warns(UserWarning, match=f"{file.name}' is damaged"):
        cache.get("c")
    (tmp_path / "blocked").write_text("a file, no folder")
    with pytest.raises(TrainError, match="blocked"):
        cache_of(tmp_path, "a", "blocked")


# Where it starts


def test_it_starts_from_siglip_as_transformers_stores_it(data: DataFrame, tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers")
    vision = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 2,
              "image_size": 32, "patch_size": 8}  # fmt: skip
    text = {**{k: v for k, v in vision.items() if k not in ("image_size", "patch_size")}, "vocab_size": 20}
    torch.manual_seed(0)
    whole = transformers.SiglipModel(transformers.SiglipConfig(vision_config=vision, text_config=text)).eval()
    whole.save_pretrained(tmp_path / "siglip")
    processor = transformers.SiglipImageProcessor(size={"height": 32, "width": 32}, resample=2)
    processor.save_pretrained(tmp_path / "siglip")
    own = {"backbone_weights": "", "backbone_args": {}, "image_size": None}
    run = recipe(data, **own, backbone=str(tmp_path / "siglip"))
    x = torch.rand(2, 3, 32, 32)
    with torch.no_grad():
        expected = whole.vision_model((x - 0.5) / 0.5).pooler_output
    assert (run.model(x).cls - torch.nn.functional.normalize(expected, dim=-1)).abs().max() < 1e-5
    assert run.model.interpolation == "bilinear"
    assert run.settings["weights"] == run.model.revision != ""
    run.save(tmp_path / "out")
    assert NearID(tmp_path / "out", device="cpu")(x).cls.equal(run.model(x).cls)
    further = recipe(data, **own, backbone=str(tmp_path / "out"))  # a NearID can be trained on
    assert further.model(x).cls.equal(run.model(x).cls)


def test_weights_are_never_random_unasked(data: DataFrame, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    with pytest.raises(CheckpointError, match=r"cannot fetch.*--backbone-weights PATH"):
        recipe(data, backbone_weights="")
    with pytest.raises(CheckpointError, match="cannot fetch"):
        siglip.start(NearIDTraining())
    save_file(
        {k: v.contiguous() for k, v in random_model(3).backbone.state_dict().items()}, tmp_path / "model.safetensors"
    )
    settings = []
    for place in (tmp_path, tmp_path / "model.safetensors"):
        run = recipe(data, backbone_weights=str(place))
        assert all(v.equal(random_model(3).state_dict()[k]) for k, v in run.model.state_dict().items())
        settings.append(run.settings)
    assert settings[0] == settings[1] != recipe(data).settings  # named by their content
    with pytest.raises(CheckpointError, match="no such file"):
        siglip.start(NearIDTraining(MODEL["backbone"], str(tmp_path / "lost")))
    with pytest.raises(CheckpointError, match=r"google/siglip2-so400m-patch14-384 has its own .* as --backbone"):
        siglip.start(NearIDTraining(backbone_weights=str(tmp_path)))


def test_a_model_without_attention_pooling_is_refused(tmp_path: Path) -> None:
    other = timm_models.build("vit_tiny_patch16_224", image_size=224)
    save_file({k: v.contiguous() for k, v in other.state_dict().items()}, tmp_path / "other.safetensors")
    with pytest.raises(CheckpointError, match="attention pooling"):
        siglip.start(NearIDTraining("vit_tiny_patch16_224", str(tmp_path / "other.safetensors")))


# Wrong data


def _views(data: DataFrame) -> DataFrame:
    return take(data, data["role"] == "real")


WRONG: dict[str, tuple[Callable[[DataFrame], DataFrame], dict[str, Any]]] = {
    r"row 1 \(t0v0\).*idmetric data import nearid.*--mask-prob 0": (lambda data: checked(data.assign(mask=None)), {}),
    "no view has a distractor.*idmetric data generate --task distractor": (_views, {}),
    "1 identities have two views.*idmetric data import nearid": (
        lambda data: take(data, data["id"].str.startswith("t0")), {}
    ),
    "0 identities have two views.*8 identities with a single view": (
        lambda data: take(data, data["id"].str.contains("v0")), {}
    ),
    r"38 distractors, such as row 2 \(t0v0e0\), have the identity of the view": (
        lambda data: checked(data.assign(identity=data["id"].str.split("v").str[0])), {}
    ),
    "--engines Dall-E.*there are Flux, Qwen": (lambda data: data, {"engines": ("Dall-E",)}),
    "oracle.*import mtg": (lambda data: checked(data.assign(oracle=None)), {"objective": "oracle"}),
}  # fmt: skip


@pytest.mark.parametrize("text", WRONG)
def test_wrong_data_are_refused_with_how_to_fix_them(data: DataFrame, text: str) -> None:
    changed, config = WRONG[text]
    with pytest.raises(ValueError, match=text):
        recipe(changed(data), **config)


def test_a_plain_folder_of_photos_trains_by_the_options_that_the_refusal_names(data: DataFrame) -> None:
    plain = checked(_views(data).assign(mask=None, parent=None, oracle=None))
    with pytest.raises(ManifestError, match="trains by --objective info-nce --mask-prob 0"):
        recipe(plain)
    assert recipe(plain, objective="info-nce", mask_prob=0.0).load(0)["pictures"] is not None


def test_without_black_backgrounds_no_masks_are_needed_and_edits_have_their_parents(data: DataFrame) -> None:
    assert recipe(checked(data.assign(mask=None)), mask_prob=0.0).load(0)["pictures"] is not None
    views = data["mask"].where(data["role"] == "real", None)
    assert recipe(checked(data.assign(mask=views))).load(0)["pictures"].equal(recipe(data).load(0)["pictures"])


def test_validation_rows_must_not_be_training_rows(data: DataFrame) -> None:
    names = data["id"].tolist()
    apart = ["val" if name.startswith(("t0", "t1", "t6")) else "train" for name in names]
    run = recipe(checked(data.assign(split=apart)))
    run.validate()
    assert run.best == "ssr"
    # t3 is in both
    more = data
    for name in ("t3v0", "t3v1"):
        more = with_row(more, {**data.iloc[names.index(name)], "id": f"{name}+"})
    with pytest.raises(ManifestError, match=r"2 rows of split val .*\(t3v0\+\).*idmetric data split"):
        recipe(checked(more.assign(split=[*apart, "val", "val"])))
    # the same images under another name
    other = [*data["identity"], "x", "x"]
    with pytest.raises(ManifestError, match=r"2 rows of split val .*\(t3v0\+\)"):
        recipe(checked(more.assign(split=[*apart, "val", "val"], identity=other)))


# Learning


def test_the_head_learns_to_put_identities_above_distractors(data: DataFrame, tmp_path: Path) -> None:
    run = recipe(data, batch_size=7, steps=160, cache=str(tmp_path / "features"), mask_prob=0.0)
    fit(run, tmp_path / "run", TrainSettings(workers=0, max_grad_norm=1.0, log_every=20), run.processes)
    log = read_log(tmp_path / "run/log.jsonl")
    lost, ordered = ([value for _, value in log[name]] for name in ("loss", "ordered"))
    assert lost[-1] < 0.4 * lost[0]
    assert ordered[0] < 0.8
    assert ordered[-1] > 0.9
