"""What models need, as `idmetric models` says: counted again, and compared with measurements of small models."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import nn

from benchmarks.sizes import MODELS, size_of, size_of_qwen
from idmetric import IDSim
from idmetric.metric.checkpoints import released
from idmetric.metric.idsim import Head, IDSimConfig
from idmetric.metric.nearid import NearIDConfig
from idmetric.metric.sizes import SIZES
from idmetric.metric.timm_models import build

# of the published encoders: width, blocks, tokens of an image
SHAPES = {
    "dinov3_vitl16": (1024, 24, 28 * 28 + 5),
    "dinov3_vitb16": (768, 12, 28 * 28 + 5),
    "dinov2_vitl14": (1024, 24, 32 * 32 + 1),
    "dinov2_vitb14": (768, 12, 32 * 32 + 1),
}


def allocated_peak(run: Callable[[], object], device: torch.device) -> int:
    """The most bytes that torch allocates at a time during a run, beyond those before it."""
    if device.type == "cuda":
        before = torch.cuda.memory_allocated(device)
        torch.cuda.reset_peak_memory_stats(device)
        run()
        return torch.cuda.max_memory_allocated(device) - before

    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], profile_memory=True) as profile:
        run()
    allocated = peak = 0
    for event in profile.profiler.kineto_results.events():
        if event.name() == "[memory]":
            allocated += event.nbytes()
            peak = max(peak, allocated)
    return peak


def count(model: nn.Module) -> int:
    return sum(parameter.numel() for parameter in model.parameters())


@pytest.mark.parametrize("name", SHAPES)
def test_parameters_are_those_of_timms_encoders_with_two_heads(name: str) -> None:
    config = IDSimConfig(released.IDSIM[name].backbone)
    trunk = build(config.backbone, image_size=config.image_size, empty=True)
    with torch.device("meta"):
        head = Head(int(trunk.num_features), config.hidden)
    assert SIZES[name].parameters == count(trunk) + 2 * count(head)


def test_parameters_of_nearid_tiny_and_lite() -> None:
    config = NearIDConfig()
    nearid = build(config.backbone, image_size=config.image_size, args=config.backbone_args, empty=True)
    assert SIZES["nearid"].parameters == count(nearid)
    assert SIZES["tiny"].parameters == count(IDSim("tiny", device="cpu"))
    assert SIZES["efficientnet-lite0"].parameters == count(build("tf_efficientnet_lite0"))
    assert list(SIZES) == [*MODELS, *released.VISID]


@pytest.mark.parametrize(("name", "head"), [("visid_3b", 0), ("visid_7b", 152_064 * 3584)])
def test_parameters_of_visme_fit_the_size_of_its_download(name: str, head: int) -> None:
    """The download of the 7B has a language head, which is not opened; the 3B's is tied to the embedding of words."""
    pytest.importorskip("transformers")
    size = size_of_qwen(name)
    assert size.parameters == SIZES[name].parameters
    assert size.flops == pytest.approx(SIZES[name].flops, rel=0.001)
    assert size.activation_bytes == pytest.approx(SIZES[name].activation_bytes, rel=0.001)
    assert 2 * (size.parameters + head) / 1e9 == pytest.approx(released.VISID[name].gigabytes, abs=0.06)


@pytest.mark.parametrize("name", ["tiny", "dinov3_vitb16"])
def test_numbers_are_counted_again(name: str) -> None:
    metric = IDSim("tiny", device="cpu") if name == "tiny" else IDSim(IDSimConfig(released.IDSIM[name].backbone))
    size = size_of(metric)
    assert size.parameters == SIZES[name].parameters
    assert size.flops == pytest.approx(SIZES[name].flops, rel=0.01)
    assert size.activation_bytes == pytest.approx(SIZES[name].activation_bytes, rel=0.05)


# Measured


def test_memory_of_tiny_is_that_of_its_formula() -> None:
    """38.7 MB of weights and 6.87 MB an image, against what torch allocates for 8 images."""
    metric = IDSim("tiny", device="cpu")
    pixels = torch.rand(8, 3, 224, 224)
    weights = sum(tensor.numel() * tensor.element_size() for tensor in metric.state_dict().values())
    with torch.no_grad():
        measured = weights + allocated_peak(lambda: metric.forward_features(metric.normalize(pixels)), metric.device)
    assert SIZES["tiny"].memory(8) == pytest.approx(measured, rel=0.25)
