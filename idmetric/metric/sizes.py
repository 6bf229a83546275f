"""What models need: parameters, operations and memory for an image, and their speed.

`python benchmarks/sizes.py` prints the numbers of `SIZES`, from each architecture with random weights on torch's device
"meta": operations as torch counts them (2 for a multiplication with its addition), and the most bytes that one image
keeps alive at a time in float32, with attention in one step, as PyTorch computes it on CPUs and GPUs.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class ModelSize:
    """What a model needs.

    Attributes:
        parameters: their number. flops: floating-point operations for an image. value_bytes: of a weight, as models
            are opened by default.
        activation_bytes: memory for an image of the batch, in values of `value_bytes`.
        is_convolutional: its rate on a GPU is not estimated: memory bounds small convolutions, not operations.
        cpu_seconds: processor seconds for an image on one core, by the number of images in a pass; measured, see `CPU`.
    """

    parameters: int
    flops: float
    activation_bytes: float
    value_bytes: int = 4
    is_convolutional: bool = False
    cpu_seconds: tuple[tuple[int, float], ...] = ()

    def memory(self, batch: int) -> float:
        """Bytes of weights and activations for a pass of that many images; without PyTorch and the images."""
        return self.parameters * self.value_bytes + batch * self.activation_bytes

    def images_per_second(self, flops_per_second: float) -> float:
        """The estimated rate on a device of that peak, of which encoders use `UTILIZATION`."""
        return UTILIZATION * flops_per_second / self.flops


UTILIZATION = 0.4  # share of a device's peak, an assumption; CPU cores were measured instead
CPU = "one core of an AMD EPYC server with AVX-512, by processor time, float32"
# device and precision -> peak of the vendor's data sheet in operations per second, without sparsity
GPUS = {
    "T4, float32": 8.1e12,
    "T4, float16": 65e12,
    "A100, float32": 19.5e12,
    "A100, bfloat16": 312e12,
    "H100, float32": 67e12,
    "H100, bfloat16": 989e12,
}

SIZES = {
    "tiny": ModelSize(
        parameters=9_673_675,
        flops=1.705e9,
        activation_bytes=6.867e6,
        is_convolutional=True,
        cpu_seconds=((1, 0.0293), (8, 0.0255), (32, 0.0269)),
    ),
    "efficientnet-lite0": ModelSize(
        parameters=3_371_008,
        flops=7.678e8,
        activation_bytes=1.333e7,
        is_convolutional=True,
        cpu_seconds=((1, 0.0200), (8, 0.0207), (32, 0.0440)),
    ),
    "dinov3_vitl16": ModelSize(305_183_746, 5.406e11, 3.918e7, cpu_seconds=((1, 5.58),)),
    "dinov3_vitb16": ModelSize(87_219_714, 1.591e11, 2.949e7, cpu_seconds=((1, 1.71),)),
    "dinov2_vitl14": ModelSize(306_118_658, 7.257e11, 4.618e7, cpu_seconds=((1, 7.35),)),
    "dinov2_vitb14": ModelSize(87_893_250, 2.154e11, 3.464e7, cpu_seconds=((1, 2.33),)),
    "nearid": ModelSize(428_225_600, 6.703e11, 3.854e7, cpu_seconds=((1, 6.69),)),
    # without language head; an image of 200,704 pixels with the default instruction; in bfloat16, as published
    "visid_3b": ModelSize(3_754_622_976, 2.846e12, 2.621e7, value_bytes=2),
    "visid_7b": ModelSize(7_747_169_280, 4.857e12, 2.621e7, value_bytes=2),
}
