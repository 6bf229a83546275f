"""Rewards: numbers against the metric's own, copies, and the call shapes of trainers on docs/use/reward.md."""

from __future__ import annotations

import math
import os
import sys
from dataclasses import dataclass, replace
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from PIL import Image, ImageEnhance, ImageOps

from idmetric import IDSim
from idmetric.adapters import reward, reward_of_subjects
from idmetric.adapters.rewards import assigned_similarities
from idmetric.matching import match
from idmetric.metric.errors import RequestError
from idmetric.scoring.calibration import CalibrationError, calibration_of
from tests.conftest import random_model
from tests.docs.test_code import NOT_RUN, blocks
from tests.matching import scenes
from tests.matching.scenes import ANN, REX, SIDE, STRANGER, scene

ROOT = Path(__file__).resolve().parents[2]
EXAMPLES = ROOT / "examples" / "images"
MUGS = [str(EXAMPLES / f"mug_{name}.png") for name in "abc"]
BOX = str(EXAMPLES / "box_a.png")


@pytest.fixture(scope="module")
def tiny() -> IDSim:
    return IDSim("tiny", device="cpu")


def test_rewards_are_similarities_of_each_image_to_its_own_references(tiny: IDSim) -> None:
    images = [Image.open(MUGS[1]).resize((90, 130)), np.asarray(Image.open(BOX).convert("RGB")), MUGS[2]]
    references = [[MUGS[0]], [MUGS[0], str(EXAMPLES / "box_b.png")], [MUGS[1], MUGS[0]]]
    pairs = zip(images, references, strict=True)
    near = [[max(0.0, tiny.similarity(image, one).item()) for one in own] for image, own in pairs]
    assert reward(tiny)(images, references) == pytest.approx([max(own) for own in near], abs=1e-5)
    assert reward(tiny, aggregate="mean")(images, references) == pytest.approx([np.mean(own) for own in near], abs=1e-5)
    assert reward(tiny, batch_size=1)(images[::-1], references[::-1]) == pytest.approx(
        reward(tiny)(images, references)[::-1], abs=1e-5
    )


def test_references_are_one_for_all_or_a_list_for_each(tiny: IDSim) -> None:
    score = reward(tiny)
    one_by_one = score([MUGS[1]], MUGS[0]) + score([MUGS[2]], MUGS[0])
    for references in (MUGS[0], [MUGS[0]], [[MUGS[0]], [MUGS[0]]], [[MUGS[0], BOX]]):
        assert score(MUGS[1:], references) == pytest.approx(one_by_one, abs=1e-5)
    for wrong, count in (([[MUGS[0]]] * 3, 3), ([[MUGS[0]], []], 2)):
        with pytest.raises(ValueError, match=f"2 images and {count} references: give one, or one"):
            score(MUGS[1:], wrong)


def test_two_references_of_one_subject_are_not_silently_paired_with_two_images(tiny: IDSim) -> None:
    """Whether a flat list holds an image's own reference or all images' references is a guess."""
    score = reward(tiny)
    pixels = torch.rand(2, 3, 32, 32)
    for images, references in (
        (MUGS[1:], [MUGS[0], BOX]),
        (MUGS[1:2], [MUGS[0], BOX]),
        (pixels, pixels),
        (pixels.numpy(), list(pixels.numpy())),
        (MUGS[1:], np.array([MUGS[0], BOX])),
        (MUGS[1:], pd.Series([MUGS[0], BOX])),
    ):
        with pytest.raises(ValueError, match=r"2 references in a flat list: give \[\[a, b\]\] .* or \[\[a\], \[b\]\]"):
            score(images, references)
    assert score(pixels, pixels[None]) == pytest.approx([0, 0])  # all for each: each image copies one of them
    assert len(score(pixels, pixels.flip(0)[:, None])) == 2


