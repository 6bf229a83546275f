"""Where a training step's time goes: the model's forward and backward pass, and everything else.

    python benchmarks/steps.py idsim --smoke --backbone-args '{}' --image-size 224 --precision bf16

The arguments are those of `idmetric train`; --out is a temporary folder. With --processor-time, for busy machines, the
time is that of this process on a CPU.

"model" is the encoder's forward pass; "backward" includes what gradient checkpointing and gradient caching compute
again; "optimizer" is its update; "waiting" is for the next batch; "rest" is augmentation, losses and checks. The first
step, which warms up, is left out.
"""

from __future__ import annotations

import contextlib
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from typing import Any
from unittest import mock

import torch
from torch import nn

from idmetric.cli import train
from idmetric.metric.embedder import Embedder
from idmetric.train.log import Meter

PROCESSOR = "--processor-time"
PARTS = ("model", "backward", "optimizer", "waiting", "rest")


class Clock:
    """Seconds of each part of each step."""

    def __init__(self, now: Callable[[], float]) -> None:
        self.now = now
        self.steps: list[dict[str, float]] = []
        self._spent: dict[str, float] = defaultdict(float)
        self._inside = "outside"  # of a step, in a step, or the part that runs
        self._since = 0.0

    def wait(self, meter: Meter) -> None:
        """The step before has ended."""
        self._since = self.now()

    def go(self, meter: Meter) -> None:
        """The batch is there: a step begins."""
        now = self.now()
        self._spent["waiting"], self._since, self._inside = now - self._since, now, "step"

    def end(self, meter: Meter, values: Any) -> None:
        """The step has ended."""
        spent, self._spent = self._spent, defaultdict(float)
        spent["rest"] = self.now() - self._since - spent["model"] - spent["backward"] - spent["optimizer"]
        self.steps.append(spent)
        self._inside = "outside"

    @contextlib.contextmanager
    def timed(self, owner: Any, name: str, part: str) -> Iterator[None]:
        """Within the block, count a method's time as that of a part, except within another part."""
        method: Callable[..., Any] = getattr(owner, name)

        def run(*args: Any, **kwargs: Any) -> Any:
            if self._inside != "step":
                return method(*args, **kwargs)
            self._inside, start = part, self.now()
            try:
                return method(*args, **kwargs)
            finally:
                self._spent[part] += self.now() - start
                self._inside = "step"

        with mock.patch.object(owner, name, run):
            yield


def main() -> None:
    """Train, and print the shares."""
    words = [word for word in sys.argv[1:] if word != PROCESSOR]
    clock = Clock(time.perf_counter if words == sys.argv[1:] else time.process_time)
    methods = (
        (torch.autograd, "backward", "backward"),
        (torch.optim.Adam, "step", "optimizer"),  # AdamW's too
        (Embedder, "embed_pixels", "model"),
        (nn.Module, "__call__", "model"),
    )
    with contextlib.ExitStack() as stack:
        for owner, name, part in methods:
            stack.enter_context(clock.timed(owner, name, part))
        for name, method in (("wait", clock.wait), ("go", clock.go), ("add", clock.end)):
            stack.enter_context(
                mock.patch.object(Meter, name, lambda meter, *given, method=method: method(meter, *given))
            )
        stack.enter_context(mock.patch.object(Meter, "read", return_value={"loss": 0.0}))
        folder = stack.enter_context(tempfile.TemporaryDirectory())
        if status := train.main([*words, "--out", f"{folder}/run"]):
            sys.exit(status)

    counted = clock.steps[1:]
    total = {part: sum(step[part] for step in counted) for part in PARTS}
    whole, count = sum(total.values()), len(counted)
    print(
        f"{count} steps of {whole / count:.2f} s:",
        ", ".join(f"{part} {100 * total[part] / whole:.0f} %" for part in PARTS),
    )


if __name__ == "__main__":
    main()
