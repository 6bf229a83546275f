from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from pandas import DataFrame
from PIL import Image
from safetensors.torch import load_file, save_file
from torch import Tensor

from idmetric import IDSim, load
from idmetric.cli.train import main
from idmetric.data.manifest import checked, read, take, write
from idmetric.metric import timm_models
from idmetric.metric.errors import CheckpointError
from idmetric.metric.idsim import IDSimConfig
from idmetric.metric.images import read_image
from idmetric.metric.timm_models import last_tokens, resample_positions
from idmetric.train import augment, state
from idmetric.train.batches import TRAINING, VALIDATION, generator
from idmetric.train.idsim.config import IDSimTraining
from idmetric.train.idsim.data import read_triplets
from idmetric.train.idsim.loss import compare
from idmetric.train.idsim.recipe import IDSimRecipe, build, untrained
from idmetric.train.loop import TrainSettings, fit
from idmetric.train.processes import Processes
from tests.reference.losses_loop import cos, mean, one_of
from tests.reference.sinkhorn_loop import sinkhorn
from tests.table_parts import a_row, a_table
from tests.train_parts import a_minute_offline, in_two_processes, killed_at, launched, same_results

SIDE = 48  # pixels: 9 patches
CONFIG = IDSimTraining(
    backbone="vit_small_patch16_dinov3", backbone_args={"depth": 2, "embed_dim": 48, "num_heads": 3},
    backbone_weights="random", image_size=SIDE, hidden=24, batch_size=3, accumulation=2, epochs=2, precision="no",
)  # fmt: skip
PLAIN = replace(CONFIG, dropout=0.0, augment=False)
SETTINGS = TrainSettings(save_every=2, validate_every=0, log_every=1, workers=0)


def picture(folder: Path, name: str, seed: int) -> str:
    """A picture of a few colored blocks, at twice the model's size."""
    blocks = np.random.default_rng(seed).integers(0, 256, (4, 4, 3), dtype=np.uint8)
    Image.fromarray(blocks).resize((2 * SIDE, 2 * SIDE), Image.Resampling.NEAREST).save(folder / f"{name}.png")
    return f"{name}.png"


def triplets(folder: Path, count: int = 6, split: str | None = None, **change: Any) -> list[dict[str, Any]]:
    """`count` triplets; the second and third show one identity, and every third negative is an edit."""
    folder.mkdir(parents=True, exist_ok=True)
    rows = []
    for k in range(count):
        thing, word = f"{split or 'thing'}-{1 if k == 2 else k}", f"{split or 'all'}-{k}"
        edit = k % 3 == 0
        about: list[dict[str, Any]] = [
            {"identity": thing, "slot": "anchor"},
            {"identity": thing, "slot": "positive"},
            {"identity": f"{thing}~edit" if edit else f"{split or 'thing'}-{(k + 2) % count}", "slot": "negative",
             "role": "identity-edit" if edit else "real"},
        ]  # fmt: skip
        for slot, row in enumerate(about):
            path = picture(folder, f"{word}-{slot}", 1000 * len(split or "") + 3 * k + slot)
            parent = f"{word}/0" if row.get("role") else None
            rows.append(a_row(path=path, id=f"{word}/{slot}", group=word, split=split, parent=parent, **row))
    return rows


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> DataFrame:
    """Six triplets to train on, and four to validate."""
    folder = tmp_path_factory.mktemp("triplets")
    return a_table([*triplets(folder), *triplets(folder, 4, "val")], folder)


def recipe(config: IDSimTraining, data: DataFrame, lively: bool = True) -> IDSimRecipe:
    """The recipe, its random model far enough from the start for its parts to matter."""
    found = build(config, data, Processes(config.precision, cpu=True))
    if lively:
        shake(found)
    return found


def shake(found: IDSimRecipe) -> None:
    chance = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for name, p in found.model.named_parameters():
            if "gamma" in name:  # layer scale starts so small that blocks do nothing
                p.fill_(1.0)
            elif name == "backbone.norm.weight":
                p.copy_(torch.rand(p.shape, generator=chance) + 0.5)
            elif "lora_B" in name or name.endswith(("fc1.weight", "fc2.weight")):
                p.copy_(0.2 * torch.randn(p.shape, generator=chance))


def values(found: IDSimRecipe, step: int = 0) -> dict[str, float]:
    return {name: float(value) for name, value in found.step(found.load(step)).items()}


# The command