def test_references_are_embedded_once(tiny: IDSim, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    embedded: list[int] = []
    embed = IDSim.embed

    def counting(self: IDSim, images: Any, **options: Any) -> Any:
        embedded.append(len(images))
        return embed(self, images, **options)

    monkeypatch.setattr(IDSim, "embed", counting)
    score = reward(tiny)
    reference = tmp_path / "ref.png"
    Image.open(MUGS[0]).save(reference)
    expected = score(MUGS[1:], [[reference]] * 2)
    assert embedded == [2, 1]  # one reference, though two images have it
    assert score(MUGS[1:], [[reference]] * 2) == expected
    assert embedded == [2, 1, 2]

    # a file that was replaced, or another picture of the same size, is another reference
    Image.open(BOX).save(reference)
    assert score(MUGS[1:], reference) == reward(tiny)(MUGS[1:], BOX) != expected
    opened = [Image.open(path).convert("RGB") for path in MUGS[:2]]
    pixels = [torch.from_numpy(np.array(picture)).permute(2, 0, 1) for picture in opened]
    for a, b in (opened, pixels):
        assert score(MUGS[2], a) == score(MUGS[2], MUGS[0])
        assert score(MUGS[2], b) == pytest.approx(reward(tiny)(MUGS[2], MUGS[1]), abs=2e-3)
        embedded.clear()
        score(MUGS[2], [[a, b]])
        assert embedded == [1]


def test_a_file_replaced_by_one_of_the_same_size_and_time_is_another_reference(tiny: IDSim, tmp_path: Path) -> None:
    reference = tmp_path / "ref.bmp"
    score = reward(tiny)
    for path in (MUGS[0], BOX):
        Image.open(path).convert("RGB").resize((64, 64)).save(reference)
        os.utime(reference, ns=(10**18, 10**18))
        assert score(MUGS[1], reference) == pytest.approx(reward(tiny)(MUGS[1], reference), abs=1e-6)


def test_references_of_a_metric_that_changed_are_embedded_again() -> None:
    metric = IDSim("tiny", device="cpu")
    score = reward(metric)
    before = score(MUGS[1], MUGS[0])
    metric.double()  # or moved to another device
    assert score(MUGS[1], MUGS[0]) == pytest.approx(before, abs=1e-5)
    with torch.no_grad():
        for parameter in metric.parameters():
            parameter *= 0.9
    assert score(MUGS[1], MUGS[0]) == reward(metric)(MUGS[1], MUGS[0]) != pytest.approx(before, abs=1e-5)


def test_tensors_get_the_rewards_of_their_images_and_no_gradient(tiny: IDSim) -> None:
    pixels = torch.stack([torch.from_numpy(np.array(Image.open(p).convert("RGB"))).permute(2, 0, 1) for p in MUGS])
    expected = reward(tiny)(MUGS[1:], MUGS[0])
    asked = (pixels[1:] / 255).requires_grad_()
    nested = pixels[:1].expand(2, 1, 3, *pixels.shape[2:])  # (N, R, 3, H, W)
    channels_last = pixels[1:].permute(0, 2, 3, 1).numpy()
    for images, references in ((asked, pixels[:1] / 255), (pixels[1:], nested), (channels_last, pixels[:1])):
        assert reward(tiny)(images, references) == pytest.approx(expected, abs=2e-3)
    assert asked.grad is None


def test_copies_of_any_reference_lose_the_penalty(tiny: IDSim) -> None:
    original = Image.open(MUGS[0]).convert("RGB")
    width, height = original.size
    copies = [
        original,
        ImageOps.mirror(original.resize((200, 150))),
        ImageEnhance.Brightness(original.crop((5, 5, width - 8, height - 10))).enhance(0.9),
    ]
    images, references = [*copies, Image.open(MUGS[2])], [[MUGS[1], MUGS[0]]]
    free = reward(tiny, copy_penalty=0)(images, references)
    assert min(free[:3]) > free[3] > 0.5  # a copy earns the most
    assert reward(tiny)(images, references) == [0, 0, 0, free[3]]
    assert reward(tiny, copy_penalty=0.25)(images, references) == pytest.approx([*np.multiply(free[:3], 0.75), free[3]])


def test_a_calibration_makes_probabilities(tiny: IDSim) -> None:
    images = [MUGS[1], BOX]
    expected = calibration_of(tiny, "stored").probability(tiny(MUGS[0], images)).tolist()
    assert reward(tiny, calibration="stored")(images, MUGS[0]) == pytest.approx(expected, abs=1e-6)
    with pytest.raises(CalibrationError, match="'cls', not 'patch'"):
        reward(tiny, calibration="stored", distance="patch")


@pytest.mark.parametrize("wrong", [{"distance": "l2"}, {"aggregate": "max"}, {"copy_penalty": 2}])
def test_options_are_checked_before_training(tiny: IDSim, wrong: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=str(next(iter(wrong.values())))):
        reward(tiny, **wrong)


# Trainers


@dataclass
class RewardModelOutput:
    """As Flow-Factory's."""

    rewards: Any


class PointwiseRewardModel:
    """As Flow-Factory's."""

    def __init__(self, config: Any, accelerator: Any) -> None:
        self.accelerator = accelerator


@pytest.fixture(scope="module")
def wrappers() -> dict[str, Any]:
    """What the page defines, with Flow-Factory's two classes in place of the package."""
    package, module = ModuleType("flow_factory"), ModuleType("flow_factory.rewards")
    module.__dict__.update(PointwiseRewardModel=PointwiseRewardModel, RewardModelOutput=RewardModelOutput)
    names: dict[str, Any] = {}
    text = (ROOT / "docs" / "use" / "reward.md").read_text(encoding="utf-8")
    assert NOT_RUN in text
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(sys.modules, "flow_factory", package)
        patch.setitem(sys.modules, "flow_factory.rewards", module)
        for code, _ in list(blocks(text))[3:]:
            exec("from idmetric import IDSim\nfrom idmetric.adapters import reward\n" + code, names)
    return names


@pytest.fixture(scope="module")
def expected(tiny: IDSim) -> list[float]:
    return tiny.similarity([MUGS[1], BOX], MUGS[0]).clamp(0).tolist()


def test_the_wrapper_for_flow_grpo(wrappers: dict[str, Any], expected: list[float]) -> None:
    images = np.stack([np.asarray(Image.open(path).convert("RGB")) for path in (MUGS[1], BOX)])
    rewards, info = wrappers["identity_score"]("cpu")(images, ["a mug", "a mug"], [{"references": MUGS[:1]}] * 2)
    assert rewards == pytest.approx(expected, abs=1e-3)
    assert info == {}


def test_the_wrapper_for_flow_factory(wrappers: dict[str, Any], expected: list[float]) -> None:
    model = wrappers["IdentityReward"](SimpleNamespace(), SimpleNamespace(device=torch.device("cpu")))
    found = model(
        prompt=["a mug"] * 2, image=[Image.open(MUGS[1]), Image.open(BOX)], video=None, audio=None,
        condition_images=[[Image.open(MUGS[0])]] * 2, condition_videos=None,
    )  # fmt: skip
    assert found.rewards == pytest.approx(expected, abs=1e-3)
    assert set(model.required_fields) == {"image", "condition_images"}


def test_the_wrapper_for_verl_omni(wrappers: dict[str, Any], expected: list[float]) -> None:
    frames = np.stack([np.asarray(Image.open(path).convert("RGB")).transpose(2, 0, 1) for path in (MUGS[1], BOX)])
    sample = {"data_source": "mugs", "ground_truth": "", "extra_info": {"references": MUGS[:1]}}
    for solution, reward_of_it in ((frames[0], expected[0]), (frames, min(expected))):
        scored = wrappers["compute_score"](solution_image=solution, **sample)
        assert scored["score"] == pytest.approx(reward_of_it, abs=1e-3)


def test_an_embedding_stands_for_its_photos(tiny: IDSim, tmp_path: Path) -> None:
    mug = tiny.embed(MUGS[:2], patches=False)
    mug.save(tmp_path / "mug.idm")
    box = tiny.embed(BOX, patches=False)
    images = [Image.open(MUGS[2]), ImageOps.mirror(Image.open(MUGS[0]))]
    score = reward(tiny, copy_penalty=0)
    by_photos = score(images, [MUGS[:2]])
    for references in (mug, [mug], str(tmp_path / "mug.idm"), tmp_path / "mug.idm"):
        assert score(images, references) == pytest.approx(by_photos, abs=1e-6)
    mixed = score(images, [mug, [BOX, MUGS[0]]])
    assert mixed == pytest.approx(score(images, [MUGS[:2], [BOX, MUGS[0]]]), abs=1e-6)
    assert score(images, [mug, box]) == pytest.approx(score(images, [MUGS[:2], [BOX]]), abs=1e-6)
    with pytest.raises(ValueError, match="made by another"):
        score(images, replace(mug, model="another"))
    with pytest.raises(ValueError, match="no patches"):
        reward(tiny, distance="patch", copy_penalty=0)(images, mug)


def test_copies_of_an_embedding_cannot_be_found(tiny: IDSim) -> None:
    mug = tiny.embed(MUGS[:2])
    for references in (mug, [[BOX], mug]):
        with pytest.raises(RequestError, match="copy_penalty"):
            reward(tiny)(MUGS[1:], references)  # type: ignore[arg-type]
    with pytest.raises(RequestError, match=r"mug.*copy_penalty"):
        reward_of_subjects(tiny)(MUGS[0], {"mug": mug}, None)


def test_rewards_of_several_subjects(tiny: IDSim) -> None:
    shown = [(ANN, REX), (REX, ANN), (ANN, STRANGER), (ANN, None)]
    pictures, boxes = zip(*(scene(badges, seed=number) for number, badges in enumerate(shown)), strict=True)
    photos = {"ann": scenes.references(ANN, 3), "rex": scenes.references(REX, 3)}
    crops = [[picture.crop(box) for box in of_image] for picture, of_image in zip(pictures, boxes, strict=True)]
    tables = []
    for of_image in crops:
        near = [(1 - tiny.pairwise(photos[name], of_image)).amax(0).tolist() for name in photos]
        tables.append(np.array(near))
    best = []
    for table in tables:
        if table.shape[1] == 1:
            best.append([table[0, 0], 0])
        else:
            best.append(max([[table[0, 0], table[1, 1]], [table[0, 1], table[1, 0]]], key=sum))

    expected = {"worst": np.min(best, 1), "mean": np.mean(best, 1)}
    subjects = {name: tiny.embed(images) for name, images in photos.items()}
    for over, values in expected.items():
        score = reward_of_subjects(tiny, over=over, copy_penalty=0)  # type: ignore[arg-type]
        for sources in (photos, subjects):
            assert score(list(pictures), sources, list(map(list, boxes))) == pytest.approx(values, abs=1e-5)
    assert expected["worst"][0] > expected["worst"][2] > expected["worst"][3] == 0


def test_a_region_that_copies_a_reference_loses_the_penalty(tiny: IDSim) -> None:
    picture, boxes = scene((ANN, REX))
    photos = {"ann": scenes.references(ANN, 2), "rex": scenes.references(REX, 2)}
    picture.paste(photos["rex"][1], boxes[1][:2])
    [without], [half], [nothing] = (
        reward_of_subjects(tiny, over="mean", copy_penalty=penalty)(picture, photos, boxes) for penalty in (0, 0.5, 1)
    )
    ann = reward_of_subjects(tiny, over="worst", copy_penalty=0)(picture, {"ann": photos["ann"]}, boxes)[0]
    assert without == pytest.approx((ann + 1) / 2, abs=1e-4)
    assert half == pytest.approx((ann + 0.5) / 2, abs=1e-4)
    assert nothing == pytest.approx(ann / 2, abs=1e-4)
    for wrong in ({"over": "best"}, {"copy_penalty": 2.0}, {"distance": "near"}):
        with pytest.raises(ValueError, match=next(iter(wrong)) if "over" in wrong else "must be|unknown"):
            reward_of_subjects(tiny, **wrong)  # type: ignore[arg-type]


def test_assigned_similarities_have_the_largest_sum() -> None:
    right = [[0.80, 0.45], [0.42, 0.78]]
    swapped = [row[::-1] for row in right]
    images = [right, swapped, [[0.80], [0.42]], [[math.nan, math.nan]] * 2]
    values = torch.full((len(images), 2, 2, 2), math.nan)
    for time, image in enumerate(images):
        for reference in range(2):  # the second one is farther
            values[time, :, reference, : len(image[0])] = 1 - torch.tensor(image) + 0.1 * reference
    expected = np.array([[0.80, 0.78], [0.80, 0.78], [0.80, 0], [0, 0]])
    assert assigned_similarities(values).numpy() == pytest.approx(expected, abs=1e-6)
    farther = np.where(expected > 0, expected - 0.05, 0)
    assert assigned_similarities(values, "mean").numpy() == pytest.approx(farther, abs=1e-6)


def test_gradients_of_assigned_similarities_are_finite_differences() -> None:
    """Of two subjects with two references each, in the crops of three boxes; the assignment stays the same."""
    smooth = random_model("dinov3").double()
    photos = {"ann": scenes.references(ANN, 2), "rex": scenes.references(REX, 2)}
    subjects = {name: smooth.embed(images) for name, images in photos.items()}
    picture, (left, right) = scene((ANN, REX))
    boxes = [left, (SIDE // 2, 10, SIDE + SIDE // 2, SIDE), right]
    start = torch.from_numpy(np.array(picture)).permute(2, 0, 1).double().div(255).clamp(0.05, 0.95)
    direction = torch.randn(start.shape, generator=torch.Generator().manual_seed(0), dtype=torch.float64)

    def total(pixels: torch.Tensor) -> torch.Tensor:
        return assigned_similarities(match(smooth, subjects, pixels, regions=boxes).distances).sum()

    pixels = start.clone().requires_grad_()
    total(pixels).backward()
    step = 1e-3
    with torch.no_grad():
        slope = (total(start + step * direction) - total(start - step * direction)) / (2 * step)
    assert pixels.grad is not None
    assert float((pixels.grad * direction).sum()) == pytest.approx(float(slope), rel=1e-2)
