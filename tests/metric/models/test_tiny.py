"""The architecture of "tiny": EfficientNet-Lite without timm, and two of them below the heads of `IDSim`."""

from __future__ import annotations

import itertools
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import timm
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from idmetric import IDSim, load
from idmetric.metric.tiny.trunk import SCALES, LiteTrunk
from tests.conftest import TWO_TRUNKS

EXAMPLES = Path(__file__).parents[3] / "examples" / "images"

# The trunk, against timm's


@pytest.fixture(scope="module", params=SCALES)
def name(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module")
def trunk(name: str) -> LiteTrunk:
    """With random weights and biases, in float64: random weights blow rounding up."""
    torch.manual_seed(0)
    trunk = LiteTrunk(name).double()
    for path, parameter in trunk.named_parameters():
        if path.endswith(".bias"):
            nn.init.normal_(parameter, std=0.3)
    return trunk


@pytest.fixture(scope="module")
def twin(trunk: LiteTrunk, name: str) -> nn.Module:
    """timm's model with the weights of the trunk, and BatchNorms that do nothing but add the trunk's biases."""
    model = timm.create_model(name.removesuffix("_folded"), num_classes=0).double().eval()
    state = trunk.state_dict()
    with torch.no_grad():
        for path, module in model.named_modules():
            for (child, conv), (_, norm) in itertools.pairwise(module.named_children()):
                if isinstance(norm, nn.BatchNorm2d):
                    prefix = f"{path}.{child}".lstrip(".")
                    conv.weight.copy_(state.pop(f"{prefix}.weight"))
                    norm.bias.copy_(state.pop(f"{prefix}.bias"))
                    norm.weight.fill_((1 + norm.eps) ** 0.5)
    assert not state
    return model


def close(found: Tensor, expected: Tensor) -> None:
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-9 * float(expected.detach().abs().max()))


