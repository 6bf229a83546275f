"""The protocol `generator` against slow computations, and what it says of missing, copied and trained images."""

from __future__ import annotations

import csv
import itertools
import re
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch.nn.functional as F
from pandas import DataFrame
from PIL import Image, ImageOps

from idmetric import IDSim
from idmetric.cli import eval as cli
from idmetric.data.manifest import take, with_columns
from idmetric.evaluate.protocols.common import tables
from idmetric.evaluate.protocols.common.models import open_model
from idmetric.evaluate.protocols.common.result import Result, Value
from idmetric.evaluate.protocols.common.scorers import EvalSettings
from idmetric.evaluate.protocols.generator import confusion
from idmetric.evaluate.protocols.generator.example import example
from idmetric.evaluate.protocols.generator.images import Images as GeneratedImages
from idmetric.evaluate.protocols.generator.outputs import KNOWN, read
from idmetric.evaluate.protocols.generator_methods import GeneratorOptions, add_differences, run
from idmetric.evaluate.report.evaluation import eval_page
from idmetric.evaluate.report.verdict import verdict
from idmetric.metric.embedder import Embedder
from idmetric.metric.images import describe, read_image
from idmetric.scoring.calibration import CalibrationError, calibration_of
from idmetric.stream import Look
from tests.evaluate.protocols.parts import PLAIN, Drawn, Images, clip_folder, picture, values
from tests.runner import Runner
from tests.table_parts import a_row, a_table

PLACE = "{method}/{subject}/{prompt}_{seed}.png"
METHODS, SUBJECTS, PROMPTS, SEEDS = ("a", "b"), ("cat", "dog", "mug"), ("on_a_beach", "in_the_snow"), (0, 1, 2)


