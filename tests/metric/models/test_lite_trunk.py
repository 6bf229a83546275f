"""EfficientNet-Lite without timm: the outputs, names and gradients of timm's model."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import timm
import torch
from torch import nn

from idmetric.metric.models import lite_trunk, timm_encoders
from idmetric.metric.models.lite_trunk import SCALES, LiteTrunk

EXAMPLES = Path(__file__).parents[3] / "examples" / "images"


NAME = "tf_efficientnet_lite0"


def timm_model(name: str = NAME) -> nn.Module:
    torch.manual_seed(0)
    model: nn.Module = timm.create_model(name, num_classes=0)
    with torch.no_grad():
        for module in model.modules():
            if isinstance(module, nn.BatchNorm2d):  # new ones would change nothing
                for tensor in (module.weight, module.running_var):
                    tensor.uniform_(0.5, 2)
                for tensor in (module.bias, module.running_mean):
                    tensor.normal_(std=0.3)
    return model.double().eval()  # in float32, random weights blow rounding up


@pytest.fixture(scope="module", params=SCALES)
def name(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module")
def twin(name: str) -> nn.Module:
    return timm_model(name)


@pytest.fixture(scope="module")
def trunk(twin: nn.Module, name: str) -> LiteTrunk:
    return same(twin, name)


def same(model: nn.Module, name: str = NAME) -> LiteTrunk:
    """A trunk of our own with these weights."""
    made = LiteTrunk(name).double()
    made.load_state_dict(model.state_dict())
    return made.eval()


def close(found: torch.Tensor, expected: torch.Tensor) -> None:
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-9 * float(expected.detach().abs().max()))


def test_tensors_have_timms_names_order_and_shapes(twin: nn.Module, trunk: LiteTrunk) -> None:
    assert [(k, v.shape) for k, v in trunk.state_dict().items()] == [(k, v.shape) for k, v in twin.state_dict().items()]


@pytest.mark.parametrize("shape", [(64, 64), (97, 131), (33, 50)])
def test_features_and_maps_are_timms(twin: nn.Module, trunk: LiteTrunk, shape: tuple[int, int]) -> None:
    x = torch.randn(2, 3, *shape, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    with torch.no_grad():
        for wanted in ([0, 1, 2, 3, 4], [3], 2):
            expected_final, expected = twin.forward_intermediates(x, indices=wanted)  # type: ignore[operator]
            final, maps = trunk.forward_intermediates(x, wanted)
            assert len(maps) == len(expected)
            for found, other in zip([final, *maps], [expected_final, *expected], strict=True):
                close(found, other)
        close(trunk(x), twin(x))
        [expected_last] = twin.forward_intermediates(x, indices=1, intermediates_only=True)  # type: ignore[operator]
        [last] = trunk.forward_intermediates(x, 1, intermediates_only=True)
        close(last, expected_last)
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
    for name, expected in gradients[0][1].items():
        found = gradients[1][1][name]
        assert found is not None
        assert expected is not None
        close(found, expected)


def test_training_mode_updates_the_statistics_as_timm() -> None:
    twin = timm_model()
    trunk = same(twin)
    x = torch.randn(4, 3, 64, 64, dtype=torch.float64, generator=torch.Generator().manual_seed(3))
    close(trunk.train()(x), twin.train()(x))
    for name, value in twin.state_dict().items():
        close(trunk.state_dict()[name].float(), value.float())


def test_a_folded_trunk_computes_the_same(twin: nn.Module, name: str) -> None:
    state = {key: value.float() for key, value in twin.state_dict().items()}
    plain = LiteTrunk(name + lite_trunk.FOLDED)
    plain.load_state_dict(lite_trunk.fold(state, name))
    assert not any(isinstance(module, nn.BatchNorm2d) for module in plain.modules())
    x = torch.randn(2, 3, 97, 64, generator=torch.Generator().manual_seed(6))
    with torch.no_grad():
        found, expected = plain.double()(x.double()), twin(x.double())
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-4 * float(expected.abs().max()))


def test_a_module_in_the_place_of_a_convolution_is_used(trunk: LiteTrunk, name: str) -> None:
    class Doubled(nn.Conv2d):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return 2 * super().forward(x)

    x = torch.randn(1, 3, 64, 64, dtype=torch.float64, generator=torch.Generator().manual_seed(4))
    other, doubled = (same(trunk, name) for _ in range(2))
    other.conv_head = Doubled(trunk.conv_head.in_channels, 1280, 1, bias=False).double()
    other.conv_head.load_state_dict(trunk.conv_head.state_dict())
    with torch.no_grad():
        doubled.conv_head.weight.mul_(2)
        close(other(x), doubled(x))


def test_it_stands_for_timms_model_with_the_same_random_weights(name: str) -> None:
    assert isinstance(timm_encoders.build(name, empty=True), LiteTrunk)
    torch.manual_seed(5)
    made = timm_encoders.build(name)
    assert isinstance(made, LiteTrunk)
    torch.manual_seed(5)
    expected = timm.create_model(name, num_classes=0).state_dict()
    assert all(value.equal(expected[name]) for name, value in made.state_dict().items())
    assert type(timm_encoders.build(name, args={"num_classes": 5}, empty=True)).__module__.startswith("timm")


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


@pytest.mark.parametrize(("kernel", "stride"), [(3, 1), (3, 2), (5, 1), (5, 2)])
def test_gradients_of_depthwise_convolutions_in_bfloat16_are_exact(kernel: int, stride: int) -> None:
    rng = torch.Generator().manual_seed(kernel + stride)
    conv = nn.Conv2d(6, 6, kernel, stride, kernel // 2 if stride == 1 else 0, groups=6, bias=False)
    norm = nn.BatchNorm2d(6, eps=1e-3).eval()  # of new statistics, which scale by almost 1
    with torch.no_grad():
        conv.weight.copy_(torch.randn(conv.weight.shape, generator=rng).bfloat16())
    pixels = torch.randn(4, 6, 15, 14, generator=rng).bfloat16()
    x = pixels.float().requires_grad_()
    with torch.autocast("cpu", torch.bfloat16):
        y = lite_trunk._normed(conv, norm, x, act=False)
    slope = torch.randn(y.shape, generator=rng).bfloat16()
    y.backward(slope)

    exact = pixels.double().requires_grad_()
    weight = conv.weight.detach().double().requires_grad_()
    padded = (
        exact if stride == 1 else nn.functional.pad(exact, lite_trunk._same(14, kernel) + lite_trunk._same(15, kernel))
    )
    scale = (1 + norm.eps) ** -0.5
    seen = (weight.detach() * scale).bfloat16().double()
    rounded = seen + (weight - weight.detach()) * scale  # of the same values, with the slope of the weights
    nn.functional.conv2d(padded, rounded, None, stride, conv.padding, groups=6).backward(slope.double())
    assert y.dtype == torch.bfloat16
    grads = [one.grad for one in (x, conv.weight, exact, weight)]
    assert all(grad is not None for grad in grads)
    # torch's own are wrong by 4e-3
    torch.testing.assert_close(grads[0].double(), grads[2], rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(grads[1].double(), grads[3], rtol=1e-5, atol=1e-4)
