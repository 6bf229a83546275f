"""Folders of training runs, those of version 0.1 among them."""

from __future__ import annotations

import importlib
import json
from dataclasses import asdict
from pathlib import Path

import pytest

from idmetric.train import log, run_folder
from idmetric.train.options import RENAMED

RUNS = Path(__file__).parents[1] / "reference/v0.1/runs"  # recipe.json of each recipe's smoke run by version 0.1


@pytest.mark.parametrize("name", ["idsim", "nearid", "visme", "ilgen", "tiny"])
def test_a_run_of_version_0_1_has_the_settings_of_today(tmp_path: Path, name: str) -> None:
    text = (RUNS / f"{name}.json").read_text()
    (tmp_path / run_folder.FILE).write_text(text)
    old = run_folder.read(tmp_path)
    assert old is not None
    assert RENAMED.keys() & json.loads(text)["settings"].keys()
    assert not RENAMED.keys() & old["settings"].keys()

    config = importlib.import_module(f"idmetric.train.{name}.config")
    smoke = {k: v for k, v in config.SMOKE.items() if k in config.Config.__dataclass_fields__}
    today = json.loads(json.dumps(asdict(config.Config(**smoke))))
    named = {k: today[k] for k in RENAMED.values() if k in today}
    assert {"lr", "batch_size"} <= named.keys()
    assert run_folder.differences(old, {**old, "settings": {**old["settings"], **named}}) == []


def test_the_log_of_a_run_of_version_0_1_continues_its_curves(tmp_path: Path) -> None:
    (tmp_path / "log.jsonl").write_text('{"step": 1, "loss": 2.0, "rate": 0.1}\n{"step": 2, "loss": 1.0, "lr": 0.2}\n')
    assert log.read(tmp_path / "log.jsonl") == {"loss": [(1, 2.0), (2, 1.0)], "lr": [(1, 0.1), (2, 0.2)]}