FIELDS: dict[str, Any] = dict.fromkeys(f"x_{name}" for name in KNOWN)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Outputs of two methods, and two or three references of three subjects."""
    for m, method in enumerate(METHODS):
        for s, subject in enumerate(SUBJECTS):
            for p, prompt in enumerate(PROMPTS):
                for seed in SEEDS:
                    picture(tmp_path / "out" / method / subject / f"{prompt}_{seed}.png", s + 10 * m, 1 + 3 * p + seed)
    for s, subject in enumerate(SUBJECTS):
        for k in range(2 + (s == 0)):
            picture(tmp_path / "refs" / subject / f"{k}.png", s, 50 + k)
    return tmp_path


def given(folder: Path, **more: str) -> DataFrame:
    return read(folder / "out", PLACE, references=str(folder / "refs"), **more)  # type: ignore[arg-type]


def cosine(metric: Embedder) -> Callable[[Path, Path], float]:
    vectors: dict[Path, np.ndarray] = {}

    def of(a: Path, b: Path) -> float:
        for path in (a, b):
            if path not in vectors:
                vectors[path] = F.normalize(metric.embed(path).cls.double(), dim=-1)[0].numpy()
        return float(vectors[a] @ vectors[b])

    return of


def test_numbers_are_those_of_loops(folder: Path, metric: IDSim) -> None:
    [result] = run(
        given(folder),
        {"m": metric},
        EvalSettings(bootstrap=40, workers=1),
        GeneratorOptions(by=("prompt",), threshold=0.1),
    )
    like, refs = cosine(metric), {s: sorted((folder / "refs" / s).iterdir()) for s in SUBJECTS}

    def image(method: str, subject: str, prompt: str, seed: int) -> Path:
        return folder / "out" / method / subject / f"{prompt}_{seed}.png"

    photos = {s: [np.mean([like(a, b) for b in refs[s] if a != b]) for a in refs[s]] for s in SUBJECTS}
    real = {s: np.mean(of) for s, of in photos.items()}
    real_same = np.mean([np.mean(np.array(of) >= 0.9) for of in photos.values()])
    for method in METHODS:
        for group, prompts in (("all", PROMPTS), *((f"prompt: {p}", (p,)) for p in PROMPTS)):
            row = values(result, method=method, group=group)
            own = {s: [np.mean([like(image(method, s, p, k), r) for r in refs[s]]) for p in prompts for k in SEEDS]
                   for s in SUBJECTS}  # fmt: skip
            assert row["identity"].value == pytest.approx(np.mean(list(own.values())), abs=1e-6)
            assert row["identity"].count == 9 * len(prompts)
            assert row["identity"].low <= row["identity"].value <= row["identity"].high  # type: ignore[operator]
            assert row["same"].value == pytest.approx(np.mean(np.array(list(own.values())) >= 0.9))
            assert row["real"].value == pytest.approx(np.mean(list(real.values())), abs=1e-6)
            assert row["real same"].value == pytest.approx(real_same)
            several = [(i, j) for i in SEEDS for j in range(i)]
            apart = [np.mean([1 - like(image(method, s, p, i), image(method, s, p, j)) for i, j in several])
                     for s in SUBJECTS for p in prompts]  # fmt: skip
            assert row["diversity"].value == pytest.approx(np.mean(apart), abs=1e-6)
            assert row["copies"].value == 0

    pair = values(result, method="a - b")
    differences = []
    for subject, prompt, seed in itertools.product(SUBJECTS, PROMPTS, SEEDS):
        of_a = [like(image("a", subject, prompt, seed), photo) for photo in refs[subject]]
        of_b = [like(image("b", subject, prompt, seed), photo) for photo in refs[subject]]
        differences.append(np.mean(of_a) - np.mean(of_b))
    assert pair["identity"].value == pytest.approx(np.mean(differences), abs=1e-6)
    tests = result.items["tests"]
    assert tests["metric"] == ["identity", "diversity"]
    assert tests["subjects"] == [3, 3]
    assert pair["p"].value == pytest.approx(tests["p"][0])  # one comparison: nothing to correct
    items = result.items["images"]
    assert len(items["image"]) == 36
    assert items["image"][0] == "a/cat/in_the_snow_0.png"
    best = max(refs["cat"], key=lambda path: like(image("a", "cat", "in_the_snow", 0), path))
    assert items["nearest"][0] == f"../refs/cat/{best.name}"
    assert not result.notes[0].startswith("a lacks")


def test_methods_are_set_side_by_side_place_by_place(folder: Path, metric: IDSim) -> None:
    (folder / "out" / "b" / "cat" / "on_a_beach_1.png").unlink()
    [result] = run(given(folder), {"tiny": metric}, PLAIN)
    images, places = result.items["images"], result.items["side_by_side"]
    assert len(places["subject"]) == 17  # of all that both methods have
    scores = dict(zip(images["image"], images["identity"], strict=True))
    of = places["subject"], places["prompt"], places["seed"]
    for k, (subject, prompt, seed) in enumerate(zip(*of, strict=True)):
        assert (subject, prompt, seed) != ("cat", "on_a_beach", "1")
        names = {method: f"{method}/{subject}/{prompt}_{seed}.png" for method in METHODS}
        for method, name in names.items():
            assert (places[f"by {method}"][k], places[f"by {method}_score"][k]) == (name, scores[name])
        assert places["lowest"][k] == min(scores[name] for name in names.values())
        assert places["reference"][k] == f"../refs/{subject}/0.png"

    subjects = result.items["subjects"]
    for k, (method, subject) in enumerate(zip(subjects["method"], subjects["subject"], strict=True)):
        worst = min((v, name) for name, v in scores.items() if name.startswith(f"{method}/{subject}/"))
        assert (subjects["worst_score"][k], subjects["worst"][k]) == worst


@pytest.mark.parametrize(
    ("methods", "subjects", "against", "expected"),
    [
        (6, 8, None, "8 subjects in 15 comparisons is 0.117; 10 subjects or 5 comparisons (--against METHOD) would do"),
        (3, 6, None, "6 subjects in 3 comparisons is 0.094; 7 subjects would do"),
        (6, 8, "m0", None),
        (6, 10, None, None),
        (2, 5, None, "5 subjects in 1 comparison is 0.062; 6 subjects would do"),
    ],
)  # fmt: skip
def test_a_p_that_no_difference_can_bring_below_5_percent_is_stated(
    methods: int, subjects: int, against: str | None, expected: str | None
) -> None:
    """Differences of one sign for all subjects, as large as they may be, reach the stated p, and no lower one."""
    identity = {f"m{m}": {(f"s{k}", "x", "0"): 0.01 * m * (1 + k) for k in range(subjects)} for m in range(methods)}
    result = Result("generator", "m", [])
    add_differences(result, {"identity": identity}, EvalSettings(bootstrap=0), against)
    tested, *notes = result.notes
    count = methods - 1 if against else methods * (methods - 1) // 2
    assert tested.startswith(f"tested: {count} comparison")
    assert notes == ([] if expected is None else [f"no winner can be shown: the smallest p of {expected}"])
    least = min(row["p"].value for row in result.rows)  # type: ignore[union-attr]
    if expected is None:
        assert least < 0.05
    else:
        assert f" is {least:.3f}; " in expected


@pytest.mark.parametrize("against", [None, "a", "copy"])
def test_a_method_that_copies_is_in_no_comparison(against: str | None) -> None:
    identity = {
        name: {(f"s{k}", "x", "0"): base + 0.001 * k for k in range(8)}
        for name, base in (("a", 0.5), ("copy", 0.9), ("b", 0.6))
    }
    shares = {"a": 0.0, "copy": 0.11, "b": 0.1}
    rows: list[dict[str, str | Value]] = [
        {"method": name, "group": "all", "copies": Value(share, None, None, 8)} for name, share in shares.items()
    ]
    result = Result("generator", "m", rows)
    add_differences(result, {"identity": identity}, EvalSettings(), against)
    tests, note = result.items["tests"], result.notes[0]
    if against == "copy":
        assert (tests["a"], len(result.rows)) == ([], 3)
        assert note == "no method is tested: --against copy is a method that copies"
        return
    [*_, difference] = result.rows
    assert (tests["tests"], tests["p_holm"]) == ([1], [2 / 2**8])  # not corrected for pairs with `copy`
    assert difference["p"] == Value(2 / 2**8, None, None, 8)
    assert difference["method"] == ("a - b" if against is None else "b - a")
    assert note == f"tested: 1 comparison, of {tests['a'][0]} with {tests['b'][0]}; not tested, because of copies: copy"


def test_intervals_need_three_subjects_and_stay_in_the_range_of_their_number(folder: Path, metric: IDSim) -> None:
    """With two subjects an interval of identity was [-2.925, 3.678]."""
    settings, options = EvalSettings(workers=1), GeneratorOptions(held_out=True, threshold=0.1)
    [three] = run(given(folder), {"m": metric}, settings, options)
    ranges = {"identity": (-1, 1), "real": (-1, 1), "diversity": (0, 2), "same": (0, 1),
              "copies": (0, 1)}  # fmt: skip
    for name, (least, most) in ranges.items():
        value = values(three, method="a", group="all")[name]
        assert least <= value.low <= value.value <= value.high <= most, name  # type: ignore[operator]
    for path in (folder / "out").glob("*/mug/*"):
        path.unlink()
    [two] = run(given(folder), {"m": metric}, settings, options)
    for row in two.rows:
        assert {(v.low, v.high) for v in row.values() if isinstance(v, Value)} == {(None, None)}
    assert two.items["tests"]["low"] == [None, None]


@pytest.mark.parametrize(("subjects", "trials"), [(3, 15), (8, 25)])
def test_random_halves_of_one_method_get_no_winner(
    tmp_path: Path, subjects: int, trials: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One method's images under two names, drawn again and again: who keeps identity best is a matter of chance."""
    monkeypatch.setattr("idmetric.evaluate.report.evaluation._plots", lambda results: [])  # slow to draw
    rows, images = [], Images(tmp_path)
    for subject in range(subjects):
        rows += [a_row(f"s{subject}", images(subject, n, 1)) for n in range(2)]
        rows += [a_row(None, images(subject, n)) for n in range(8)]
    role = (["reference"] * 2 + ["generated"] * 8) * subjects
    subject_of = [f"s{subject}" for subject in range(subjects) for _ in range(10)]
    data = a_table(rows, tmp_path)
    rng = np.random.default_rng(subjects)
    winners = apart = 0
    for _ in range(trials):
        method: list[str | None] = []
        seed: list[str | None] = []
        for _ in range(subjects):
            order = rng.permutation(8)
            method += [None, None, *("a" if k < 4 else "b" for k in order)]
            seed += [None, None, *(str(k % 4) for k in order)]
        columns = {**FIELDS, "x_role": role, "x_subject": subject_of, "x_method": method, "x_seed": seed}
        settings = EvalSettings(bootstrap=200, workers=1)
        [result] = run(with_columns(data, **columns), {"drawn": Drawn()}, settings, GeneratorOptions(copies=False))
        page = eval_page([result])
        winners += "keeps identity best</bdi>" in page
        difference = values(result, group="paired")["identity"]
        apart += not difference.low <= 0 <= difference.high  # type: ignore[operator]
    # 6 % of the trials, and two standard errors
    most = trials * (0.06 + 2 * np.sqrt(0.05 * 0.95 / trials))
    assert max(winners, apart) <= most
    if subjects == 3:
        assert winners == 0
        assert "Too few subjects for a winner" in page


