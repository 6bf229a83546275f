"""Cases that compare two versions of the package: what one is, and the pictures and folders that they share.

Each room of cases is a file of this folder, `core.py`, `score.py` and so on, with a list `CASES`. `differential.py`
beside this folder runs them. The rules for a case:

- It imports `idmetric` inside its functions, only by names that both versions have. Where a call differs, `old()` and
  `new()` are two functions; `same(name, function)` is a case whose call is the same in both.
- It returns a dict from a name to a number, a text, None, a list of these, or a tensor or array. Floats are compared
  within the case's tolerance; integers, texts and lengths must be equal. Sets are returned sorted. Neither paths of
  temporary folders nor sentences of messages are returned: they may differ.
- It makes its inputs itself, from `picture`, `EXAMPLES` and NumPy's seeded generators, in a `workspace()`. Weights are
  filled by `fill`: torch's own generators do not promise the same numbers on every machine.
- Its distances do not depend on the kernels: nothing is ranked, counted or clustered at a near tie.
- It takes seconds, or less, on one core. The one that must take longer is marked `slow`.
"""

from __future__ import annotations

import io
import shlex
import tempfile
import zlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import chdir, contextmanager, redirect_stderr, redirect_stdout
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image, ImageDraw
from torch import nn

EXAMPLES = Path(__file__).resolve().parents[2] / "examples" / "images"

Results = Mapping[str, Any]


@dataclass(frozen=True)
class Case:
    """One comparison.

    Attributes:
        name: unique in its room.
        old, new: return the results of the two versions; `new` is None where the feature is gone on purpose.
        tolerance: the largest difference of two floats.
        relative: measure it as a share of the largest number of the list.
        gone: why there is no `new`; a case without `new` and without a reason fails.
        needs: modules beyond the package's own dependencies; a test of it is skipped where one is missing.
        slow: takes more than a few seconds.
    """

    name: str
    old: Callable[[], Results]
    new: Callable[[], Results] | None
    tolerance: float = 1e-6
    relative: bool = False
    gone: str = ""
    needs: tuple[str, ...] = ()
    slow: bool = False


def same(name: str, function: Callable[[], Results], tolerance: float = 1e-6, **settings: Any) -> Case:
    """Make a case whose call is the same in both versions; settings: those of `Case`."""
    return Case(name, function, function, tolerance, **settings)


# Inputs


@contextmanager
def workspace() -> Iterator[Path]:
    """Make an empty folder, which is the current one in the block and removed after it."""
    with tempfile.TemporaryDirectory() as folder, chdir(folder):
        yield Path(folder).resolve()


def generator(name: str) -> np.random.Generator:
    """Return NumPy's generator, seeded by a name."""
    return np.random.default_rng(zlib.crc32(name.encode()))


def examples() -> list[Path]:
    """Return the package's example images, in order of their names: three of a box, another box, and of a mug."""
    return sorted(EXAMPLES.glob("*.png"))


def picture(name: str, width: int = 120, height: int = 90) -> Image.Image:
    """Paint an RGB picture that depends on nothing but its name and size: soft colors under three shapes."""
    rng = generator(name)
    coarse = rng.integers(0, 256, (4, 5, 3), dtype=np.uint8)
    image = Image.fromarray(coarse).resize((width, height), Image.Resampling.BILINEAR)
    draw = ImageDraw.Draw(image)
    for _ in range(3):
        x, y = rng.uniform(0.2, 0.8, 2) * (width, height)
        radius = float(rng.uniform(0.1, 0.25)) * min(width, height)
        color = tuple(int(value) for value in rng.integers(0, 256, 3))
        corners = int(rng.integers(3, 7))
        draw.regular_polygon((float(x), float(y), radius), corners, int(rng.integers(0, 90)), fill=color)
    return image


def pixels(name: str, count: int, side: int) -> torch.Tensor:
    """Paint pictures as a float tensor (count, 3, side, side) in [0, 1]."""
    arrays = [np.asarray(picture(f"{name} {number}", side, side)) for number in range(count)]
    return torch.from_numpy(np.stack(arrays)).permute(0, 3, 1, 2).float() / 255


def rectangle(width: int, height: int, box: tuple[int, int, int, int], value: int = 255) -> NDArray[np.uint8]:
    """Return a mask (height, width) that is `value` in a box (left, top, right, bottom), 0 outside."""
    mask = np.zeros((height, width), np.uint8)
    left, top, right, bottom = box
    mask[top:bottom, left:right] = value
    return mask


def fill(module: nn.Module, name: str, scale: float = 1.0) -> None:
    """Fill all parameters in place by NumPy's generator: matrices so that their outputs keep the inputs' size.

    Vectors (biases, norms, layer scales) get 1, where they hold a scale, or 0, and a tenth of noise.
    """
    rng = generator(name)
    for key, parameter in sorted(module.named_parameters()):
        values = rng.standard_normal(tuple(parameter.shape)).astype(np.float32)
        if parameter.ndim > 1:
            inputs = parameter[0].numel() if len(parameter) > 1 else 50  # tokens and positions (1, ...): faint
            values = values * scale * float(inputs) ** -0.5
        else:
            is_scale = key.endswith(("weight", "gamma"))
            values = 0.1 * values + (1.0 if is_scale else 0.0)
        with torch.no_grad():
            parameter.copy_(torch.from_numpy(np.asarray(values)))


def command(*words: object) -> tuple[int, str, str]:
    """Run `idmetric WORDS` in this process, the first one split as a shell does.

    Returns:
        The exit status, stdout and stderr.
    """
    from idmetric.cli.main import main

    arguments = [*shlex.split(str(words[0])), *map(str, words[1:])]
    out, err = io.StringIO(), io.StringIO()
    with redirect_stdout(out), redirect_stderr(err):
        try:
            status = main(arguments)
        except SystemExit as stop:
            status = int(stop.code or 0)
    return int(status), out.getvalue(), err.getvalue()


@cache
def tiny() -> Any:
    """Return the packaged model on the CPU, opened once; cases do not change it."""
    from idmetric import IDSim

    return IDSim("tiny", device="cpu")


# Results


def gradient(values: torch.Tensor, cells: int = 6) -> dict[str, Any]:
    """Summarize a gradient (B, 3, H, W): its norm, and random sums of it, in which a change anywhere shows."""
    rng = generator("gradient")
    flat = values.detach().double().flatten().numpy()
    signs = rng.choice([-1.0, 1.0], (cells * cells, flat.size)) / flat.size**0.5
    return {"norm": float(np.linalg.norm(flat)), "sums": (signs @ flat).tolist()}


def plain(value: Any) -> Any:
    """Return a result as JSON holds it: tensors and arrays as lists, floats with nine digits."""
    if isinstance(value, torch.Tensor):
        value = value.detach().cpu().numpy()
    if isinstance(value, np.ndarray | np.generic):
        value = value.tolist()
    if isinstance(value, float):
        return float(f"{value:.9g}")
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    if value is None or isinstance(value, bool | int | str):
        return value
    raise TypeError(f"a result must be numbers, texts or lists of them, got {type(value).__name__}")
