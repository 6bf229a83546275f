from __future__ import annotations

import json
import math
import os
import subprocess
import sys
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from pandas import DataFrame
from PIL import Image
from safetensors.torch import load_file
from torch import Tensor

from idmetric import VisIDEmbed, load
from idmetric.cli.train import main
from idmetric.data.manifest import ManifestError, checked, merge, read, take, write
from idmetric.metric.errors import RequestError
from idmetric.metric.images import read_image
from idmetric.metric.visid.config import CANDIDATE, TASKS
from idmetric.train import state
from idmetric.train.batches import Pictures, generator
from idmetric.train.loop import TrainError, TrainSettings, fit
from idmetric.train.processes import Processes
from idmetric.train.visme import items, recipe, small_qwen
from idmetric.train.visme.batch_sampler import Batch
from idmetric.train.visme.config import SMOKE, VisMETraining
from idmetric.train.visme.data import prepare
from idmetric.train.visme.items import precision_at_1
from idmetric.train.visme.recipe import VisME, build
from idmetric.train.visme.wording import WordedRow
from tests.table_parts import a_row, a_table
from tests.train_parts import a_minute_offline, free_port, read_log

pytest.importorskip("peft")
pytest.importorskip("transformers")

SMALL: dict[str, Any] = {**SMOKE, "dropout": 0.0, "steps": 4}
RUN: dict[str, Any] = {"save_every": 2, "validate_every": 0, "log_every": 1, "workers": 0}


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> DataFrame:
    """Two datasets of identities with distractors, captions with repeated texts, and identities to validate."""
    folder, rows = tmp_path_factory.mktemp("data"), []
    rng = np.random.default_rng(0)
    for n in range(16):
        base = rng.integers(0, 256, (3, 3, 3))
        for view in range(3):
            pixels = (base + rng.integers(-20, 20, (3, 3, 3))).clip(0, 255).astype(np.uint8)
            path = f"{n}-{view}.png"
            Image.fromarray(pixels).resize((40 + 9 * view, 50), Image.Resampling.BICUBIC).save(folder / path)
            near = {"identity": f"{n}~", "role": "distractor", "parent": f"{n}-0"} if view == 2 else {}
            rows.append(a_row(**{"identity": str(n), "path": path, "id": f"{n}-{view}", "dataset": f"d{n % 2}",
                               "split": "val" if n > 11 else "train", **near}))  # fmt: skip
        if n < 6:
            rows.append(a_row(None, f"{n}-0.png", id=f"c{n}", dataset="captions", text=f"color {n % 3}"))
    write(a_table(rows, folder), folder / "data.parquet")
    return read(folder / "data.parquet")


def made(data: DataFrame, **changes: Any) -> VisME:
    return build(VisMETraining(**{**SMALL, **changes}), data, Processes(cpu=True))


def trained(data: DataFrame, out: Path, run: dict[str, Any] = RUN, **changes: Any) -> VisME:
    found = made(data, **changes)
    fit(found, out, TrainSettings(**run), found.processes)
    return found


def gradients(found: VisME) -> dict[str, Tensor]:
    named = {f"{m}/{n}": p for m, module in found.modules().items() for n, p in module.named_parameters()}
    return {name: p.grad.clone() for name, p in named.items() if p.grad is not None}


def noisy(found: VisME) -> VisME:
    """With LoRA that does something: at first B is 0, and A has no gradient."""
    generator = torch.Generator().manual_seed(0)
    for name, parameter in found.model.named_parameters():
        if "lora_B" in name:
            parameter.data = 0.05 * torch.randn(parameter.shape, generator=generator)
    return found


