"""The interfaces of lpips and dreamsim: signatures and shapes of the originals, distances of the metric named."""

from __future__ import annotations

import inspect
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

import idmetric
import idmetric.compat.lpips as our_lpips
from idmetric import IDSim, ImageReadError
from idmetric.compat.dreamsim import dreamsim
from idmetric.metric.errors import RequestError

MUG_A, MUG_B = (
    Path(idmetric.__file__).parents[1] / "examples" / "images" / name for name in ("mug_a.png", "mug_b.png")
)


@pytest.fixture(scope="module")
def metric() -> IDSim:
    return IDSim("tiny", device="cpu")


@pytest.fixture
def pixels() -> torch.Tensor:
    """Two pairs of images (2, 2, 3, 64, 64) in [0, 1]."""
    return torch.rand(2, 2, 3, 64, 64, generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize("name", ["__init__", "forward"])
def test_arguments_of_lpips_have_the_originals_names_order_and_defaults(name: str) -> None:
    lpips = pytest.importorskip("lpips")
    theirs = list(inspect.signature(getattr(lpips.LPIPS, name)).parameters.values())
    ours = list(inspect.signature(getattr(our_lpips.LPIPS, name)).parameters.values())
    for their_argument, our_argument in zip(theirs, ours, strict=False):
        assert our_argument.name == their_argument.name
        if their_argument.name != "net":  # which names the metric here
            assert our_argument.default == their_argument.default


def test_lpips_gives_the_metrics_distances_in_the_shape_of_the_original(metric: IDSim, pixels: torch.Tensor) -> None:
    lpips = pytest.importorskip("lpips")
    a, b = pixels
    loss_fn = our_lpips.LPIPS(net="tiny", device="cpu", verbose=False)
    original = lpips.LPIPS(pnet_rand=True, verbose=False)  # nothing is downloaded
    in_range = 2 * a - 1, 2 * b - 1
    expected = metric(a, b).view(2, 1, 1, 1)
    for distances in (loss_fn(*in_range), loss_fn.forward(*in_range), loss_fn.forward(a, b, normalize=True)):
        assert distances.shape == original(*in_range).shape == (2, 1, 1, 1)
        torch.testing.assert_close(distances, expected, atol=1e-6, rtol=1e-4)
    assert loss_fn(in_range[0][:1], in_range[1]).shape == original(in_range[0][:1], in_range[1]).shape


def test_gradients_reach_the_pixels_through_lpips_and_dreamsim(pixels: torch.Tensor) -> None:
    for model, low in (
        (our_lpips.LPIPS(net="tiny", device="cpu"), -1),
        (dreamsim(dreamsim_type="tiny", device="cpu")[0], 0),
    ):
        a = (pixels[0] * (1 - low) + low).requires_grad_()
        model(a, pixels[1]).sum().backward()
        assert a.grad is not None
        assert float(a.grad.abs().sum()) > 0
        assert all(not parameter.requires_grad for parameter in model.parameters())


def test_images_read_as_lpips_reads_them_are_in_its_range(metric: IDSim) -> None:
    lpips = pytest.importorskip("lpips")
    image = our_lpips.load_image(MUG_A)
    assert (image.dtype, image.ndim, image.shape[2]) == (np.uint8, 3, 3)
    tensor = our_lpips.im2tensor(image)
    torch.testing.assert_close(tensor, lpips.im2tensor(image))
    distance = our_lpips.LPIPS(net=metric)(tensor, our_lpips.im2tensor(our_lpips.load_image(MUG_B)))
    assert float(distance) == pytest.approx(float(metric(MUG_A, MUG_B)), abs=5e-3)  # resized as floats, not as 8 bits


@pytest.mark.parametrize(("normalize", "highest"), [(False, 255.0), (True, 255.0), (False, 1.5)])
def test_pixels_out_of_range_are_refused(metric: IDSim, normalize: bool, highest: float) -> None:
    images = torch.rand(1, 3, 32, 32)
    images[0, 0, 0, 0] = highest
    with pytest.raises(ImageReadError):
        our_lpips.LPIPS(net=metric)(images, images, normalize=normalize)


def test_a_small_overshoot_is_refused_with_how_to_clamp_it(metric: IDSim) -> None:
    images = torch.zeros(1, 3, 32, 32)
    images[0, 0, 0, 0] = 1.05
    with pytest.raises(ImageReadError, match=r"images\.clamp\(-1, 1\); normalize=True takes pixels in \[0, 1\]"):
        our_lpips.LPIPS(net=metric)(images, images)


def test_an_opened_metric_takes_a_device_and_no_other_option() -> None:
    metric = IDSim("tiny", device="cpu")
    with pytest.raises(RequestError, match="nonsense, dtype: the metric is open already"):
        our_lpips.LPIPS(net=metric, device="meta", nonsense=3, dtype=torch.float16)
    with pytest.raises(RequestError, match="cache_dir: the metric is open already"):
        dreamsim(dreamsim_type=metric, cache_dir="folder")
    assert metric.device.type == "cpu"
    assert dreamsim(dreamsim_type=metric)[0].metric is metric
    assert our_lpips.LPIPS(net=metric, device="meta").metric.device.type == "meta"


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: our_lpips.LPIPS(), "no metric is named"),
        (lambda: our_lpips.LPIPS(net="alex"), "net='alex' is not a model of idmetric"),
        (lambda: our_lpips.LPIPS(net="tiny", spatial=True), "spatial=True is of LPIPS alone"),
        (lambda: our_lpips.LPIPS(net="tiny", device="cpu")(None, None, True), "retPerLayer=True is of LPIPS alone"),
        (lambda: dreamsim(pretrained=True), "no metric is named"),
        (lambda: dreamsim(dreamsim_type="ensemble"), "dreamsim_type='ensemble' is not a model of idmetric"),
        (lambda: dreamsim(dreamsim_type="tiny", use_patch_model=True), "use_patch_model=True is of DreamSim alone"),
    ],
)
def test_no_metric_is_chosen_silently_and_no_option_is_dropped(call: Any, words: str) -> None:
    with pytest.raises(RequestError, match=words):
        call()


def test_dreamsim_gives_the_metrics_distances_in_the_shapes_of_the_original(metric: IDSim) -> None:
    model, preprocess = dreamsim(pretrained=True, dreamsim_type="tiny", device="cpu")
    images = [Image.open(path) for path in (MUG_A, MUG_B)]
    a, b = map(preprocess, images)
    assert a.shape == (1, 3, *metric.image_size)
    assert (a.dtype, float(a.min()) >= 0, float(a.max()) <= 1) == (torch.float32, True, True)
    assert model(a, b).shape == (1,)
    assert float(model(a, b)) == pytest.approx(float(metric(*images)), abs=1e-6)

    features = model.embed(torch.cat([a, b]))
    assert features.shape == (2, metric.embed(MUG_A).cls.shape[1])
    torch.testing.assert_close(features.norm(dim=1), torch.ones(2))
    assert float(1 - features[0] @ features[1]) == pytest.approx(float(model(a, b)), abs=1e-6)


def test_dreamsims_arguments_have_the_originals_names_and_order() -> None:
    """As of `dreamsim(...)` in ssundaram21/dreamsim, dreamsim/model.py."""
    names = list(inspect.signature(dreamsim).parameters)
    assert names[:6] == ["pretrained", "device", "cache_dir", "normalize_embeds", "dreamsim_type", "use_patch_model"]
