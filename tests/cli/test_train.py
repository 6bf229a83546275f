from __future__ import annotations

import argparse
import importlib
import json
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, Literal

import pytest
import torch
from safetensors.torch import load_file

from idmetric import load
from idmetric.cli import train as cli
from idmetric.evaluate.settings import add_options, from_file, option, values_of
from idmetric.metric.errors import CheckpointError
from idmetric.train.ilgen.config import Config as ILGenConfig
from tests import train_parts
from tests.runner import Runner

QUICK = ["--steps", "2", "--log-every", "1", "--workers", "0", "--cpu"]


@pytest.fixture(autouse=True)
def pairs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(cli.RECIPES, "pairs", ("tests.train_parts", "the tests' own recipe"))


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str]) -> Runner:
    return Runner(cli.main, capsys)


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("data")
    train_parts.smoke_data(folder)
    return folder / "manifest.parquet"


def test_the_command_trains_what_load_opens(
    data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], run: Runner
) -> None:
    given = ["pairs", "--data", data, "--out", tmp_path / "run", *QUICK, "--lr", "0.01", "--seed", "3"]
    assert run(*given) == 0
    record = json.loads((tmp_path / "run/recipe.json").read_text())
    assert record["recipe"] == "pairs"
    assert {k: record["settings"][k] for k in ("steps", "lr", "seed", "rows")} == {
        "steps": 2, "lr": 0.01, "seed": 3, "rows": 8,
    }  # fmt: skip
    assert record["run"]["seed"] == 3  # of the recipe's Config, which has one too
    assert load(tmp_path / "run", device="cpu")(torch.rand(1, 3, 16, 16)).cls.shape == (1, 16)
    run.prints("finished already", *given)
    assert run(*given, "--lr", "0.02") == 1
    assert "lr: 0.01 there, 0.02 now" in capsys.readouterr().err


def test_the_same_command_gives_the_same_weights(data: Path, tmp_path: Path, run: Runner) -> None:
    for name in "ab":
        torch.rand(3)  # whatever was drawn before
        assert run("pairs --data", data, "--out", tmp_path / name, *QUICK) == 0
    a, b = ((tmp_path / name / "model.safetensors").read_bytes() for name in "ab")
    assert a == b


def ended_at_step_1(recipe: train_parts.PairRecipe, step: int) -> float:
    if step == 1:
        raise KeyboardInterrupt
    return 1.0