def test_the_loss_is_that_of_the_paper_on_embeddings_of_the_public_class(data: DataFrame) -> None:
    found = noisy(made(data, hard=2))
    batch = found.load(0)
    values = found.step(batch)
    model, rows, size = found.model.eval(), batch["rows"], 12
    draw = recipe.draw(found.data, found.config, 0)

    def embed(row: int, words: str) -> Tensor:
        picture = None if row < 0 else read_image(data["path"][row])
        return (model.embed(picture, instruction=words) if row >= 0 else model.embed(texts=words)).cls[0].double()

    queries = [embed(int(q), recipe_words(data, int(q))) for q in draw.query]
    targets = [embed(int(t), CANDIDATE) if data["identity"][int(t)] else embed(-1, data["text"][int(t)])
               for t in draw.target]  # fmt: skip
    hard = [embed(int(h), CANDIDATE) for part in draw.hard for h in part]
    assert len(hard) > 1
    texts = data["text"][draw.target].tolist()
    losses = []
    for i in range(size):
        others = [j for j in range(size) if j != i and (texts[j] is None or texts[j] != texts[i])]
        logits = torch.stack([queries[i] @ c for c in [targets[i], *(targets[j] for j in others), *hard]]) / 0.02
        losses.append(torch.logsumexp(logits, 0) - logits[0])
    assert len([t for t in texts if t]) > len({t for t in texts if t})  # some texts are equal
    assert float(values["loss"]) == pytest.approx(float(torch.stack(losses).mean()), rel=1e-4)
    assert rows[:size] == draw.query.tolist()
    assert float(values["images"]) == sum(r >= 0 for r in rows)
    own = [int(torch.stack([queries[i] @ c for c in [*targets, *hard]]).argmax()) == i for i in range(size)]
    assert float(values["accuracy"]) == pytest.approx(np.mean(own), abs=1e-6)


def recipe_words(data: DataFrame, row: int) -> str:
    return TASKS["recognition"] if data["identity"][row] else "Find the caption that describes this image."


@pytest.mark.parametrize("chunk", [1, 5, 12])
def test_gradients_do_not_depend_on_the_chunks(data: DataFrame, chunk: int) -> None:
    whole, parts = noisy(made(data, chunk=1000)), noisy(made(data, chunk=chunk))
    losses = [float(r.step(r.load(1))["loss"]) for r in (whole, parts)]
    assert losses[0] == pytest.approx(losses[1], rel=1e-5)
    a, b = gradients(whole), gradients(parts)
    assert a.keys() == b.keys()
    assert "temperature/log_temperature" in a
    assert all("lora" in name for name in a if not name.startswith("temperature"))
    for name in a:
        assert (a[name] - b[name]).abs().max() <= 1e-4 * a[name].abs().max() + 1e-7, name


