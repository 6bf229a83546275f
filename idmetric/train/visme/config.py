"""Settings of VisME's recipe."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from idmetric.evaluate.settings import option

RANDOM = "random"  # as the model: a very small one


@dataclass(frozen=True)
class VisMETraining:
    """The paper's settings; settings that it does not state name their source."""

    model: str = option(
        "Qwen/Qwen2.5-VL-3B-Instruct",
        "folder or Hub repository of a Qwen2.5-VL or Qwen2-VL (Table 1); random = a very small one",
    )
    revision: str | None = option(None, "commit of a Hub repository")
    # the batches
    steps: int = option(3000, "batches (section 5.1)")
    batch_size: int = option(1024, "samples of a batch, over all processes (section 5.1)")
    samples: int = option(64, "samples of a block, all from one sub-dataset, M of Eq. 1 (section 5.3, Table 4)")
    hard: int = option(5, "most hard negatives of a sample, k (section 5.1); 0 = Table 2 without hard case mining")
    sampling: Literal["identity", "naive"] = option("identity", "each identity once a batch, or Table 2's baseline")
    # the words of queries and candidates
    instructions: tuple[str, ...] = option(
        (), "DATASET=WORDS: words of queries without text, or recognition, reidentification, grounding, editing"
    )
    # the loss
    temperature: float = option(0.02, "first value of tau (section 5.1, Table 5)")
    learn_temperature: bool = option(True, "learn tau; Table 5 also has it fixed")
    # the model
    rank: int = option(16, "of LoRA (section 5.1; 32 is best in Figure 5)")
    alpha: float = option(32.0, "of LoRA (section 5.1)")
    dropout: float = option(0.1, "of LoRA (the paper is silent; VLM2Vec's)")
    targets: str = option("qwen", "layers with LoRA: qwen = all of the language model, or a regular expression")
    prompt_style: Literal["vlm2vec", "chat"] = option("vlm2vec", "see VisIDEmbed (the paper is silent)")
    max_pixels: int = option(200_704, "of an image: 256 visual tokens (section 5.1)")
    max_length: int = option(768, "tokens of an item, image included (section 5.1)")
    # the optimizer: AdamW without weight decay, linear decay (the paper is silent; VLM2Vec's)
    lr: float = option(1e-4, "peak learning rate (section 5.1)")
    warmup: int = option(200, "steps of warm-up, at most a tenth of all steps (the paper is silent; B3's)")
    chunk: int = option(16, "items embedded at once, by gradient caching; changes memory and speed alone")
    checkpointing: bool = option(False, "recompute activations in the backward pass: less memory, slower")
    validate_queries: int = option(256, "queries of each dataset in a validation")
    seed: int = option(0, "of the batches, LoRA and dropout")

    def __post_init__(self) -> None:
        if self.batch_size % self.samples:
            raise ValueError(
                f"batch_size {self.batch_size} is not a multiple of samples {self.samples} (K blocks of M samples)"
            )

    @property
    def blocks(self) -> int:
        """K of Eq. 1."""
        return self.batch_size // self.samples


SMOKE: Mapping[str, Any] = {
    "model": RANDOM,
    "steps": 6,
    "batch_size": 12,
    "samples": 4,
    "hard": 2,
    "max_pixels": 4 * 28 * 28,
    "chunk": 8,
    "lr": 1e-3,
    "warmup": 1,
    "validate_queries": 4,
}


Config = VisMETraining  # by this name, `idmetric train` finds each recipe's
