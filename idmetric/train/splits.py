"""Rows to train on and rows to validate on, and the check that they share no image and no identity."""

from __future__ import annotations

from collections.abc import Collection

import numpy as np
from numpy.typing import NDArray

from idmetric.data.manifest.same_image import image_keys
from idmetric.data.manifest.table import Manifest, ManifestError

TRAINING = ("", "train", "training")  # splits in lower case; "" = none
VALIDATION = ("val", "valid", "validation")
_SHOWN = 5


def rows_in(data: Manifest, splits: Collection[str]) -> NDArray[np.int64]:
    """Numbers of the rows of some splits: `TRAINING` or `VALIDATION`."""
    return np.flatnonzero([(split or "").casefold() in splits for split in data.column("split")])


def check_held_out(data: Manifest, trained: NDArray[np.int64], held_out: NDArray[np.int64]) -> None:
    """Check that no image and no identity is both trained and validated on.

    Args:
        trained, held_out: rows of the manifest, in any shape.

    Raises:
        ManifestError: naming the first such rows of `held_out`.
    """
    keys, names, ids = image_keys(data), data.column("identity"), data.column("id")
    rows = np.unique(trained).tolist()
    images, identities = {keys[row] for row in rows}, {names[row] for row in rows} - {None}
    both = [row for row in np.unique(held_out).tolist() if keys[row] in images or names[row] in identities]
    if both:
        listed = ", ".join(f"row {row + 1} ({ids[row]})" for row in both[:_SHOWN])
        raise ManifestError(
            f"{len(both)} rows of split val show images or identities that are trained on: {listed}: their scores "
            "would not measure generalization; `idmetric data split` makes splits that no identity crosses"
        )
