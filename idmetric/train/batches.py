"""Rows of a manifest as batches of pixels, drawn and augmented by random numbers that follow from the step alone.

pictures = Pictures.of(model, data, partial(augment.idsim, size=model.image_size))
rows = batch_rows(step, len(data), 32, seed)
pixels = pictures.read(rows[0], generator(seed, step, 0))     # (3, H, W), the same whenever it is asked for
"""

from __future__ import annotations

import json
import warnings
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from functools import lru_cache
from hashlib import blake2b
from typing import TYPE_CHECKING, Any, Literal, cast

import numpy as np
from numpy.random import Generator
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor

from idmetric.data.check import Progress, faults, without
from idmetric.data.manifest import ManifestError
from idmetric.data.split import image_keys
from idmetric.metric.embedder import Embedder
from idmetric.metric.images import SQUASH, WHITE, Color, Fit, ImageLike, ImageReadError, describe, read_image, to_pixels
from idmetric.metric.masks import cut_out
from idmetric.tables import first_few
from idmetric.train.augment import Augment

if TYPE_CHECKING:
    from pandas import DataFrame

Rows = Sequence[int] | NDArray[np.integer]
Size = tuple[int, int]  # height, width
_SHOWN = 20  # rows named in a message

TRAINING = ("", "train")  # splits; "" = none
VALIDATION = ("val", "dev")


# Random numbers that follow from (seed, step, place)


def generator(*key: int | str) -> Generator:
    """A random generator that follows from these numbers and words alone.

    (NumPy's own seeding by a list makes no difference between [1] and [1, 0].)
    """
    # NumPy's whole numbers count as Python's
    text = "\0".join(f"s{part}" if isinstance(part, str) else f"i{int(part)}" for part in key)
    digest = blake2b(text.encode(), digest_size=16)
    return np.random.default_rng(int.from_bytes(digest.digest(), "big"))


@lru_cache(maxsize=8)
def permutation(seed: int, epoch: int, count: int) -> NDArray[np.int64]:
    """The numbers 0..count - 1 in the random order of an epoch; read-only, because it is cached."""
    order: NDArray[np.int64] = generator(seed, "epoch", epoch).permutation(count)
    order.flags.writeable = False
    return order


def batch_rows(step: int, count: int, size: int, seed: int) -> NDArray[np.int64]:
    """The `size` of `count` items that a step, counted from 0, takes.

    Each epoch has its own permutation, without an incomplete last batch.
    """
    epoch, batch = divmod(step, steps_per_epoch(count, size))
    return permutation(seed, epoch, count)[batch * size : (batch + 1) * size]


def steps_per_epoch(count: int, size: int) -> int:
    """Whole batches in an epoch, of data that fill one (`check_batch`)."""
    return count // size


