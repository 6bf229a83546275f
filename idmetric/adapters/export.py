"""Export of a model: one graph from pixels to features, with resizing and normalization inside.

The graph takes `pixels`, float32 (batch, 3, height, width), RGB in [0, 1], of any size, and gives `cls` (batch, D) and
`patches` (batch, P, D'), as `metric(pixels)` does. It resizes as `Fit.pixels` (squashed, antialiased, clamped to
[0, 1]). The metadata `idmetric` of the file name the model, and how its images are read.
"""

from __future__ import annotations

import errno
import json
import os
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from idmetric.metric.backbone import Backbone
from idmetric.metric.embedder import Embedder
from idmetric.metric.errors import RequestError
from idmetric.metric.files import OutputError, need, replacing
from idmetric.metric.fingerprint import weights_digest
from idmetric.metric.idsim import IDSim
from idmetric.metric.images import SQUASH
from idmetric.metric.nearid import NearID
from idmetric.version import __version__

TOLERANCE = 1e-4  # largest difference of a feature between PyTorch and the exported graph
OPSET = 18  # the first with antialiased resizing
_FOLDED = 2**26  # most values of a tensor that the exporter computes ahead
_SHAPES = ((1, 1.0, 1.0), (3, 1.6, 0.7))  # batch, height and width of the checks, the sides as multiples of the model's


def export(metric: Embedder, path: str | os.PathLike[str]) -> float:
    """Write a model as one file, and compare it with PyTorch before the file appears under its name.

    Args:
        metric: in float32.
        path: a file ending in .onnx that does not exist yet.

    Returns:
        The largest difference of a feature from PyTorch's, on random pixels of two sizes; at most `TOLERANCE`.

    Raises:
        RequestError: if the model cannot be exported, or the difference is larger.
        OutputError: if the file exists or cannot be written.
        MissingExtraError: without onnx, onnxruntime and onnxscript.
    """
    need("onnx", "an export to ONNX", onnx="onnx", onnxruntime="onnxruntime", onnxscript="onnxscript")
    target = Path(path)
    if target.suffix != ".onnx":
        raise OutputError(errno.EINVAL, f"{str(path)!r} must end in .onnx", str(path))
    if target.exists():
        raise OutputError(errno.EEXIST, f"{str(path)!r} exists and would be overwritten: name another file", str(path))
    _check_model(metric)
    graph = _Graph(metric.eval().cpu())
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        program, facts = _program(metric, graph), _facts(metric)
        with replacing(target) as temporary:
            temporary.write_bytes(_onnx_bytes(program, facts))
            return _largest_difference(metric, _session(temporary))


def _check_model(metric: Embedder) -> None:
    if type(metric) not in (IDSim, NearID, Backbone):  # subclasses may see images in a way of their own
        kind = type(metric).__name__
        raise RequestError(f"{metric.label} is a {kind}: only IDSim, NearID and Backbone are exported")
    if metric.fit != SQUASH:
        raise RequestError(f"{metric.label} crops or pads images ({metric.fit}); only models that squash are exported")
    if metric.dtype != torch.float32:
        raise RequestError(f"{metric.label} is in {metric.dtype}: open it in float32 (dtype=torch.float32)")
    size = sum(p.numel() * p.element_size() for p in metric.parameters())
    if size > 0.98 * 2**31:
        raise RequestError(f"{metric.label} has {size / 1e9:.1f} GB of weights, and an ONNX file holds 2.1 GB")


class _Graph(nn.Module):
    """Pixels of any size to the tensors of an Embedding."""

    def __init__(self, metric: Embedder) -> None:
        super().__init__()
        self.metric = metric

    def forward(self, pixels: Tensor) -> tuple[Tensor, ...]:
        # not by `fit_pixels`, in which a graph would keep only the branch of its example's size
        resized = F.interpolate(
            pixels,
            self.metric.image_size,
            mode=self.metric.interpolation,
            align_corners=False,
            antialias=True,
        )
        embedding = self.metric.embed_pixels(resized.clamp(0, 1))
        if embedding.patches is None:
            return (embedding.cls,)
        return embedding.cls, embedding.patches


