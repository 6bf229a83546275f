"""Parameters, operations, memory and processor time of models, as `idmetric models` shows them.

    python benchmarks/sizes.py                                  all models, on torch's device "meta"
    python benchmarks/sizes.py --model tiny --cpu 1 8           measures processor seconds on one core as well

Architectures have random weights; nothing is downloaded.
"""

from __future__ import annotations

import argparse
import time
import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
import torch.nn.functional as F
from bench import open_model
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import FlopCounterMode

from idmetric.metric.checkpoints import released
from idmetric.metric.embedder import Embedder

MODELS = ("tiny", "efficientnet-lite0", *released.IDSIM, *released.NEARID)
# Qwen2.5-VL's published shapes: transformers' defaults are those of the 7B
QWEN = {
    "visid_3b": {"hidden_size": 2048, "intermediate_size": 11008, "num_hidden_layers": 36, "num_attention_heads": 16,
                 "num_key_value_heads": 2, "vocab_size": 151936, "tie_word_embeddings": True},
    "visid_7b": {"hidden_size": 3584, "intermediate_size": 18944, "num_hidden_layers": 28, "num_attention_heads": 28,
                 "num_key_value_heads": 4, "vocab_size": 152064, "tie_word_embeddings": False},
}  # fmt: skip
QWEN_VISION = {"depth": 32, "hidden_size": 1280, "intermediate_size": 3420, "num_heads": 16}
PATCHES, TOKENS = 1024, 266  # of an image of 200,704 pixels, and of it with the words of the default instruction
VALUES = 10  # alive for each token and channel in a transformer's block: input, norm, and the hidden layer twice


@dataclass(frozen=True)
class ModelSize:
    """What a model needs.

    Attributes:
        parameters: their number. flops: floating-point operations for an image. value_bytes: of a weight.
        activation_bytes: memory for an image of the batch, in values of `value_bytes`.
        cpu_seconds: processor seconds for an image on one core, by the number of images in a pass.
    """

    parameters: int
    flops: float
    activation_bytes: float
    value_bytes: int = 4
    cpu_seconds: tuple[tuple[int, float], ...] = ()

    def memory(self, batch: int) -> float:
        """Gigabytes of weights and activations for a pass of that many images; without PyTorch and the images."""
        return (self.parameters * self.value_bytes + batch * self.activation_bytes) / 1e9


class LiveBytes(TorchDispatchMode):
    """Counts the bytes of the tensors that operations make, while they are alive; without views of weights."""

    def __init__(self) -> None:
        super().__init__()
        self.peak = 0
        self._now = 0
        self._references: dict[int, list[int]] = {}  # storage -> number of its tensors, and its bytes

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = function(*args, **(kwargs or {}))
        outputs = result if isinstance(result, tuple | list) else [result]
        inputs = {value.untyped_storage()._cdata for value in args if isinstance(value, Tensor)}
        weights = inputs - self._references.keys()
        for output in outputs:
            if isinstance(output, Tensor) and output.untyped_storage()._cdata not in weights:
                self._count(output)
        return result

    def _count(self, tensor: Tensor) -> None:
        storage = tensor.untyped_storage()
        entry = self._references.setdefault(storage._cdata, [0, storage.nbytes()])
        if entry[0] == 0:
            self._now += entry[1]
            self.peak = max(self.peak, self._now)
        entry[0] += 1
        weakref.finalize(tensor, self._drop, storage._cdata)

    def _drop(self, storage: int) -> None:
        entry = self._references.get(storage)
        if entry is None:
            return
        entry[0] -= 1
        if entry[0] == 0:
            self._now -= entry[1]
            del self._references[storage]


class FusedAttention(TorchFunctionMode):
    """Attention without its matrix of scores, which no device with a fused kernel holds."""

    def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if function is F.scaled_dot_product_attention:
            return torch.empty_like(args[0])
        return function(*args, **(kwargs or {}))


def size_of(metric: Embedder) -> ModelSize:
    """What a model needs; its weights are gone afterwards."""
    metric.requires_grad_(False).to("meta")
    pixels = torch.empty(1, 3, *metric.image_size, device="meta")
    with torch.no_grad():
        with FlopCounterMode(display=False) as counter:
            metric.forward_features(pixels)
        with LiveBytes() as live, FusedAttention():
            metric.forward_features(pixels)
    parameters = sum(parameter.numel() for parameter in metric.parameters())
    return ModelSize(parameters, counter.get_total_flops(), live.peak)


def size_of_qwen(name: str) -> ModelSize:
    """What VisIDEmbed needs: counted parameters, and operations and memory by formula, in bfloat16."""
    import transformers

    vision = {**QWEN_VISION, "out_hidden_size": QWEN[name]["hidden_size"]}
    config = transformers.Qwen2_5_VLConfig(text_config=QWEN[name], vision_config=vision)
    with torch.device("meta"):
        model = transformers.Qwen2_5_VLModel(config)  # without the language head, which an embedding does not need
    parts = {
        "vision": sum(parameter.numel() for parameter in model.visual.parameters()),
        "layers": sum(parameter.numel() for parameter in model.language_model.layers.parameters()),
    }
    flops = 2 * (parts["vision"] * PATCHES + parts["layers"] * TOKENS)
    values = VALUES * max(PATCHES * QWEN_VISION["hidden_size"], TOKENS * int(QWEN[name]["hidden_size"]))
    parameters = sum(parameter.numel() for parameter in model.parameters())
    return ModelSize(parameters, flops, 2 * values, value_bytes=2)


def cpu_seconds(metric: Embedder, batch: int, repeats: int = 3) -> float:
    """Processor seconds for an image in passes of `batch` images on one thread; the least of several passes."""
    pixels = torch.rand(batch, 3, *metric.image_size)
    return seconds_of(lambda: metric.embed_pixels(pixels), repeats) / batch


def seconds_of(run: Callable[[], Any], repeats: int) -> float:
    """The least processor seconds of a run on one thread, after one that is not counted."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    times = []
    try:
        with torch.no_grad():
            run()
            for _ in range(repeats):
                start = time.process_time()
                run()
                times.append(time.process_time() - start)
    finally:
        torch.set_num_threads(threads)
    return min(times)


def main(argv: Sequence[str] | None = None) -> None:
    """Print the size of each model."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", action="append", help="may be repeated (default: all)")
    parser.add_argument("--cpu", type=int, nargs="*", default=[], help="also measure passes of so many images")
    args = parser.parse_args(argv)
    for name in args.model or [*MODELS, *QWEN]:
        if name in QWEN:
            size = size_of_qwen(name)
            print(f"{name}: {size.memory(32):.3g} GB, {size}", flush=True)
            continue
        metric = open_model(name, random_weights=name in {**released.IDSIM, **released.NEARID}, device="cpu")
        times = tuple((batch, float(f"{cpu_seconds(metric, batch):.3g}")) for batch in args.cpu)
        size = size_of(metric)
        print(f"{name}: {size.memory(32):.3g} GB, {replace(size, cpu_seconds=times)}", flush=True)


if __name__ == "__main__":
    main()
