"""Readers of a LoRA's samples: names of trainers, patterns, tables, base images and prompts in words."""

from __future__ import annotations

from pathlib import Path

import pytest

from idmetric.data.manifest.table import Manifest
from idmetric.evaluate.protocols.checkpoints.reading import fields_by, read
from idmetric.metric.errors import RequestError
from tests.evaluate.protocols.test_generator_outputs import files, listed


@pytest.fixture
def refs(tmp_path: Path) -> str:
    return str(files(tmp_path / "refs", "1.jpg", "2.jpg"))


def samples(data: Manifest) -> list[tuple[str | None, ...]]:
    """Step, prompt and seed of each sample."""
    return [tuple(row) for row in listed(data, "generated", "method", "prompt", "seed")]


# Trainers


def test_kohya(tmp_path: Path, refs: str) -> None:
    out = files(
        tmp_path / "sample", "my_lora_001000_00_20240101130000_42.png", "my_lora_000500_00_20240101120000_42.png",
        "my_lora_000500_01_20240101120009_42.png",
    )  # fmt: skip
    expected = [("500", "00", "42"), ("500", "01", "42"), ("1000", "00", "42")]
    assert samples(read(out, references=refs)) == expected
    for name, fields in (
        ("dog_e000003_01_20240101120000_7.png", {"epoch": "e", "step": "000003", "prompt": "01", "seed": "7"}),
        ("000500_00_20240101120000_42.png", {"step": "000500", "prompt": "00", "seed": "42"}),
        ("000500_00_20240101120000.png", {"step": "000500", "prompt": "00"}),
        ("x/lora_20240101_1234567_11_20240101120000.png", {"step": "1234567", "prompt": "11"}),
    ):
        assert fields_by("kohya", name) == fields
    assert fields_by("kohya", "dog_final.png") is None


def test_ai_toolkit(tmp_path: Path, refs: str) -> None:
    names = [f"17123456789{k:02d}__{step:09d}_{k}.jpg" for step in (0, 250, 1000) for k in (0, 1)]
    data = read(files(tmp_path / "samples", *names), references=refs)
    assert samples(data) == [(step, prompt, "0") for step in ("0", "250", "1000") for prompt in ("0", "1")]


def test_diffusers(tmp_path: Path, refs: str) -> None:
    out = files(
        tmp_path / "out", "checkpoint-500/a_dog_0.png", "checkpoint-1000/a_dog_0.png", "checkpoint-1000/a_dog_1.png"
    )
    assert samples(read(out, references=refs)) == [
        ("500", "a_dog", "0"), ("1000", "a_dog", "0"), ("1000", "a_dog", "1"),
    ]  # fmt: skip
    for name, fields in (
        ("validation/step_500/a dog/3.png", {"step": "500", "prompt": "a dog", "seed": "3"}),
        ("checkpoint-20/0.png", {"step": "20", "seed": "0"}),
        ("checkpoint-20/a_dog.png", {"step": "20", "prompt": "a_dog"}),
    ):
        assert fields_by("diffusers", name) == fields


def test_names_of_no_trainer_and_of_two_kinds_are_refused(tmp_path: Path, refs: str) -> None:
    with pytest.raises(RequestError, match=r"such as a\.png, are not named as samples of kohya, ai-toolkit"):
        read(files(tmp_path / "a", "a.png"), references=refs)
    out = files(tmp_path / "b", "x_000500_00_20240101120000.png", "x_e000001_00_20240101120000.png", "grid.png")
    with pytest.raises(RequestError, match=r"1 images do not match .*names of kohya"):
        read(out, references=refs)
    (out / "grid.png").unlink()
    with pytest.raises(RequestError, match="1 images are samples of epochs"):
        read(out, references=refs)
    with pytest.warns(UserWarning, match="1 images"):
        data = read(out, "x_e{step}_{prompt}_{ignore}.png", references=refs, skip=True)
    assert samples(data) == [("1", "00", "0")]


# Patterns and tables


