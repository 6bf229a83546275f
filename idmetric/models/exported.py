"""The facts that an exported model carries: its class, weights, preprocessing and outputs. Needs no torch."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from idmetric.checkpoints import config as configs
from idmetric.checkpoints.errors import CheckpointError
from idmetric.distance.matrix import DISTANCES
from idmetric.images.fit import SQUASH
from idmetric.images.kinds import Color, Preprocessing, check_interpolation
from idmetric.io.settings import shown
from idmetric.version import __version__

FORMAT = 1
KEY = "idmetric"  # of the metadata of an ONNX file


class ExportError(RuntimeError):
    """A model that cannot be exported; the message says why."""


@dataclass(frozen=True)
class Exported:
    """An exported model, as the JSON object in its file describes it.

    Attributes:
        label, revision: of the model that was exported, see `Embedder.signature`. weights: the hash of its weights
            (`weights_digest`).
        image_size: height and width to which the graph resizes pixels. mean, std: by which it normalizes them; both
            are inside the graph, and named here for people.
        interpolation, background, preprocessing: how files become pixels of that size, see `Embedder`.
        grid: rows and columns of the patch tokens; None if the graph gives none. dim: length of the global feature.
        quantized: "" for float32 weights, else e.g. "int8".
        calibration: the model's own (`Calibration.to_json`), if it holds for the exported one.
    """

    label: str
    revision: str
    weights: str
    image_size: tuple[int, int]
    mean: tuple[float, float, float]
    std: tuple[float, float, float]
    interpolation: str
    background: Color
    preprocessing: Preprocessing
    grid: tuple[int, int] | None
    dim: int
    quantized: str = ""
    calibration: Mapping[str, Any] | None = None
    idmetric: str = __version__
    format: int = FORMAT

    def __post_init__(self) -> None:
        if self.format != FORMAT:
            raise ValueError(f"it has format {shown(self.format)}; this version of idmetric reads {FORMAT}")
        configs.check(type(self), vars(self))
        for side in self.image_size:
            configs.check_view(side, self.mean, self.std)
        check_interpolation(self.interpolation)
        if self.grid is not None and min(self.grid) < 1:
            raise ValueError(f"grid = {self.grid}: rows and columns are needed")
        if not all(0 <= value <= 255 for value in self.background):
            raise ValueError(f"background = {self.background}: values from 0 to 255 are needed")

    @property
    def shown_label(self) -> str:
        """The label of the exported model: never that of the original, as rounding differs."""
        return f"{self.label}[onnx{f' {self.quantized}' if self.quantized else ''}]"

    @property
    def distances(self) -> tuple[str, ...]:
        """The names of the distances that the outputs serve."""
        return DISTANCES[:1] if self.grid is None else DISTANCES

    def to_json(self) -> str:
        """The JSON object, with two fields for people: the distances, and how images are fitted."""
        return json.dumps({**asdict(self), "distances": self.distances, "fit": str(SQUASH)}, sort_keys=True)


def read_facts(text: str | None, name: str) -> Exported:
    """The facts in the metadata of a file.

    Raises:
        CheckpointError: if there are none, or they are damaged or of a later format.
    """
    if text is None:
        raise CheckpointError(
            f"{name!r} was not written by `idmetric export`: it does not record how its model sees images"
        )
    try:
        values: dict[str, Any] = {
            key: tuple(value) if isinstance(value, list) else value
            for key, value in json.loads(text).items()
            if key not in ("distances", "fit")
        }
        return Exported(**values)
    except (TypeError, ValueError, AttributeError, RecursionError) as error:
        raise CheckpointError(f"the metadata of {name!r} are damaged: {error}") from error
