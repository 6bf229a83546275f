"""ViStoryBench's outputs in the protocol `generator`: a cast for each shot, and numbers of stories."""

from __future__ import annotations

import csv
import itertools
import json
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from idmetric import IDSim
from idmetric.cli import eval as cli
from idmetric.data.manifest.table import Manifest
from idmetric.data.painter import Badge, random_badge
from idmetric.evaluate.protocols.common.result import Result
from idmetric.evaluate.protocols.generator.outputs import read
from idmetric.evaluate.protocols.generator_methods import GeneratorOptions, run
from idmetric.metric.errors import RequestError
from tests.evaluate.protocols.parts import PLAIN, values
from tests.matching.scenes import ANN, REX, STRANGER, panel, references, scene
from tests.runner import Runner

TOM = random_badge(np.random.default_rng(4))
CHARACTERS = {"01": {"Ann": ANN, "Rex": REX}, "02": {"Tom": TOM}}
TAGS = {"Ann": "realistic_human", "Rex": "non_human", "Tom": "unrealistic_human"}
CASTS = {"01": [["Ann"], ["Rex"], [], ["Ann"], ["Rex"]], "02": [["Tom"], ["Tom"]]}
RUN = "base/en/20250101-000000"
Shown = Mapping[str, Sequence[Sequence[Badge | None]]]  # story -> the badges of each shot
PERFECT: Shown = {
    "01": [(ANN, STRANGER), (REX, STRANGER), (STRANGER,), (STRANGER, ANN), (REX, STRANGER)],
    "02": [(TOM,), (TOM,)],
}
# the same pictures without the bystander
ALONE: Shown = {
    "01": [(ANN, None), (REX, None), (STRANGER,), (None, ANN), (REX, None)],
    "02": [(TOM,), (TOM,)],
}
# Rex in the place of Ann, and a shot without anybody
WRONG: Shown = {
    "01": [(REX, STRANGER), (REX, STRANGER), (STRANGER,), (STRANGER, ANN), (None,)],
    "02": [(TOM,), (STRANGER,)],
}


@pytest.fixture(scope="module")
def tiny() -> IDSim:
    return IDSim("tiny", device="cpu")


def write_benchmark(root: Path) -> Path:
    """ViStory/STORY/story.json and image/CHARACTER/, two photos of each character."""
    for story, badges in CHARACTERS.items():
        shots = []
        for number, cast in enumerate(CASTS[story], start=1):
            description = {"en": f"Shot {number}.", "ch": f"{number}."}
            shot = {"index": number, "Characters Appearing": {"en": cast}, "Static Shot Description": description}
            shots.append(shot)
        characters = {name: {"name_en": name, "tag": TAGS[name]} for name in badges}
        for name, badge in badges.items():
            folder = root / "ViStory" / story / "image" / name
            folder.mkdir(parents=True)
            for number, photo in enumerate(references(badge, 2)):
                photo.save(folder / f"{number:02}.jpg", quality=95)
        text = json.dumps({"Characters": characters, "Shots": shots})
        (root / "ViStory" / story / "story.json").write_text(text, encoding="utf-8-sig")
    return root / "ViStory"


def write_shots(root: Path, method: str, shown: Shown, folder: str = f"{RUN}/{{story}}/shots") -> list[str]:
    """The shots of a run, and the lines of their boxes."""
    lines = []
    for story, shots in shown.items():
        for number, badges in enumerate(shots):
            picture, boxes = scene(badges, seed=10 * int(story) + number)
            path = Path(method) / folder.format(story=story) / f"shot_{number:02}.png"
            (root / "out" / path).parent.mkdir(parents=True, exist_ok=True)
            picture.save(root / "out" / path)
            lines += [f"out/{path},{left},{top},{right - left},{bottom - top}" for left, top, right, bottom in boxes]
    return lines


def write_stories(root: Path, **shown: Shown) -> Path:
    """The benchmark, and methods with the boxes of all badges."""
    write_benchmark(root)
    lines = ["path,x,y,w,h"]
    for method, badges in shown.items():
        lines += write_shots(root, method, badges)
    (root / "boxes.csv").write_text("\n".join(lines))
    return root


@pytest.fixture
def stories(tmp_path: Path) -> Path:
    return write_stories(tmp_path, perfect=PERFECT, wrong=WRONG)


def open_stories(root: Path) -> Manifest:
    return read(root / "out", layout="vistorybench", benchmark=root / "ViStory", in_regions=True)


@pytest.fixture(scope="module")
def scored(tiny: IDSim, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Result]:
    """The files and the result of three methods."""
    root = tmp_path_factory.mktemp("stories")
    write_stories(root, perfect=PERFECT, wrong=WRONG, alone=ALONE)
    options = GeneratorOptions(layout="vistorybench", regions=str(root / "boxes.csv"), copies=False)
    with pytest.warns(UserWarning, match="1 of 18 images are not listed with regions"):  # the one without anybody
        [result] = run(open_stories(root), {"m": tiny}, PLAIN, options)
    return root, result


