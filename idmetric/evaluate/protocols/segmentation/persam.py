"""Personalized segmentation: a similarity map prompts the Segment Anything Model (PerSAM; ID-Sim, Table 2c).

    sam = PerSAM("facebook/sam-vit-huge")
    [heat] = heatmaps(metric, "mug.jpg", "desk.jpg", masks="mug_mask.png")  # idmetric.metric.heatmap
    mask = sam.segment("desk.jpg", heat)  # bool (H, W)

PerSAM (Zhang et al., "Personalize Segment Anything Model with One Shot", ICLR 2024), in its training-free form:

1. the hottest pixel of the map is a point on the subject, the coldest one off it; SAM's single mask for these points;
2. the points with that mask's logits: of SAM's three masks the one it trusts most;
3. the points, that mask's logits and its box: again the mask that SAM trusts most.

As in the published code of PODS, the map is another model's, and PerSAM's changes inside SAM's decoder (target-guided
attention, target-semantic prompting: both take SAM's own features) are not made. That code differs further: two hot
points and no cold one (five for DINOv2), a weighting of three masks that is trained on the reference (PerSAM-F), and
boxes in steps 2 and 3. ID-Sim does not say which it used.

SAM's weights are its authors' (Apache-2.0), read by transformers: pip install 'idmetric[eval]'.
"""

from __future__ import annotations

import os
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import ArrayLike
from torch import Tensor

from idmetric.evaluate.protocols.common.columns import Array, Truths
from idmetric.metric.checkpoints.format import CONFIG, file_of, read_json
from idmetric.metric.checkpoints.pretrained import FILES, folder_revision, open_model, open_processor
from idmetric.metric.checkpoints.resolve import resolve
from idmetric.metric.embedder import auto_device
from idmetric.metric.errors import CheckpointError
from idmetric.metric.files import StrPath, need
from idmetric.metric.images import ImageLike, read_image


class EncodedImage(NamedTuple):
    """An image as SAM's decoder needs it: features (1, C, h, w), its size, and the size at which SAM sees it."""

    features: Tensor
    size: tuple[int, int]
    scaled: tuple[int, int]


class PerSAM:
    """SAM with the prompts of a similarity map.

    Args:
        source: a Hub repository or folder with a SAM in transformers' format, such as "facebook/sam-vit-huge" (the
            paper's) or "facebook/sam-vit-base".
        device: default CUDA, else MPS, else CPU.

    Raises:
        CheckpointError: if the weights cannot be found or are not of a SAM.
        ImportError: if transformers is missing.
    """

    def __init__(self, source: StrPath, *, device: torch.device | str | None = None) -> None:
        need("eval", "SAM", transformers="transformers")
        self.name = os.fspath(source)
        folder = resolve(self.name, FILES, advice="in the shell --sam FOLDER")
        kind = read_json(file_of(folder, CONFIG)).get("model_type")
        if kind != "sam":
            raise CheckpointError(
                f"{self.name!r} holds a model of type {kind!r}, not a SAM such as facebook/sam-vit-base"
            )
        if device is None:
            device = auto_device()
        self.model = open_model("SamModel", folder, ["sam"], dtype=torch.float32, device=device)
        self.processor = open_processor("SamProcessor", folder)
        self.revision = folder_revision(folder)

    def segment(self, image: ImageLike, heat: ArrayLike | Tensor) -> Truths:
        """The mask (H, W) of the subject that a map of the image's size shows, hotter = more surely.

        It is empty where SAM sees nothing at the points.
        """
        return self.decode(self.encode(image), heat)

    @torch.no_grad()
    def encode(self, image: ImageLike) -> EncodedImage:
        """SAM's features of an image, for all of its maps."""
        inputs = self.processor(images=read_image(image), return_tensors="pt")
        pixels = inputs["pixel_values"].to(self.model.device)
        features = self.model.get_image_embeddings(pixels)
        height, width = inputs["original_sizes"][0].tolist()
        scaled_height, scaled_width = inputs["reshaped_input_sizes"][0].tolist()
        return EncodedImage(features, (height, width), (scaled_height, scaled_width))

    @torch.no_grad()
    def decode(self, image: EncodedImage, heat: ArrayLike | Tensor) -> Truths:
        """The mask of the three steps of the module's description."""
        prior = torch.as_tensor(heat).detach().cpu().double().numpy()
        if prior.shape != image.size:
            raise ValueError(f"a map of {prior.shape} for an image of {image.size} (height, width)")

        prompts = {
            "input_points": self._scaled(pick_points(prior), image)[None, None],
            "input_labels": torch.tensor([[[1, 0]]], device=self.model.device),
        }
        prompts["input_masks"] = self._predict(image, prompts, multimask_output=False)
        prompts["input_masks"] = self._predict(image, prompts)
        mask = self._full(prompts["input_masks"], image)
        y, x = np.nonzero(mask)
        if not len(y):
            return mask
        corners = np.array([[x.min(), y.min()], [x.max(), y.max()]])
        prompts["input_boxes"] = self._scaled(corners, image).reshape(1, 1, 4)
        return self._full(self._predict(image, prompts), image)

    def _predict(
        self,
        image: EncodedImage,
        prompts: dict[str, Tensor],
        multimask_output: bool = True,
    ) -> Tensor:
        """Logits (1, 1, h, w) of the mask that SAM trusts most."""
        output = self.model(image_embeddings=image.features, multimask_output=multimask_output, **prompts)
        best = int(output.iou_scores[0, 0].argmax())
        logits: Tensor = output.pred_masks[:, 0, best : best + 1]
        return logits

    def _full(self, logits: Tensor, image: EncodedImage) -> Truths:
        """The mask at the image's size."""
        [masks] = self.processor.post_process_masks(logits[None].cpu(), [image.size], [image.scaled])
        mask: Truths = masks[0, 0].numpy()
        return mask

    def _scaled(self, points: Array, image: EncodedImage) -> Tensor:
        """x and y (N, 2) of the image at the size that SAM sees."""
        scale = np.array(image.scaled[::-1]) / np.array(image.size[::-1])
        return torch.from_numpy(points * scale).to(self.model.device, torch.float32)


def pick_points(heat: Array) -> Array:
    """x and y (2, 2) of the hottest and the coldest pixel of a map (H, W); of equal ones the first, row by row."""
    y, x = np.unravel_index([heat.argmax(), heat.argmin()], heat.shape)
    return np.stack([x, y], axis=1).astype(np.float64)
