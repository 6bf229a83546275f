"""Personalized segmentation: a similarity map prompts the Segment Anything Model (PerSAM; ID-Sim, Table 2c).

    sam = PerSAM("facebook/sam-vit-huge")
    [heat] = heatmaps(metric, "mug.jpg", "desk.jpg", masks="mug_mask.png")  # idmetric.match.heatmaps
    mask = sam.segment("desk.jpg", heat)  # bool (H, W)

PerSAM (Zhang et al., "Personalize Segment Anything Model with One Shot", ICLR 2024), in its training-free form:

1. the hottest place of the map is a point on the subject, the coldest one off it; SAM's single mask for these points;
2. the points with that mask's logits: of SAM's three masks the one it trusts most;
3. the points, that mask's logits and its box: again the mask that SAM trusts most.

As in the published code of PODS, the map is another model's, and PerSAM's changes inside SAM's decoder (target-guided
attention, target-semantic prompting: both take SAM's own features) are not made. That code differs further: two hot
places and no cold one (five for DINOv2), a weighting of three masks that is trained on the reference (PerSAM-F), and
boxes in steps 2 and 3. ID-Sim does not say which it used.

SAM's weights are its authors' (Apache-2.0), read by transformers: pip install 'idmetric[eval]'.
"""

from __future__ import annotations

import os
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import ArrayLike
from torch import Tensor

from idmetric.evaluate.protocols.common.columns import Array, Truths
from idmetric.metric.checkpoints.errors import CheckpointError
from idmetric.metric.checkpoints.weights import check_report
from idmetric.metric.files.hints import need
from idmetric.metric.images.read import ImageLike, read_image
from idmetric.metric.models.devices import auto_device


class Seen(NamedTuple):
    """An image as SAM's decoder needs it: features (1, C, h, w), its size and that at which SAM saw it."""

    features: Tensor
    size: tuple[int, int]
    scaled: tuple[int, int]


class PerSAM:
    """SAM with the prompts of a similarity map.

    Args:
        source: a Hub repository or folder with a SAM in transformers' format, such as "facebook/sam-vit-huge" (the
            paper's), "facebook/sam-vit-base"; or an opened SamModel, with its processor.
        processor: SamProcessor of an opened model.
        device: default CUDA, else MPS, else CPU. dtype: default float32.

    Raises:
        CheckpointError: if the weights cannot be found or are not of a SAM.
        ImportError: if transformers is missing.
    """

    def __init__(
        self,
        source: str | os.PathLike[str] | Any,
        processor: Any = None,
        *,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        if isinstance(source, str | os.PathLike):
            self.name = os.fspath(source)
            source, processor = _open(self.name)
        else:
            self.name = type(source).__name__

        place = auto_device() if device is None else torch.device(device)
        self.model, self.processor = source.to(place, dtype or torch.float32).eval(), processor

    def segment(self, image: ImageLike, heat: ArrayLike | Tensor) -> Truths:
        """The mask (H, W) of the subject that a map of the image's size shows, hotter = more surely.

        It is empty where SAM sees nothing at the points.
        """
        return self.decode(self.encode(image), heat)

    @torch.no_grad()
    def encode(self, image: ImageLike) -> Seen:
        """SAM's features of an image, for all of its maps."""
        inputs = self.processor(images=read_image(image), return_tensors="pt")
        pixels = inputs["pixel_values"].to(self.model.device, self.model.dtype)
        sizes = (inputs[name][0] for name in ("original_sizes", "reshaped_input_sizes"))
        size, scaled = ((int(height), int(width)) for height, width in sizes)
        return Seen(self.model.get_image_embeddings(pixels), size, scaled)

    @torch.no_grad()
    def decode(self, seen: Seen, heat: ArrayLike | Tensor) -> Truths:
        """The mask of the three steps of the module's description."""
        prior = heat.detach().cpu().double().numpy() if isinstance(heat, Tensor) else np.asarray(heat, np.float64)
        if prior.shape != seen.size:
            raise ValueError(f"a map of {prior.shape} for an image of {seen.size} (height, width)")

        points = pick_points(prior)
        prompts = {
            "input_points": self._scaled(points, seen)[None, None],
            "input_labels": torch.tensor([[[1, 0]]], device=self.model.device),
        }
        logits = self._predict(seen, prompts, multimask_output=False)
        logits = self._predict(seen, {**prompts, "input_masks": logits})
        mask = self._full(logits, seen)
        y, x = np.nonzero(mask)
        if not len(y):
            return mask
        box = np.array([[x.min(), y.min()], [x.max(), y.max()]], dtype=np.float64)
        corners = self._scaled(box, seen).reshape(1, 1, 4)
        return self._full(self._predict(seen, {**prompts, "input_masks": logits, "input_boxes": corners}), seen)

    def _predict(self, seen: Seen, prompts: dict[str, Tensor], multimask_output: bool = True) -> Tensor:
        """Logits (1, 1, h, w) of the mask that SAM trusts most."""
        found = self.model(image_embeddings=seen.features, multimask_output=multimask_output, **prompts)
        best = int(found.iou_scores[0, 0].argmax())
        logits: Tensor = found.pred_masks[:, 0, best : best + 1]
        return logits

    def _full(self, logits: Tensor, seen: Seen) -> Truths:
        [masks] = self.processor.post_process_masks(logits[None].float().cpu(), [seen.size], [seen.scaled])
        full: Truths = masks[0, 0].numpy()
        return full

    def _scaled(self, places: Array, seen: Seen) -> Tensor:
        """x and y (N, 2) of the image at the size that SAM sees."""
        scale = np.array(seen.scaled[::-1]) / np.array(seen.size[::-1])
        return torch.from_numpy(places * scale).to(self.model.device, self.model.dtype)


def pick_points(heat: Array) -> Array:
    """The hottest and the coldest place of a map (H, W): x, y (2, 2); of equal places the first, row by row."""
    places = (heat.argmax(), heat.argmin())
    return np.array([divmod(int(place), heat.shape[1])[::-1] for place in places], dtype=np.float64)


def _open(name: str) -> tuple[Any, Any]:
    need("eval", "SAM", transformers="transformers")
    from transformers import AutoConfig, SamModel, SamProcessor

    try:
        kind = AutoConfig.from_pretrained(name).model_type
        if kind != "sam":
            raise CheckpointError(f"{name!r} holds a model of type {kind!r}, not a SAM such as facebook/sam-vit-base")
        model, report = SamModel.from_pretrained(name, use_safetensors=True, output_loading_info=True)
        check_report(report, name)
        return model, SamProcessor.from_pretrained(name)
    except (OSError, ValueError, KeyError) as error:
        raise CheckpointError(
            f"no SAM can be read from {name!r} ({error}): give a folder or Hub repository in transformers' format"
        ) from error
