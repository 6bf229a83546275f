"""What `IdentityLoss` adds to a training step, and after how many steps `torch.compile` has paid for itself.

    python benchmarks/losses.py --model tiny dinov3_vitb16 --size 512 --compile tiny

A step is the forward and backward pass of one image of the given side against one reference. The table has, for each
model (`tiny`, or the architecture of a published one with random weights), image size and distance: the time of a step
and the memory that it takes beyond weights and image, both also with `checkpoint=True`. On a CPU, times are those of
the processor, of all threads together: other programs change them little.

With --compile: seconds of the first step of the compiled loss, the time of later ones relative to plain ones, and the
steps after which compiling has paid.
"""

from __future__ import annotations

import argparse
import math
import time
from collections.abc import Callable, Sequence

import torch
from precision import model_of
from timing import Clock, ratio

from idmetric import IdentityLoss
from idmetric.metric.checkpoints import released
from idmetric.metric.embedder import Embedder, auto_device

DISTANCES = ("cls", "patch_pooled", "patch", "joint")
COMPILED = ("cls", "patch_pooled")  # in one graph; Sinkhorn's loop is not compiled
MODELS = ("tiny", *released.IDSIM, *released.NEARID)


def step_of(loss: IdentityLoss, image: torch.Tensor) -> Callable[[], None]:
    """One forward and backward pass, as a training loop runs it."""

    def step() -> None:
        with torch.enable_grad():
            pixels = image.clone().requires_grad_(True)
            loss(pixels).backward()

    return step


def print_steps(clock: Clock, metric: Embedder, name: str, size: int, distances: Sequence[str]) -> None:
    """One row for each distance."""
    reference, image = torch.rand(2, 1, 3, size, size, device=metric.device)
    for distance in distances:
        cells = []
        for checkpoint in (False, True):
            step = step_of(IdentityLoss(metric, reference, distance=distance, checkpoint=checkpoint), image)
            timing = clock.time(step)
            used = min(timing.cpu, default=timing.median)
            cells += [f"{used:.2f}", "" if timing.peak is None else f"{timing.peak / 2**20:.0f}"]
        print("|", " | ".join([name, str(size), distance, *cells]), "|", flush=True)


def print_compiled(clock: Clock, metric: Embedder, name: str, size: int) -> None:
    """One row for each distance that can be compiled as a whole."""
    reference, image = torch.rand(2, 1, 3, size, size, device=metric.device)
    for distance in COMPILED:
        loss = IdentityLoss(metric, reference, distance=distance)
        plain, compiled = step_of(loss, image), step_of(torch.compile(loss, fullgraph=True), image)
        start = time.perf_counter()
        compiled()
        clock.wait()
        first = time.perf_counter() - start

        timings = clock.alternate({"compiled": compiled, "plain": plain})
        found = ratio(timings["compiled"], timings["plain"])
        saved = timings["plain"].median - timings["compiled"].median
        pays = f"{math.ceil(first / saved):,}" if saved > 0 else "never"
        times = f"{found.median:.2f} ({found.low:.2f} to {found.high:.2f})"
        print("|", " | ".join([name, str(size), distance, f"{first:.0f}", times, pays]), "|", flush=True)


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", nargs="+", default=[], choices=MODELS)
    parser.add_argument("--size", nargs="+", type=int, default=[512], help="sides of the image")
    parser.add_argument("--distance", nargs="+", default=DISTANCES, choices=DISTANCES)
    parser.add_argument("--compile", nargs="+", default=[], choices=MODELS, metavar="MODEL")
    parser.add_argument("--device", default=str(auto_device()))
    parser.add_argument("--rounds", type=int, default=5)
    args = parser.parse_args()
    clock = Clock(torch.device(args.device), args.rounds)

    if args.model:
        print("| model | image | distance | s | MB | s, checkpoint | MB, checkpoint |\n|" + "---|" * 7)
    for name in args.model:
        metric = model_of(name).to(args.device)
        for size in args.size:
            print_steps(clock, metric, name, size, args.distance)
    if args.compile:
        print("\n| model | image | distance | first step, s | time of a step | pays after steps |\n|" + "---|" * 6)
    for name in args.compile:
        metric = model_of(name).to(args.device)
        for size in args.size:
            print_compiled(clock, metric, name, size)


if __name__ == "__main__":
    main()
