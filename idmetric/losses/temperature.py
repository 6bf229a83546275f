"""A temperature that is learned with the model (VisME Eq. 3)."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn


class LearnableTemperature(nn.Module):
    """tau > 0 as the exponential of a parameter, so that no step can make it negative; calling it returns tau.

    VisME learns tau from 0.02 (section 5.1 and Table 5) and states neither its parametrization nor a bound. The
    logarithm is CLIP's choice, and so is the bound: 0.01 there keeps cosines from being scaled by more than 100.

    Args:
        initial: first value, > 0.
        minimum: lowest value, in [0, initial]; 0 = unbounded. A step below it is set back by the next call.

    Leave the parameter out of weight decay, which would pull tau towards 1.
    """

    def __init__(self, initial: float = 0.02, *, minimum: float = 0.01) -> None:
        super().__init__()
        if not 0 <= minimum <= initial or not initial > 0:
            raise ValueError(f"need 0 <= minimum <= initial and initial > 0, got {initial=}, {minimum=}")
        self.minimum = minimum
        self.log_temperature = nn.Parameter(torch.tensor(math.log(initial)))

    def forward(self) -> Tensor:
        """The temperature, a scalar tensor with a graph."""
        if self.minimum:
            with torch.no_grad():
                self.log_temperature.clamp_(min=math.log(self.minimum))
        return self.log_temperature.exp()