def _session(path: Path) -> Any:
    import onnxruntime

    return onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])


def _facts(metric: Embedder) -> dict[str, Any]:
    """What the file says of its model: which it is, and how images become pixels."""
    pixels = torch.rand(1, 3, *metric.image_size)
    with torch.no_grad():
        grid = metric.embed_pixels(pixels).grid
    return {
        "model": metric.label,
        "weights": weights_digest(metric),
        "grid": grid,
        "idmetric": __version__,
        "revision": metric.revision,
        "image_size": metric.image_size,
        "mean": metric.mean,
        "std": metric.std,
        "interpolation": metric.interpolation,
        "background": metric.background,
        "preprocessing": metric.preprocessing,
    }


def _program(metric: Embedder, graph: _Graph) -> Any:
    """The model as a `torch.export.ExportedProgram` with a dynamic batch and size."""
    height, width = metric.image_size
    pixels = torch.rand(2, 3, height + 19, width + 8)  # neither square nor the model's own size
    free = torch.export.Dim.DYNAMIC
    try:
        sizes = {"pixels": {0: free, 2: free, 3: free}}
        program = torch.export.export(graph, (pixels,), dynamic_shapes=sizes)
    except Exception as error:  # torch's many kinds
        raise RequestError(f"torch.export cannot trace {metric.label}: {error}") from error
    for node in program.graph.nodes:
        node.meta.pop("stack_trace", None)  # paths of this machine
    return program


def _onnx_bytes(program: Any, facts: Mapping[str, Any]) -> bytes:
    from onnxscript.optimizer import fold_constants

    names = ["cls"] if facts["grid"] is None else ["cls", "patches"]
    exported = torch.onnx.export(
        program, dynamo=True, opset_version=OPSET, input_names=["pixels"], output_names=names, verbose=False
    )
    if exported is None:
        raise RequestError("torch.onnx returned no model")
    # the exporter folds small constants alone; kernels scaled by BatchNorm are larger
    fold_constants(exported.model, input_size_limit=_FOLDED, output_size_limit=_FOLDED)
    return _finished(exported.model_proto, facts)


def _finished(model: Any, facts: Mapping[str, Any]) -> bytes:
    """The bytes of an ONNX model with our facts, and without the notes of its makers, some of which are local paths."""
    graph = model.graph
    values = [*graph.input, *graph.output]
    for part in (model, graph, *graph.node, *values, *graph.initializer, *model.functions):
        del part.metadata_props[:]
        part.doc_string = ""
    del graph.value_info[:]
    axes = ("batch", "channels", "height", "width")
    for value in values:
        sizes = value.type.tensor_type.shape.dim
        for size, axis in zip(sizes, axes, strict=False):
            if size.HasField("dim_param"):
                size.dim_param = axis

    model.producer_name, model.producer_version = "idmetric", __version__
    model.metadata_props.add(key="idmetric", value=json.dumps(facts, sort_keys=True))
    data: bytes = model.SerializeToString(deterministic=True)
    return data


def _largest_difference(metric: Embedder, session: Any) -> float:
    """The largest difference of a feature from PyTorch's; RequestError if it exceeds `TOLERANCE`."""
    generator = torch.Generator().manual_seed(0)
    worst = 0.0
    for batch, tall, wide in _SHAPES:
        height, width = metric.image_size
        height, width = round(height * tall), round(width * wide)
        pixels = torch.rand(batch, 3, height, width, generator=generator)
        with torch.no_grad():
            expected = metric(pixels)
        features = [expected.cls]
        if expected.patches is not None:
            features.append(expected.patches)
        outputs = session.run(None, {"pixels": pixels.numpy()})
        for tensor, array in zip(features, outputs, strict=True):
            difference = (tensor - torch.from_numpy(array)).abs()
            worst = max(worst, float(difference.max()))
    if not worst <= TOLERANCE:
        raise RequestError(f"the exported graph differs from PyTorch by {worst:.1e}, more than {TOLERANCE:g}")
    return worst