def test_a_method_without_a_subject_and_images_does_not_rise(folder: Path) -> None:
    """Methods are compared on the places that all have, whatever is deleted from one of them."""
    model, options = {"hsv": open_model("hsv")}, GeneratorOptions(held_out=True)
    for path in (folder / "out").glob("*/mug/*"):
        path.rename(path.with_suffix(".later"))
    (folder / "out" / "a" / "dog" / "on_a_beach_1.png").rename(folder / "a.later")
    (folder / "out" / "b" / "dog" / "on_a_beach_1.png").rename(folder / "b.later")
    [common] = run(given(folder), model, PLAIN, options)
    for path in (folder / "out" / "b").glob("mug/*"):
        path.rename(path.with_suffix(".png"))
    (folder / "a.later").rename(folder / "out" / "a" / "dog" / "on_a_beach_1.png")

    picture(folder / "refs" / "unused" / "0.png", 99)  # fewer photos than any other: not a rival of images either
    [result] = run(given(folder), model, PLAIN, options)
    assert result.rows == common.rows
    assert result.notes[:4] == [
        "a lacks 6 of 18 combinations of subject, prompt and seed: " + result.notes[0].partition(": ")[2],
        "b lacks 1 of 18 combinations of subject, prompt and seed: dog/on_a_beach/1",
        "no images of 1 subjects with references: unused",
        "compared on the 11 of 18 combinations of subject, prompt and seed that all have; other images are left out",
    ]
    assert result.settings["compared_on"] == "11 of 18 combinations of subject, prompt and seed"
    missing = result.items["missing"]
    assert missing["method"] == ["a"] * 6 + ["b"]
    assert (missing["subject"][-1], missing["prompt"][-1], missing["seed"][-1]) == ("dog", "on_a_beach", "1")
    page = verdict(result)
    assert page is not None
    assert page.details[-1].startswith("Compared on the 11 of 18 combinations")


def test_methods_with_other_seeds_are_compared_on_their_common_subjects(folder: Path) -> None:
    for path in (folder / "out" / "b").glob("*/*_?.png"):
        path.rename(path.with_name(path.name.replace("_", "_7", 3).replace("_7", "_", 2)))
    for path in (folder / "out" / "b" / "mug").iterdir():
        path.unlink()
    [result] = run(given(folder), {"hsv": open_model("hsv")}, PLAIN)
    assert {values(result, method=method)["identity"].count for method in METHODS} == {12}
    assert "compared on the 2 of 3 subjects that all have; other images are left out" in result.notes


