"""docs/use/field.md: 33 pipelines, and every command and function of the page on small files.

The files are badges and stripes, and `tiny` stands in for every model that a line names.
"""

from __future__ import annotations

import csv
import json
import re
import shlex
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from PIL import Image
from scipy.stats import hmean

from idmetric import IDSim
from idmetric.cli.main import main
from idmetric.matching import Clip
from tests.clip_files import write_video
from tests.data import test_finer, test_ilias
from tests.evaluate.protocols.test_generator_grades import BANANA, omnicontext_row, write_lines
from tests.evaluate.protocols.test_generator_stories import PERFECT, write_benchmark, write_shots
from tests.matching.scenes import ANN, REX, SIDE, panel, references, scene

PAGE = Path(__file__).resolve().parents[2] / "docs" / "use" / "field.md"
EXAMPLES = PAGE.parents[2] / "examples" / "images"
BADGES = {"ann": ANN, "rex": REX}
WITH_MODEL = ("match", "score", "eval", "build")
PIPELINES = (
    "UNO, several subjects", "UNO, distillation", "XVerseBench", "UMO", "PSRBench", "OmniContext", "MultiBanana",
    "SconeEval", "GEdit-Bench", "ImgEdit-Bench", "MultiID-Bench", "DreamBench++", "peft image-gen", "Customized-GRPO",
    "subject-driven-gen-eval", "Finer-Personalization Rank", "ViStoryBench", "OpenS2V-Eval", "ConsisID", "VBench",
    "VBench-2.0", "MSRVTT-Personalization", "Identity-GRPO", "ayase", "Pruna", "MirrorMetrics", "ComfyUI-FaceFilter",
    "PixlStash gates", "music-video-pipeline", "ai-toolkit", "wildlife-tools", "MiewID", "ILIAS",
)  # fmt: skip
# what the commands print for it
NUMBERS = {
    "UNO, several subjects": ["identity"],
    "UNO, distillation": ["uno-distill"],
    "XVerseBench": ["xverse-ip", "xverse-id"],
    "UMO": ["umo-id-conf", "umo-reward"],
    "PSRBench": ["psr"],
    "MultiID-Bench": ["multiid"],
    "OmniContext": ["grade", "consistency"],
    "MultiBanana": ["grade", "consistency"],
    "SconeEval": ["grade", "consistency"],
    "GEdit-Bench": ["grade"],
    "ImgEdit-Bench": ["grade"],
    "DreamBench++": ["grade"],
    "Finer-Personalization Rank": ["mAP"],
    "ViStoryBench": ["vistory-cross", "vistory-self", "vistory-occm"],
    "OpenS2V-Eval": ["nexus"],
    "VBench": ["vbench-subject", "vbench-i2v", "vbench-long"],
    "MSRVTT-Personalization": ["msrvtt-subject"],
    "ayase": ["mean"],
    "ILIAS": ["mAP@"],
}


def rows() -> dict[str, str]:
    """Pipeline -> the cell with its lines."""
    cells = {}
    for line in PAGE.read_text(encoding="utf-8").splitlines():
        if line.startswith("| ") and not line.startswith("| pipeline"):
            pipeline, here, _ = line.strip("|").split(" | ", 2)
            cells[pipeline.strip()] = here
    return cells


def commands(pipeline: str) -> list[str]:
    return re.findall("`(idmetric [^`]+)`", rows()[pipeline])


def functions() -> dict[str, Any]:
    """The names that the page's Python block defines."""
    [block] = re.findall(r"^```python\n(.*?)^```", PAGE.read_text(encoding="utf-8"), flags=re.S | re.M)
    names: dict[str, Any] = {}
    exec(compile(block, PAGE.name, "exec"), names)
    return names


# Small files


def save(path: Path, picture: Image.Image) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    picture.save(path)
    return path


def write_photos(folder: Path, badge: Any, count: int = 2) -> None:
    for number, photo in enumerate(references(badge, count)):
        save(folder / f"{number:02}.png", photo)


def write_scenes(root: Path) -> list[str]:
    """Pictures of both subjects under the names that layouts have, and the lines of their boxes."""
    names = ["images/0.png", "images/1.png", "results/uno/0_0.png", "psr/m/Two/0.png", "multiid/m/01/output_0.jpg"]
    lines = []
    for number, name in enumerate(names):
        picture, boxes = scene((ANN, REX), seed=number)
        save(root / name, picture)
        lines += [f"{name},{left},0,{SIDE},{SIDE}" for left, *_ in boxes]
    return lines


