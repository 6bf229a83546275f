"""Fixtures of all tests."""

from __future__ import annotations

import gc
import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from idmetric.metric.idsim import IDSim, IDSimConfig

TESTS = Path(__file__).parent
# what `pytest -m core` runs: formulas, images, models; the other files are not even imported
CORE = [
    TESTS / name
    for name in (
        "evaluate/statistics", "metric/distance", "metric/images/test_masks.py",
        "metric/images/test_read.py", "metric/models/test_backbone.py", "metric/models/test_backbone_weights.py",
        "metric/models/test_embedder.py", "metric/models/test_embedding.py", "scoring", "metric/test_loss.py",
        "test_public_api.py", "test_structure.py", "train/losses",
    )
]  # fmt: skip


def pytest_configure() -> None:
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # as shells do for programs in the background
        signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    if config.option.markexpr != "core" or collection_path == TESTS:
        return None
    path = collection_path
    kept = any(path == core or path in core.parents or core in path.parents for core in CORE)
    return None if kept or TESTS not in path.parents else True


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Iterator[Any]:
    gc.disable()  # nearly all that imports make stays until the end: no use to search it for garbage, now or later
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    core = {path for path in {item.path for item in items} if any(c == path or c in path.parents for c in CORE)}
    for item in items:
        if item.path in core and item.get_closest_marker("slow") is None:
            item.add_marker(pytest.mark.core)


@pytest.fixture(scope="session", autouse=True)
def _state(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Keep the user's own state folder untouched, even by commands in processes of their own."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_STATE_HOME", str(tmp_path_factory.mktemp("state")))
        yield


@pytest.fixture(scope="session")
def photo_root() -> Path:
    """The folder of test photos: $IDMETRIC_DATA, or `shared/data` beside the repository."""
    root = Path(os.environ.get("IDMETRIC_DATA") or Path(__file__).resolve().parents[2] / "shared" / "data")
    if not (root / "manifest.csv").is_file():
        pytest.skip("the test photos are not here: set IDMETRIC_DATA to their folder")
    return root


@pytest.fixture(scope="session")
def photos(photo_root: Path) -> list[Path]:
    """Twelve photos of different identities and kinds."""
    found = sorted(photo_root.glob("dev/grocery/*/0.jpg"))[:4]
    found += sorted(photo_root.glob("dev/fashion/*/*.jpg"))[:100:25]
    found += [p for p in sorted(photo_root.glob("dev/eth80/*/*")) if "mask" not in p.name][:160:40]
    return found


SMALL = {
    "dinov3": IDSimConfig(
        "vit_small_patch16_dinov3", 64, 24, backbone_args={"depth": 2, "embed_dim": 48, "num_heads": 3}
    ),
    "dinov2": IDSimConfig(
        "vit_small_patch14_dinov2", 56, 24, backbone_args={"depth": 2, "embed_dim": 48, "num_heads": 3}
    ),
    "cnn": IDSimConfig("resnet18", 64, 24, backbone_args={"channels": [8, 16, 24, 32], "output_stride": 16}),
}

# as "tiny", with fewer pixels and another second backbone
TWO_TRUNKS = IDSimConfig(
    "tf_efficientnet_lite0_folded", 64, 8, mean=(0.5, 0.5, 0.5), std=(0.5, 0.5, 0.5), features="final",
    patch_stages=(2, 3), second="tf_efficientnet_lite0_folded", second_size=48, second_share=0.3,
)  # fmt: skip


def random_model(kind: str) -> IDSim:
    """An IDSim whose weights are large enough for its scores to differ between images."""
    torch.manual_seed(0)
    model = IDSim(SMALL[kind], device="cpu")
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "gamma" in name:  # layer scale starts so small that blocks do nothing
                parameter.fill_(1.0)
            elif parameter.ndim > 1:
                parameter.normal_(std=1.5 * parameter[0].numel() ** -0.5)
    return model


@pytest.fixture(scope="session", params=sorted(SMALL))
def small(request: pytest.FixtureRequest) -> IDSim:
    """A small IDSim with random weights, of each kind of backbone, on the CPU."""
    return random_model(request.param)


def _unnamed(*_: object) -> None:
    """In place of `Embedder._after_saving`."""


@pytest.fixture(scope="session")
def metric() -> IDSim:
    """One small IDSim with random weights, on the CPU. Tests share it: saving it names the copy on disk alone."""
    model = random_model("dinov3")
    model._after_saving = _unnamed  # type: ignore[method-assign]
    return model