def test_references_seen_in_training_are_named(folder: Path) -> None:
    model = {"hsv": open_model("hsv")}

    def warned(data: DataFrame, options: GeneratorOptions = GeneratorOptions()) -> list[str]:  # noqa: B008
        [result] = run(data, model, PLAIN, options)
        return [note for note in result.notes if note.startswith("WARNING") and note != confused_note(result)]

    assert "nothing states" in warned(given(folder))[0]
    assert warned(given(folder), GeneratorOptions(held_out=True)) == []
    (folder / "train" / "dog").mkdir(parents=True)
    picture(folder / "train" / "dog" / "x.png", 77)
    assert warned(given(folder, training=str(folder / "train"))) == []
    (folder / "train" / "dog" / "y.png").write_bytes((folder / "refs" / "dog" / "1.png").read_bytes())
    [note] = warned(given(folder, training=str(folder / "train")), GeneratorOptions(held_out=True))
    assert "trained on 1 of 7 references" in note
    assert "../refs/dog/1.png" in note


def test_the_weakest_subject_of_an_image_is_visible(tmp_path: Path, metric: IDSim) -> None:
    """An image of a pair is scored against either subject; a table may name it twice, too."""
    for s, subject in enumerate(("cat", "dog", "mug")):
        picture(tmp_path / f"{subject}.png", s)
    pairs = {"0.png": ("cat", "dog"), "1.png": ("dog", "mug"), "2.png": ("mug",)}
    lines = ["path,method,subject,prompt,role"]
    for k, (name, shown) in enumerate(pairs.items()):
        picture(tmp_path / name, k, 5)
        lines += [f"{name},m,{subject},p{k}," for subject in shown]
    lines += [f"{subject}.png,,{subject},,reference" for subject in ("cat", "dog", "mug")]
    (tmp_path / "t.csv").write_text("\n".join(lines))
    [result] = run(read(tmp_path / "t.csv"), {"tiny": metric}, EvalSettings(bootstrap=20))

    like = cosine(metric)
    each = {name: {s: like(tmp_path / name, tmp_path / f"{s}.png") for s in shown} for name, shown in pairs.items()}
    row = values(result, method="m")
    every = [value for of in each.values() for value in of.values()]
    assert (row["identity"].value, row["identity"].count) == (pytest.approx(np.mean(every), abs=1e-6), 5)
    assert row["weakest"].value == pytest.approx(np.mean([min(of.values()) for of in each.values()]), abs=1e-6)
    assert row["weakest"].count == 3
    scenes = result.items["scenes"]
    assert [name.split()[0] for name in scenes["image"]] == ["0.png", "1.png"]
    for k, name in enumerate(("0.png", "1.png")):
        weakest = min(each[name], key=lambda subject: each[name][subject])
        assert (scenes["weakest"][k], scenes["nearest"][k]) == (weakest, f"{weakest}.png")
        assert scenes["lowest"][k] == pytest.approx(each[name][weakest], abs=1e-6)
        assert scenes["mean"][k] == pytest.approx(np.mean(list(each[name].values())), abs=1e-6)


def test_pasted_references_of_two_subjects_are_not_called_new(tmp_path: Path) -> None:
    """Both references side by side: neither half is found as a copy, and a calibration is of single subjects."""
    both = Image.new("RGB", (64, 32))
    lines = ["path,method,subject,role"]
    for s, subject in enumerate(("cat", "dog")):
        picture(tmp_path / f"{subject}.png", s)
        both.paste(Image.open(tmp_path / f"{subject}.png"), (32 * s, 0))
        lines += [f"both.png,m,{subject},", f"{subject}.png,,{subject},reference"]
    both.save(tmp_path / "both.png")
    (tmp_path / "t.csv").write_text("\n".join(lines))
    tiny = {"tiny": IDSim("tiny", device="cpu")}
    [result] = run(read(tmp_path / "t.csv"), tiny, PLAIN)
    [row] = result.rows
    assert row["copies"] == "not checked"
    assert "same" not in row
    assert any(note.startswith("images show several subjects: copies are not checked") for note in result.notes)
    assert "not checked" in tables.table([result])
    page = verdict(result)
    assert page is not None
    assert "Copies were not checked: images show several subjects." in page.details

    [given] = run(read(tmp_path / "t.csv"), tiny, PLAIN, GeneratorOptions(threshold=0.7))
    assert "same" in given.rows[0]  # your threshold may be of such images
    (tmp_path / "t.csv").write_text("\n".join(line for line in lines if "both.png,m,dog" not in line))
    [alone] = run(read(tmp_path / "t.csv"), tiny, PLAIN)
    assert isinstance(alone.rows[0]["copies"], Value)
    assert "same" in alone.rows[0]


@pytest.mark.filterwarnings("ignore::idmetric.metric.masks.MaskWarning")
def test_masks_separate_the_subjects_of_an_image(tmp_path: Path, metric: IDSim) -> None:
    """Two subjects side by side: alone, each is what its reference shows, which the whole image is not."""
    both = Image.new("RGB", (64, 32))
    for s, subject in enumerate(("cat", "dog")):
        picture(tmp_path / f"{subject}.png", s)
        both.paste(Image.open(tmp_path / f"{subject}.png"), (32 * s, 0))
        mask = Image.new("L", (64, 32))
        mask.paste(255, (32 * s, 0, 32 * s + 32, 32))
        mask.save(tmp_path / f"{subject}-mask.png")
    both.save(tmp_path / "both.png")
    Image.new("L", (32, 32), 255).save(tmp_path / "all.png")
    lines = ["path,mask,method,subject,role"]
    for subject in ("cat", "dog"):
        lines += [f"both.png,{subject}-mask.png,m,{subject},", f"{subject}.png,all.png,,{subject},reference"]
    (tmp_path / "t.csv").write_text("\n".join(lines))
    data, alone = read(tmp_path / "t.csv"), Look(masked=True, outside="crop")
    whole, cropped = (run(data, {"m": metric}, EvalSettings(bootstrap=0, look=look))[0] for look in (Look(), alone))
    assert values(cropped, method="m")["weakest"].value == pytest.approx(1, abs=1e-4)
    assert values(whole, method="m")["weakest"].value < 0.99
    assert len(cropped.items["scenes"]["image"]) == 1


