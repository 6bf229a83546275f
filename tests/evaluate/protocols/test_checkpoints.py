"""The protocol `checkpoints` against slow computations: columns, drift, intervals, the rule of the best step."""

from __future__ import annotations

import csv
import json
import re
from pathlib import Path

import numpy as np
import pytest
from scipy import stats

from idmetric import IDSim
from idmetric.cli import eval as cli
from idmetric.data.manifest.table import Manifest
from idmetric.evaluate.protocols.checkpoints.reading import read
from idmetric.evaluate.protocols.checkpoints_steps import CheckpointsOptions, best_step, drift_of, run
from idmetric.evaluate.protocols.common.models import open_model
from idmetric.evaluate.protocols.common.result import Result, Row, Value
from idmetric.evaluate.protocols.common.scorers import EvalSettings
from idmetric.evaluate.protocols.generator.example import STEPS, checkpoints_example
from idmetric.evaluate.report.plots import draw, step_curves
from tests.evaluate.protocols.parts import PLAIN, picture, values
from tests.evaluate.protocols.test_generator import cosine
from tests.runner import Runner

QUICK = CheckpointsOptions(copies=False)
NAMES = "{step}/{prompt}_{seed}.png"
STEP, CLASS, SEEDS = (0, 100, 1000), "a_dog", (0, 1)
PROMPTS = ("sks_dog_runs", "sks_dog_sits", "sks_dog_stands")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Samples of two steps and the base model: two prompts of the subject, one without; three references."""
    for s, step in enumerate(STEP):
        for p, prompt in enumerate((*PROMPTS, CLASS)):
            for seed in SEEDS:
                picture(tmp_path / "out" / str(step) / f"{prompt}_{seed}.png", s, 1 + 2 * p + seed)
    for k in range(3):
        picture(tmp_path / "refs" / f"{k}.png", 2, 50 + k)
    return tmp_path


def given(folder: Path, **more: str) -> Manifest:
    return read(folder / "out", NAMES, references=str(folder / "refs"), **more)  # type: ignore[arg-type]


# Columns


def test_numbers_are_those_of_loops(folder: Path, metric: IDSim) -> None:
    settings = EvalSettings(bootstrap=50, workers=1)
    [result] = run(given(folder), {"m": metric}, settings, CheckpointsOptions(drift_prompt=(CLASS,)))
    like, refs = cosine(metric), sorted((folder / "refs").iterdir())

    def image(step: int, prompt: str, seed: int) -> Path:
        return folder / "out" / str(step) / f"{prompt}_{seed}.png"

    assert [row["step"] for row in result.rows] == ["0", "100", "1000"]
    for step in STEP:
        row = values(result, step=str(step))
        own = [np.mean([like(image(step, p, k), r) for r in refs]) for p in PROMPTS for k in SEEDS]
        assert row["identity"].value == pytest.approx(np.mean(own), abs=1e-6)
        assert row["identity"].count == 6  # without the class prompt
        by_prompt = np.reshape(own, (3, 2)).mean(1)  # the units
        expected = stats.ttest_1samp(by_prompt, 0).confidence_interval(0.95)
        within = max(expected.low, -1), min(expected.high, 1)
        assert (row["identity"].low, row["identity"].high) == pytest.approx(within, abs=1e-4)
        assert row["real"].value == pytest.approx(np.mean([like(a, b) for a in refs for b in refs if a != b]), abs=1e-6)
        assert row["real"].low is None  # one subject
        apart = [1 - like(image(step, p, 0), image(step, p, 1)) for p in PROMPTS]
        assert row["diversity"].value == pytest.approx(np.mean(apart), abs=1e-6)
        assert row["copies"].value == 0
        if step:
            moved = [(1 - like(image(step, CLASS, k), image(0, CLASS, k))) / 2 for k in SEEDS]
            assert row["drift"].value == pytest.approx(np.mean(moved), abs=1e-6)
            assert row["drift"].count == 2
        else:
            assert "drift" not in row
    assert "one subject: intervals are over its 3 prompts, and hold for this subject alone" in result.notes

    items = result.items["images"]
    assert len(items["image"]) == 18
    assert {type(step) for step in items["step"]} == {int}
    assert list(items).index("identity") < list(items).index("step")
    assert result.items["side_by_side"]["step 1000"][0] == "1000/sks_dog_runs_0.png"
    assert result.items["drift"]["base"] == ["0/a_dog_0.png", "0/a_dog_1.png"] * 2


def test_drift_is_over_all_prompts_by_default(folder: Path, metric: IDSim) -> None:
    [result] = run(given(folder), {"m": metric}, PLAIN, QUICK)
    like = cosine(metric)
    pairs = [(folder / "out" / "100" / name, folder / "out" / "0" / name)
             for name in (f"{p}_{k}.png" for p in (*PROMPTS, CLASS) for k in SEEDS)]  # fmt: skip
    moved = values(result, step="100")["drift"]
    assert moved.value == pytest.approx(np.mean([(1 - like(a, b)) / 2 for a, b in pairs]), abs=1e-6)
    assert any(note.startswith("drift over all prompts") for note in result.notes)
    (folder / "out" / "1000" / f"{CLASS}_1.png").unlink()
    [result] = run(given(folder), {"m": metric}, PLAIN, QUICK)
    assert values(result, step="1000")["drift"].count == 7
    assert any(note.startswith("step 1000 lacks 1 of 8 combinations") for note in result.notes)


def test_drift_needs_images_of_the_base_model_and_cosines(folder: Path, metric: IDSim) -> None:
    [result] = run(given(folder), {"m": metric}, EvalSettings(distance="patch", bootstrap=0), QUICK)
    assert "drift" not in values(result, step="100")
    assert [note for note in result.notes if "drift" in note or "intervals" in note] == [
        "no drift: it needs a model with cosines, and --distance cls"
    ]
    (folder / "out" / "0").rename(folder / "base")
    [with_base] = run(given(folder, base=folder / "base"), {"hsv": open_model("hsv")}, PLAIN, QUICK)  # type: ignore[arg-type]
    assert "drift" in values(with_base, step="100")
    [result] = run(given(folder), {"hsv": open_model("hsv")}, PLAIN, QUICK)
    assert "drift" not in values(result, step="100")
    assert "no drift: there are no images of the base model (--base DIR, or step 0)" in result.notes


def test_drift_is_0_for_equal_images_and_1_for_opposite_ones() -> None:
    assert drift_of([1.0 + 1e-7, 0.0, -1.0]).tolist() == [0.0, 0.5, 1.0]


def test_one_prompt_has_no_interval_and_several_subjects_are_the_units(folder: Path) -> None:
    for path in (folder / "out").glob("*/*"):
        if PROMPTS[0] not in path.name:
            path.unlink()
    [result] = run(given(folder), {"hsv": open_model("hsv")}, EvalSettings(workers=1), QUICK)
    assert values(result, step="100")["identity"].low is None
    assert "one subject and fewer than 3 prompts: no intervals" in result.notes

    for subject in (0, 1, 2):
        picture(folder / "r" / str(subject) / "0.png", subject)
        for k in range(4):
            picture(folder / "o" / "5" / f"{subject}-{k}.png", subject + k, k)
    data = read(folder / "o", "{step}/{subject}-{prompt}.png", references=str(folder / "r"))
    [result] = run(data, {"hsv": open_model("hsv")}, EvalSettings(workers=1), QUICK)
    items = result.items["images"]
    means = [np.mean([v for v, s in zip(items["identity"], items["subject"], strict=True) if s == name])
             for name in ("0", "1", "2")]  # fmt: skip
    row = values(result, step="5")["identity"]
    expected = stats.ttest_1samp(means, 0).confidence_interval(0.95)
    assert (row.low, row.high) == pytest.approx((max(expected.low, -1), min(expected.high, 1)))


def test_what_does_not_fit_is_refused(folder: Path) -> None:
    model = {"hsv": open_model("hsv")}
    with pytest.raises(ValueError, match=r"--drift-prompt 'a cat': .*there are a_dog, sks"):
        run(given(folder), model, PLAIN, CheckpointsOptions(drift_prompt=("a cat",)))
    with pytest.raises(ValueError, match="no images of a checkpoint that show the subject"):
        run(given(folder), model, PLAIN, CheckpointsOptions(drift_prompt=(CLASS, *PROMPTS)))
    for path in (folder / "out" / "0").glob(f"{CLASS}*"):
        path.unlink()
    with pytest.raises(ValueError, match="no images of the base model for these prompts"):
        run(given(folder), model, PLAIN, CheckpointsOptions(drift_prompt=("a dog",)))


# The best step


def rows(**columns: list[float]) -> dict[int, Row]:
    """Rows of steps 0, 100, 200, ..."""
    found: dict[int, Row] = {}
    for name, numbers in columns.items():
        for k, number in enumerate(numbers):
            found.setdefault(100 * k, {})[name] = Value(number, None, None, 4)
    return found


def scattered(identity: list[float], prompts: int) -> dict[int, dict[tuple[str, ...], float]]:
    """Identities of each step's images by prompt, 0.05 above and below in turn; the other way around at odd steps.

    An odd and an even step are clearly apart if they differ by more than 0.1.
    """
    return {
        100 * k: {(f"p{n}", "0"): value + 0.05 * (-1) ** (n + k) for n in range(prompts)}
        for k, value in enumerate(identity)
    }


@pytest.mark.parametrize(
    ("columns", "prompts", "step", "reason"),
    [
        ({"identity": [0.1, 0.5, 0.62, 0.7, 0.69]}, 8, 200, "clearly below the highest identity, 0.700 at step 300"),
        ({"identity": [0.1, 0.5, 0.55, 0.7, 0.69]}, 8, 300, "sign-flip test over 8 prompts or subjects"),
        # step 0 is the base model
        ({"identity": [0.9, 0.5, 0.7, 0.7]}, 8, 200, "0.700 at step 200; copies were not looked for"),
        (
            {"identity": [0.1, 0.5, 0.7, 0.9], "copies": [0, 0, 0, 0.25]}, 8, 200,
            "among the 2 of 3 steps with copies of at most 0",
        ),
        ({"identity": [0.1, 0.5, 0.6], "copies": [0, 0, 0.25]}, 8, 100, "the only one among the 1 of 2 steps"),
        ({"identity": [0.1, 0.5], "copies": [0, 0.25]}, 8, None, "none of 1 has copies of at most 0"),
        (
            {"identity": [0.1, 0.5, 0.7, 0.9], "CLIP-T": [0.4, 0.31, 0.292, 0.285]}, 8, 200,
            "with CLIP-T of at least 0.290 (0.02 below the highest)",
        ),
        (
            {"identity": [0.1, 0.5, 0.9], "copies": [0, 1, 0], "CLIP-T": [0.3, 0.4, 0.3]}, 8, None,
            "none of 2 has copies of at most 0 and CLIP-T of at least 0.380",
        ),
        ({"identity": [0.1]}, 8, None, "there is no checkpoint"),
    ],
)  # fmt: skip
def test_the_best_step_is_the_earliest_that_is_not_clearly_below_the_highest(
    columns: dict[str, list[float]], prompts: int, step: int | None, reason: str
) -> None:
    best = best_step(rows(**columns), scattered(columns["identity"], prompts), CheckpointsOptions())
    assert best.step == step
    assert reason in best.reason
    assert (f"best step {step}:" if step else "no best step:") in best.reason


@pytest.mark.parametrize(("prompts", "steps", "needed"), [(1, 2, 6), (5, 2, 6), (6, 4, 7)])
def test_too_few_prompts_name_the_highest_step_and_say_that_it_may_be_chance(
    prompts: int, steps: int, needed: int
) -> None:
    identity = [0.1, *(0.1 + 0.2 * k for k in range(steps))]
    best = best_step(rows(identity=identity), scattered(identity, prompts), CheckpointsOptions())
    assert best.step == 100 * steps
    assert best.reason.startswith(f"highest identity at step {100 * steps}: ")
    few = f"too few prompts or subjects to show a difference of {steps} steps: {prompts}, where {needed} would do"
    assert best.reason.endswith(few)
    enough = best_step(rows(identity=identity), scattered(identity, needed), CheckpointsOptions())
    assert enough.reason.startswith(f"best step {100 * steps}: ")


def test_a_step_of_equal_images_is_rarely_kept_over_the_first_one() -> None:
    """Steps that do not differ: the first is the best in 94 % of cases at least."""
    rng = np.random.default_rng(0)
    late = 0
    for _ in range(200):
        identities = {100 * k: {(f"p{n}", "0"): float(rng.normal(0.5, 0.1)) for n in range(8)} for k in range(1, 5)}
        means = [float(np.mean(list(of.values()))) for of in identities.values()]
        best = best_step(rows(identity=[0.0, *means]), identities, CheckpointsOptions())
        assert best.reason.startswith("best step")
        late += best.step != 100
    assert late / 200 <= 0.06


# Plots


def test_curves_mark_the_best_step_and_have_a_panel_for_each_number(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("idmetric.evaluate.report.plots.save_figure", lambda figure, path: drawn.append(figure))
    drawn: list = []
    found = rows(identity=[0.1, 0.5, 0.6], real=[0.7] * 3, copies=[0, 0, 0], drift=[0, 0.1, 0.2])
    labeled = [{"step": str(step), "best": "yes" if step == 100 else ""} | row for step, row in found.items()]
    step_curves([Result("checkpoints", "m", labeled)], tmp_path / "x.svg")
    panels = drawn[0].axes
    assert [panel.get_title() for panel in panels] == ["identity", "copies", "drift"]
    curve, anchor, ring = (line.get_xydata().tolist() for line in sorted(panels[0].get_lines(), key=_kind))
    assert curve == [[0, 0.1], [100, 0.5], [200, 0.6]]
    assert ring == [[100, 0.5]]
    assert [y for _, y in anchor] == [0.7, 0.7]
    monkeypatch.undo()
    [path] = draw([Result("checkpoints", "m", labeled)], tmp_path, "c", "svg")
    assert path.name == "c.steps.svg"
    assert "drift" in path.read_text(encoding="utf-8")


def _kind(line: object) -> int:
    """Curves, then dashed anchors, then rings."""
    return 2 if line.get_marker() == "o" else line.get_linestyle() == "--"  # type: ignore[attr-defined]


# The command


def test_the_command_prints_a_row_for_each_step_and_the_best_one(
    folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    run_ = Runner(cli.main, capsys)
    words = ["checkpoints", "--data", folder / "out", "--references", folder / "refs", "--model", "tiny", "--bootstrap",
             "20", "--out", folder / "r", "--device", "cpu", "--pattern", NAMES, "--held-out"]  # fmt: skip
    assert run_(*words, "--format", "csv", "--drift-prompt", "a dog", "--html", folder / "page.html") == 0
    lines = list(csv.DictReader(capsys.readouterr().out.splitlines()))
    assert list(dict.fromkeys(line["step"] for line in lines)) == ["0", "100", "1000"]
    [result] = json.loads((folder / "r" / "checkpoints.json").read_text())["results"]
    [best] = [row["labels"]["step"] for row in result["rows"] if row["labels"]["best"]]
    assert result["notes"][0].startswith(f"highest identity at step {best}: ")  # of two prompts
    assert result["settings"]["max_copies"] == 0
    assert "Over training steps" in (folder / "page.html").read_text(encoding="utf-8")

    # a new checkpoint: its images alone are embedded
    for seed in SEEDS:
        for p, prompt in enumerate((*PROMPTS, CLASS)):
            picture(folder / "out" / "2000" / f"{prompt}_{seed}.png", 9, 1 + 2 * p + seed)
    seen: list[int] = []
    embed = IDSim.embed_prepared
    monkeypatch.setattr(
        IDSim, "embed_prepared", lambda self, batch, *more: seen.append(len(batch)) or embed(self, batch, *more)
    )
    assert run_(*words) == 0
    assert sum(seen) == 8
    run_.says("--out DIR is needed", "checkpoints", "--model", "hsv")
    run_.says("not named as samples of kohya", *words[:-3])


# The painted example


@pytest.mark.slow
def test_the_example_rises_to_its_subject_and_ends_in_copies(tmp_path: Path) -> None:
    [result] = run(
        checkpoints_example(tmp_path),
        {"tiny": IDSim("tiny", device="cpu")},
        EvalSettings(workers=1),
        CheckpointsOptions(held_out=True),
    )
    found = {int(str(row["step"])): row for row in result.rows}
    assert list(found) == list(STEPS)
    identity = [values(result, step=str(step))["identity"].value for step in STEPS]
    assert identity == sorted(identity)
    assert [values(result, step=str(step))["copies"].value for step in STEPS] == [0, 0, 0, 0, 0, 0.5, 1]
    assert [step for step, row in found.items() if row["best"]] == [800]

    # the page shows these numbers
    page = (Path(__file__).parents[3] / "docs" / "protocols" / "checkpoints.md").read_text(encoding="utf-8")
    for step, row in found.items():
        [line] = re.findall(rf"^\| {step} \|(.*)\|$", page, flags=re.M)
        shown = [float(cell.split()[0]) for cell in line.split("|")[1:] if cell.strip() != "-"]
        own = [value.value for value in row.values() if isinstance(value, Value)]
        assert shown == pytest.approx(own, abs=5e-3), step
