"""A metric in trainers' hands: compiled, copied, moved, nested, wrapped, emptied, or made under inference mode."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from packaging.version import Version
from torch import Tensor, nn

from idmetric import IDSim, NearID, load
from idmetric.metric.embedder import Embedder
from idmetric.metric.fingerprint import weights_digest
from idmetric.metric.nearid import NearIDConfig
from tests.conftest import random_model


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("model") / "run"
    random_model("dinov3").save_pretrained(path)
    return path


@pytest.fixture
def metric(folder: Path) -> Embedder:
    """One that may be changed."""
    return load(folder, device="cpu")


PIXELS = torch.rand(2, 3, 64, 64, generator=torch.Generator().manual_seed(0))


def distances(metric: Embedder) -> Tensor:
    return metric.pairwise(PIXELS, PIXELS.flip(3), "joint")


def nested(metric: Embedder) -> Embedder:
    nn.ModuleDict({"net": nn.Linear(2, 2), "metric": metric}).train().double().requires_grad_(False).float()
    assert not any(module.training for module in metric.modules())
    return metric


def shake(metric: Embedder) -> None:
    with torch.no_grad():
        for parameter in metric.parameters():
            parameter.mul_(1.1)


@pytest.mark.parametrize(
    ("change", "tolerance"),
    [
        (copy.deepcopy, 0.0),
        (lambda metric: pickle.loads(pickle.dumps(metric)), 0.0),
        (lambda metric: metric.to(memory_format=torch.channels_last), 1e-5),
        (Embedder.double, 1e-5),
        (lambda metric: copy.deepcopy(metric.bfloat16()), 0.1),
        (nested, 0.0),
    ],
)
def test_a_metric_that_is_copied_moved_or_nested_keeps_its_numbers_and_its_name(
    metric: Embedder, change: Callable[[Embedder], Embedder], tolerance: float
) -> None:
    expected, name = distances(metric), metric.model_id
    changed = change(metric)
    assert changed.model_id == changed.embed(PIXELS).model == name
    torch.testing.assert_close(distances(changed).float(), expected, rtol=0, atol=tolerance)
    shake(changed)
    assert changed.model_id == name.replace("/64x64", "+changed/64x64")
    assert changed.about()["weights"] == weights_digest(changed)
    assert copy.deepcopy(changed).model_id == pickle.loads(pickle.dumps(changed)).model_id == changed.model_id


def test_a_widened_metric_stays_rounded_and_is_changed(metric: Embedder) -> None:
    revision = metric.revision
    assert metric.half().revision == revision
    assert metric.float().revision == f"{revision}+changed"


def test_a_metric_emptied_in_its_module_is_changed_though_its_weights_are_loaded_again(metric: Embedder) -> None:
    state, revision = copy.deepcopy(metric.state_dict()), metric.revision
    module = nn.ModuleDict({"metric": metric})
    for device in ("meta", "cpu"):
        module.to_empty(device=device)
        assert metric.revision == f"{revision}+changed"
    metric.load_state_dict(state, strict=True)
    assert metric.revision == f"{revision}+changed"


@pytest.mark.skipif(Version(torch.__version__) < Version("2.10"), reason="docs/limits.md: older versions compile parts")
@pytest.mark.parametrize("kind", ["idsim", pytest.param("nearid", marks=pytest.mark.slow)])
def test_a_compiled_metric_gives_the_same(kind: str, metric: Embedder) -> None:
    torch.compiler.reset()
    small = NearIDConfig(image_size=56, backbone_args={"depth": 2, "embed_dim": 48, "num_heads": 4})
    model = metric if kind == "idsim" else NearID(small, device="cpu")
    expected, features = distances(model), model(PIXELS)
    torch.testing.assert_close(
        torch.compile(model, backend="aot_eager", fullgraph=True)(PIXELS).cls, features.cls, rtol=0, atol=1e-5
    )
    model.compile(backend="aot_eager")
    torch.testing.assert_close(distances(model), expected, rtol=0, atol=1e-5)
    twin = copy.deepcopy(model)
    shake(twin)
    assert (distances(twin) - expected).abs().max() > 1e-5  # it runs on its own weights
    torch.testing.assert_close(distances(model), expected, rtol=0, atol=1e-5)


def test_a_metric_in_training_is_wrapped_by_ddp(metric: Embedder) -> None:
    import torch.distributed as dist

    metric.requires_grad_(True).train()
    plain = copy.deepcopy(metric)
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    try:
        wrapped = nn.parallel.DistributedDataParallel(metric, find_unused_parameters=True)
        for model in (wrapped, plain):
            model(PIXELS).cls[0].dot(torch.ones(48)).square().backward()
    finally:
        dist.destroy_process_group()
    found = [p.grad for p in metric.parameters() if p.grad is not None]
    expected = [p.grad for p in plain.parameters() if p.grad is not None]
    assert len(found) >= len(expected) > 0
    for a, b in zip(expected, found[: len(expected)], strict=True):
        torch.testing.assert_close(a, b)


@pytest.mark.parametrize("open_model", [lambda: IDSim("tiny", device="cpu"), lambda: load("tiny", device="cpu")])
def test_a_metric_made_under_inference_mode_can_be_a_loss(open_model: Callable[[], IDSim]) -> None:
    with torch.inference_mode():
        metric = open_model()
        metric.embed(torch.full((3, 32, 32), 0.5))  # so that whatever is computed once, is
    assert not any(tensor.is_inference() for tensor in (*metric.parameters(), *metric.buffers()))
    image = torch.rand(1, 3, 32, 32, requires_grad=True)
    metric(image, image.detach().flip(3), "joint").sum().backward()
    assert image.grad is not None
    assert image.grad.abs().sum() > 0