def rows_of(data: Manifest) -> set[tuple[str, ...]]:
    """Method, subject, prompt and file of each output."""
    columns = [data.column(name) for name in ("x_role", "x_method", "x_subject", "x_prompt", "path")]
    rows = set()
    for role, method, subject, prompt, path in zip(*columns, strict=True):
        if role == "generated":
            rows.add((method, subject, prompt, Path(path).name))
    return rows


# Reading


def test_each_shot_has_its_cast(stories: Path) -> None:
    data = open_stories(stories)
    expected = set()
    for method, (story, casts) in itertools.product(("perfect", "wrong"), CASTS.items()):
        for number, cast in enumerate(casts, start=1):
            for name in cast:
                expected.add((method, f"{story} {name}", f"{story} shot {number}", f"shot_{number - 1:02}.png"))
    assert rows_of(data) == expected
    columns = [data.column(name) for name in ("x_subject", "x_prompt", "x_tag", "x_label", "text")]
    rows = set(zip(*columns, strict=True))
    assert ("01 Ann", "01 shot 4", "realistic_human", "Ann", "Shot 4.") in rows
    assert ("02 Tom", "02 shot 2", "unrealistic_human", "Tom", "Shot 2.") in rows
    roles = dict(zip(data.column("path"), data.column("x_role"), strict=True))
    photos = [Path(path).relative_to(stories) for path, role in roles.items() if role == "reference"]
    assert sorted(path.as_posix() for path in photos) == [
        f"ViStory/{story}/image/{name}/{number:02}.jpg"
        for story, badges in CHARACTERS.items()
        for name in badges
        for number in range(2)
    ]


@pytest.mark.parametrize(
    "folder",
    [
        f"{RUN}/{{story}}",
        f"{RUN}/shots/{{story}}",
        "en/base/20250101_000000/{story}/shots",
        "ViStory_en/{story}/20250101-000000",
    ],
)
def test_older_folders_are_read_as_well(tmp_path: Path, folder: str) -> None:
    write_benchmark(tmp_path)
    write_shots(tmp_path, "perfect", PERFECT, folder)
    assert len(rows_of(open_stories(tmp_path))) == 6
    assert {row[0] for row in rows_of(open_stories(tmp_path))} == {"perfect"}


def test_runs_in_two_languages_are_two_methods(tmp_path: Path) -> None:
    """With generated pictures of characters, which are no shots."""
    write_benchmark(tmp_path)
    write_shots(tmp_path, "uno", PERFECT)
    write_shots(tmp_path, "uno", PERFECT, "base/ch/20250101-000000/{story}")
    chars = tmp_path / "out" / "uno" / RUN / "01" / "chars"
    chars.mkdir()
    panel(ANN, 1).save(chars / "Ann.png")
    data = open_stories(tmp_path)
    methods = {"uno base en 20250101-000000", "uno base ch 20250101-000000"}
    assert {row[0] for row in rows_of(data)} == methods
    texts = set(zip(data.column("x_method"), data.column("text"), strict=True))
    assert ("uno base ch 20250101-000000", "2.") in texts


def test_what_is_not_a_story_is_named(stories: Path) -> None:
    def fails(message: str) -> None:
        with pytest.raises(RequestError, match=message):
            open_stories(stories)

    folder = stories / "out" / "perfect" / RUN / "01" / "shots"
    (folder / "shot_01.png").rename(stories / "shot_01.png")
    fails(r"shot_02\.png: shots are counted in natural order, and the one before it, number 1, is missing")
    (stories / "shot_01.png").rename(folder / "shot_01.png")

    shutil.copy(folder / "shot_00.png", folder / "shot_05.png")
    fails(r"shot_05\.png: the story\.json of 01 has no shot 6")
    (folder / "shot_05.png").unlink()

    later = stories / "out" / "perfect" / RUN / "01" / "20250102-000000"
    shutil.copytree(folder, later)
    fails(r"20250102-000000 and .*shots both have shots of one story: leave one of them out")
    shutil.rmtree(later)

    panel(ANN, 1).save(stories / "out" / "perfect" / "grid.png")
    fails(r"1 images do not match \(.*out and METHOD/\.\.\./STORY/\).*\n  .*grid\.png")
    (stories / "out" / "perfect" / "grid.png").unlink()

    shutil.rmtree(stories / "ViStory" / "02" / "image")
    fails("no references of 02 Tom")
    story = json.loads((stories / "ViStory" / "02" / "story.json").read_text(encoding="utf-8-sig"))
    story["Shots"][0]["Characters Appearing"]["en"] = ["Bob"]
    (stories / "ViStory" / "02" / "story.json").write_text(json.dumps(story))
    fails(r"02/story\.json: .*shot 1 has Bob, who is not among the Characters")
    (stories / "ViStory" / "02" / "story.json").write_text("[]")
    fails(r"02/story\.json: not a story as ViStoryBench writes it")

    with pytest.raises(RequestError, match="needs --benchmark FOLDER: its stories"):
        read(stories / "out", layout="vistorybench")
    with pytest.raises(RequestError, match=r"no story STORY/story\.json"):
        read(stories / "out", layout="vistorybench", benchmark=stories / "out")