def write_several(root: Path) -> None:
    lines = write_scenes(root)
    for name, badge in BADGES.items():
        write_photos(root / "refs" / name, badge)
        write_photos(root / "dataset" / name, badge)
        save(root / "PSRBench" / "subjects" / f"{name}.png", panel(badge, 5))
    images = ["dataset/ann/00.png", "dataset/rex/00.png"]
    (root / "multi.json").write_text(json.dumps([{"prompt": "in a park", "image_paths": images}]))
    item = {"input_path": ["subjects/ann.png", "subjects/rex.png"], "instruction": "in a park", "category1": "person"}
    (root / "PSRBench" / "Two.json").write_text(json.dumps([{**item, "category2": "dog"}]))
    for name, badge in (("ref_1", ANN), ("ref_2", REX)):
        save(root / "multiid" / "m" / "01" / f"{name}.jpg", panel(badge, 6))
    save(root / "multiid" / "m" / "01" / "ori.jpg", scene((ANN, REX), seed=7)[0])

    grid = Image.new("RGB", (4 * SIDE, 2 * SIDE))
    cells = ["path,x,y,w,h"]
    for number in range(4):
        column, row = number % 2, number // 2
        grid.paste(scene((ANN, REX), seed=20 + number)[0], (2 * SIDE * column, SIDE * row))
        cells += [f"m/0_x_{number}.png,{left},0,{SIDE},{SIDE}" for left in (0, SIDE)]
    save(root / "grids" / "m" / "0_x.png", grid)
    (root / "cells.csv").write_text("\n".join(cells))
    modulation = {
        "src_inputs": [{"image_path": f"{kind}/00.png"} for kind in ("human", "animal")],
        "use_words": [[1, "man", "man"], [2, "dog", "dog"]],
    }
    write_photos(root / "human", ANN)
    write_photos(root / "animal", REX)
    (root / "xverse.json").write_text(json.dumps([{"index": 0, "prompt": "in a park", "modulation": [modulation]}]))

    write_benchmark(root)
    lines += write_shots(root, "m", PERFECT)
    (root / "boxes.csv").write_text("\n".join(["path,x,y,w,h", *lines]))


def write_judged(root: Path) -> None:
    """Outputs, references and result files of the benchmarks whose judges are language models."""
    picture = panel(ANN, 1)
    for folder in ("omnirefs/0001", "sconerefs/7", "geditrefs/ab12", "imgrefs/1082"):
        write_photos(root / folder, ANN, 1)
    save(root / "omni" / "m" / "fullset" / "single_object" / "0001.png", picture)
    row = omnicontext_row("m", "0001", 4, 9)
    write_lines(root / "omni" / "m" / "gpt4dot1" / "single_object" / "score.jsonl", row)

    folder = root / "banana" / "3_back"
    save(folder / "006_generated.png", picture)
    save(folder / "006_0.png", panel(ANN, 2))
    (folder / "006_gemini_judge.txt").write_text(BANANA)

    save(root / "scone" / "m" / "single" / "7.png", picture)
    row = {**omnicontext_row("", "7", 4, 9), "output_image_path": "scone/m/single/7.png"}
    write_lines(root / "sconescores" / "m" / "score_try1" / "single" / "score.jsonl", row)

    save(root / "gedit" / "m" / "fullset" / "subject-add" / "en" / "ab12.png", picture)
    (root / "geditscores").mkdir()
    with (root / "geditscores" / "m_subject-add_all_vie_score.csv").open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["key", "edited_image", "sementics_score", "quality_score"])
        writer.writerow(["ab12", "m/fullset/subject-add/en/ab12.png", 8, 2])

    save(root / "imgedit" / "m" / "1082.png", picture)
    (root / "imgedit" / "m" / "result.json").write_text(json.dumps({"1082": "Prompt Compliance: 4"}))

    save(root / "dreambench" / "m" / "tgt_image" / "object_19_cube" / "0_0.jpg", picture)
    save(root / "dreambench" / "m" / "src_image" / "object_19_cube" / "0_0.jpg", panel(ANN, 3))
    (root / "concept").mkdir()
    (root / "concept" / "m.json").write_text(json.dumps({"object_19_cube-0": 3}))


