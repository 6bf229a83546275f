"""Export of a model with 8-bit integers, with ranges of activations measured on images."""

from __future__ import annotations

import contextlib
import io
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from idmetric.distance.arrays import cosine_distance
from idmetric.images.kinds import ImageLike
from idmetric.io.output import replacing
from idmetric.io.quiet import quiet
from idmetric.models.embedder import Embedder
from idmetric.models.export import check_target, export, finished
from idmetric.models.onnx import OnnxModel

MOST_IMAGES = 128  # from which ranges are measured; more change them little
_BATCH = 8


def export_int8(metric: Embedder, path: Path, images: Sequence[ImageLike]) -> float:
    """Write a model as `export` does, with weights and activations of 8 bits, and its own label and no calibration.

    Weights have one scale for each output channel; ranges of activations are the least and the largest value on the
    images ("static quantization" of onnxruntime, with QuantizeLinear and DequantizeLinear around each operator).

    Args:
        images: some of the kind that will be scored; of many, `MOST_IMAGES` at equal steps are used.

    Returns:
        The mean cosine distance of the images' embeddings from those of the float32 graph.

    Raises:
        ExportError: as `export`.
        OutputError, MissingExtraError: as `export`. ImageReadError: for an image that cannot be read.
    """
    check_target(path)
    step = -(-len(images) // MOST_IMAGES)
    some = list(images)[:: max(1, step)]
    with tempfile.TemporaryDirectory(prefix="idmetric-") as folder:
        exact = Path(folder) / "float32.onnx"
        export(metric, exact)
        model = OnnxModel(exact)
        with replacing(path) as temporary:
            temporary.write_bytes(_quantized(model, exact, Path(folder), some))
            a, b = (one.embed(some, batch_size=_BATCH, patches=False).cls for one in (model, OnnxModel(temporary)))
            return float(cosine_distance(a, b).mean())  # type: ignore[arg-type]  # arrays, from an OnnxModel


def _quantized(model: OnnxModel, exact: Path, folder: Path, images: Sequence[ImageLike]) -> bytes:
    import onnx
    from onnxruntime import quantization
    from onnxruntime.quantization.shape_inference import quant_pre_process

    class Reader(quantization.CalibrationDataReader):  # type: ignore[misc]  # without type hints
        def __init__(self) -> None:
            self.batches = _batches(model, images)

        def get_next(self) -> Any:
            return next(self.batches, None)

    prepared, out = folder / "prepared.onnx", folder / "int8.onnx"
    with contextlib.redirect_stdout(io.StringIO()), quiet("root"):  # which onnxruntime's tools use
        # symbolic shapes are of no use to these graphs, and fail on torch's Expand
        quant_pre_process(str(exact), str(prepared), skip_symbolic_shape=True)
        quantization.quantize_static(
            str(prepared), str(out), Reader(), quant_format=quantization.QuantFormat.QDQ, per_channel=True,
            activation_type=quantization.QuantType.QUInt8, weight_type=quantization.QuantType.QInt8,
        )  # fmt: skip
    found = onnx.load(str(out))
    return finished(found, replace(model.facts, quantized="int8", calibration=None))


def _batches(model: OnnxModel, images: Sequence[ImageLike]) -> Iterator[dict[str, Any]]:
    for start in range(0, len(images), _BATCH):
        yield {"pixels": np.stack([model.pixels(image) for image in images[start : start + _BATCH]])}