@pytest.fixture(scope="module")
def smoke(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("smoke") / "run"
    torch.set_num_threads(1)
    with a_minute_offline():
        assert main(["idsim", "--smoke", "--cpu", "--workers", "0", "--out", str(out)]) == 0
    return out


def test_the_smoke_run_ends_in_a_model_that_opens_without_peft(smoke: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "peft", None)
    model = load(smoke, device="cpu")
    assert type(model) is IDSim
    assert not any("lora" in name for name in model.state_dict())
    assert model.image_size == (64, 64)
    shown = read(smoke / "smoke-data/triplets.parquet")
    assert {"train", "val"} == set(shown["split"].tolist())
    assert {"real", "context", "identity"} == set(shown["x_mixture"].tolist())
    distances = IDSim(smoke, device="cpu")(shown["path"][0], shown["path"][:2].tolist(), "joint")
    assert distances[0] == pytest.approx(0, abs=1e-5)
    assert distances[1] > 0
    record = json.loads((smoke / "recipe.json").read_text())
    assert record["finished"]
    assert record["settings"]["terms"] == "both"
    assert record["best"]["step"] > 0
    assert type(load(smoke / "best", device="cpu")) is IDSim


def test_defaults_are_the_papers() -> None:
    papers = {
        "rank": 16, "alpha": 32, "dropout": 0.05, "hidden": 512, "image_size": 448, "lr": 3e-4, "batch_size": 8,
        "accumulation": 4, "epochs": 3, "precision": "bf16", "patch_weight": 1.0, "augment": True,
        "terms": "both", "negatives": "batch", "margin": 0.0, "backbone": "vit_large_patch16_dinov3.lvd1689m",
        "backbone_weights": "",  # pretrained ones, fetched
    }  # fmt: skip
    assert asdict(IDSimTraining()).items() >= papers.items()


# Data


def wrong(data: DataFrame, config: IDSimTraining = PLAIN) -> str:
    with pytest.raises(ValueError) as caught:  # noqa: PT011  # the callers check its text
        build(config, data, Processes(cpu=True))
    return str(caught.value)


NO_TRIPLET = "group 'all-0' must be a triplet.*idmetric data mine triplets"
WRONG: dict[str, tuple[str, Callable[[list[dict[str, Any]]], list[dict[str, Any]]]]] = {
    "no negative": (NO_TRIPLET, lambda rows: [row for row in rows if row["slot"] != "negative"]),
    "no group": (
        "no triplets in split train of 18 rows.*`idmetric data mine triplets`",
        lambda rows: [{**row, "group": None, "slot": None} for row in rows],
    ),
    "another split": ("the splits are test", lambda rows: [{**row, "split": "test"} for row in rows]),
    "nothing to validate": (
        "no triplets in split dev", lambda rows: [*rows, a_row("x", "all-0-0.png", id="x", split="val")]
    ),
    "another positive": (NO_TRIPLET, lambda rows: [rows[0], {**rows[1], "identity": "other"}, *rows[2:]]),
    "the same negative": (NO_TRIPLET, lambda rows: [*rows[:2], {**rows[2], "identity": "thing-0"}, *rows[3:]]),
    "no identity": (NO_TRIPLET, lambda rows: [{**row, "identity": None} for row in rows]),
    "two anchors": (NO_TRIPLET, lambda rows: [*rows, {**rows[0], "id": "again"}]),
}  # fmt: skip


def test_wrong_data_are_refused_with_how_to_fix_them(tmp_path: Path) -> None:
    rows = triplets(tmp_path)
    for name, (text, changed) in WRONG.items():
        assert re.search(text, wrong(a_table(changed(rows), tmp_path))), name
    whole = a_table(rows, tmp_path)
    names = ["mug" if row["slot"] != "negative" else f"{row['group']}~edit" for row in rows]
    one = checked(whole.assign(identity=names))
    assert re.search("all 6 triplets are of one identity, 'mug'.*--negatives single", wrong(one))
    build(replace(PLAIN, negatives="single"), one, Processes(cpu=True))
    two = Processes(cpu=True)
    two.count = 4
    with pytest.raises(ValueError, match="2 micro-batches cannot be shared equally by 4"):
        build(PLAIN, whole, two)


def test_images_and_identities_are_not_both_trained_and_validated_on(data: DataFrame) -> None:
    for column in ("identity", "path"):
        values = data[column].tolist()
        held_out = data["split"].tolist().index("val")
        shared = [values[0] if k in (held_out, held_out + 1) else v for k, v in enumerate(values)]
        message = wrong(checked(data.assign(**{column: shared})))
        assert message.startswith("2 rows of split val ")
        assert f"row {held_out + 1} (val-0/0)" in message
        assert "idmetric data split" in message


def test_each_epoch_shows_each_triplet_once_in_a_new_order(tmp_path: Path) -> None:
    data = a_table(triplets(tmp_path, 12), tmp_path)
    found = recipe(replace(PLAIN, batch_size=2, accumulation=2, epochs=3), data)
    assert found.steps == 9
    rows = [[part.rows[0] for part in found.load(step)] for step in range(9)]
    epochs = [np.concatenate([np.ravel(step) for step in rows[k : k + 3]]).tolist() for k in (0, 3, 6)]
    assert all(sorted(epoch) == list(range(0, 36, 3)) for epoch in epochs)
    assert len(set(map(tuple, epochs))) == 3
    for part in found.load(4):
        assert [[r % 3 for r in slot] for slot in part.rows] == [[0, 0], [1, 1], [2, 2]]
        assert (part.identity[0] == part.identity[1]).all()
        assert (part.identity[0] != part.identity[2]).all()


def test_one_of_several_positives_and_negatives_is_drawn_each_time(tmp_path: Path) -> None:
    rows = triplets(tmp_path)
    more = [{**rows[1], "id": "p"}, {**rows[2], "id": "n"}, {**rows[2], "id": "m"}]
    several = read_triplets(a_table([*rows, *more], tmp_path), TRAINING)
    drawn = np.array([several.draw(0, (0, step, 5)) for step in range(60)])
    assert set(drawn[:, 0]) == {0}
    assert set(drawn[:, 1]) == {1, 18}
    assert set(drawn[:, 2]) == {2, 19, 20}
    assert several.draw(0, (0, 7, 5)) == several.draw(0, (0, 7, 5))
    assert several.draw(1, (0, 7, 5)) == [3, 4, 5]


def test_pictures_are_augmented_by_the_papers_steps_as_seed_step_and_place_say(data: DataFrame) -> None:
    part = recipe(CONFIG, data).load(0)[1]
    steps = partial(augment.idsim, size=(SIDE, SIDE))
    for slot in range(3):
        for k, row in enumerate(part.rows[slot]):
            image = steps(read_image(data["path"][row]), generator(0, 0, 3 * (3 + k) + slot))
            assert part.pixels[slot, k].equal(torch.from_numpy(np.array(image)).permute(2, 0, 1))


# The loss


def by_hand(found: IDSimRecipe, data: DataFrame, step: int = 0) -> dict[str, float]:
    """A step's losses from the images of its rows, embedded one by one."""
    config, terms = found.config, {"cls": [], "patch": []}  # type: dict[str, list[float]]
    with torch.no_grad():
        kept = found.model.training
        found.model.eval()
        for part in found.load(step):
            one = [[found.model(found.model.load(data["path"][row])[0][None]) for row in slot] for slot in part.rows]
            names = [data["identity"][slot].tolist() for slot in part.rows]
            for kind in terms:
                terms[kind] += _terms(config, kind, one, names)
        found.model.train(kept)
    return {f"{kind}_loss": mean(found_) for kind, found_ in terms.items()}


def _terms(config: IDSimTraining, kind: str, one: list[list[Any]], names: list[list[str | None]]) -> list[float]:
    temperature = config.temperature if kind == "cls" else config.patch_temperature
    out = []
    for i in range(len(one[0])):
        others = [one[2][i]]
        if config.negatives == "batch":
            others += [one[slot][j] for slot in (1, 2) for j in range(len(one[0]))
                       if j != i and names[slot][j] != names[0][i]]  # fmt: skip
        right = _similarity(kind, one[0][i], one[1][i])
        wrong_ = [_similarity(kind, one[0][i], other) for other in others]
        out.append(one_of((right - config.margin) / temperature, [x / temperature for x in wrong_]))
    return out


def _similarity(kind: str, a: Any, b: Any) -> float:
    if kind == "cls":
        return cos(a.cls[0].double().numpy(), b.cls[0].double().numpy())
    x, y = a.patches[0].double().numpy(), b.patches[0].double().numpy()
    return -sinkhorn(x, y, blur=0.05, scaling=0.05, debias=True, diameter=2.0)[0]


SWITCHES: dict[str, dict[str, Any]] = {
    "the defaults": {},
    "the hard negative alone": {"negatives": "single"},
    "C.3": {"negatives": "single", "margin": 0.1},
    "temperatures and margin": {"temperature": 0.2, "patch_temperature": 0.1, "margin": 0.1},
}


@pytest.mark.parametrize("name", SWITCHES)
def test_a_steps_loss_is_that_of_its_images_one_by_one(name: str, data: DataFrame) -> None:
    found = recipe(replace(PLAIN, **SWITCHES[name]), data)
    expected = by_hand(found, data)
    got = values(found)
    assert got["cls_loss"] == pytest.approx(expected["cls_loss"], rel=1e-4, abs=1e-5)
    assert got["patch_loss"] == pytest.approx(expected["patch_loss"], rel=1e-3, abs=1e-5)
    assert got["loss"] == pytest.approx(got["cls_loss"] + got["patch_loss"], rel=1e-5)
    if name != "the defaults":
        assert got["loss"] != pytest.approx(values(recipe(PLAIN, data))["loss"], rel=1e-3)


def test_the_weight_of_patches_and_single_terms(data: DataFrame) -> None:
    both = values(recipe(PLAIN, data))
    heavy = values(recipe(replace(PLAIN, patch_weight=3.0), data))
    assert heavy["loss"] == pytest.approx(both["cls_loss"] + 3 * both["patch_loss"], rel=1e-5)
    alone = values(recipe(replace(PLAIN, terms="cls"), data))
    assert alone["loss"] == alone["cls_loss"] == pytest.approx(both["cls_loss"], rel=1e-5)
    assert "patch_loss" not in alone
    patch = values(recipe(replace(PLAIN, terms="patch"), data))
    assert patch["loss"] == patch["patch_loss"] == pytest.approx(both["patch_loss"], rel=1e-5)


def test_gradients_of_micro_batches_add_up_to_that_of_their_mean_loss(data: DataFrame) -> None:
    found = recipe(PLAIN, data)
    found.step(found.load(0))
    got = {n: p.grad.clone() for n, p in found.model.named_parameters() if p.grad is not None}
    found.model.zero_grad(set_to_none=True)
    parts = found.load(0)
    torch.stack([found._loss(part)["loss"] for part in parts]).mean().backward()  # type: ignore[no-untyped-call]
    assert len(parts) == 2
    for name, p in found.model.named_parameters():
        if p.grad is not None:
            assert torch.allclose(got[name], p.grad, rtol=1e-4, atol=1e-6 * float(p.grad.abs().max())), name


def test_candidates_of_the_anchors_identity_are_no_negatives() -> None:
    chance = torch.Generator().manual_seed(0)
    anchor, positive, negative = torch.randn(3, 4, 6, generator=chance)
    identity = torch.tensor([[0, 1, 1, 2], [0, 1, 1, 2], [1, 5, 0, 7]])  # two triplets of 1; two negatives show others'
    found = compare(anchor, positive, negative, identity, "batch")
    assert found.positive.equal(found.values[range(4), range(4)])
    assert found.negative.int().tolist() == [
        [0, 1, 1, 1, 1, 1, 0, 1], [1, 0, 0, 1, 0, 1, 1, 1], [1, 0, 0, 1, 0, 1, 1, 1], [1, 1, 1, 0, 1, 1, 1, 1],
    ]  # fmt: skip


# What trains


def test_lora_and_heads_train_and_nothing_else(data: DataFrame, tmp_path: Path) -> None:
    found = recipe(CONFIG, data)
    names = {n for n, p in found.model.named_parameters() if p.requires_grad}
    layers = [f"blocks.{b}.{x}" for b in (0, 1) for x in ("attn.qkv", "attn.proj", "mlp.fc1", "mlp.fc2")]
    lora = {f"backbone.{x}.lora_{ab}.default.weight" for x in layers for ab in "AB"}
    parts = ("ln.weight", "ln.bias", "fc1.weight", "fc1.bias", "fc2.weight", "fc2.bias", "beta_logit")
    assert names == lora | {f"mlp_{x}.{p}" for x in ("cls", "patch") for p in parts}
    counted = 2 * 16 * ((48 + 144) + 2 * 48 + 2 * (48 + 192)) + 2 * (2 * 48 + 2 * 48 * 24 + 24 + 48 + 1)
    assert sum(p.numel() for p in found.model.parameters() if p.requires_grad) == counted
    before = {n: p.detach().clone() for n, p in found.model.named_parameters()}
    fit(found, tmp_path / "run", SETTINGS, found.processes)
    for name, p in found.model.named_parameters():
        assert p.equal(before[name]) != (name in names), name
    optimizer = found.optimizer()
    assert type(optimizer) is torch.optim.AdamW
    assert (optimizer.defaults["lr"], optimizer.defaults["weight_decay"]) == (3e-4, 0.0)
    assert {found.lr_factor(step) for step in range(5)} == {1.0}


@pytest.mark.parametrize(("terms", "other"), [("cls", "mlp_patch"), ("patch", "mlp_cls")])
def test_the_head_that_no_loss_sees_stays_frozen(terms: Any, other: str, data: DataFrame) -> None:
    found = recipe(replace(PLAIN, terms=terms), data)
    assert not any(p.requires_grad for n, p in found.model.named_parameters() if n.startswith(other))
    found.step(found.load(0))
    assert all((p.grad is not None) == p.requires_grad for p in found.model.parameters())


@pytest.mark.parametrize("alpha", [32.0, 8.0])
def test_the_saved_model_scores_as_the_trained_one(alpha: float, data: DataFrame, tmp_path: Path) -> None:
    found = recipe(replace(PLAIN, alpha=alpha), data)
    found.save(tmp_path)
    saved = IDSim(tmp_path, device="cpu")
    found.model.eval()
    with torch.no_grad():
        pixels = torch.rand(2, 3, SIDE, SIDE, generator=torch.Generator().manual_seed(0))
        ours, theirs = (m(pixels) for m in (found.model, saved))
    assert theirs.cls.allclose(ours.cls, atol=1e-5)
    assert theirs.patches.allclose(ours.patches, atol=1e-5)  # type: ignore[union-attr]
    assert theirs.cls.norm(dim=1).allclose(torch.ones(2), atol=1e-5)


def test_checkpointing_changes_no_gradient(data: DataFrame) -> None:
    gradients = []
    for on in (False, True):
        found, passes = recipe(replace(CONFIG, checkpointing=on), data), list[int]()  # with dropout
        found.model.backbone.blocks[1].register_forward_pre_hook(lambda *_, own=passes: own.append(1))  # type: ignore[index, union-attr]
        found.step(found.load(0))
        assert len(passes) == (4 if on else 2)  # of two micro-batches
        gradients.append({n: p.grad for n, p in found.model.named_parameters() if p.grad is not None})
    assert all(gradients[0][n].equal(gradients[1][n]) for n in gradients[0])
    assert len(gradients[0]) == len(gradients[1]) > 20


def test_a_backbones_weights_are_those_of_the_file(tmp_path: Path, data: DataFrame) -> None:
    settings = IDSimConfig(PLAIN.backbone, SIDE, 24, backbone_args=PLAIN.backbone_args)
    other = untrained(settings, "", seed=5).backbone
    save_file({k: v.contiguous() for k, v in other.state_dict().items()}, tmp_path / "model.safetensors")
    found = recipe(replace(PLAIN, backbone_weights=str(tmp_path / "model.safetensors")), data, lively=False)
    pixels = torch.rand(1, 3, SIDE, SIDE)
    with torch.no_grad():
        ours, theirs = (last_tokens(m, pixels)[1] for m in (found.model.backbone, other))
        new = last_tokens(recipe(PLAIN, data, lively=False).model.backbone, pixels)[1]
    assert ours.equal(theirs)
    assert not new.allclose(theirs, atol=1e-2)
    assert len(found.settings["weights"]) == 12  # named by their content
    again = recipe(replace(PLAIN, backbone_weights=str(tmp_path)), data, lively=False)  # a folder with that file
    assert again.settings == found.settings
    with pytest.raises(CheckpointError, match=r"--backbone-weights lost: no such file"):
        recipe(replace(PLAIN, backbone_weights="lost"), data)


# The backbone


def test_weights_are_fetched_and_never_random_unasked(data: DataFrame, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []

    def fetch(name: str, hub: Any) -> str:
        asked.append((name, hub["revision"]))
        raise CheckpointError("the network is switched off")

    monkeypatch.setattr("idmetric.metric.timm_models.pretrained_file", fetch)
    with pytest.raises(CheckpointError, match=r"switched off.*--backbone-weights PATH"):
        recipe(replace(PLAIN, backbone_weights="", revision="abc"), data)
    assert asked == [(PLAIN.backbone, "abc")]


def test_dinov2s_positions_are_resampled_as_in_the_release(tmp_path: Path) -> None:
    name, args = "vit_small_patch14_dinov2", {"depth": 1, "embed_dim": 48, "num_heads": 3}
    whole = timm_models.build(name, args=args)  # at 518 pixels
    torch.nn.init.normal_(whole.pos_embed)  # type: ignore[arg-type]
    save_file(whole.state_dict(), tmp_path / "model.safetensors")
    found = untrained(IDSimConfig(name, 56, 8, backbone_args=args), str(tmp_path / "model.safetensors"), 0)
    expected = resample_positions(whole.pos_embed, (4, 4), 0.1)  # type: ignore[arg-type]
    assert found.backbone.pos_embed.shape == (1, 17, 48)
    assert found.backbone.pos_embed.equal(expected)
    assert not any(p.requires_grad for p in found.parameters())


# Validation


def test_validation_scores_triplets_by_class_features(data: DataFrame, tmp_path: Path) -> None:
    found = recipe(PLAIN, data)
    scores = found.validate()
    found.save(tmp_path)
    metric = IDSim(tmp_path, device="cpu")
    wins = []
    for anchor, positive, negative in read_triplets(data, VALIDATION).rows.tolist():
        near, far = metric(data["path"][anchor], data["path"][[positive, negative]].tolist(), "cls")
        wins.append(float(near < far))
    assert scores["triplet"] == pytest.approx(mean(wins))
    assert scores["selection"] == pytest.approx((scores["triplet"] + scores["auc"]) / 2)
    assert found.best == "selection"
    assert found.model.training
    assert recipe(replace(PLAIN, terms="patch"), data).best == ""


# The run


def test_a_resumed_run_equals_an_uninterrupted_one(data: DataFrame, tmp_path: Path) -> None:
    def train(name: str, workers: int = 0) -> None:
        found = recipe(replace(CONFIG, epochs=5), data)
        fit(found, tmp_path / name, replace(SETTINGS, workers=workers), found.processes)

    train("whole", workers=2)
    with killed_at(3, IDSimRecipe):
        train("run")
    assert max(state.checkpoints(tmp_path / "run")) == 2
    train("run")
    assert same_results(tmp_path / "whole", tmp_path / "run")


def test_other_data_are_no_same_run(data: DataFrame) -> None:
    same = recipe(PLAIN, data).settings
    assert same == recipe(replace(PLAIN, checkpointing=True), data).settings
    fewer = recipe(replace(PLAIN, accumulation=1), take(data, np.arange(len(data)) >= 3)).settings
    assert (same["data"] != fewer["data"], same["validation"] == fewer["validation"]) == (True, True)
    other = recipe(PLAIN, checked(data.assign(identity="a " + data["identity"]))).settings
    assert same["data"] != other["data"]


def train_as(out: Path, file: Path, rank: int, port: str) -> None:
    """Train as one of two processes."""
    launched(rank, port)
    processes = Processes(cpu=True)
    save_file(trained(CONFIG, read(file), processes), out / f"{rank}.safetensors")
    processes.close()


def trained(config: IDSimTraining, data: DataFrame, processes: Processes) -> dict[str, Tensor]:
    """Trained parameters after all steps, taken as the loop takes them."""
    found = build(config, data, processes)
    shake(found)
    optimizer = found.optimizer()
    changed = {n: p for n, p in found.model.named_parameters() if p.requires_grad}
    for step in range(found.steps):
        found.step(found.load(step))
        processes.average_gradients(changed.values())
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
    return {n: p.detach().clone() for n, p in changed.items()}


@pytest.mark.slow
def test_two_processes_train_the_weights_of_one(data: DataFrame, tmp_path: Path) -> None:
    file = tmp_path / "data.parquet"
    write(take(data, data["split"].isna()), file)
    assert in_two_processes(train_as, tmp_path, file) == [0, 0]
    alone, fresh = trained(CONFIG, read(file), Processes(cpu=True)), recipe(CONFIG, data).model.state_dict()
    for rank in (0, 1):
        shared = load_file(tmp_path / f"{rank}.safetensors")
        for n, p in alone.items():
            assert (p - shared[n]).abs().max() < 2e-5, (rank, n)
    assert max(float((p - fresh[n]).abs().max()) for n, p in alone.items()) > 5e-4