def share(size: int, rank: int, count: int, parts: str = "samples of a batch") -> range:
    """The parts of a global batch that belong to process `rank` of `count`: equal ranges, in order of ranks.

    Gathering the processes' results along the batch restores the batch's order.
    """
    if size % count:
        raise ValueError(
            f"{size} {parts} cannot be shared equally by {count} processes: choose a multiple, or a number of "
            f"processes that divides {size}"
        )
    return range(rank * size // count, (rank + 1) * size // count)


def check_batch(size: int, available: int, units: str, option: str = "--batch-size") -> None:
    """Refuse a batch that the data do not fill.

    Args:
        units: what `size` and `available` count, for the message. option: what sets the size.

    Raises:
        ManifestError: if the data have less.
    """
    if available < size:
        raise ManifestError(
            f"the data have {available} {units}, too few for a batch of {size}: set {option} to {available} at most, "
            "or give more data"
        )


# Pixels


@dataclass(frozen=True)
class Pictures:
    """The images of a manifest as a model sees them, augmented; usable from any thread or process.

    Args:
        data: the manifest.
        size: (height, width) of the pixels, or a function from an image's own height and width to it.
        interpolation, background, fit: as for `idmetric.metric.images.to_pixels`.
        augment: see `idmetric.train.augment`; it comes before the resize, which a step of it may already do.
    """

    data: DataFrame
    size: Size | Callable[[int, int], Size]
    interpolation: str = "bicubic"
    background: Color = WHITE
    augment: Augment | None = None
    fit: Fit = SQUASH

    @classmethod
    def of(cls, model: Embedder, data: DataFrame, augment: Augment | None = None) -> Pictures:
        """Pictures with the preprocessing of a model that sees all images at one size."""
        return cls(data, model.image_size, model.interpolation, model.background, augment, model.fit)

    def read(self, row: int, rng: Generator | None = None, *, foreground: bool = False) -> Tensor:
        """The pixels (3, H, W) of a row, float32 in [0, 1].

        Args:
            rng: random generator of the augmentation; not needed without it.
            foreground: paint everything outside the row's mask black, before the augmentation (NearID, section 4.1).
        """
        source = self.data["path"][row] or b""
        image: ImageLike = source
        if foreground:
            mask = self.data["mask"][row]
            if mask is None:
                raise ManifestError(
                    f"row {row + 1} ({self.data['id'][row]}) has no mask, so its background cannot be painted black: "
                    "fill column 'mask' (idmetric.data.curate.masking.inherit_masks gives edits their parent's)"
                )
            image = cut_out(source, mask, "black", background=self.background)[0]
        elif self.augment is not None:
            image = read_image(source, background=self.background)
        if self.augment is not None:
            image = self.augment(cast(Image.Image, image), cast(Generator, rng))
        try:
            return to_pixels(
                image, self.size, background=self.background, interpolation=self.interpolation, fit=self.fit
            )
        except ImageReadError as error:  # an augmented image has no name
            raise ImageReadError(describe(source), error.reason) from error

    def read_bytes(self, row: int, rng: Generator | None = None, *, foreground: bool = False) -> Tensor:
        """As `read`, in uint8: a quarter of the memory, and exactly the values of an 8-bit image of that size."""
        return (self.read(row, rng, foreground=foreground) * 255).round().byte()


# Before the first step


def fingerprint(values: Any) -> str:
    """16 hex digits that follow from JSON values, such as the ids of a recipe's rows."""
    return blake2b(json.dumps(values).encode(), digest_size=8).hexdigest()


def rows_in(data: DataFrame, splits: Collection[str]) -> NDArray[np.int64]:
    """Numbers of the rows of some splits: `TRAINING` or `VALIDATION`."""
    return np.flatnonzero(data["split"].fillna("").isin(splits))


def first_rows(data: DataFrame) -> NDArray[np.int64]:
    """The first row (N,) with each row's image and identity; an image with two identities counts as two."""
    table = data[["identity"]].assign(image=image_keys(data), row=range(len(data)))
    first = table.groupby(["image", "identity"], dropna=False)["row"].transform("first")
    rows: NDArray[np.int64] = first.to_numpy(np.int64)
    return rows


def check_held_out(data: DataFrame, trained: NDArray[np.int64], held_out: NDArray[np.int64]) -> None:
    """Check that no image and no identity is both trained and validated on.

    Args:
        trained, held_out: rows of the manifest, in any shape.
    """
    table = data[["identity"]].assign(image=image_keys(data))
    trained_rows = table.loc[np.unique(trained)]
    held_out_rows = table.loc[np.unique(held_out)]
    shows_image = held_out_rows["image"].isin(trained_rows["image"])
    shows_identity = held_out_rows["identity"].isin(trained_rows["identity"].dropna())
    leaked = held_out_rows.index[shows_image | shows_identity]
    if len(leaked):
        raise ManifestError(
            f"{len(leaked)} rows of split val show images or identities that are trained on, such as row "
            f"{leaked[0] + 1} ({data['id'][leaked[0]]}): their scores would not measure generalization; "
            "`idmetric data split` makes splits that no identity crosses"
        )


def check(
    data: DataFrame,
    on_error: Literal["fail", "skip"] = "fail",
    *,
    masks: bool = False,
    decode: bool = True,
    most_ratio: float | None = None,
    progress: Progress | None = None,
) -> DataFrame:
    """The manifest, after a check that its images can be read.

    Args:
        on_error: "fail", or "skip": leave out rows with unreadable images, and rows that depend on them
            (the rest of a triplet, distractors of a lost view), with a warning that counts them.
        masks: also check that the masks in the manifest exist and select something.
        decode: decode the images; False only looks for the files, which is quicker.
        most_ratio, progress: see `idmetric.data.check.faults`.
    """
    used = data.assign(part_mask=None)
    if not masks:
        used = used.assign(mask=None)
    bad = faults(used, decode=decode, most_ratio=most_ratio, progress=progress)
    if not bad:
        return data
    listed = "".join(f"\n  {line}" for line in first_few([str(fault) for fault in bad], _SHOWN))
    lost = {fault.row for fault in bad}
    if on_error != "skip":
        raise ManifestError(
            f"{len(lost)} of {len(data)} rows cannot be used:{listed}\n"
            "fix or remove them, or train without them by --on-error skip"
        )
    usable = without(data, lost)
    if not len(usable):
        raise ManifestError(f"no usable row is left:{listed}")
    warnings.warn(
        f"{len(lost)} rows cannot be used; they and rows that depend on them are left out, {len(usable)} of "
        f"{len(data)} rows stay:{listed}",
        stacklevel=2,
    )
    return usable