def test_an_unfinished_run_is_called_so_and_its_latest_checkpoint_can_be_exported(
    data: Path, tmp_path: Path, run: Runner, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`load("run/")` of a stopped run says "unfinished" and both ways out; the exported model is the checkpoint's."""
    out = tmp_path / "run"
    given = ["pairs", "--data", data, "--out", out, *QUICK, "--save-every", "1", "--lr", "0.01"]
    run.fails(f"{out} has no checkpoint to export", *given, "--export", tmp_path / "model")
    with monkeypatch.context() as patch:
        patch.setattr(train_parts.PairRecipe, "lr_factor", ended_at_step_1)
        assert run(*given) == 130
    checkpoint = out / "checkpoints/step-000001.safetensors"
    for folder in (out, out / "checkpoints"):
        with pytest.raises(CheckpointError, match=r"as its training is unfinished: resume it.*--export"):
            load(folder, device="cpu")

    run.prints(f"wrote the model of step 1 of 2 to {tmp_path / 'model'}", *given, "--export", tmp_path / "model")
    saved = load_file(checkpoint)
    state = load(tmp_path / "model", device="cpu").state_dict()
    trained = {name.removeprefix("model/"): value for name, value in saved.items() if name.startswith("model/")}
    assert len(trained) > 5
    assert all(state[name].equal(value) for name, value in trained.items())
    assert list(out.glob("*.safetensors")) == []  # the run is as it was
    run.fails("holds files already", *given, "--export", tmp_path / "model")
    run.fails("lr: 0.01 there, 0.02 now", *given, "--lr", "0.02", "--export", tmp_path / "other")
    assert run(*given) == 0
    assert load(out, device="cpu").model_type == "backbone"


def test_smoke_needs_no_data(tmp_path: Path, run: Runner) -> None:
    assert run("pairs --smoke --cpu --out", tmp_path / "run") == 0
    record = json.loads((tmp_path / "run/recipe.json").read_text())
    assert record["settings"]["steps"] == 2
    assert record["run"]["validate_every"] == 1
    assert (tmp_path / "run/smoke-data/manifest.parquet").is_file()


@pytest.mark.parametrize("kind", ["json", "toml"])
def test_settings_come_from_a_file_below_the_command_line(data: Path, tmp_path: Path, kind: str, run: Runner) -> None:
    if kind == "toml":
        pytest.importorskip("tomllib")
    values = {"lr": 1, "log-every": 1, "sizes": [8, 8], "optimizer": "sgd", "steps": 5, "symmetric": True}
    text = json.dumps(values) if kind == "json" else "\n".join(f"{k} = {json.dumps(v)}" for k, v in values.items())
    (tmp_path / f"mine.{kind}").write_text(text)
    given = ["pairs", "--data", data, "--out", tmp_path / "run", "--config", tmp_path / f"mine.{kind}"]
    assert run(*given, "--steps", "1", "--no-symmetric", "--cpu", "--workers", "0") == 0
    settings = json.loads((tmp_path / "run/recipe.json").read_text())["settings"]
    wanted = {"lr": 1.0, "sizes": [8, 8], "optimizer": "sgd", "steps": 1, "symmetric": False}
    assert {name: settings[name] for name in wanted} == wanted


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('{"rates": 1}', "there is no option 'rates'; there are batch_size, "),
        ('{"steps": 1.5}', "steps = 1.5: a whole number is needed"),
        ('{"steps": true}', "steps = True: a whole number is needed"),
        ('{"optimizer": "lion"}', "optimizer = 'lion': one of adamw, sgd is needed"),
        ('{"sizes": 3}', "sizes = 3: a list of numbers is needed"),
        ("[1]", "the file = [1]: an object is needed"),
        ("{", "Expecting property name"),
    ],
)
def test_what_is_wrong_in_a_file_is_named(data: Path, tmp_path: Path, text: str, message: str, run: Runner) -> None:
    (tmp_path / "mine.json").write_text(text)
    given = ["pairs", "--data", data, "--out", tmp_path / "run", "--config", tmp_path / "mine.json"]
    run.fails(f"--config {tmp_path / 'mine.json'}: {message}", *given)
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (["--steps", "many"], "argument --steps: steps = 'many': a whole number is needed"),
        (["--optimizer", "lion"], "argument --optimizer: optimizer = 'lion': one of adamw, sgd is needed"),
        (["--precision", "fp8"], "one of no, bf16, fp16 is needed"),
        (["--sizes", "1", "x"], "argument --sizes: sizes = 'x'"),
        (["--stepz", "1"], "unrecognized arguments: --stepz"),
        (["--step", "1"], "unrecognized arguments: --step"),  # no abbreviations: later options may share them
    ],
)
def test_wrong_usage_is_refused(given: list[str], message: str, run: Runner) -> None:
    run.fails(message, "pairs", *given, status=2)


def test_missing_arguments_are_named(data: Path, tmp_path: Path, run: Runner) -> None:
    run.fails("--out DIR is needed", "pairs --data", data)
    run.fails("--data PATH is needed", "pairs --out", tmp_path / "run")
    run.fails("no.csv", "pairs --out", tmp_path / "run", "--data", tmp_path / "no.csv")
    assert not (tmp_path / "run").exists()


def test_a_dry_run_tells_the_plan_and_writes_nothing(
    data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], run: Runner
) -> None:
    given = ["pairs", "--data", data, "--out", tmp_path / "run", *QUICK]
    assert run(*given, "--dry-run") == 0
    said = capsys.readouterr().out
    for part in (f"data    {data}: 8 rows, 4 identities", "steps   2", "3,281 of 6,497 parameters", "on      cpu",
                 "a new run", "  lr = 0.003"):  # fmt: skip
        assert part in said
    assert not (tmp_path / "run").exists()
    assert run(*given) == 0
    run.prints("a run with 2 steps done", *given, "--dry-run")
    run.prints("painted for --smoke: 8 rows", "pairs --smoke --cpu --dry-run")


