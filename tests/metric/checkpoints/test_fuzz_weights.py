"""Damaged and foreign files of weights are refused by CheckpointError, or are the model that they were.

FUZZ=100 python -m pytest tests/metric/checkpoints/test_fuzz_weights.py      a hundred times as many, of other seeds
"""

from __future__ import annotations

import os
import pickle
import re
import shutil
import time
from collections.abc import Callable
from pathlib import Path
from random import Random

import pytest
import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from idmetric import CheckpointError, NonFiniteError
from tests.fuzz import damage
from tests.weight_parts import LOADERS, WEIGHTS, numbers_of

pytest.importorskip("transformers", reason="pip install 'idmetric[eval]'")
pytestmark = pytest.mark.filterwarnings("ignore::FutureWarning", "ignore::UserWarning")

TIMES = int(os.environ.get("FUZZ", "1"))
COUNT = 10  # files for each loader
SEED = 0 if TIMES == 1 else time.time_ns()
STORED = (torch.bool, torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64, torch.float16, torch.bfloat16,
          torch.float64, torch.complex64, torch.float8_e4m3fn, torch.float8_e5m2, torch.float8_e8m0fnu)  # fmt: skip
ODD = (float("nan"), float("inf"), 3e38, 1e300, -0.0)
HARMLESS = re.compile(r"(_ids|_index)$|^lm_head\.")  # names that a file may lack or have in addition
State = dict[str, Tensor]


def cast(state: State, key: str, rng: Random) -> None:
    state[key] = state[key].to(rng.choice(STORED))


def odd_value(state: State, key: str, rng: Random) -> None:
    if not state[key].numel() or state[key].is_complex():
        return
    wide = state[key].double()
    wide.view(-1)[rng.randrange(wide.numel())] = rng.choice(ODD)
    state[key] = wide.to(rng.choice((torch.float64, torch.float32)))


def reshape(state: State, key: str, rng: Random) -> None:
    value = state[key]
    shapes = [
        value[None],
        value.flatten(),
        value.flatten()[:0],
        value.flatten()[:1],
        value.float().sum().to(value.dtype),
    ]
    if value.ndim > 1:
        shapes.append(value.mT)
    state[key] = rng.choice(shapes).contiguous().clone()


def leave_out(state: State, key: str, rng: Random) -> None:
    for name in [key, *rng.sample(sorted(state), rng.randint(0, len(state) // 2))]:
        state.pop(name, None)


def rename(state: State, key: str, rng: Random) -> None:
    others = (f"model.{key}", key.rpartition(".")[0], key + ".int8_scale", key.replace(".", "..", 1), key.upper(), "")
    state[rng.choice(others)] = state.pop(key)


def add(state: State, key: str, rng: Random) -> None:
    names = ("extra", f"{key}.int8_scale", f"{key}_ids", key.replace(".", ".x.", 1), "lm_head.weight", "\x1b[2J",
             f"{key}.lora_A.weight", "position_ids", "x" * 10_000)  # fmt: skip
    value = torch.rand(rng.choice(((), (0,), (3,), (3, 4), tuple(state[key].shape[:1]))))
    state[rng.choice(names)] = value.to(rng.choice(STORED))


def add_second(state: State, key: str, rng: Random) -> None:
    """Other values by a name that transformers may map to the same tensor."""
    before, _, after = key.partition(".")
    names = (f"model.{key}", f"sam.{key}", f"clip.{key}", f"detector_model.{key}", after, f"{before}.model.{after}")
    state[rng.choice(names)] = state[key].float() + 1


CHANGES: tuple[Callable[[State, str, Random], None], ...] = (
    cast,
    odd_value,
    reshape,
    leave_out,
    rename,
    add,
    add_second,
)


def write_changed(path: Path, original: State, rng: Random) -> None:
    """Write a file with one or two changed tensors, one with damaged bytes, or one of another format."""
    kind = rng.random()
    if kind < 0.3:
        path.write_bytes(damage(path.read_bytes(), rng))
        return
    state = {key: value.clone() for key, value in original.items()}
    for _ in range(rng.randint(1, 2)):
        if state:
            rng.choice(CHANGES)(state, rng.choice(sorted(state)), rng)
    if kind < 0.9:
        save_file(state, path, {"format": "pt"})
    else:
        torch.save(state, path)


def read(path: Path) -> State:
    try:
        return load_file(path)
    except (SafetensorError, OSError, ValueError, KeyError, TypeError):
        pass
    try:
        with path.open("rb") as file:  # of a path, torch goes by the ending
            return dict(torch.load(file, weights_only=True))
    except (pickle.UnpicklingError, SafetensorError, OSError, RuntimeError, EOFError, ValueError):
        return {}


def is_same(state: State, original: State) -> bool:
    """Whether a file still holds all the numbers of the original."""
    return state.keys() >= original.keys() and all(
        state[key].dtype == value.dtype and state[key].equal(value) for key, value in original.items()
    )


def is_another_model(state: State, original: State) -> bool:
    """Whether a file holds exactly the original's names, in floats, of its shapes, finite: weights to be opened."""
    if any(not HARMLESS.search(key) for key in state.keys() ^ original.keys()):
        return False
    for key in state.keys() & original.keys():
        value = original[key]
        has_type = state[key].dtype == value.dtype or (state[key].is_floating_point() and value.is_floating_point())
        if not has_type or state[key].shape != value.shape or not state[key].float().isfinite().all():
            return False
    return True


@pytest.mark.parametrize("name", LOADERS)
def test_changed_weights_are_refused_or_give_the_same_numbers(
    name: str, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """Other finite values are another model, with other numbers."""
    loader = LOADERS[name]
    folder = tmp_path_factory.mktemp("original") / "model"
    folder.mkdir()
    loader.write(folder)
    original = load_file(folder / WEIGHTS)
    expected = numbers_of(loader, folder)
    opened = 0
    for number in range(COUNT * TIMES):
        rng = Random(f"{SEED} {name} {number}")
        changed = folder.with_name("changed")
        shutil.copytree(folder, changed)
        write_changed(changed / WEIGHTS, original, rng)
        try:
            numbers = numbers_of(loader, changed)
        except CheckpointError as error:
            assert str(error).strip()  # noqa: PT017 (no error is right too)
            assert "\n" not in str(error)  # noqa: PT017
        except NonFiniteError:  # large, finite weights overflow in the model
            assert not is_same(read(changed / WEIGHTS), original)
        else:
            opened += 1
            state = read(changed / WEIGHTS)
            if is_same(state, original) or not is_another_model(state, original):
                torch.testing.assert_close(numbers, expected, msg=f"seed {SEED} {name} {number}")
        shutil.rmtree(changed)
    assert opened < COUNT * TIMES
