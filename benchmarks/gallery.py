"""Seconds and memory of searches in large galleries, with synthetic vectors of 512 numbers.

    OMP_NUM_THREADS=1 python -m benchmarks.gallery [--images 200000 1000000] [--folder /tmp] [--faiss] [--clusters]

A gallery is written as a build writes it, with ten vectors around one direction for each identity; all its rows name
one small file. Each measurement is of a process of its own, in CPU seconds and memory beyond `import torch`:

- open: a gallery whose files the system holds in memory, and its first query
- query: further queries, and what one product of the mapped vectors with a query and a partial sort take
- memory: that the process holds, in relation to the mapped matrix
- 50 more: the files that 50 more images write
- faiss: seconds of a query once the index is open, and the share of the exact 10 nearest that it finds
- clusters: `identities` of 24,000 images
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image

WIDTH = 512
PER_IDENTITY = 10
NOISE = 0.8  # length of a vector's way from its identity's direction
BLOCK = 2**16  # vectors made at once
QUERIES = 10
CLUSTERED = 24_000


class Synthetic:
    """A model without weights: the first pixel of an image names the identity that it shows."""

    label = "vectors of 512 numbers"

    def embed(self, images: Any) -> Any:
        """Vectors (N, 512) near those of the identities."""
        vectors = []
        for image in images:
            red, green, blue = image.getpixel((0, 0))
            vectors.append(directions(0)[256 * green + blue] + noise(red, 1)[0])
        return torch.from_numpy(np.stack(vectors))


@cache
def directions(block: int) -> np.ndarray:
    """The directions of a block's identities (n, 512), of about unit length."""
    count = BLOCK // PER_IDENTITY + 1
    return np.random.default_rng(block).normal(0, WIDTH**-0.5, (count, WIDTH)).astype(np.float32)


def noise(seed: int, count: int) -> np.ndarray:
    """Ways from a direction (count, 512)."""
    scale = NOISE * WIDTH**-0.5
    return np.random.default_rng([1, seed]).normal(0, scale, (count, WIDTH)).astype(np.float32)


