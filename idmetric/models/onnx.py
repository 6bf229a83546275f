"""Exported models: an ONNX file, run by onnxruntime without torch. `idmetric.models.export` writes them."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from idmetric.calibration import apply as calibrations
from idmetric.checkpoints.errors import CheckpointError
from idmetric.distance.embedding import Embedding, concatenate
from idmetric.distance.finite import check_distances
from idmetric.distance.matrix import check_name, distance_matrix, needs_patches
from idmetric.distance.matrix import distance as embedding_distance
from idmetric.images import paths as inputs
from idmetric.images.arrays import is_float
from idmetric.images.kinds import ImageLike, describe, is_array
from idmetric.images.opening import checked, mark_of
from idmetric.images.read import Reading, read_image, split_images, to_image
from idmetric.io.hints import need
from idmetric.models.exported import KEY, Exported, read_facts
from idmetric.models.identity import Identity
from idmetric.models.names import check_onnx

if TYPE_CHECKING:
    from PIL import Image

    from idmetric.models.onnx_embedder import OnnxEmbedder

    Array = NDArray[np.float32]

_PROVIDERS = {"cpu": "CPUExecutionProvider", "cuda": "CUDAExecutionProvider"}


class OnnxModel(Identity):
    """An exported model: what `idmetric.load("model.onnx")` opens; needs onnxruntime (`pip install 'idmetric[onnx]'`).

    >>> metric = idmetric.load("tiny.onnx")  # doctest: +SKIP
    >>> metric("reference.jpg", ["a.png", "b.png"])  # distances, an array of shape (2,)  # doctest: +SKIP

    Results are NumPy arrays, and torch is not loaded, except for distances of patches and images of floats.
    `embedder()` has the rest of the interface, with masks and galleries, and gives tensors without gradients.

    Args:
        path: a file that `idmetric export` wrote.
        device: "cpu" (default), or "cuda" with the package onnxruntime-gpu.
        decode: see `Embedder.decode`.

    Raises:
        CheckpointError: if the file is absent, no exported model, or damaged.
        MissingExtraError: without onnxruntime.
    """

    named = None
    model_type = "onnx"

    def __init__(self, path: str | os.PathLike[str], *, device: str | None = None, decode: str = "exact") -> None:
        need("onnx", "an ONNX file", onnxruntime="onnxruntime")
        self.name = os.fspath(path)
        self.device = str(device or "cpu")
        check_onnx(path)
        data = Path(path).read_bytes()
        self._session = _session(data, self.name, self.device)
        self.facts: Exported = read_facts(self._session.get_modelmeta().custom_metadata_map.get(KEY), self.name)

        self.revision = f"{self.facts.revision or 'none'}+{hashlib.sha256(data).hexdigest()[:12]}"
        self.decode = checked(decode)
        self.dtype = self.facts.quantized or "float32"
        self.image_size, self.preprocessing = self.facts.image_size, self.facts.preprocessing

    @property
    def label(self) -> str:
        """The original's label, marked as exported, and where files are not decoded exactly."""
        return f"{self.facts.shown_label}{mark_of(self.decode)}"

    @property
    def short_name(self) -> str:
        """The name of the file."""
        return os.path.basename(self.name)

    @property
    def reading(self) -> Reading:
        """How files become pixels, see `Embedder.reading`."""
        facts = self.facts
        return {
            "background": facts.background, "interpolation": facts.interpolation, "decode": self.decode,
            "preprocessing": facts.preprocessing,
        }  # fmt: skip

    def calibrated_model(self, files: bool = True) -> calibrations.Model:
        """The model that a calibration is bound to; the revision is of the file."""
        return calibrations.Model("OnnxModel", f":{self.label}", self.revision, None, self.resolution)

    @cached_property
    def calibration(self) -> calibrations.Calibration | None:
        """The calibration of the original, which `idmetric export` keeps in a file of float32; else None.

        It is for scores of all pixels: there is none for decode="fast".
        """
        if self.facts.calibration is None or self.decode != "exact":
            return None
        found = calibrations.parse(self.facts.calibration, self.name)
        return replace(found, model=self.calibrated_model())

    # Images in, embedding out

    def read_image(self, image: ImageLike, *, whole: bool = True) -> Image.Image:
        """One image as 8-bit RGB at its own size; see `Embedder.read_image`."""
        facts = self.facts
        needed = None if whole or self.decode == "exact" else lambda height, width: self.image_size
        return read_image(image, background=facts.background, preprocessing=facts.preprocessing, needed=needed)

    def load_image(self, image: ImageLike, mask: None = None, *_: Any, **__: Any) -> tuple[NDArray[np.uint8], None]:
        """One image at the size at which the model sees it: an array (H, W, 3); no mask.

        Raises:
            ImageReadError: if it cannot be read.
            ValueError: for a mask.
        """
        _refuse_masks(mask)
        return np.asarray(to_image(image, self.image_size, **self.reading)), None

    def embed(
        self,
        images: ImageLike | Sequence[ImageLike],
        *,
        batch_size: int = 32,
        patches: bool = True,
        masks: Any = None,
        progress: Callable[[int, int], None] | None = None,
        **_: Any,
    ) -> Embedding:
        """Embed images of any kind in batches, as `Embedder.embed`; the Embedding holds NumPy arrays.

        Raises:
            ImageReadError, NonFiniteError: naming the image.
            ValueError: for no images, or masks.
        """
        _refuse_masks(masks)
        singles = split_images(images)
        if not singles or batch_size < 1:
            raise ValueError("no images given" if not singles else f"batch_size must be at least 1, got {batch_size}")
        parts = []
        for start in range(0, len(singles), batch_size):
            some = singles[start : start + batch_size]
            part = self.run(np.stack([self.pixels(one) for one in some]), patches)
            part.check_finite([describe(one) for one in some], self.dtype)  # type: ignore[arg-type]  # for its message
            parts.append(part)
            if progress is not None:
                progress(start + len(some), len(singles))
        return concatenate(parts)

    def run(self, pixels: Array, patches: bool = True) -> Embedding:
        """One pass over pixels (B, 3, H, W), float32 in [0, 1], of any height and width; values are not checked."""
        outputs = ["cls", "patches"] if patches and self.facts.grid is not None else ["cls"]
        features, *tokens = self._session.run(outputs, {"pixels": pixels})
        return Embedding(
            features, tokens[0] if tokens else None, self.facts.grid if tokens else None, model=self.model_id
        )

    def pixels(self, image: ImageLike) -> Array:
        """One image as `run` takes it: (3, H, W), float32 in [0, 1], at the size at which the model sees it."""
        if is_array(image) and is_float(image):
            from idmetric.images.read import to_pixels

            pixels = to_pixels(image, self.image_size, **self.reading)
            return pixels.float().cpu().detach().numpy()
        seen, _ = self.load_image(image)
        unit: Array = np.ascontiguousarray(seen.transpose(2, 0, 1), dtype=np.float32) / np.float32(255)
        return unit

    # Two images in, distance out

    def __call__(self, a: Any, b: Any, distance: str = "cls", *, batch_size: int = 32) -> Array:
        """Distance of each image of a to its partner in b, an array (B,); arguments and errors as for an `Embedder`."""
        inputs.check_partners(a, b)
        x, y = (self._as_embedding(side, distance, batch_size) for side in (a, b))
        return self._finite(embedding_distance(x, y, distance))

    def pairwise(self, a: Any, b: Any = None, distance: str = "cls", *, batch_size: int = 32) -> Array:
        """Distances of every image of a to every image of b (default: a itself), an array (N, M)."""
        x = self._as_embedding(a, distance, batch_size)
        y = None if b is None else self._as_embedding(b, distance, batch_size)
        return self._finite(distance_matrix(x, y, distance))

    def _as_embedding(self, images: Any, distance: str, batch_size: int) -> Embedding:
        if check_name(distance) not in self.facts.distances:
            raise ValueError(f"{self.short_name} gives no patches, which the distance {distance!r} compares: use 'cls'")
        if needs_patches(distance):
            need("onnx", f"the distance {distance!r}", torch="torch")
        if not isinstance(images, Embedding):
            return self.embed(images, batch_size=batch_size, patches=needs_patches(distance))
        images.check_maker(self.model_id)
        return images

    def _finite(self, distances: Any) -> Array:
        check_distances(distances)
        return np.asarray(distances)

    def embedder(self) -> OnnxEmbedder:
        """The same model with the interface of all others: masks, galleries, protocols; its results are tensors."""
        need("onnx", "the model with masks or tensors", torch="torch")
        from idmetric.models.onnx_embedder import OnnxEmbedder

        return OnnxEmbedder(self)


def _refuse_masks(masks: Any) -> None:
    given: Iterable[Any] = masks if isinstance(masks, list | tuple) else [masks]
    if any(mask is not None for mask in given):
        raise ValueError("masks need torch: metric.embedder() takes them")


def _session(data: bytes, name: str, device: str) -> Any:
    """A session of onnxruntime over the bytes of a file, so that the file that is hashed is the one that runs."""
    import onnxruntime

    kind = device.partition(":")[0]
    if kind not in _PROVIDERS or _PROVIDERS[kind] not in onnxruntime.get_available_providers():
        raise CheckpointError(
            f"this onnxruntime does not run models on {device!r}: choose cpu; cuda needs the package onnxruntime-gpu"
        )
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4  # its errors are raised
    # weights outside the file, which a stranger's file may ask for, are looked for in a folder that cannot exist
    options.add_session_config_entry("session.model_external_initializers_file_folder_path", os.devnull)
    try:
        return onnxruntime.InferenceSession(data, options, providers=[_PROVIDERS[kind]])
    except Exception as error:  # its classes of errors share no base
        raise CheckpointError(f"{name!r} is not an ONNX file that onnxruntime can run: {error}") from error
