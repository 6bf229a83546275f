from __future__ import annotations

import subprocess
import sys
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import timm
import torch
import torch.nn.functional as F
from pandas import DataFrame
from PIL import Image
from safetensors.torch import load_file, save_file
from torch import Tensor

from idmetric import Backbone, IDSim, load
from idmetric.cli.train import main
from idmetric.data.manifest import ManifestError, checked, read, take
from idmetric.metric.errors import CheckpointError
from idmetric.train import state
from idmetric.train.ilgen.config import PAPER, SMOKE, ILGenTraining
from idmetric.train.ilgen.data import classes_of, draw_classes, draw_images, draw_pairs, pass_length
from idmetric.train.ilgen.objectives import SoftmaxMargin
from idmetric.train.ilgen.recipe import ILGen, build
from idmetric.train.loop import TrainSettings, fit
from idmetric.train.processes import Processes
from tests.reference import losses_loop as loop
from tests.table_parts import a_row, a_table, with_row
from tests.train_parts import (
    a_minute_offline,
    in_two_processes,
    killed_at,
    launched,
    read_log,
    same_results,
)  # fmt: skip

LOSSES = tuple(PAPER)
RUN: dict[str, Any] = {"save_every": 2, "validate_every": 0, "log_every": 1, "workers": 0}


def render(folder: Path, things: int = 9, held_out: int = 3, images: int = 4) -> DataFrame:
    """Identities of nine colors each, brighter in one picture than in another."""
    folder.mkdir(parents=True, exist_ok=True)
    rng, rows = np.random.default_rng(0), []
    for n in range(things + held_out):
        colors = rng.integers(0, 200, (3, 3, 3))
        for k in range(images):
            pixels = (colors + rng.integers(0, 56, (1, 1, 3))).astype(np.uint8)
            Image.fromarray(pixels).resize((40, 36), Image.Resampling.NEAREST).save(folder / f"{n}-{k}.png")
            rows.append(a_row(f"thing-{n:02}", f"{n}-{k}.png", split="train" if n < things else "val"))
    return a_table(rows, folder)


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> DataFrame:
    return render(tmp_path_factory.mktemp("things"))


def config(**options: Any) -> ILGenTraining:
    return ILGenTraining(**{**SMOKE, "classes": 4, "chunk": 5, **options})


def made(data: DataFrame, **options: Any) -> ILGen:
    return build(config(**options), data, Processes(cpu=True))


def lively(recipe: ILGen) -> ILGen:
    """With weights so large that images differ to it."""
    with torch.no_grad():
        for p in recipe.model.parameters():
            if p.ndim > 1:
                p.normal_(std=1.5 * p[0].numel() ** -0.5, generator=torch.Generator().manual_seed(p.numel()))
    return recipe


def trained(data: DataFrame, out: Path, settings: dict[str, Any] | None = None, **options: Any) -> ILGen:
    recipe = made(data, **options)
    fit(recipe, out, TrainSettings(**{**RUN, **(settings or {})}), recipe.processes)
    return recipe


def loss_of(recipe: ILGen, step: int = 0) -> float:
    return float(recipe.step(recipe.load(step))["loss"])


def vectors(recipe: ILGen, rows: Any = None) -> list[Any]:
    """Embeddings of rows, by default those of the first batch, one by one, by the public call."""
    model = recipe.model.eval()
    if rows is None:
        rows = recipe.batches.classes.flat[recipe.batches.draw(0).image[:, 0].numpy()]
    found = [model.embed(recipe.batches.pictures.data["path"][row]).cls[0].double().numpy() for row in rows]
    recipe.model.train()
    return found


def gradients(recipe: ILGen, step: int = 0) -> dict[str, Tensor]:
    recipe.step(recipe.load(step))
    found = {f"{part}.{name}": p.grad.clone() for part, module in recipe.modules().items()
             for name, p in module.named_parameters() if p.grad is not None}  # fmt: skip
    for module in recipe.modules().values():
        module.zero_grad()
    return found


