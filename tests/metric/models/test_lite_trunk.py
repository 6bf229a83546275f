"""EfficientNet-Lite without timm: the outputs and gradients of timm's model, with its BatchNorms folded."""

from __future__ import annotations

import itertools
import subprocess
import sys
from pathlib import Path

import pytest
import timm
import torch
from torch import nn

from idmetric.metric.errors import CheckpointError
from idmetric.metric.timm_models import build
from idmetric.metric.tiny.trunk import FOLDED, SCALES, LiteTrunk, fold

EXAMPLES = Path(__file__).parents[3] / "examples" / "images"


def timm_model(name: str) -> nn.Module:
    torch.manual_seed(0)
    model: nn.Module = timm.create_model(name, num_classes=0)
    with torch.no_grad():
        for module in model.modules():
            if isinstance(module, nn.BatchNorm2d):  # new ones would change nothing
                for tensor in (module.weight, module.running_var):
                    tensor.uniform_(0.5, 2)
                for tensor in (module.bias, module.running_mean):
                    tensor.normal_(std=0.3)
    return model.eval()


@pytest.fixture(scope="module", params=SCALES)
def name(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module")
def twin(trunk: LiteTrunk, name: str) -> nn.Module:
    """timm's model with the weights of the trunk, and BatchNorms that do nothing but add the trunk's biases."""
    model = timm.create_model(name.removesuffix(FOLDED), num_classes=0).double().eval()
    state = trunk.state_dict()
    with torch.no_grad():
        for path, module in model.named_modules():
            children = list(module.named_children())
            for (child, conv), (_, norm) in itertools.pairwise(children):
                if isinstance(norm, nn.BatchNorm2d):
                    prefix = f"{path}.{child}".lstrip(".")
                    conv.weight.copy_(state.pop(f"{prefix}.weight"))
                    norm.bias.copy_(state.pop(f"{prefix}.bias"))
                    norm.weight.fill_((1 + norm.eps) ** 0.5)
    assert not state
    return model


@pytest.fixture(scope="module")
def trunk(name: str) -> LiteTrunk:
    """With the folded weights of a model of timm, in float64: random weights blow rounding up."""
    trunk = LiteTrunk(name)
    trunk.load_state_dict(fold(timm_model(name.removesuffix(FOLDED))))
    return trunk.double().eval()


def close(found: torch.Tensor, expected: torch.Tensor) -> None:
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-9 * float(expected.detach().abs().max()))


@pytest.mark.parametrize("shape", [(64, 64), (97, 131), (33, 50)])
def test_features_and_maps_are_timms(twin: nn.Module, trunk: LiteTrunk, shape: tuple[int, int]) -> None:
    x = torch.randn(2, 3, *shape, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    with torch.no_grad():
        for wanted in ([0, 1, 2, 3, 4], [3], [1, 4]):
            expected_final, expected = twin.forward_intermediates(x, indices=wanted)  # type: ignore[operator]
            final, maps = trunk.forward_intermediates(x, wanted)
            assert len(maps) == len(expected)
            for found, other in zip([final, *maps], [expected_final, *expected], strict=True):
                close(found, other)
        close(trunk(x), twin(x))
    assert [entry["num_chs"] for entry in trunk.feature_info] == [e["num_chs"] for e in twin.feature_info]


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
        gradients.append((pixels.grad, {name: p.grad for name, p in model.named_parameters()}))
    trunk.set_grad_checkpointing(False)

    close(gradients[1][0], gradients[0][0])
    for name, found in gradients[1][1].items():
        if name.endswith(".weight"):  # timm's biases are BatchNorm's, with other names
            expected = gradients[0][1][name]
            assert found is not None
            assert expected is not None
            close(found, expected)


def test_folded_weights_compute_the_same(name: str) -> None:
    model = timm_model(name.removesuffix(FOLDED))
    trunk = LiteTrunk(name)
    trunk.load_state_dict(fold(model))
    x = torch.randn(2, 3, 97, 64, generator=torch.Generator().manual_seed(6))
    with torch.no_grad():
        found, expected = trunk.double()(x.double()), model.double()(x.double())
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-4 * float(expected.abs().max()))


def test_new_weights_are_drawn_as_timm_draws_them(name: str) -> None:
    torch.manual_seed(5)
    trunk = build(name)
    assert isinstance(trunk, LiteTrunk)
    torch.manual_seed(5)
    expected = fold(timm.create_model(name.removesuffix(FOLDED), num_classes=0))
    state = trunk.state_dict()
    assert state.keys() == expected.keys()
    assert all(value.equal(state[key]) for key, value in expected.items())


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


def test_arguments_are_refused() -> None:
    name = f"tf_efficientnet_lite0{FOLDED}"
    with pytest.raises(CheckpointError, match=r"takes no arguments, got .*drop_rate"):
        build(name, args={"drop_rate": 0.5}, empty=True)