# Confused subjects


def drawn_outputs(folder: Path, methods: dict[str, Callable[[int, int], int]], subjects: int, photos: int) -> DataFrame:
    """Four images of each subject by each method, which show the subject that the method's function names."""
    rows, images = [], Images(folder)
    columns: dict[str, list[str | None]] = {name: [] for name in FIELDS}

    def add(shown: int, number: int, **fields: str) -> None:
        rows.append(a_row(None, images(shown, number)))
        for name, column in columns.items():
            column.append(fields.get(name.removeprefix("x_")))

    for subject in range(subjects):
        for number in range(photos):
            add(subject, number, role="reference", subject=f"s{subject}")
    for number, (method, shown) in enumerate(methods.items()):
        for subject in range(subjects):
            for seed in range(4):
                add(
                    shown(subject, seed),
                    50 + 50 * number + 4 * subject + seed,
                    role="generated",
                    subject=f"s{subject}",
                    method=method,
                    seed=str(seed),
                )
    return with_columns(a_table(rows, folder), **columns)


def confused_note(result: Result) -> str:
    """The note on images that are nearer to another subject; empty without one."""
    return "".join(note for note in result.notes if "nearer to another subject" in note)


def test_a_method_that_draws_another_subject_in_half_of_its_images_is_named(tmp_path: Path) -> None:
    methods = {"half": lambda subject, seed: (subject + seed % 2) % 12, "right": lambda subject, seed: subject}
    data = drawn_outputs(tmp_path, methods, subjects=12, photos=3)
    options = GeneratorOptions(held_out=True, copies=False)
    [result] = run(data, {"drawn": Drawn(spread=0.3)}, PLAIN, options)
    assert confused_note(result) == (
        "WARNING: 24 of 48 images by half are nearer to another subject's photos than to their own subject's "
        "(0 % of real photos)"
    )


