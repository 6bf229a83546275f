"""Shared parts of the tests of protocols: pictures, models with drawn or scripted scores, values of a result."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from pandas import DataFrame
from PIL import Image

from idmetric.evaluate.protocols.common.pairwise import PairModel
from idmetric.evaluate.protocols.common.result import Result, Value
from idmetric.evaluate.protocols.common.scorers import EvalSettings
from idmetric.metric.embedding import Embedding
from idmetric.metric.images import read_image
from idmetric.stream import PlainModel

PLAIN = EvalSettings(bootstrap=0)


def picture(path: Path, seed: int, shade: int = 0) -> str:
    """A file with a picture: identities differ in color, shades in a stripe."""
    path.parent.mkdir(parents=True, exist_ok=True)
    rng = np.random.default_rng(seed)
    array = np.broadcast_to(rng.integers(0, 255, 3), (32, 32, 3)).astype(np.uint8).copy()
    noise = np.random.default_rng([seed, shade]).integers(0, 255, (12, 32, 3))
    array[4 * (shade % 5) : 4 * (shade % 5) + 12] = noise
    Image.fromarray(array).save(path)
    return str(path)


def broken(folder: Path) -> Path:
    """A file that is not a picture."""
    path = folder / "broken.png"
    path.write_bytes(b"no picture")
    return path


def values(result: Result, **labels: str) -> dict[str, Value]:
    """The values of the row with these labels."""
    [row] = [r for r in result.rows if all(r.get(k) == v for k, v in labels.items())]
    return {k: v for k, v in row.items() if isinstance(v, Value)}


class Scripted:
    """A judge with scores from a function of the manifest and of both sides' rows; NaN = no answer."""

    def __init__(self, scores: Callable[[DataFrame, np.ndarray, np.ndarray], np.ndarray]) -> None:
        self.scores = scores

    def signature(self) -> dict[str, str]:
        return {"model": "judge"}

    def bind(self, manifest: DataFrame, settings: EvalSettings) -> Scripted:
        self.manifest = manifest
        return self

    def problems(self, rows: Sequence[int] | None = None) -> dict[int, str]:
        return {}

    def report(self) -> str:
        return "nothing was asked"

    def pairs(self, a: Sequence[int], b: Sequence[int]) -> np.ndarray:
        return self.scores(self.manifest, np.asarray(a), np.asarray(b))


class Drawn(PlainModel):
    """A model whose embedding of an image is drawn by the image's color: random, and the same each time."""

    def __init__(self, name: str = "drawn", spread: float = 1.0) -> None:
        self.name, self.spread = name, spread

    def signature(self) -> dict[str, str]:
        return {"model": self.name, "spread": str(self.spread)}

    def prepare(self, picture: Any, cover: Any, words: str | None) -> np.ndarray:
        r, g, b = picture.getpixel((0, 0))  # identity, number, masked or not
        own = np.random.default_rng(r).normal(size=12)
        return own + self.spread * np.random.default_rng([r, g, b, cover is not None]).normal(size=12)

    def embed_prepared(self, batch: Sequence[np.ndarray], patches: bool = True) -> Embedding:
        return Embedding(torch.from_numpy(np.stack(batch)).float())

    def of(self, data: DataFrame, masked: bool = False) -> np.ndarray:
        """Unit vectors of all rows."""
        x = np.stack([self.prepare(read_image(data["path"][r]), masked or None, None) for r in range(len(data))])
        return x / np.linalg.norm(x, axis=1, keepdims=True)


class Near(PairModel):
    """A metric of pairs: 1 - the mean absolute difference of pixels."""

    def __init__(self, device: Any = None) -> None:
        self.prepared = self.seen = self.compared = 0

    def signature(self) -> dict[str, str]:
        return {"model": "near", "distance": "near"}

    def prepare(self, picture: Any, cover: Any, words: str | None) -> torch.Tensor:
        self.prepared += 1
        return torch.from_numpy(np.array(picture.resize((16, 16))))

    def features(self, images: torch.Tensor) -> tuple[torch.Tensor, ...]:
        self.seen += len(images)
        return (images.double() / 255,)

    def between(self, a: Sequence[torch.Tensor], b: Sequence[torch.Tensor]) -> torch.Tensor:
        self.compared += len(b[0])
        return 1 - (a[0] - b[0]).abs().flatten(1).mean(1)


class Images:
    """Pictures of one color, made as they are named."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def __call__(self, identity: int, number: int, kind: int = 0) -> str:
        name = f"{identity}-{number}-{kind}.png"
        Image.new("RGB", (4, 4), (identity, number, kind)).save(self.folder / name)
        return name


def clip_folder(root: Path, kind: str) -> Path:
    """A CLIP or SigLIP with random weights, in transformers' files."""
    import transformers
    from tokenizers import Tokenizer, models, pre_tokenizers, processors

    words = ["<pad>", "<end>", "<unk>", "make", "it", "number", "Find", "this", "car", ".", *map(str, range(6))]
    plain = Tokenizer(models.WordLevel({word: k for k, word in enumerate(words)}, "<unk>"))
    plain.pre_tokenizer = pre_tokenizers.Whitespace()
    plain.post_processor = processors.TemplateProcessing(single="$A <end>", special_tokens=[("<end>", 1)])
    tokenizer = transformers.PreTrainedTokenizerFast(tokenizer_object=plain, pad_token="<pad>", eos_token="<end>")
    tokenizer.save_pretrained(root)
    small = {"hidden_size": 24, "intermediate_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2}
    text = {**small, "vocab_size": len(words), "max_position_embeddings": 12, "eos_token_id": 1, "pad_token_id": 0,
            "bos_token_id": None}  # fmt: skip
    vision = {**small, "image_size": 32, "patch_size": 8}
    torch.manual_seed(0)
    if kind == "clip":
        config = transformers.CLIPConfig(text_config=text, vision_config=vision, projection_dim=16)
        model = transformers.CLIPModel(config)
        processor = transformers.CLIPImageProcessor(size={"shortest_edge": 32}, crop_size={"height": 32, "width": 32})
    else:
        config = transformers.SiglipConfig(text_config={**text, "projection_size": 24}, vision_config=vision)
        model = transformers.SiglipModel(config)
        processor = transformers.SiglipImageProcessor(size={"height": 32, "width": 32})
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim > 1:
                parameter.normal_(std=parameter[0].numel() ** -0.5)
    model.save_pretrained(root)
    processor.save_pretrained(root)
    return root