SMALL_RESNET: dict[str, Any] = {
    "backbone": "resnet18",
    "backbone_args": {"channels": [8, 8, 8, 8]},
    "backbone_weights": "random",
    "image_size": None,
}

# Classes


def test_classes_have_n_images_and_smaller_ones_are_left_out_or_filled_up(data: DataFrame) -> None:
    few = take(data, [*range(12), 12, 13, 16])  # classes of 4, 4, 4, 2 and 1
    assert classes_of(few, 4).rows.tolist() == np.arange(12).reshape(3, 4).tolist()
    assert classes_of(few, 4).left_out == 2
    assert classes_of(few, 2).rows.shape == (4, 2)
    assert classes_of(few, 4, "repeat").rows[3:].tolist() == [[12, 13, 12, 13], [14, 14, 14, 14]]


def test_classes_hang_on_names_and_seed_alone(data: DataFrame) -> None:
    order = np.random.default_rng(1).permutation(len(data))
    ids = data["id"].to_numpy()
    a, b = classes_of(data, 3, seed=5), classes_of(take(data, order), 3, seed=5)
    assert ids[a.rows].tolist() == ids[order][b.rows].tolist()
    assert a.fingerprint == b.fingerprint
    other = classes_of(data, 3, seed=6)
    assert (other.rows != a.rows).any()
    assert other.fingerprint != a.fingerprint


def test_an_image_counts_once_and_held_out_ones_not_at_all(data: DataFrame) -> None:
    again = with_row(data, a_row("thing-00", data["path"][1], id="again", split="train"))
    found = classes_of(again, 4)
    assert len(found) == 9
    assert set(data["split"][found.flat]) == {"train"}


def test_images_and_identities_are_not_both_trained_and_validated_on(data: DataFrame) -> None:
    split = data["split"].tolist()
    with pytest.raises(ManifestError, match=r"1 rows of split val .*row 4 \(0-3.png\).*idmetric data split"):
        made(checked(data.assign(split=["val" if row == 3 else part for row, part in enumerate(split)])), images=3)
    again = with_row(data, a_row("other", data["path"][1], id="again", split="val"))
    with pytest.raises(ManifestError, match=r"1 rows of split val .*\(again\)"):
        made(again)


def test_each_pass_draws_each_class_once_with_one_query(data: DataFrame) -> None:
    for seed in range(3):
        seen: list[int] = []
        for step in range(3, 6):  # the second pass of 10 classes in batches of 4
            drawn = draw_classes(step, 10, 3, 4, seed)
            chosen = drawn.label.view(4, 3)[:, 0].tolist()
            assert len(set(chosen)) == 4
            assert drawn.image[:, 0].tolist() == [c * 3 + k for c in chosen for k in range(3)]
            assert drawn.label[drawn.query].tolist() == chosen
            seen += chosen
        assert sorted(seen[:10]) == list(range(10))
        assert seen[10:] == seen[:2]
        assert pass_length(10, 4) == 3
    queries = torch.stack([draw_classes(step, 10, 3, 4, 0).query % 3 for step in range(60)])
    assert (queries.flatten().bincount() > 50).all()  # of 240, each place of a class about 80 times