def vectors_of(block: int) -> np.ndarray:
    """The vectors of a block (BLOCK, 512)."""
    return directions(block)[np.arange(BLOCK) // PER_IDENTITY] + noise(1000 + block, BLOCK)


def query_of(number: int) -> Image.Image:
    """A picture of an identity, as the model reads it."""
    identity = 577 * number % (BLOCK // PER_IDENTITY)
    return Image.new("RGB", (1, 1), (number, identity // 256, identity % 256))


def opened(folder: Path, **options: Any) -> Any:
    """The gallery in a folder."""
    from idmetric.gallery import Gallery
    from idmetric.metric.custom import Custom

    return Gallery(folder, Custom("synthetic", Synthetic()), **options)


def make(folder: Path, count: int) -> None:
    """Write a gallery of so many images."""
    import pandas as pd

    from idmetric.gallery.files import IMAGES, norms_of, stamp_of, write_images
    from idmetric.metric.embedding import Embedding
    from idmetric.store import Store

    gallery = opened(folder)
    store = Store(gallery.store, gallery.metric.model_id, is_needed=True)
    keys = [f"{row:032x}" for row in range(count)]
    for start in range(0, count, BLOCK):
        block = vectors_of(start // BLOCK)[: count - start]
        embedding = Embedding(torch.from_numpy(block), model=gallery.metric.model_id)
        store.add(keys[start : start + BLOCK], embedding)
    store.save()

    file = folder / "image.png"
    query_of(0).save(file)
    size, changed = stamp_of(str(file), None)
    places = [store.place(key) for key in keys]
    images = pd.DataFrame(
        {
            "path": pd.Series([f"photos/{row:07}.jpg" for row in range(count)], dtype=object),
            "identity": pd.Series([str(row // PER_IDENTITY) for row in range(count)], dtype=object),
            "_file": pd.Series([str(file)] * count, dtype=object),
            "_mask": pd.Series([None] * count, dtype=object),
            "_key": pd.Series(keys, dtype=object),
            "_size": size,
            "_time": changed,
            "_width": np.int32(1),
            "_height": np.int32(1),
            "_animated": False,
            "_part": pd.Categorical([name for name, _ in places]),
            "_row": np.array([row for _, row in places], np.int32),
            "_norm": norms_of(store.folder, places),
        }
    )
    head = {"about": gallery.about, "opened": "synthetic", "opened_revision": ""}
    write_images(gallery.store / IMAGES, head, images)


# Measurements, each in a process of its own


def memory() -> float:
    """Bytes that this process has held at most since the call before."""
    status = Path("/proc/self/status").read_text(encoding="ascii")
    (peak,) = [line.split()[1] for line in status.splitlines() if line.startswith("VmHWM")]
    Path("/proc/self/clear_refs").write_text("5", encoding="ascii")
    return 1024.0 * int(peak)


def measure_search(folder: Path) -> dict[str, float]:
    """Open and query, further queries, and the product that they are compared with."""
    directions(0)  # for the queries
    held = memory()
    start = time.process_time()
    gallery = opened(folder)
    gallery.query(query_of(0))
    first = time.process_time() - start
    start = time.process_time()
    for number in range(1, QUERIES + 1):
        gallery.query(query_of(number))
    warm = (time.process_time() - start) / QUERIES
    peak = memory() - held

    vectors = gallery.features
    query = np.ones(WIDTH, np.float32)
    start = time.process_time()
    for _ in range(QUERIES):
        similarity = np.concatenate([array @ query for array in vectors.arrays])
        np.argpartition(similarity, -10)
    product = (time.process_time() - start) / QUERIES
    matrix = sum(array.nbytes for array in vectors.arrays)
    return {
        "open": first,
        "query": warm,
        "product": product,
        "query / product": warm / product,
        "memory / matrix": peak / matrix,
    }


def measure_index(folder: Path) -> dict[str, float]:
    """The time to make the index, a query by it, and its recall."""
    exact = opened(folder)
    approximate = opened(folder, index="faiss")
    start = time.perf_counter()
    approximate.query(query_of(0))
    making = time.perf_counter() - start
    seconds, hits = 0.0, 0
    for number in range(1, QUERIES + 1):
        start = time.perf_counter()
        found = approximate.query(query_of(number))
        seconds += time.perf_counter() - start
        nearest = {row["path"] for row in exact.query(query_of(number))}
        hits += len(nearest & {row["path"] for row in found})
    return {"faiss made": making, "faiss query": seconds / QUERIES, "faiss recall": hits / (10 * QUERIES)}


def measure_clusters(folder: Path) -> dict[str, float]:
    """Identities of the gallery at a threshold that joins some of each."""
    held = memory()
    start = time.process_time()
    answer = opened(folder).identities(threshold=0.35)
    seconds = time.process_time() - start
    groups = sum(row["center"] for row in answer)
    return {"clusters": seconds, "clusters GB": (memory() - held) / 1e9, "groups": groups}


def measure_more(folder: Path) -> dict[str, float]:
    """The files that a build with 50 more images writes."""
    more = folder / "more"
    more.mkdir()
    pictures = [query_of(number) for number in range(100, 150)]
    for number, picture in enumerate(pictures):
        picture.save(more / f"{number}.png")
    gallery = opened(folder)
    before = {path: path.stat().st_mtime_ns for path in gallery.store.iterdir()}
    start = time.process_time()
    update = gallery.build(more)
    seconds = time.process_time() - start
    written = [path for path in gallery.store.iterdir() if before.get(path) != path.stat().st_mtime_ns]
    assert update.embedded == 50
    return {"50 more": seconds, "files written": len([path for path in written if path.name != ".lock"])}


MEASURES = {
    "search": measure_search,
    "faiss": measure_index,
    "clusters": measure_clusters,
    "more": measure_more,
}


def measured(name: str, folder: Path) -> dict[str, float]:
    """Run a measurement in a process of its own."""
    words = [sys.executable, "-m", "benchmarks.gallery", "--measure", name, "--folder", str(folder)]
    done = subprocess.run(words, check=True, capture_output=True, text=True)
    numbers: dict[str, float] = json.loads(done.stdout)
    return numbers


def main() -> None:
    """Print the numbers of each gallery."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--images", type=int, nargs="*", default=[200_000, 1_000_000])
    parser.add_argument("--folder", type=Path, default=Path(tempfile.gettempdir()))
    parser.add_argument("--faiss", action="store_true")
    parser.add_argument("--clusters", action="store_true")
    parser.add_argument("--measure", choices=MEASURES, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.measure:
        print(json.dumps(MEASURES[args.measure](args.folder)))
        return

    sizes = [*args.images, *([CLUSTERED] if args.clusters else [])]
    for count in sizes:
        with tempfile.TemporaryDirectory(dir=args.folder) as name:
            folder = Path(name)
            make(folder, count)
            names = (
                ["clusters"] if count == CLUSTERED else ["search", "search", *(["faiss"] if args.faiss else []), "more"]
            )
            for measure in names:
                numbers = {key: round(value, 3) for key, value in measured(measure, folder).items()}
                print(f"{count:,} images, {measure}: {numbers}", flush=True)


if __name__ == "__main__":
    main()