# Numbers


def vector(metric: IDSim, picture: Image.Image) -> np.ndarray:
    features = metric.embed(picture.convert("RGB")).cls[0].double().numpy()
    return features / np.linalg.norm(features)


def numbers_of(metric: IDSim, root: Path, shown: Shown) -> np.ndarray:
    """Cross, self and OCCM, as released, by loops: one character in each cast, so its region is the nearest one."""
    of_stories = []
    for story, badges in CHARACTERS.items():
        cross, consistency, occm = [], [], []
        for name in badges:
            folder = root / "ViStory" / story / "image" / name
            photos = [vector(metric, Image.open(path)) for path in sorted(folder.glob("*.jpg"))]
            to_references, crops = [], []
            for number, cast in enumerate(CASTS[story]):
                if cast != [name]:
                    continue
                picture, boxes = scene(shown[story][number], seed=10 * int(story) + number)
                occm.append(100 * np.exp(-abs(len(boxes) - 1) / (1e-6 + 1)))
                vectors = [vector(metric, picture.crop(box)) for box in boxes]
                if not vectors:
                    continue
                nearest = int(np.argmax([max(photo @ crop for photo in photos) for crop in vectors]))
                crops.append(vectors[nearest])
                to_references.append(np.mean([photo @ vectors[nearest] for photo in photos]))
            cross.append(np.mean(to_references))
            pairs = [left @ right for left, right in itertools.combinations(crops, 2)]
            consistency.append(np.mean(pairs) if pairs else 1.0)  # a character that is found once counts 1
        of_stories.append([np.mean(cross), np.mean(consistency), np.mean(occm)])
    return np.mean(of_stories, 0)


@pytest.mark.parametrize(("method", "shown"), [("perfect", PERFECT), ("wrong", WRONG), ("alone", ALONE)])
def test_numbers_follow_the_cast(scored: tuple[Path, Result], tiny: IDSim, method: str, shown: Shown) -> None:
    """The mean of two stories of two characters and one."""
    root, result = scored
    row = values(result, method=method, group="all")
    printed = [row[name].value for name in ("vistory-cross", "vistory-self", "vistory-occm")]
    assert printed == pytest.approx(numbers_of(tiny, root, shown), abs=1e-4)
    assert {row[name].count for name in ("vistory-cross", "vistory-self", "vistory-occm")} == {2}


def test_a_bystander_costs_occm_alone(scored: tuple[Path, Result]) -> None:
    """One region too many for one character: 100 / e = 36.8; the story without bystanders has 100."""
    _, result = scored
    row, expected = (values(result, method=method, group="all") for method in ("perfect", "alone"))
    assert row["vistory-occm"].value == pytest.approx((36.788 + 100) / 2, abs=1e-3)
    assert expected["vistory-occm"].value == pytest.approx(100)
    for name in ("vistory-cross", "vistory-self", "identity"):
        assert row[name].value == pytest.approx(expected[name].value, abs=1e-5)


def test_characters_outside_of_the_cast_are_not_judged(scored: tuple[Path, Result]) -> None:
    """An item for each character of a shot's cast, with the similarity of its nearest region."""
    _, result = scored
    items = result.items["images"]
    shots = list(zip(items["image"], items["subject"], strict=True))
    assert len(shots) == 18
    assert values(result, method="perfect", group="all")["identity"].count == 6
    names = [subject for image, subject in shots if image.startswith("perfect") and "shot_00" in image]
    assert names == ["01 Ann", "02 Tom"]


@pytest.mark.filterwarnings("ignore:.* images are not listed with regions")
def test_a_folder_of_outputs_is_one_command(stories: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["generator", "--data", stories / "out", "--layout", "vistorybench", "--benchmark", stories / "ViStory"]
    words += ["--regions", stories / "boxes.csv", "--by", "tag", "--by", "story", "--model", "tiny", "--bootstrap", "0"]
    words += ["--held-out", "--device", "cpu", "--format", "csv"]
    run_ = Runner(cli.main, capsys)
    assert run_(*words) == 0
    rows = list(csv.DictReader(capsys.readouterr().out.splitlines()))
    groups = {row["group"] for row in rows if row["method"] == "perfect"}
    tags = {f"tag: {tag}" for tag in TAGS.values()}
    assert groups == {"all", "story: 01", "story: 02", *tags}
    metrics = {row["metric"] for row in rows if row["method"] == "perfect" and row["group"] == "all"}
    assert {"identity", "vistory-cross", "vistory-self", "vistory-occm"} <= metrics