def write_others(root: Path) -> None:
    (root / "pairs.csv").write_text("a,b\nrefs/ann/00.png,images/0.png\nrefs/rex/00.png,images/1.png\n")
    save(root / "mirror" / "Lora_Candidates" / "m" / "0.png", panel(ANN, 4))
    write_photos(root / "mirror" / "Reference_Images", ANN)
    frames = [scene((ANN, REX), seed=number)[0] for number in range(40)]
    write_video(root / "clip.mp4", frames, fps=8)
    frames[0].save(root / "first.png")
    turned = frames[::-1]
    write_video(root / "other.mp4", turned, fps=8)
    turned[0].save(root / "second.png")
    (root / "clips.csv").write_text("image,subjects\nclip.mp4,a\nother.mp4,b\n")
    lines = [f"clip.mp4 @ {number},{left},0,{SIDE},{SIDE}" for number in range(40) for left in (0, SIDE)]
    (root / "frames.csv").write_text("\n".join(["path,x,y,w,h", *lines]))

    write_photos(root / "animals" / "ann", ANN, 4)
    save(root / "who.png", panel(ANN, 8))
    table = ["identity,path,bbox"]
    for name, badge in BADGES.items():
        write_photos(root / "wild" / name, badge, 3)
        table += [f'{name},{name}/{number:02}.png,"[0, 0, 100, 100]"' for number in range(3)]
    (root / "wild" / "metadata.csv").write_text("\n".join(table))
    test_finer.write(root / "finer")
    test_ilias.write(root / "ilias")


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with everything that the page names."""
    root = tmp_path_factory.mktemp("field")
    write_several(root)
    write_judged(root)
    write_others(root)
    return root


# The page


def test_the_page_has_a_line_for_each_pipeline() -> None:
    cells = rows()
    assert sorted(cells) == sorted(PIPELINES)
    assert len(PIPELINES) == 33
    defined = functions()
    for name, here in cells.items():
        spans = re.findall("`([^`]+)`", here)
        assert spans, name
        for span in spans:
            assert span.startswith("idmetric ") or callable(defined[span]), (name, span)


def test_functions_have_ten_lines_at_most() -> None:
    text = PAGE.read_text(encoding="utf-8")
    for body in re.findall(r"^def .*\n((?:    .*\n)+)", text, flags=re.M):
        assert len(body.splitlines()) <= 10, body


def with_tiny(words: Sequence[str]) -> list[str]:
    """A command with `tiny` in place of its models."""
    words = list(words)
    for number, word in enumerate(words):
        if word == "--model":
            words[number + 1] = "tiny"
    takes_model = any(word in WITH_MODEL for word in words[:2])
    if takes_model and "--model" not in words:
        words += ["--model", "tiny"]
    return words


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("pipeline", [name for name in PIPELINES if commands(name)])
def test_the_commands_of_a_pipeline_run(
    pipeline: str, files: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(files)
    printed = ""
    for command in commands(pipeline):
        status = main(with_tiny(shlex.split(command)[1:]))
        output = capsys.readouterr()
        assert status == 0, output.err
        printed += output.out
    for number in NUMBERS.get(pipeline, ()):
        assert number in printed


# The functions of the page

RED, GREEN, DARK = (250, 10, 10), (10, 250, 10), (10, 10, 10)


def plain(color: tuple[int, int, int]) -> Image.Image:
    return Image.new("RGB", (32, 32), color)


def faces(images: Sequence[Image.Image]) -> list[NDArray[np.float64] | None]:
    """The color of each image around gray; None, as without a face, for dark ones."""
    vectors: list[NDArray[np.float64] | None] = []
    for image in images:
        color = np.asarray(image, dtype=float).mean((0, 1))
        vectors.append(None if color.max() < 50 else color - 128)
    return vectors


@pytest.fixture(scope="module")
def tiny() -> IDSim:
    return IDSim("tiny", device="cpu")


def units(metric: IDSim, images: Sequence[Image.Image]) -> NDArray[np.float64]:
    vectors = metric.embed(list(images)).cls.double().numpy()
    return vectors / np.linalg.norm(vectors, axis=1, keepdims=True)


def test_face_similarity_leaves_frames_without_a_face_out(tiny: IDSim) -> None:
    """Cosines 1, below 0, none, 1: the mean of 1, 0 and 1."""
    clip = Clip([plain(color) for color in (RED, GREEN, DARK, RED)])
    similarity = functions()["face_similarity"](tiny, faces, plain(RED), clip)
    assert similarity == pytest.approx(2 / 3, abs=1e-6)


def test_human_identity_is_a_share_of_later_frames_with_one_face(tiny: IDSim) -> None:
    """24 frames after the first: 3 with two faces, 1 without, and of 20 the share that is near enough to the first."""
    mugs = [Image.open(EXAMPLES / f"mug_{letter}.png").convert("RGB") for letter in "abc"]
    box = Image.open(EXAMPLES / "box_a.png").convert("RGB")
    pictures = [mugs[number % 3].copy() for number in range(25)]
    pictures[10:13] = [box.copy() for _ in range(3)]
    counts = [1, *[2] * 3, 0, *[1] * 20]
    for picture, count in zip(pictures, counts, strict=True):
        picture.putpixel((0, 0), (count, 0, 0))

    def detect(picture: Any) -> list[tuple[int, int, int, int]]:
        return [(0.0, 0.0, 1.0, 1.0)] * int(np.asarray(picture)[0, 0, 0])

    human_identity = functions()["human_identity"]
    vectors = units(tiny, [pictures[0], *pictures[5:]])
    share = (vectors[1:] @ vectors[0] >= 0.4).mean()
    assert share == 17 / 20
    assert human_identity(tiny, detect, Clip(pictures)) == pytest.approx(share)
    assert human_identity(tiny, detect, Clip(pictures[:-1])) == -1
    assert human_identity(tiny, detect, Clip(pictures[1:])) == -1


def test_a_gate_refuses_another_face_and_none(tiny: IDSim) -> None:
    is_accepted = functions()["is_accepted"]
    accepted = [is_accepted(tiny, faces, plain(RED), plain(color), threshold=0.66) for color in (RED, GREEN, DARK)]
    assert accepted == [True, False, False]


def test_statistics_over_photos(tiny: IDSim) -> None:
    photos, images = references(ANN, 3), [panel(ANN, 1), panel(REX, 2)]
    cosines = units(tiny, images) @ units(tiny, photos).T
    centroid = units(tiny, photos).mean(0)
    expected = units(tiny, images) @ centroid / np.linalg.norm(centroid)
    defined = functions()
    assert defined["to_centroid"](tiny, images, photos).numpy() == pytest.approx(expected, abs=1e-5)
    assert defined["combined"](tiny, images, photos) == pytest.approx(cosines.clip(0).min(1), abs=1e-5)
    harmonic = [3 / sum(1 / cosine for cosine in row) if min(row) > 0 else 0 for row in cosines]
    assert defined["combined"](tiny, images, photos, hmean) == pytest.approx(harmonic, abs=1e-5)


def test_the_feature_loss_is_standardized_over_the_batch(tiny: IDSim) -> None:
    generator = torch.Generator().manual_seed(0)
    pixels = torch.rand(2, 3, 64, 64, generator=generator, requires_grad=True)
    targets = torch.rand(2, 3, 64, 64, generator=generator)
    features, wanted = (tiny(images).cls.detach().double().numpy() for images in (pixels, targets))
    left = (features - features.mean()) / features.std(ddof=1)
    right = (wanted - wanted.mean()) / wanted.std(ddof=1)
    loss = functions()["feature_loss"](tiny, pixels, targets)
    assert loss.item() == pytest.approx(((left - right) ** 2).mean(), rel=1e-3)
    loss.backward()
    assert pixels.grad is not None
    assert pixels.grad.abs().sum() > 0


def test_fused_scores_are_mean_probabilities(tiny: IDSim) -> None:
    nearer = SimpleNamespace(pairwise=lambda a, b: tiny.pairwise(a, b) / 2, calibration=tiny.calibration)
    images, gallery = [panel(ANN, 1)], [panel(ANN, 2), panel(REX, 3)]
    assert tiny.calibration is not None
    distances = 1 - units(tiny, images) @ units(tiny, gallery).T
    plain_score, nearer_score = (tiny.calibration.probability(values) for values in (distances, distances / 2))
    fused = functions()["fused"]([tiny, nearer], images, gallery)
    assert fused == pytest.approx((plain_score + nearer_score) / 2, abs=1e-4)
