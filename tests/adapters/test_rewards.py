"""Rewards: numbers against the metric's own, copies, and the call shapes of trainers on docs/reward.md."""

from __future__ import annotations

import re
import sys
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image, ImageEnhance, ImageOps

from idmetric import IDSim
from idmetric.adapters import reward
from idmetric.calibration.apply import CalibrationError
from tests.docs.test_code import NOT_RUN, blocks

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


@pytest.mark.parametrize("distance", ["patch", "joint"])
def test_any_distance_may_be_the_reward(tiny: IDSim, distance: str) -> None:
    expected = 1 - tiny(MUGS[1], MUGS[0], distance).item()
    assert reward(tiny, distance=distance)(MUGS[1], MUGS[0]) == pytest.approx([np.clip(expected, 0, 1)], abs=1e-5)


def test_references_are_one_for_all_or_one_or_several_for_each(tiny: IDSim) -> None:
    score = reward(tiny)
    [alone], [other] = score([MUGS[1]], MUGS[0]), score([MUGS[2]], MUGS[0])
    assert score(MUGS[1:], MUGS[0]) == score(MUGS[1:], [MUGS[0]]) == pytest.approx([alone, other], abs=1e-5)
    assert score(MUGS[1:], [MUGS[0]] * 2) == score(MUGS[1:], [[MUGS[0]], [MUGS[0]]])
    assert score(MUGS[1:], [[MUGS[0], BOX]]) == pytest.approx([alone, other], abs=1e-5)
    for wrong in ([MUGS[0]] * 3, [[MUGS[0]], []]):
        with pytest.raises(ValueError, match=r"2 images and [23] references"):
            score(MUGS[1:], wrong)


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
    expected = tiny.probability(images, [MUGS[0]] * 2, prior=0.2).tolist()
    assert reward(tiny, calibration="stored", prior=0.2)(images, MUGS[0]) == pytest.approx(expected, abs=1e-6)
    with pytest.raises(CalibrationError, match="'cls', not 'patch'"):
        reward(tiny, calibration="stored", distance="patch")


@pytest.mark.parametrize("wrong", [{"distance": "l2"}, {"aggregate": "max"}, {"copy_penalty": 2}])
def test_options_are_checked_before_training(tiny: IDSim, wrong: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=str(next(iter(wrong.values())))):
        reward(tiny, **wrong)


def test_the_table_of_the_page_has_the_rewards_of_its_images(tiny: IDSim) -> None:
    page = (ROOT / "docs" / "reward.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| .* \| (-?\d\.\d\d) \| (-?\d\.\d\d) \|$", page, flags=re.MULTILINE)
    original = Image.open(MUGS[0]).convert("RGB")
    images = [original, ImageOps.mirror(original.resize((200, 200))), MUGS[1], str(EXAMPLES / "mug_other.png"), BOX]
    found = [reward(tiny, copy_penalty=penalty)(images, MUGS[0]) for penalty in (0, 1)]
    assert pytest.approx(np.array(found), abs=6e-3) == np.array(rows, dtype=float).T


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
    text = (ROOT / "docs" / "reward.md").read_text(encoding="utf-8")
    assert NOT_RUN in text
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(sys.modules, "flow_factory", package)
        patch.setitem(sys.modules, "flow_factory.rewards", module)
        for code, _ in list(blocks(text))[1:]:
            exec("from idmetric import IDSim\nfrom idmetric.adapters import reward\n" + code, names)
    return names


@pytest.fixture(scope="module")
def expected(tiny: IDSim) -> list[float]:
    return tiny.probability([MUGS[1], BOX], [MUGS[0]] * 2).tolist()


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
    given = {"data_source": "mugs", "ground_truth": "", "extra_info": {"references": MUGS[:1]}}
    assert wrappers["compute_score"](solution_image=frames[0], **given)["score"] == pytest.approx(expected[0], abs=1e-3)
    assert wrappers["compute_score"](solution_image=frames, **given)["score"] == pytest.approx(min(expected), abs=1e-3)


def test_the_wrapper_for_trl(wrappers: dict[str, Any], expected: list[float]) -> None:
    images = [Image.open(MUGS[1]), Image.open(BOX)]
    found = wrappers["identity_reward"](
        prompts=["a mug"] * 2, completions=images, references=[[MUGS[0]]] * 2, seed=[1, 2]
    )
    assert found == pytest.approx(expected, abs=1e-3)


def test_files_that_are_read_once_and_folders_are_taken(tiny: IDSim, tmp_path: Path) -> None:
    expected = reward(tiny)(MUGS[1:], [MUGS[:1]])
    with Path(MUGS[1]).open("rb") as one, Path(MUGS[2]).open("rb") as other, Path(MUGS[0]).open("rb") as reference:
        assert reward(tiny)([one, other], [[reference]]) == pytest.approx(expected, abs=1e-5)
    for k, path in enumerate([MUGS[0], BOX]):
        Image.open(path).save(tmp_path / f"{k}.png")
    assert reward(tiny)(MUGS[1:], str(tmp_path)) == pytest.approx(expected, abs=1e-5)  # all for each
    with pytest.raises(ValueError, match="prior needs a calibration"):
        reward(tiny, prior=0.5)