def test_images_that_cannot_be_read_stop_before_the_first_step(tmp_path: Path, run: Runner) -> None:
    train_parts.smoke_data(tmp_path / "data")
    (tmp_path / "data/3.png").unlink()
    (tmp_path / "data/5.png").write_bytes(b"no picture")
    given = ["pairs", "--data", tmp_path / "data/manifest.parquet", "--out", tmp_path / "run", *QUICK]
    said = run.fails("row 4, column 'path'", *given)
    assert "row 6, column 'path'" in said
    assert "--on-error skip" in said
    assert not (tmp_path / "run").exists()
    with pytest.warns(UserWarning, match="6 of 8 rows stay"):
        assert run(*given, "--on-error", "skip") == 0
    assert json.loads((tmp_path / "run/recipe.json").read_text())["settings"]["rows"] == 6


def test_a_batch_that_fails_later_is_an_error_and_not_a_trace(data: Path, tmp_path: Path, run: Runner) -> None:
    given = ["pairs", "--data", data, "--out", tmp_path / "run", *QUICK]
    run.fails("idmetric train: error: the batch of step 2 cannot be loaded: lost.png", *given, "--missing", "1")


@pytest.mark.parametrize("name", ["idsim", "nearid", "visme", "ilgen"])
def test_every_recipe_has_its_options(name: str, run: Runner) -> None:
    module = importlib.import_module(cli.RECIPES[name][0])
    for part in ("build", "smoke_data", "SMOKE", "__doc__"):
        assert getattr(module, part)
    config, settings = cli.configure(module, argparse.Namespace(config=None, smoke=True))
    assert isinstance(config, module.Config)
    for field in fields(config):
        if hasattr(settings, field.name):
            assert getattr(settings, field.name) == getattr(config, field.name)
    run.prints(f"{name} (defaults: the paper's)", name, "--help")


@dataclass(frozen=True)
class Kinds:
    whole: int = option(1, "w")
    some: float | None = option(None, "s")
    pair: tuple[int, float] = option((1, 2.0), "p")
    many: tuple[str, ...] = option((), "m")
    level: Literal[1, 2] = option(1, "l")
    extra: dict[str, Any] = option({}, "e")
    free: bool = option(False, "f")


def parsed(*given: str) -> dict[str, Any]:
    parser = argparse.ArgumentParser()
    add_options(parser, Kinds)
    return values_of(parser.parse_args(given), Kinds)


def test_options_read_every_kind() -> None:
    assert parsed() == {}
    assert Kinds(**parsed()) == Kinds()
    assert Kinds().extra is not Kinds().extra
    assert parsed("--whole", "3", "--some", "2", "--pair", "4", "5", "--many", "a", "b", "--level", "2") == {
        "whole": 3, "some": 2.0, "pair": (4, 5.0), "many": ("a", "b"), "level": 2,
    }  # fmt: skip
    assert parsed("--some", "none", "--extra", '{"a": [1]}', "--free", "--many") == {
        "some": None, "extra": {"a": [1]}, "free": True, "many": (),
    }  # fmt: skip


def test_a_file_reads_every_kind(tmp_path: Path) -> None:
    values = {"whole": 3, "some": None, "pair": [4, 5], "many": ["a"], "level": 2, "extra": {"a": 1}, "free": False}
    (tmp_path / "all.json").write_text(json.dumps(values))
    assert from_file(tmp_path / "all.json", Kinds) == {**values, "pair": (4, 5.0), "many": ("a",)}
    for name, value in (("whole", "3"), ("pair", [1]), ("level", 3), ("extra", []), ("free", 1), ("many", [1])):
        (tmp_path / "one.json").write_text(json.dumps({name: value}))
        with pytest.raises(ValueError, match=f"one.json: {name} = "):
            from_file(tmp_path / "one.json", Kinds)


def test_a_settings_file_imports_no_class(tmp_path: Path) -> None:
    """Files of settings are received from others; what the user types is the user's own."""
    (tmp_path / "package.json").write_text('{"backbone": "evil.module:Class"}')
    with pytest.raises(ValueError, match=r"package\.json.*evil\.module:Class"):
        from_file(tmp_path / "package.json", ILGenConfig)
    (tmp_path / "timm.json").write_text('{"backbone": "timm:vit_tiny_patch16_224"}')
    assert from_file(tmp_path / "timm.json", ILGenConfig) == {"backbone": "timm:vit_tiny_patch16_224"}