def test_pairs_are_two_images_of_a_class_and_each_image_queries_once_a_pass() -> None:
    passes = [draw_pairs(step, 5, 4, 4, 7) for step in range(5)]
    query, positive = (torch.cat([d.image[:, k] for d in passes]) for k in (0, 1))
    assert sorted(query.tolist()) == list(range(20))
    assert (query // 4 == positive // 4).all()
    assert (query != positive).all()
    assert all((d.image[:, 2] == -1).all() and (d.label == d.image[:, 0] // 4).all() for d in passes)
    offsets = torch.cat([(d.image[:, 1] - d.image[:, 0]) % 4 for d in (draw_pairs(s, 5, 4, 4, 0) for s in range(60))])
    assert (offsets.bincount()[1:] > 50).all()
    single = torch.cat([draw_images(step, 5, 4, 4, 7).image[:, 0] for step in range(5)])
    assert sorted(single.tolist()) == list(range(20))


# One step


def test_a_step_of_recall_at_k_is_the_equation_on_images_embedded_one_by_one(data: DataFrame) -> None:
    recipe = lively(made(data, augment=False))
    drawn = recipe.batches.draw(0)
    expected = loop.recall_at_k(vectors(recipe), drawn.label.tolist(), drawn.query.tolist(), (1, 2, 4, 8))
    assert loss_of(recipe) == pytest.approx(expected, rel=1e-3)
    assert len(drawn.query) == 4


def test_a_step_of_infonce_is_the_equation_with_every_image_a_query(data: DataFrame) -> None:
    recipe = lively(made(data, loss="infonce", augment=False))
    expected = loop.label_info_nce(vectors(recipe), recipe.batches.draw(0).label.tolist(), 0.05)
    assert loss_of(recipe) == pytest.approx(expected, rel=1e-4)


def test_a_step_of_contrastive_takes_the_hardest_negative_of_the_dataset(data: DataFrame) -> None:
    recipe = lively(made(data, loss="contrastive", batch_size=6, augment=False))
    drawn = recipe.batches.draw(0)
    flat = recipe.batches.classes.flat
    x = np.stack(vectors(recipe, flat))
    x /= np.linalg.norm(x, axis=1, keepdims=True)
    expected = []
    for query, positive, _ in drawn.image.tolist():
        others = [n for n in range(len(flat)) if n // 4 != query // 4]
        hardest = max(others, key=lambda n: x[query] @ x[n])
        near, far = (np.linalg.norm(x[query] - x[n]) for n in (positive, hardest))
        expected.append(near**2 / 2 + max(0.0, 1.0 - far) ** 2 / 2)
    found = recipe.step(recipe.load(0))
    assert float(found["loss"]) == pytest.approx(np.mean(expected), rel=1e-4)
    assert found["images"] == 18


def test_a_step_of_softmax_margin_is_cross_entropy_of_scaled_cosines(data: DataFrame) -> None:
    recipe = lively(made(data, loss="softmax-margin", augment=False))
    assert isinstance(recipe.loss, SoftmaxMargin)
    drawn = recipe.batches.draw(0)
    x = torch.tensor(np.stack(vectors(recipe)))
    cosine = F.normalize(x, dim=1) @ F.normalize(recipe.loss.prototype.detach().double(), dim=1).T
    terms = []
    for row, label in zip(cosine, drawn.label.tolist(), strict=True):
        logits = [16 * c for c in row.tolist()]
        terms.append(np.log(np.exp(logits).sum()) - logits[label])
    assert loss_of(recipe) == pytest.approx(np.mean(terms), rel=1e-4)
    assert len(drawn.label) == 16


@pytest.mark.parametrize("loss", LOSSES)
def test_chunks_and_checkpointing_change_no_gradient(data: DataFrame, loss: str) -> None:
    options = {"loss": loss, "frozen_epochs": 0, "weight_decay": 0.0}
    whole = gradients(lively(made(data, chunk=1000, **options)))
    for other in ({"chunk": 3}, {"chunk": 7, "checkpointing": True}):
        found = gradients(lively(made(data, **other, **options)))
        assert found.keys() == whole.keys()
        scale = max(float(g.abs().max()) for g in whole.values())
        assert scale > 1e-3
        for name, gradient in whole.items():
            assert found[name].allclose(gradient, rtol=1e-4, atol=1e-5 * scale), name


# What trains


def test_softmax_margin_trains_the_classifier_first_and_then_both(data: DataFrame) -> None:
    recipe = made(data, loss="softmax-margin", lr=1e-4)
    assert (recipe.batches.per_pass, recipe.frozen_steps, recipe.steps) == (3, 6, 9)
    optimizer = recipe.optimizer()
    moved, rates = [], []
    for step in range(9):
        before = [p.detach().clone() for m in recipe.modules().values() for p in m.parameters()]
        for group in optimizer.param_groups:
            group["lr"] = 1e-3 * recipe.lr_factor(step)
        rates.append(optimizer.param_groups[0]["lr"])
        recipe.step(recipe.load(step))
        optimizer.step()
        optimizer.zero_grad()
        after = [p for m in recipe.modules().values() for p in m.parameters()]
        moved.append([not a.equal(b) for a, b in zip(after, before, strict=True)])
    encoder = len(list(recipe.model.parameters()))
    assert not any(any(m[:encoder]) for m in moved[:6])
    assert all(all(m[encoder:]) for m in moved)
    assert all(all(m[:encoder]) for m in moved[6:])
    assert rates == pytest.approx([1e-3] * 6 + [1e-4] * 3)
    assert [g["lr"] for g in recipe.optimizer().param_groups] == [1e-3]


def test_the_optimizer_is_adam_with_the_papers_rate_and_decay(data: DataFrame) -> None:
    for loss, rate in (("recall@k", 1e-5), ("infonce", 1e-5), ("contrastive", 1e-7)):
        small = {k: v for k, v in SMOKE.items() if k not in ("lr", "epochs")}
        recipe = build(ILGenTraining(**{**small, "classes": 4, "loss": loss}), data, Processes(cpu=True))
        [group] = recipe.optimizer().param_groups
        assert type(recipe.optimizer()) is torch.optim.Adam
        assert (group["lr"], group["weight_decay"]) == (rate, 1e-6)
        assert {recipe.lr_factor(step) for step in range(20)} == {1.0}
        assert recipe.steps == {"contrastive": 5}.get(loss, 3)  # one pass


def test_batch_statistics_stay_and_results_do_not_depend_on_the_chunk(data: DataFrame) -> None:
    options: dict[str, Any] = {"backbone": "resnet18", "backbone_args": {"channels": [8, 8, 8, 8]}, "image_size": None}
    found = []
    for chunk in (4, 1000):
        recipe = made(data, chunk=chunk, images=2, **options)
        before = {name: b.clone() for name, b in recipe.model.named_buffers()}
        assert before
        found.append(loss_of(recipe))
        assert all(b.equal(before[name]) for name, b in recipe.model.named_buffers())
    assert found[0] == pytest.approx(found[1], rel=1e-4)


# Switches


def test_the_papers_settings_are_the_defaults() -> None:
    papers: dict[str, dict[str, Any]] = {
        "recall@k": {
            "classes": 400, "images": 4, "batch_size": 1600, "epochs": 1, "lr": 1e-5, "weight_decay": 1e-6,
            # numbers that the paper does not give are MoCo's
            "augment": True, "crop": (0.2, 1.0), "jitter": (0.4, 0.4, 0.4, 0.4), "gray": 0.2,
        },
        "infonce": {"batch_size": 1600},
        "contrastive": {"lr": 1e-7, "batch_size": 8},
        "softmax-margin": {
            "lr": 1e-6, "classifier_lr": 1e-3, "batch_size": 16, "frozen_epochs": 2,
        },
    }  # fmt: skip
    assert ILGenTraining().loss == "recall@k"
    for loss, values in papers.items():
        assert asdict(ILGenTraining(loss=loss)).items() >= values.items()  # type: ignore[arg-type]
    assert pass_length(20_000, ILGenTraining().classes) == 50
    assert ILGenTraining(loss="contrastive", lr=3.0, batch_size=2).lr == 3.0


def test_settings_that_cannot_be_are_refused() -> None:
    for options, text in (
        ({"batch_size": 10}, "set --classes"),
        ({"loss": "softmax-margin", "epochs": 2}, "no pass is left for the encoder"),
    ):
        with pytest.raises(ValueError, match=text):
            ILGenTraining(**options)


# Runs


@pytest.mark.slow
@pytest.mark.parametrize("loss", LOSSES)
def test_a_killed_run_resumes_to_the_same_weights(data: DataFrame, tmp_path: Path, loss: str) -> None:
    options = {"loss": loss, "epochs": 3 if loss == "softmax-margin" else 2}
    settings = {"validate_every": 3}
    trained(data, tmp_path / "whole", settings, **options)
    with killed_at(5, ILGen):
        trained(data, tmp_path / "run", settings, **options)
    assert max(state.checkpoints(tmp_path / "run")) == 4
    trained(data, tmp_path / "run", {**settings, "workers": 2}, **options)
    assert same_results(tmp_path / "whole", tmp_path / "run")


def together(data: DataFrame, out: Path, rank: int = 0, port: str = "") -> None:
    """Train three losses by plain gradient descent, with a port as one of two processes."""
    if port:
        launched(rank, port)
    processes = Processes(cpu=True)
    for loss in ("recall@k", "contrastive", "softmax-margin"):
        recipe = build(config(loss=loss, batch_size=None if loss == "recall@k" else 6), data, processes)
        lively(recipe)
        # Adam would make whole steps of rounding noise where a gradient ought to be zero
        parameters = [p for module in recipe.modules().values() for p in module.parameters()]
        recipe.optimizer = lambda own=parameters: torch.optim.SGD(own, lr=1e-2)  # type: ignore[method-assign, misc]
        recipe.steps = min(recipe.steps, 5)  # with each step of recall@k, rounding grows threefold
        fit(recipe, out / loss, TrainSettings(**{**RUN, "save_every": 0}), processes)
    processes.close()


@pytest.mark.slow
def test_two_processes_train_the_weights_of_one(data: DataFrame, tmp_path: Path) -> None:
    alone = partial(together, data, tmp_path / "one")
    assert in_two_processes(together, data, tmp_path / "two", meanwhile=alone) == [0, 0]
    for loss in ("recall@k", "contrastive", "softmax-margin"):
        one, two = (load_file(tmp_path / name / loss / "model.safetensors") for name in ("one", "two"))
        for name in one:
            assert one[name].allclose(two[name], rtol=1e-3, atol=1e-5), (loss, name)
        logs = [[v for _, v in read_log(tmp_path / n / loss / "log.jsonl")["loss"]] for n in ("one", "two")]
        assert logs[0] == pytest.approx(logs[1], rel=1e-4)
        assert len(set(logs[0])) == 5


@pytest.mark.slow
def test_smoke_runs_from_the_command_line_and_opens_without_training_packages(tmp_path: Path) -> None:
    out = tmp_path / "run"
    with a_minute_offline():
        assert main(["ilgen", "--smoke", "--cpu", "--out", str(out), "--workers", "0"]) == 0
    pictures = sorted(read(out / "smoke-data" / "painted" / "manifest.parquet")["path"])[:2]
    program = (
        "import sys\nsys.modules['peft'] = sys.modules['accelerate'] = None\nimport idmetric\n"
        f"model = idmetric.load({str(out)!r}, device='cpu')\n"
        f"a, b = {pictures!r}\n"
        "print(type(model).__name__, model(a, b).item(), model(a, a).item())"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    name, distance, none = done.stdout.split()
    assert name == "Backbone"
    assert float(distance) > float(none) == pytest.approx(0, abs=1e-6)
    plain = timm.create_model(SMOKE["backbone"], num_classes=0, img_size=32, **SMOKE["backbone_args"])
    assert load_file(out / "model.safetensors").keys() == {f"backbone.{k}" for k in plain.state_dict()}


def test_training_starts_from_a_trained_model(data: DataFrame, tmp_path: Path) -> None:
    first = trained(data, tmp_path / "run", epochs=1)
    options: dict[str, Any] = {"image_size": None, "backbone_args": {}, "backbone_weights": ""}
    again = made(data, backbone=str(tmp_path / "run"), **options)
    a, b = first.model.state_dict(), again.model.state_dict()
    assert all(a[k].equal(b[k]) for k in a)
    assert isinstance(load(tmp_path / "run", device="cpu"), Backbone)
    assert again.settings["revision"]
    with pytest.raises(ValueError, match="has its own settings"):
        made(data, backbone=str(tmp_path / "run"), **{**options, "image_size": 64})


def test_pretrained_weights_come_from_a_file_or_the_hub_and_are_never_random_silently(
    data: DataFrame, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = lively(made(data)).model.backbone
    save_file(source.state_dict(), tmp_path / "timm.safetensors")
    first = made(data, backbone_weights=str(tmp_path / "timm.safetensors"))
    found = first.model.backbone
    assert all(found.state_dict()[k].equal(v) for k, v in source.state_dict().items())
    (tmp_path / "moved").mkdir()
    (tmp_path / "timm.safetensors").rename(tmp_path / "moved" / "model.safetensors")
    assert made(data, backbone_weights=str(tmp_path / "moved")).settings == first.settings  # named by their content
    with pytest.raises(CheckpointError, match=r"--backbone-weights .*absent\.safetensors: no such file"):
        made(data, backbone_weights=str(tmp_path / "absent.safetensors"))
    torch.save({"model": source.state_dict()}, tmp_path / "w.pth")
    with pytest.raises(CheckpointError, match=r"w\.pth: it does not hold a table of tensors alone"):
        made(data, backbone_weights=str(tmp_path / "w.pth"))
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    with pytest.raises(CheckpointError, match=r"cannot fetch.*--backbone-weights PATH"):
        made(data, backbone_weights="")


# Wrong data


def test_wrong_data_are_refused_with_how_to_fix_them(data: DataFrame) -> None:
    cases: list[tuple[DataFrame, dict[str, Any], str]] = [
        (checked(data.assign(identity=None)), {}, "0 of the 0 identities .*idmetric data generate --task relight"),
        (checked(data.assign(split="test")), {}, "0 of the 0 identities of the training split"),
        (take(data, range(4)), {}, "1 of the 1 identities .* two are needed"),
        (take(data, [*range(4), 4, 5]), {}, "1 of the 2 identities .* 4 different images.*a lower --images takes"),
        (take(data, [0, 4, 8]), {}, "0 of the 3 identities .* 4 different images.*--few-images repeat"),
    ]
    for given, options, text in cases:
        with pytest.raises(ManifestError, match=text):
            made(given, **options)


# The model in the package


TINY_RUN: dict[str, Any] = {"backbone": "tiny", "image_size": None, "backbone_args": {}, "backbone_weights": ""}


def test_the_heads_of_the_packaged_model_train_and_nothing_else(data: DataFrame, tmp_path: Path) -> None:
    """`--backbone tiny --train heads`: trunks and the head of patches keep their bits; the result is an IDSim."""
    options = {**TINY_RUN, "train": "heads", "classes": 2, "images": 2, "epochs": 1, "lr": 1e-3, "chunk": 4}
    few = take(data, [0, 1, 4, 5])
    recipe = trained(few, tmp_path / "run", **options)
    start, result = IDSim("tiny", device="cpu").state_dict(), load(tmp_path / "run", device="cpu")
    assert isinstance(result, IDSim)
    changed = {name for name, value in result.state_dict().items() if not value.equal(start[name])}
    assert {name.split(".")[0] for name in changed} == {"mlp_cls", "mlp_second"}
    assert recipe.settings["train"] == "heads"
    with pytest.raises(ValueError, match="tiny has its own settings"):
        made(few, **{**options, "image_size": 64})
    with pytest.raises(ValueError, match="resnet18 has no heads: leave out --train heads"):
        made(few, **{**options, **SMALL_RESNET})