@pytest.mark.parametrize("count", [2, 3, 4])
def test_shares_of_processes_make_up_the_batch(data: DataFrame, count: int) -> None:
    alone = noisy(made(data))
    draw = recipe.draw(alone.data, alone.config, 2)
    shares = [alone.loader.load(draw, rank, count) for rank in range(count)]
    assert len({len(share["words"]) for share in shares}) == 1
    with torch.no_grad():
        embedded = torch.cat([alone.model.encode_items(s["pixels"].take(slice(None)), s["words"]) for s in shares])
        whole = alone.loader.load(draw, 0, 1)
        expected = alone._loss(alone.model.encode_items(whole["pixels"].take(slice(None)), whole["words"]), whole)
        alone.processes.count = count
        for share in shares:
            assert share["identity"].equal(whole["identity"])
            found = alone._loss(embedded, share)
            assert float(found["loss"]) == pytest.approx(float(expected["loss"]), rel=1e-5)
            assert float(found["accuracy"]) == float(expected["accuracy"])
    read = [row for share in shares for row in share["rows"][: 12 // count]]
    assert read == draw.query.tolist()


@pytest.mark.slow
def test_a_run_writes_a_model_that_opens_without_lora(data: DataFrame, tmp_path: Path) -> None:
    found = trained(data, tmp_path / "run", hard=1, lr=0.01)
    picture = read_image(data["path"][0])
    opened = load(tmp_path / "run", device="cpu")
    assert isinstance(opened, VisIDEmbed)
    assert opened.settings == found.model.settings
    expected = found.model.eval().embed(picture, task="grounding").cls
    assert opened.embed(picture, task="grounding").cls.allclose(expected, atol=1e-5)
    assert not opened.embed(picture).cls.allclose(made(data).model.embed(picture).cls, atol=1e-3)
    assert not [name for name in load_file(tmp_path / "run" / "model.safetensors") if "lora" in name]
    trainable = load_file(state.checkpoints(tmp_path / "run")[4])
    assert all("lora" in name or "temperature" in name or name.startswith("optimizer") for name in trainable)
    temperature = [value for _, value in read_log(tmp_path / "run" / "log.jsonl")["temperature"]]
    assert temperature[0] == pytest.approx(0.02)
    assert temperature[-1] != temperature[0]


def test_candidates_with_the_targets_text_are_no_negatives(data: DataFrame) -> None:
    found, ids = made(data), data["id"].tolist()
    query, target = (
        np.array([ids.index(name) for name in names.split()]) for names in ("0-0 1-0 c0 c3 c1", "0-1 1-1 c0 c3 c1")
    )
    batch = Batch(query * 0, query, target, [[]] * 5)
    codes = replace(found.loader, batch_size=5).load(batch, 0, 1)["identity"].tolist()
    assert codes[2] == codes[3]  # "color 0" is the caption of c0 and c3
    assert len(set(codes)) == 4


def test_a_fixed_temperature_stays(data: DataFrame, tmp_path: Path) -> None:
    found = trained(data, tmp_path / "run", learn_temperature=False, temperature=0.01)
    assert float(found.temperature()) == pytest.approx(0.01)


def test_the_learning_rate_rises_and_falls_linearly(data: DataFrame) -> None:
    found = made(data, steps=100, warmup=200)
    assert [found.lr_factor(s) for s in (0, 4, 9, 10, 55, 99)] == pytest.approx([0.1, 0.5, 1, 1, 0.5, 1 / 90])


def test_precision_at_1_is_that_of_the_public_class(data: DataFrame) -> None:
    found = made(data, validate_queries=100)
    scores = found.validate()
    assert set(scores) == {"p@1", "p@1/d0", "p@1/d1"}
    assert found.model.training
    pictures, prepared = found.loader.pictures, found.validation
    assert prepared is not None
    model = found.model.eval()
    for pool, name in zip(prepared.data.pools, ("d0", "d1"), strict=True):
        assert len(pool) == 4  # two views of two identities
        rng = generator("validation", pool.name)
        order = rng.permutation(4).tolist()
        first = [next(i for i in order if prepared.data.shown[pool.queries[i]] == w)
                 for w in dict.fromkeys(prepared.data.shown[[pool.queries[i] for i in order]].tolist())]  # fmt: skip
        queries = [int(pool.queries[i]) for i in first]
        targets = [next(int(r) for r in pool.queries if r != q and prepared.data.shown[r] == prepared.data.shown[q])
                   for q in queries]  # fmt: skip
        hard = sorted({h for q in queries for h in prepared.data.hard.get(q, ())})
        a = model.embed([read_image(data["path"][q]) for q in queries], task="recognition").cls
        b = model.embed([read_image(data["path"][r]) for r in [*targets, *hard]]).cls
        right = [(a[k] @ b.T).argmax().item() == k for k in range(len(queries))]
        assert scores[f"p@1/{name}"] == pytest.approx(np.mean(right))
    assert math.isclose(scores["p@1"], (scores["p@1/d0"] + scores["p@1/d1"]) / 2)
    perfect = precision_at_1(_Oracle(data, pictures), pictures, prepared)  # type: ignore[arg-type]
    assert perfect["p@1"] == 1


class _ByColor:
    """Embeds texts and images as red or blue."""

    def encode_items(self, pixels: list[Tensor | None], words: list[str]) -> Tensor:
        is_red = ["red" in text if x is None else bool(x[0].mean() > x[2].mean())
                  for x, text in zip(pixels, words, strict=True)]  # fmt: skip
        return torch.eye(2)[torch.tensor(is_red).long()]


def test_candidates_that_are_right_as_well_do_not_count_as_mistakes(tmp_path: Path) -> None:
    Image.new("RGB", (8, 8), (250, 0, 0)).save(tmp_path / "red.png")
    Image.new("RGB", (8, 8), (0, 0, 250)).save(tmp_path / "blue.png")
    rows = []
    for number, (text, image) in enumerate(
        [("the red one", "red.png"), ("red thing", "red.png"), ("blue", "blue.png")]
    ):
        group = f"g{number}"
        rows.append(a_row(None, None, id=f"q{number}", text=text, group=group, slot="query"))
        rows.append(a_row(None, image, id=f"t{number}", group=group, slot="positive"))
    data = a_table(rows, tmp_path)
    prepared = prepare(data, splits=("",))
    rates = precision_at_1(_ByColor(), Pictures(data, (8, 8)), prepared)  # type: ignore[arg-type]
    assert rates["p@1"] == 1  # both red queries find the red picture


def test_a_text_that_finds_several_images_is_no_mistake() -> None:
    a, b = (WordedRow(None, "a dog"), WordedRow(1, "x")), (WordedRow(None, "A  dog"), WordedRow(2, "x"))
    assert items._has_equal_texts([a, b], [a[1], b[1]]).all()
    assert items._has_equal_texts([a[::-1], b[::-1]], [a[0], b[0]]).all()
    same_words = (WordedRow(1, "find it"), WordedRow(3, "x"))
    assert not items._has_equal_texts([same_words], [WordedRow(3, "x")]).any()


def test_identities_and_their_images_are_not_both_trained_and_validated_on(data: DataFrame) -> None:
    split = ["val" if name == "0-0" else s for name, s in zip(data["id"].tolist(), data["split"].tolist(), strict=True)]
    with pytest.raises(ManifestError, match=r"images or identities that are trained on, such as row \d+ \(0-0\)"):
        made(checked(data.assign(split=split)))
    captions = ["val" if name in ("c0", "c1") else s for name, s in zip(data["id"].tolist(), split, strict=True)]
    split = [s if name != "0-0" else "train" for name, s in zip(data["id"].tolist(), captions, strict=True)]
    assert "p@1/captions" in made(checked(data.assign(split=split))).validate()  # texts about pictures of the training


class _Oracle:
    """Embeds an image as its identity."""

    def __init__(self, data: DataFrame, pictures: Any) -> None:
        names = sorted({str(i) for i in data["identity"].tolist()})
        self.known = [(pictures.read(row), names.index(str(name))) for row, name in enumerate(data["identity"])]
        self.eye = torch.eye(len(names))

    def encode_items(self, pixels: list[Tensor], words: list[str]) -> Tensor:
        return torch.stack([next(self.eye[n] for p, n in self.known if p.shape == x.shape and p.equal(x))
                            for x in pixels])  # fmt: skip


def test_qwen2_vl_is_trained_too(data: DataFrame, tmp_path: Path) -> None:
    small_qwen.write(tmp_path / "base", "qwen2_vl")
    found = trained(
        data, tmp_path / "run", model=str(tmp_path / "base"), targets=r".*(layers|blocks)\.\d+\..*(q_proj|qkv)", lr=0.01
    )
    assert any("visual" in name for name, p in found.model.named_parameters() if p.requires_grad)
    opened = load(tmp_path / "run", device="cpu")
    assert opened.backbone.config.model_type == "qwen2_vl"  # type: ignore[union-attr]
    picture = read_image(data["path"][0])
    assert opened.embed(picture).cls.allclose(found.model.eval().embed(picture).cls, atol=1e-5)


def test_data_that_cannot_be_trained_on_are_refused(data: DataFrame, tmp_path: Path) -> None:
    with pytest.raises(RequestError, match=r"'captions' has 6.*'d0' has 6.*'d1' has 6"):
        made(data, samples=7, batch_size=14)
    with pytest.raises(ManifestError, match="no samples in 1 rows"):
        made(take(data, [0]))
    both = take(data, (data["dataset"] == "d0") & (data["split"] == "train"))
    twice = merge([both, both.assign(id="again/" + both["id"], dataset="copy", parent=None)], shared=True)
    found = made(twice, batch_size=8, samples=4)  # each has six identities, and they are the same
    with pytest.raises(TrainError, match="cannot fill 1 blocks of 4 samples: it has 6 identities"):
        fit(found, tmp_path / "run", TrainSettings(**RUN), found.processes)


def test_faults_of_later_steps_are_refused_before_the_first(
    data: DataFrame, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    texts = ["a <|im_end|> sign" if name == "c3" else t for name, t in
             zip(data["id"].tolist(), data["text"].tolist(), strict=True)]  # fmt: skip
    with pytest.raises(ManifestError, match=r"\(c3\), column 'text': a text may not hold the control token <\|im_end"):
        made(checked(data.assign(text=texts)))
    with pytest.raises(ValueError, match="max_length=20 tokens do not hold an image of 30: raise it"):
        made(data, max_pixels=30 * 28 * 28, max_length=20)
    thin = tmp_path / "thin.png"
    Image.new("RGB", (401, 2)).save(thin)
    paths = [str(thin) if name == "0-0" else data["path"][i] for i, name in enumerate(data["id"].tolist())]
    write(checked(data.assign(path=paths)), tmp_path / "data.parquet")
    given = ["visme", "--smoke", "--data", str(tmp_path / "data.parquet"), "--cpu", "--out", str(tmp_path / "run")]
    assert main(given) == 1
    said = capsys.readouterr().err
    assert "1 of 54 rows cannot be used" in said
    assert "401x2 pixels: the model takes no side ratio above 200" in said


def test_the_papers_settings_are_the_defaults() -> None:
    papers = {
        "steps": 3000, "batch_size": 1024, "samples": 64, "hard": 5, "rank": 16, "alpha": 32, "lr": 1e-4,
        "temperature": 0.02, "max_pixels": 200_704, "max_length": 768, "sampling": "identity",
        "learn_temperature": True, "model": "Qwen/Qwen2.5-VL-3B-Instruct",
    }  # fmt: skip
    assert asdict(VisMETraining()).items() >= papers.items()
    assert VisMETraining().blocks == 16


@pytest.mark.slow
def test_smoke_runs_from_the_command_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "run"
    with a_minute_offline():
        assert main(["visme", "--smoke", "--cpu", "--out", str(out), "--workers", "0"]) == 0
    record = json.loads((out / "recipe.json").read_text())
    assert {"captions", "things-0", "things-1"} == set(record["settings"]["datasets"])
    assert isinstance(load(out, device="cpu"), VisIDEmbed)
    said = capsys.readouterr().out
    assert " p@1 " in said
    large = ["--out", str(tmp_path / "no"), "--samples", "13", "--batch-size", "26"]
    assert main(["visme", "--smoke", "--cpu", *large]) == 1
    assert "fewer identities than the 13 samples" in capsys.readouterr().err


@pytest.mark.slow
def test_two_processes_train_as_one(data: DataFrame, tmp_path: Path) -> None:
    # plain steps along the gradient would hide nothing, but AdamW divides rounding noise by itself: few steps
    file = Path(data["path"][0]).with_name("data.parquet")
    options = ["visme", "--smoke", "--cpu", "--data", str(file), "--steps", "3", "--dropout", "0",
               "--workers", "0", "--log-every", "1", "--validate-every", "0", "--out"]  # fmt: skip
    assert main([*options, str(tmp_path / "one")]) == 0
    command = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2", "--master-port", free_port(),
               "-m", "idmetric.cli.train", *options, str(tmp_path / "two")]  # fmt: skip
    done = subprocess.run(
        command, capture_output=True, text=True, env={**os.environ, "OMP_NUM_THREADS": "1"}, timeout=600
    )
    assert done.returncode == 0, done.stderr
    one, two = (read_log(tmp_path / name / "log.jsonl") for name in ("one", "two"))
    for name in ("loss", "gradient_norm", "temperature"):
        assert [v for _, v in one[name]] == pytest.approx([v for _, v in two[name]], rel=1e-3)
