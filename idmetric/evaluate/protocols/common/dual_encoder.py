"""CLIP and SigLIP with both towers, as baselines that read: an image with words is the mean of the two embeddings.

    idmetric eval mveb --data mveb.parquet --model dual:openai/clip-vit-large-patch14 --out results/

VisME's adaptation of dual encoders (section 5.2): text is dropped, but for Identity Editing, where "the final
representation" is the average "of the corresponding visual and text embeddings". Here both are scaled to unit length
first, which the paper does not mention; the longer one would dominate a plain mean. In MMEB, images, texts and both
together are embedded alike; the paper takes its numbers of dual encoders there from VLM2Vec.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from idmetric.evaluate.protocols.common.baselines import DeviceLike, device_or_auto, signature_of
from idmetric.metric.checkpoints.format import CONFIG, file_of, read_json
from idmetric.metric.checkpoints.pretrained import FILES, open_model, open_processor
from idmetric.metric.checkpoints.resolve import resolve
from idmetric.metric.embedding import Embedding
from idmetric.metric.errors import CheckpointError
from idmetric.metric.files import need
from idmetric.metric.fingerprint import weights_digest
from idmetric.stream import PlainModel

_CLASSES = {"clip": "CLIPModel", "siglip": "SiglipModel"}  # SigLIP2 at a fixed size is of type siglip too


class DualEncoder(PlainModel):
    """A CLIP or SigLIP of transformers as a baseline.

    Args:
        source: folder or Hub repository in transformers' format, with safetensors.

    Raises:
        ImportError: if transformers is missing.
        CheckpointError: if the weights cannot be found, or are of another kind.
    """

    reads_words = True

    def __init__(
        self,
        source: str,
        *,
        device: DeviceLike | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        need("eval", "a dual encoder", transformers="transformers")
        folder = resolve(source, FILES)
        kind = read_json(file_of(folder, CONFIG)).get("model_type")
        if kind not in _CLASSES:
            raise CheckpointError(f"{source!r} holds a model of type {kind!r}, not {' or '.join(_CLASSES)}")
        self.device = device_or_auto(device)
        self.model = open_model(_CLASSES[kind], folder, [kind], dtype=dtype or torch.float32, device=self.device)
        self.tokenizer = open_processor("AutoTokenizer", folder)
        self.processor = open_processor("AutoImageProcessor", folder)

        self.name = source
        self.revision = ""
        if folder.parent.name == "snapshots":  # of the Hub's cache
            self.revision = folder.name
        self.dtype = str(self.model.dtype).removeprefix("torch.")
        self.length = int(self.model.config.text_config.max_position_embeddings)

    def signature(self) -> dict[str, str]:
        """See `PlainModel`."""
        size = self.model.config.vision_config.image_size
        return {
            **signature_of(f"DualEncoder:{self.name}", self.revision, "cls", f"{size}x{size}"),
            "dtype": self.dtype,
            "weights": weights_digest(self.model)[:16],
        }

    def prepare(self, picture: Any, cover: Tensor | None, words: str | None) -> tuple[Tensor | None, str | None]:
        """See `PlainModel`; pixels as the model's own processor makes them."""
        if picture is None:
            return None, words
        pixels: Tensor = self.processor(images=picture, return_tensors="pt")["pixel_values"][0]
        return pixels, words

    def embed_prepared(self, batch: Sequence[tuple[Tensor | None, str | None]], patches: bool = True) -> Embedding:
        """See `Embedder.embed_prepared`; unit vectors of images or texts, or of both the mean of two."""
        images: dict[int, Tensor] = {}
        texts: dict[int, str] = {}
        for row, (pixels, words) in enumerate(batch):
            if pixels is not None:
                images[row] = pixels
            if words:
                texts[row] = words

        parts = []
        if images:
            image_vectors = self.images(list(images.values()))
            parts.append((list(images), image_vectors))
        if texts:
            text_vectors = self.texts(list(texts.values()))
            parts.append((list(texts), text_vectors))

        _, vectors_of_part = parts[0]
        vectors = vectors_of_part.new_zeros(len(batch), vectors_of_part.shape[1])
        for rows, unit_vectors in parts:
            vectors[rows] += unit_vectors
        vectors[sorted(images.keys() & texts.keys())] /= 2
        return Embedding(vectors, model=f"DualEncoder:{self.name}")

    def images(self, pixels: Sequence[Tensor]) -> Tensor:
        """Unit vectors (I, D) of images from `prepare`."""
        stacked = torch.stack(list(pixels)).to(self.device, self.model.dtype)
        with torch.no_grad():
            features = _pooled(self.model.get_image_features(pixel_values=stacked))
        return F.normalize(features.float(), dim=-1)

    def texts(self, words: Sequence[str]) -> Tensor:
        """Unit vectors (T, D) of texts."""
        # SigLIP was trained on texts padded to its length; CLIP finds the end of a text itself
        inputs = self.tokenizer(
            [text.strip() for text in words],
            padding="max_length",
            truncation=True,
            max_length=self.length,
            return_tensors="pt",
        )
        tensors = {"input_ids": inputs["input_ids"].to(self.device)}
        if self.model.config.model_type != "siglip" and "attention_mask" in inputs:  # nor was SigLIP's text masked
            tensors["attention_mask"] = inputs["attention_mask"].to(self.device)
        with torch.no_grad():
            features = _pooled(self.model.get_text_features(**tensors))
        return F.normalize(features.float(), dim=-1)


def _pooled(output: Any) -> Tensor:
    """transformers 5 wraps the features in an output."""
    if isinstance(output, Tensor):
        return output
    features: Tensor = output.pooler_output
    return features
