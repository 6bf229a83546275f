"""What reads malformed inputs, and the errors that it may raise.

An error counts as typed if it is of one of the package's own classes that the reader names. All else is a crash.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any

from idmetric.data.manifest.table import ManifestError, read
from idmetric.images.masks import read_indices, read_mask
from idmetric.images.read import ImageReadError, load_batch, read_image
from idmetric.images.regions import cut_out
from idmetric.scoring.pairs import read_pairs
from idmetric.scoring.scores import RequestError
from tests.fuzz import images, tables

Make = Callable[[Random, Path], Any]


@dataclass(frozen=True)
class Reader:
    """One way into the package.

    Args:
        make: write a malformed input into an empty folder; returns what `read` takes.
        read: read it.
        typed: the errors it may raise.
        share: of all inputs, in relation to the other readers.
    """

    make: Make
    read: Callable[[Any], object]
    typed: tuple[type[BaseException], ...]
    share: int


def outcome(reader: Reader, seed: str, folder: Path) -> str:
    """ "typed", "accepted", or what went wrong, of the input with this seed; `folder` is empty."""
    target = reader.make(Random(seed), folder)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            reader.read(target)
    except reader.typed as error:
        return "typed" if str(error).strip() else f"{type(error).__name__} without a message"
    except Exception as error:
        return f"{type(error).__name__}: {error}"[:300]
    return "accepted"


def file(name: str, make: Callable[[Random], bytes]) -> Make:
    """What writes a malformed file of this name."""

    def write(rng: Random, folder: Path) -> Path:
        (folder / name).write_bytes(make(rng))
        return folder / name

    return write


def all_readers() -> dict[str, Reader]:
    """Every reader by name."""
    image = file("image.bin", images.malformed)
    return {
        "image file": Reader(image, read_image, (ImageReadError,), 24),
        "image in memory": Reader(
            lambda rng, _: images.malformed(rng), lambda x: load_batch(x, (16, 16)), (ImageReadError,), 10
        ),
        "mask": Reader(image, lambda path: read_mask(path, (16, 16)), (ImageReadError,), 12),
        "indexed mask": Reader(image, read_indices, (ImageReadError,), 6),
        "masked image": Reader(
            lambda rng, _: [images.malformed(rng) for _ in "ab"], lambda x: cut_out(*x, "crop"), (ImageReadError,), 4
        ),
        "manifest CSV": Reader(file("m.csv", tables.csv_file), _manifest, (ManifestError,), 14),
        "manifest JSON lines": Reader(file("m.jsonl", tables.lines_file), _manifest, (ManifestError,), 14),
        "manifest Parquet": Reader(file("m.parquet", tables.parquet_file), _manifest, (ManifestError,), 14),
        "pairs CSV": Reader(file("p.csv", tables.pairs_file), lambda path: list(read_pairs(path)), (RequestError,), 8),
    }


def _manifest(path: Path) -> None:
    """Read, and do all that a manifest promises; what it accepts it can also write and read again."""
    manifest = read(path)
    repr(manifest)
    rows = list(manifest)
    manifest.sources()
    manifest.at(path.parent / "elsewhere")
    manifest.write(path.with_name("again.parquet"))
    assert len(read(path.with_name("again.parquet"))) == len(rows)