def test_confused_images_and_real_photos_are_those_of_loops(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Unequal numbers of photos: means over all draws of equally many. Real photos are left out in turn."""
    data = drawn_outputs(tmp_path, {"m": lambda subject, seed: subject}, subjects=5, photos=4)
    dropped = [4 * 2, 4 * 3, 4 * 4, 4 * 4 + 1]  # 4, 4, 3, 3 and 2 photos stay
    data = take(data, [row for row in range(len(data)) if row not in dropped])
    model = Drawn(spread=3.0)
    shares: list[Any] = []
    for name in ("_of_images", "_of_photos"):
        of_module = getattr(confusion, name)
        monkeypatch.setattr(confusion, name, lambda *args, of=of_module: shares.append(of(*args)) or shares[-1])
    run(data, {"drawn": model}, PLAIN, GeneratorOptions(held_out=True, copies=False))
    of_images, of_photos = shares

    vectors = model.of(data)
    role, subject_of = data["x_role"].tolist(), data["x_subject"].tolist()
    photos: dict[str, list[int]] = {}
    for number in np.flatnonzero(np.array(role) == "reference").tolist():
        photos.setdefault(subject_of[number], []).append(number)
    assert [len(of) for of in photos.values()] == [4, 4, 3, 3, 2]

    def confused(row: int, size: int) -> float:
        """The share of draws, other subjects independently, in which another subject's mean is higher."""
        means = {}
        for name, rows in photos.items():
            draws = itertools.combinations([r for r in rows if r != row], size)
            means[name] = np.array([np.mean(vectors[list(draw)] @ vectors[row]) for draw in draws])
        own = means.pop(subject_of[row])
        not_nearer = [np.prod([np.mean(of < value) for of in means.values()]) for value in own]
        return 1 - float(np.mean(not_nearer))

    expected = [confused(row, 2) for row in range(len(data)) if role[row] == "generated"]
    assert 0.1 < np.mean(expected) < 0.9
    assert of_images == pytest.approx(expected, abs=0.2)
    assert np.mean(of_images) == pytest.approx(np.mean(expected), abs=0.02)
    real = [np.mean([confused(r, min(2, len(rows) - 1)) for r in rows]) for rows in photos.values()]
    assert np.mean(list(of_photos.values())) == pytest.approx(np.mean(real), abs=0.03)


def test_copies_of_a_reference_are_not_real_photos_that_could_be_confused(tmp_path: Path) -> None:
    """Two subjects with one photo each, as PNG and as BMP: how real photos are confused is not known."""
    for subject in (1, 2):
        picture(tmp_path / "refs" / f"s{subject}" / "a.png", subject, 1)
        with Image.open(tmp_path / "refs" / f"s{subject}" / "a.png") as image:
            image.save(tmp_path / "refs" / f"s{subject}" / "a.bmp")
        picture(tmp_path / "out" / "m" / f"s{subject}" / "p_0.png", 3 - subject, 2)
    data = read(tmp_path / "out", "{method}/{subject}/{prompt}_{seed}.png", references=str(tmp_path / "refs"))
    [result] = run(data, {"m": Drawn()}, PLAIN, GeneratorOptions(copies=False))
    [row] = [row for row in result.rows if row["method"] == "m"]
    assert confused_note(result).endswith("(unknown for real photos: subjects have one)")
    assert "real" not in row


def test_each_image_is_decoded_once_for_the_model_sizes_and_copies(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for subject in (1, 2):
        for view in (1, 2):
            picture(tmp_path / "refs" / f"s{subject}" / f"{view}.png", subject, view)
        picture(tmp_path / "out" / "m" / f"s{subject}" / "p_0.png", subject, 3)
    data = read(tmp_path / "out", "{method}/{subject}/{prompt}_{seed}.png", references=str(tmp_path / "refs"))
    opened: list[str] = []

    def counted(source: Any, **more: Any) -> Any:
        opened.append(describe(source))
        return read_image(source, **more)

    monkeypatch.setattr("idmetric.stream.read_image", counted)
    run(data, {"m": Drawn()}, PLAIN, GeneratorOptions())
    assert len(opened) == len(set(opened)) == 6


def test_the_other_subject_of_an_image_of_two_is_not_a_confusion(tmp_path: Path) -> None:
    images = Images(tmp_path)
    rows = [a_row(None, images(subject, 0)) for subject in range(3)]
    rows += [a_row(None, images(1, 9), id=f"of both, s{subject}") for subject in (0, 1)]
    columns = {
        **FIELDS,
        "x_role": ["reference"] * 3 + ["generated"] * 2,
        "x_subject": ["s0", "s1", "s2", "s0", "s1"],
        "x_method": [None] * 3 + ["m"] * 2,
    }
    generated = GeneratedImages.of(with_columns(a_table(rows, tmp_path), **columns))
    competes = confusion._competing(generated, np.array([0, 1]), 3)
    assert competes.tolist() == [[True, False, True], [False, True, True]]


# Copies


def test_copies_of_references_and_of_training_images_count(folder: Path, photos: list[Path]) -> None:
    for k, subject in enumerate(SUBJECTS):
        Image.open(photos[k]).save(folder / "refs" / subject / "photo.jpg")
    ImageOps.mirror(Image.open(photos[0]).convert("RGB")).save(folder / "out" / "a" / "cat" / "on_a_beach_0.png")
    Image.open(photos[3]).save(folder / "out" / "b" / "dog" / "on_a_beach_0.png")
    (folder / "train" / "dog").mkdir(parents=True)
    Image.open(photos[3]).convert("RGB").save(folder / "train" / "dog" / "0.jpg", quality=80)
    data = given(folder, training=str(folder / "train"))
    settings = EvalSettings(bootstrap=0, store=folder / "store")
    [result] = run(data, {"hsv": open_model("hsv")}, settings)
    items = result.items["images"]
    copied = [name for name, copy in zip(items["image"], items["copy"], strict=True) if copy]
    assert copied == ["a/cat/on_a_beach_0.png", "b/dog/on_a_beach_0.png"]
    assert list(filter(None, items["copied"])) == ["../refs/cat/photo.jpg", "../train/dog/0.jpg"]
    assert values(result, method="a")["copies"].value == pytest.approx(1 / 18)


def test_gray_images_are_named_where_all_references_are_in_color(folder: Path) -> None:
    gray = folder / "out" / "a"
    for path in (
        gray / "cat" / "on_a_beach_0.png",
        gray / "mug" / "in_the_snow_1.png",
        folder / "refs" / "mug" / "0.png",
    ):
        Image.open(path).convert("L").save(path)
    [result] = run(given(folder), {"hsv": open_model("hsv")}, PLAIN)
    [note] = [note for note in result.notes if "gray" in note]
    assert note.startswith("WARNING: 1 images are gray where the references are in color")
    assert "cat" in note
    assert "on_a_beach" in note
    [result] = run(given(folder), {"hsv": open_model("hsv")}, PLAIN, GeneratorOptions(copies=False))
    assert "gray" not in " ".join(result.notes)  # not looked for


def test_a_second_run_embeds_nothing(folder: Path, metric: IDSim, monkeypatch: pytest.MonkeyPatch) -> None:
    settings = EvalSettings(bootstrap=0, store=folder / "store", workers=1)
    [first] = run(given(folder), {"m": metric}, settings)
    monkeypatch.setattr(type(metric), "embed", None)
    [second] = run(given(folder), {"m": metric}, settings)
    assert (second.rows, second.items) == (first.rows, first.items)


def test_the_threshold_is_that_of_the_calibration(folder: Path, metric: IDSim) -> None:
    tiny = IDSim("tiny", device="cpu")
    [result] = run(given(folder), {"tiny": tiny}, PLAIN)
    [point] = [t for t in calibration_of(tiny).thresholds if t["false_accept_rate"] == 0.05]  # type: ignore[union-attr]
    threshold = float(point["distance"])
    of_a = [
        identity >= 1 - threshold
        for identity, method in zip(*(result.items["images"][name] for name in ("identity", "method")), strict=True)
        if method == "a"
    ]
    assert values(result, method="a")["same"].value == pytest.approx(np.mean(of_a))
    assert f"same: images up to a mean distance of {threshold:.4f} (stored calibration, 5 % of pairs)" in result.notes
    source = "stored calibration, 5 % of pairs"
    assert (result.settings["same"], result.settings["same_source"]) == (threshold, source)

    path = folder / "other.json"
    calibration_of(tiny).write(path)  # type: ignore[union-attr]
    [by_file] = run(given(folder), {"tiny": tiny}, PLAIN, GeneratorOptions(calibration=path))
    assert by_file.settings["same_source"] == "other.json, 5 % of pairs"
    with pytest.raises(CalibrationError, match="was made for"):
        run(given(folder), {"m": metric}, PLAIN, GeneratorOptions(calibration=path))
    [without] = run(given(folder), {"m": metric}, PLAIN)
    assert "same" not in values(without, method="a")

    # a calibration of higher rates alone gives no threshold
    high = tuple(t for t in calibration_of(tiny).thresholds if t["false_accept_rate"] == 0.1)  # type: ignore[union-attr]
    replace(calibration_of(tiny), thresholds=high).write(path)  # type: ignore[type-var]
    with pytest.raises(CalibrationError, match=r"--rates 0\.05"):
        run(given(folder), {"tiny": tiny}, PLAIN, GeneratorOptions(calibration=path))
    [chosen] = run(given(folder), {"m": metric}, PLAIN, GeneratorOptions(threshold=2.0))
    assert values(chosen, method="a")["same"].value == values(chosen, method="a")["real same"].value == 1


def test_prompt_fidelity_is_the_cosine_of_image_and_prompt(folder: Path) -> None:
    clip = open_model(f"dual:{clip_folder(folder, 'clip')}", device="cpu")
    [result] = run(given(folder), {"hsv": open_model("hsv"), "CLIP-T": clip}, PLAIN)
    items = result.items["images"]
    for k in (0, 17, 35):
        pixels = clip.prepare(Image.open(folder / "out" / items["image"][k]).convert("RGB"), None, None)
        image = clip.embed_prepared([pixels], False).cls[0]
        [text] = clip.texts([items["prompt"][k].replace("_", " ")])
        assert items["clip_t"][k] == pytest.approx(float(image @ text), abs=1e-5)
    own = [v for v, m in zip(items["clip_t"], items["method"], strict=True) if m == "a"]
    assert values(result, method="a")["CLIP-T"].value == pytest.approx(np.mean(own))
    assert "CLIP-T" in values(result, method="a - b")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (GeneratorOptions(by=("color",)), "--by color: no such column; there are .*method.*prompt"),
        (GeneratorOptions(against="c"), "--against 'c': no such method; there are a, b"),
    ],
)
def test_unknown_names_are_refused(folder: Path, options: GeneratorOptions, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        run(given(folder), {"hsv": open_model("hsv")}, PLAIN, options)


def test_a_threshold_that_is_no_distance_is_refused() -> None:
    for threshold in (-0.1, float("nan")):
        with pytest.raises(ValueError, match="threshold must be at least 0"):
            GeneratorOptions(threshold=threshold)


def test_the_command_prints_a_row_for_each_method(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run_ = Runner(cli.main, capsys)
    words = ["generator", "--data", folder / "out", "--references", folder / "refs", "--model", "hsv", "--bootstrap",
             "20", "--out", folder / "r", "--device", "cpu"]  # fmt: skip
    assert run_(*words, "--pattern", PLACE, "--against", "b", "--format", "csv", "--held-out") == 0
    rows = list(csv.DictReader(capsys.readouterr().out.splitlines()))
    assert {(r["method"], r["group"]) for r in rows} == {("a", "all"), ("b", "all"), ("a - b", "paired")}
    written = {path.name for path in (folder / "r").iterdir()}
    assert {f"generator.hsv.{kind}.parquet" for kind in ("images", "subjects", "tests")} <= written
    picture(folder / "out" / "grid.png", 5)
    run_.says("1 images do not match", *words, "--pattern", PLACE)
    status, _, err = run_.all(*words, "--pattern", PLACE, "--held-out", "--on-error", "skip")
    assert status == 0
    [line] = [line for line in err.splitlines() if "warn" in line.lower() or "left out" in line]
    assert line.startswith("idmetric eval: 1 images do not match")
    assert line.endswith(str(folder / "out" / "grid.png"))
    run_.says("--out DIR is needed", "generator", "--model", "hsv")
    run_.says("name its layout by --pattern", *words)


def test_the_command_explains_and_never_wraps(
    folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    words = ["generator", "--data", folder / "out", "--pattern", PLACE, "--references", folder / "refs", "--model",
             "hsv", "--bootstrap", "20", "--out", folder / "r", "--device", "cpu", "--held-out"]  # fmt: skip
    monkeypatch.setenv("COLUMNS", "40")
    out = Runner(cli.main, capsys).prints("identity: mean over images", *words, "--explain")
    table, _, explained = out.partition("identity: mean over images")
    assert all(len(line) <= 40 for line in table.splitlines() if line.startswith(("method", "a ", "b ")))
    assert str(folder / "r" / "generator.md") in table
    assert "copies: share of images" in explained


def test_copies_among_references_count_once_in_real(folder: Path, metric: IDSim) -> None:
    for subject in SUBJECTS:
        shutil.rmtree(folder / "refs" / subject)
        (folder / "refs" / subject).mkdir()
        for k, letter in enumerate("abc"):
            photo = Image.open(f"examples/images/{'mug' if subject == 'mug' else 'box'}_{letter}.png").convert("RGB")
            photo.save(folder / "refs" / subject / f"{k}.png")

    def measured() -> Result:
        [result] = run(given(folder), {"m": metric}, PLAIN)
        return result

    once = measured()
    assert not any("repeat the picture" in note for note in once.notes)
    for subject in SUBJECTS:
        for path in sorted((folder / "refs" / subject).iterdir()):
            Image.open(path).save(path.with_name(f"{path.stem}_again.jpg"), quality=90)
    twice = measured()
    assert "9 references repeat the picture of another, and count once in real: " in " ".join(twice.notes)

    like, refs = cosine(metric), {s: sorted((folder / "refs" / s).glob("?.png")) for s in SUBJECTS}
    real = {s: np.mean([like(a, b) for a in refs[s] for b in refs[s] if a != b]) for s in SUBJECTS}
    for result in (once, twice):
        row = values(result, method="a", group="all")
        assert row["real"].value == pytest.approx(np.mean(list(real.values())), abs=1e-6)
        reals = dict(zip(result.items["subjects"]["subject"], result.items["subjects"]["real"], strict=True))
        assert reals == pytest.approx(real, abs=1e-6)


def test_one_method_at_two_sizes_is_a_warning_with_both_sizes(folder: Path, metric: IDSim) -> None:
    """Equal images but for their size get other scores, so the size is a column."""
    for path in (folder / "out" / "a").glob("*/*.png"):
        picture = Image.open(path)
        picture.resize((96, 64)).save(folder / "out" / "b" / path.relative_to(folder / "out" / "a"))
    [result] = run(given(folder), {"tiny": metric}, PLAIN, GeneratorOptions(by=("subject",)))
    size = {row["method"]: row["image size"] for row in result.rows if row["group"] == "all"}
    assert size == {"a": "32x32", "b": "96x64"}
    [note] = [note for note in result.notes if "differ in size" in note]
    assert note.startswith("WARNING: images differ in size (a 32x32, b 96x64)")
    assert values(result, method="a", group="all")["identity"] != values(result, method="b", group="all")["identity"]
    head, *lines = tables.table([result]).splitlines()
    assert "image size" in head
    assert any(line.split()[:2] == ["b", "96x64"] for line in lines)

    Image.open(folder / "out" / "a" / "cat" / "on_a_beach_0.png").resize((20, 30)).save(
        folder / "out" / "a" / "cat" / "on_a_beach_0.png"
    )
    [result] = run(given(folder), {"tiny": metric}, PLAIN)
    assert result.rows[0]["image size"] == "mixed: 20x30, 32x32"
    for path in (folder / "out").glob("*/*/*.png"):
        Image.open(path).resize((32, 32)).save(path)
    [result] = run(given(folder), {"tiny": metric}, PLAIN)
    assert not [note for note in result.notes if "differ in size" in note]
    assert "image size 32x32" in tables.table([result])


# The painted example


@pytest.mark.slow
def test_each_method_of_the_example_is_ranked_as_it_deserves(tmp_path: Path) -> None:
    tiny = {"tiny": IDSim("tiny", device="cpu")}
    [result] = run(example(tmp_path), tiny, EvalSettings(workers=1), GeneratorOptions())
    rows = {name: values(result, method=name) for name in ("copy", "good", "drift", "swap")}
    identity = [rows[name]["identity"].value for name in ("copy", "good", "drift", "swap")]
    assert identity == sorted(identity, reverse=True)
    assert {name: row["copies"].value for name, row in rows.items()} == {"copy": 1, "good": 0, "drift": 0, "swap": 0}
    for name in ("good", "drift", "swap"):
        assert rows[name]["diversity"].low > rows["copy"]["diversity"].high  # type: ignore[operator]
    same = [rows[name]["same"].value for name in ("good", "drift", "swap")]
    assert same == sorted(same, reverse=True)
    assert "32 of 32 images by swap" in confused_note(result)
    assert "(0 % of real photos)" in confused_note(result)
    assert not any("copy" in str(row["method"]) for row in result.rows if row["group"] == "paired")
    for pair in ("drift - swap", "good - swap"):
        assert values(result, method=pair)["identity"].low > 0, pair  # type: ignore[operator]
    assert values(result, method="drift - good")["identity"].high < 0  # type: ignore[operator]
    assert values(result, method="drift - good")["p"].value < 0.05

    # the page shows these numbers
    page = (Path(__file__).parents[3] / "docs" / "protocols" / "generator.md").read_text(encoding="utf-8")
    columns = ("identity", "same", "copies", "diversity")
    for name, row in rows.items():
        [line] = re.findall(rf"^\| {name} \|(.*)\|$", page, flags=re.M)
        shown = [float(cell.split()[0]) for cell in line.split("|")]
        assert shown == pytest.approx([row[column].value for column in columns], abs=5e-3), name
    [real] = re.findall(r"^in all rows: .*real (\S+), real same (\S+)$", page, flags=re.M)
    expected = [rows["good"][column].value for column in ("real", "real same")]
    assert [float(number) for number in real] == pytest.approx(expected, abs=5e-3)