@pytest.mark.parametrize("shape", [(64, 64), (97, 131), (33, 50)])
def test_features_and_maps_are_timms(twin: nn.Module, trunk: LiteTrunk, shape: tuple[int, int]) -> None:
    x = torch.randn(2, 3, *shape, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    with torch.no_grad():
        close(trunk(x), twin(x))
        for wanted in ([0, 1, 2, 3, 4], [3], [1, 4]):
            _, expected = twin.forward_intermediates(x, indices=wanted)  # type: ignore[operator]
            _, maps = trunk.forward_features(x, wanted)
            for found, other in zip(maps, expected, strict=True):
                close(found, other)
    assert trunk.map_channels == [entry["num_chs"] for entry in twin.feature_info]  # type: ignore[union-attr]


@pytest.mark.parametrize("checkpointed", [False, True])
def test_gradients_of_pixels_and_weights_are_timms(twin: nn.Module, trunk: LiteTrunk, checkpointed: bool) -> None:
    x = torch.randn(1, 3, 64, 64, dtype=torch.float64, generator=torch.Generator().manual_seed(2))
    trunk.set_grad_checkpointing(checkpointed)
    gradients = []
    for model in (twin, trunk):
        pixels = x.clone().requires_grad_()
        model.zero_grad()
        model(pixels).square().sum().backward()
        assert pixels.grad is not None
        weights = {path: p.grad for path, p in model.named_parameters() if path.endswith(".weight")}
        gradients.append({"pixels": pixels.grad, **weights})
    trunk.set_grad_checkpointing(False)
    for path, found in gradients[1].items():
        expected = gradients[0][path]
        assert found is not None
        assert expected is not None
        close(found, expected)


def test_new_weights_are_as_large_as_timms(name: str) -> None:
    torch.manual_seed(5)
    state = LiteTrunk(name).state_dict()
    for path, parameter in timm.create_model(name.removesuffix("_folded"), num_classes=0).named_parameters():
        if parameter.ndim == 4:
            assert state[path].std() == pytest.approx(float(parameter.detach().std()), rel=0.2)
    assert not any(value.any() for path, value in state.items() if path.endswith(".bias"))


def test_a_score_of_tiny_imports_neither_timm_nor_a_compiler() -> None:
    images = [str(EXAMPLES / name) for name in ("mug_a.png", "mug_b.png")]
    heavy = {"timm", "torchvision", "torch._dynamo", "sympy", "torch.distributed.tensor"}
    code = (
        "import sys\nfrom idmetric.cli.main import main\n"
        f"assert main(['score', '--model', 'tiny', *{images}]) == 0\n"
        f"print(sorted({heavy} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "[]"


# Two trunks in an IDSim


@pytest.fixture(scope="module")
def model() -> IDSim:
    torch.manual_seed(0)
    return IDSim(TWO_TRUNKS, device="cpu")


def centered(x: Tensor) -> Tensor:
    x = x - x.mean(-1, keepdim=True)
    return x / x.norm(dim=-1, keepdim=True)


def test_both_features_stand_side_by_side_by_their_shares(model: IDSim) -> None:
    pixels = torch.rand(3, 3, 64, 64, generator=torch.Generator().manual_seed(1))
    x = (pixels - 0.5) / 0.5
    smaller = F.interpolate(x, (48, 48), mode="bilinear", antialias=True, align_corners=False)
    with torch.no_grad():
        found = model.embed_pixels(pixels).cls
        first = centered(model.mlp_cls(model.backbone(x)))
        second = centered(model.mlp_second(model.second(smaller)))
    expected = torch.cat([0.7**0.5 * first, 0.3**0.5 * second], -1)
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-5)
    # the cosine is the mean of both, weighted
    cosine = 0.7 * F.cosine_similarity(first[0], first[1], dim=0) + 0.3 * F.cosine_similarity(
        second[0], second[1], dim=0
    )
    torch.testing.assert_close(found[0] @ found[1], cosine, rtol=0, atol=1e-5)


def test_patches_join_the_maps_of_the_stages(model: IDSim) -> None:
    pixels = torch.rand(2, 3, 64, 64, generator=torch.Generator().manual_seed(0))
    seen: dict[int, Tensor] = {}
    hooks = [
        model.backbone.blocks[block].register_forward_hook(
            lambda _m, _i, out, block=block: seen.__setitem__(block, out)
        )
        for block in (2, 4)  # the last blocks at strides 8 and 16
    ]
    with torch.no_grad():
        found = model.embed_pixels(pixels)
        for hook in hooks:
            hook.remove()
        fine, deep = seen[2], torch.nn.Upsample((8, 8), mode="bilinear")(seen[4])
        assert found.grid == (8, 8)
        assert found.patches is not None
        for row, column in ((0, 0), (2, 5)):
            token = torch.cat([centered(feature_map[:, :, row, column]) for feature_map in (fine, deep)], 1)
            expected = centered(model.mlp_patch(token))
            torch.testing.assert_close(found.patches[:, row * 8 + column], expected, rtol=0, atol=1e-5)


def test_a_saved_model_is_opened_as_it_was(model: IDSim, tmp_path: Path) -> None:
    model.save_pretrained(tmp_path)
    opened = load(tmp_path, device="cpu")
    assert opened.settings == TWO_TRUNKS
    image = np.random.default_rng(0).integers(0, 256, (96, 96, 3), dtype=np.uint8)
    assert opened(image, image[:50], "joint").equal(model(image, image[:50], "joint"))


@pytest.mark.parametrize(
    "changes",
    [{"second": ""}, {"second": "resnet18"}, {"patch_stages": ()}, {"second_size": 0}, {"second_share": 1.0},
     {"backbone": "vit_tiny_patch16_224"}],
    ids=str,
)  # fmt: skip
def test_settings_that_do_not_fit_a_second_trunk_are_refused(changes: dict[str, object]) -> None:
    with pytest.raises(ValueError, match="patch_stages"):
        replace(TWO_TRUNKS, **changes)  # type: ignore[arg-type]
