"""Score drift of half precision, and memory of loading: `tiny`, and the published models' sizes with random weights.

    python benchmarks/precision.py PHOTO [PHOTO ...] [--model nearid]

For each precision, the script prints the range of the distances of all pairs of the photos, and of as many images of
noise, their largest and mean change relative to float32, and the seconds per image; then the peak of anonymous memory
while loading.
"""

from __future__ import annotations

import argparse
import itertools
import multiprocessing
import tempfile
import threading
import time
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image

from idmetric import IDSim, NearID
from idmetric.metric.checkpoints import released
from idmetric.metric.embedder import Embedder
from idmetric.metric.idsim import IDSimConfig
from idmetric.metric.nearid import NearIDConfig


def model_of(name: str) -> Embedder:
    """`tiny`, or the architecture of a published model with random weights, large enough for its scores to differ."""
    if name == "tiny":
        return IDSim(name)
    torch.manual_seed(0)
    model: Embedder = NearID(NearIDConfig()) if name == "nearid" else IDSim(IDSimConfig(released.IDSIM[name].backbone))
    with torch.no_grad():
        for key, parameter in model.named_parameters():
            if "gamma" in key:
                parameter.fill_(0.5)
            elif parameter.ndim > 1:
                parameter.normal_(std=1.2 * parameter[0].numel() ** -0.5)
    return model


def anonymous() -> float:
    """Megabytes of this process's memory that belong to no file."""
    status = Path("/proc/self/status").read_text()
    return next(int(line.split()[1]) / 1e3 for line in status.splitlines() if line.startswith("RssAnon"))


def peak_of_loading(folder: str, kind: type[Embedder], **options: Any) -> tuple[float, float]:
    """Peak of anonymous memory above the start while loading, and the weights' size, in megabytes."""
    before, seen, done = anonymous(), [0.0], threading.Event()

    def watch() -> None:
        while not done.wait(0.002):
            seen.append(anonymous())

    thread = threading.Thread(target=watch)
    thread.start()
    model = kind.from_pretrained(folder, device="cpu", **options)
    done.set()
    thread.join()
    return max(seen) - before, sum(p.numel() * p.element_size() for p in model.parameters()) / 1e6


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("photos", nargs="+")
    parser.add_argument("--model", default="nearid", choices=["tiny", "nearid", *released.IDSIM])
    args = parser.parse_args()
    model = model_of(args.model)
    pairs = torch.tensor(list(itertools.combinations(range(len(args.photos)), 2))).T
    rng = np.random.default_rng(0)
    noise = [Image.fromarray(rng.integers(0, 256, (448, 448, 3), dtype=np.uint8)) for _ in args.photos]
    reference: dict[tuple[str, str], torch.Tensor] = {}
    print("| images | precision | distance | range of distances | largest change | mean change | s per image |")
    print("|---|---|---|---|---|---|---|")
    with tempfile.TemporaryDirectory() as folder:
        model.half().save_pretrained(folder)  # as NearID is published
        for dtype in (torch.float32, torch.bfloat16, torch.float16):
            model = type(model).from_pretrained(folder, dtype=dtype)
            for kind, images in (("photos", args.photos), ("noise", noise)):
                start = time.monotonic()
                found = model.embed(images, batch_size=1)
                seconds = (time.monotonic() - start) / len(images)
                for name in ("cls", "patch"):
                    distances = model.pairwise(found, distance=name)[pairs[0], pairs[1]].cpu()
                    base = reference.setdefault((kind, name), distances)
                    change = (distances - base).abs()
                    print(
                        f"| {kind} | {str(dtype)[6:]} | {name} | {base.min():.4f} to {base.max():.4f} | "
                        f"{change.max():.5f} | {change.mean():.5f} | {seconds:.2f} |",
                        flush=True,
                    )
        built = type(model)
        del model, found
        with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as pool:  # this one has memory to reuse
            peak, size = pool.submit(peak_of_loading, folder, built).result()
        print(f"loading: peak {peak:.0f} MB of anonymous memory for {size:.0f} MB of weights")


if __name__ == "__main__":
    main()