def test_steps_are_in_the_order_of_their_numbers(tmp_path: Path, refs: str) -> None:
    out = files(tmp_path / "out", *(f"s{step}/x_0.png" for step in ("900", "1000", "0020", "3")))
    data = read(out, "s{step}/{prompt}_{seed}.png", references=refs)
    assert [step for step, _, _ in samples(data)] == ["3", "20", "900", "1000"]
    with pytest.raises(RequestError, match=r"needs a field \{step\}"):
        read(out, "{method}/{prompt}_{seed}.png", references=refs)
    files(out, "s03/x_0.png")
    with pytest.raises(RequestError, match="are both of step '3'"):
        read(out, "s{step}/{prompt}_{seed}.png", references=refs)


def test_a_table_has_a_column_step(tmp_path: Path, refs: str) -> None:
    files(tmp_path, "b.png", "a.png")
    table = tmp_path / "t.csv"
    table.write_text("path,step,prompt,seed\na.png,1000,p,1\nb.png,200,p,1\n")
    assert samples(read(table, references=refs)) == [("200", "p", "1"), ("1000", "p", "1")]
    with pytest.raises(RequestError, match="--base is for folders"):
        read(table, references=refs, base=tmp_path)
    table.write_text("path,step,prompt,role\nb.png,,,reference\na.png,200.0,p,generated\n")  # as pandas writes it
    assert samples(read(table)) == [("200", "p", "0")]
    table.write_text("path,step\na.png,last\n")
    with pytest.raises(RequestError, match=r"a\.png: the step 'last' is not a whole number"):
        read(table, references=refs)


# Base, prompts, photos


@pytest.mark.parametrize("base", ["x_0.png", "checkpoint-0/x_0.png"])
def test_images_of_the_base_model_are_step_0(tmp_path: Path, refs: str, base: str) -> None:
    out, folder = files(tmp_path / "out", "checkpoint-500/x_0.png"), files(tmp_path / "base", base)
    expected = [("0", "x", "0"), ("500", "x", "0")]
    assert samples(read(out, references=refs, base=folder)) == expected
    assert samples(read(out, "checkpoint-{step}/{prompt}_{seed}.png", references=refs, base=folder)) == expected
    with pytest.raises(RequestError, match="has images of the base model already, as step 0"):
        read(files(out, "checkpoint-0/x_0.png"), references=refs, base=folder)


def test_prompts_are_read_in_words(tmp_path: Path, refs: str) -> None:
    out = files(tmp_path / "s", *(f"000500_0{k}_20240101120000_1.png" for k in (0, 1)))
    lines = tmp_path / "prompts.txt"
    lines.write_text("# of dogs\n\na photo of sks dog --w 512 --d 1\nsks dog, in-line --n bad\n")
    data = read(out, references=refs, prompts=lines)
    assert data.column("text")[:2] == ["a photo of sks dog", "sks dog, in-line"]
    assert read(out, references=refs).column("text")[:2] == [None, None]
    lines.write_text("one\n")
    with pytest.raises(RequestError, match=r"prompts\.txt has 1 prompts, and none of number 1"):
        read(out, references=refs, prompts=lines)


def test_photos_of_the_one_subject_may_lie_in_any_folder(tmp_path: Path) -> None:
    out = files(tmp_path / "out", "checkpoint-500/x_0.png")
    photos, train = files(tmp_path / "held_out", "dog/a/1.jpg", "2.jpg"), files(tmp_path / "img", "10_sks dog/3.jpg")
    data = read(out, references=str(photos), training=str(train))
    assert listed(data, "reference", "subject") == [["subject"]] * 2
    assert listed(data, "training", "subject") == [["subject"]]
    two = files(tmp_path / "two", "dog/5/x_0.png")
    data = read(two, "{subject}/{step}/{prompt}_{seed}.png", references=str(files(tmp_path / "r", "dog/1.jpg")))
    assert listed(data, "reference", "subject") == [["dog"]]
