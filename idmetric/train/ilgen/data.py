"""ILGen's training set: instances of a manifest as classes of N images each (sections 3.2 and 4.1)."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Collection
from dataclasses import dataclass
from hashlib import blake2b
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from idmetric.data.manifest.same_image import image_keys
from idmetric.data.manifest.table import Manifest, ManifestError
from idmetric.train.batches import generator
from idmetric.train.splits import TRAINING, VALIDATION, rows_in

_HOW_TO = "idmetric data generate --task ilgen makes classes of four images (docs/data-ilgen.md)"


@dataclass(frozen=True)
class Classes:
    """The training set: C classes of N images.

    Attributes:
        rows: of the manifest, (C, N).
        left_out: number of identities that are left out because they have fewer than N images.
        unused: number of further images of the classes.
        fingerprint: digest of the ids of the images and their identities.
    """

    rows: NDArray[np.int64]
    left_out: int
    unused: int
    fingerprint: str

    def __len__(self) -> int:
        return len(self.rows)

    @property
    def images(self) -> int:
        """N, images of each class."""
        return int(self.rows.shape[1])

    @property
    def flat(self) -> NDArray[np.int64]:
        """Row (C * N,) of each image; number n is image n % N of class n // N."""
        return self.rows.reshape(-1)


def classes_of(data: Manifest, images: int, few: Literal["skip", "repeat"] = "skip", seed: int = 0) -> Classes:
    """Each identity of the training split is a class, whatever the roles of its rows; an image counts once.

    The choice of classes and images, and their order, depends on names alone, not on the order of rows.

    Args:
        images: N. Of a larger class N images are chosen for the whole training, as the paper samples 4 images of each
            class of real data (section 4.1).
        few: identities with fewer images are left out ("skip"; section 4.1 takes "classes with at least 4 images"), or
            their images are repeated ("repeat"), and differ by augmentation alone.
        seed: of the choice of images.

    Raises:
        ManifestError: if there are fewer than two classes, with the reason.
    """
    found = _images_of(data, TRAINING)
    enough = {name: found[name] for name in sorted(found) if few == "repeat" or len(found[name]) >= images}
    if len(enough) < 2:
        raise ManifestError(_lack(data, found, images, len(enough)))
    ids = data.column("id")
    chosen = np.array([_choose(name, rows, ids, images, seed) for name, rows in enough.items()], dtype=np.int64)
    named = [[name, *(ids[row] for row in rows)] for name, rows in zip(enough, chosen.tolist(), strict=True)]
    return Classes(
        chosen,
        left_out=len(found) - len(enough),
        unused=sum(max(0, len(rows) - images) for rows in enough.values()),
        fingerprint=blake2b(json.dumps(named).encode(), digest_size=8).hexdigest(),
    )


def validation_rows(data: Manifest) -> NDArray[np.int64] | None:
    """Numbers of the rows of the validation split; None without one.

    Raises:
        ManifestError: if no identity has two images there: none could be retrieved.
    """
    chosen = rows_in(data, VALIDATION)
    if not len(chosen):
        return None
    if all(len(rows) < 2 for rows in _images_of(data, VALIDATION).values()):
        raise ManifestError(
            "no identity of the validation split has two images, so none can be retrieved: split by identity "
            "(idmetric data split), or leave that split out"
        )
    return chosen


def _images_of(data: Manifest, splits: Collection[str]) -> dict[str, list[int]]:
    """identity -> a row of each of its images."""
    found: dict[str, dict[str, int]] = defaultdict(dict)
    names, keys = data.column("identity"), image_keys(data)
    for row in rows_in(data, splits).tolist():
        if names[row] is not None:
            found[names[row]].setdefault(keys[row], row)
    return {identity: list(rows.values()) for identity, rows in found.items()}


def _choose(name: str, rows: list[int], ids: list[str], images: int, seed: int) -> list[int]:
    rows = sorted(rows, key=lambda row: ids[row])
    if len(rows) > images:
        rows = [rows[k] for k in sorted(generator(seed, "images", name).permutation(len(rows))[:images])]
    return [rows[k % len(rows)] for k in range(images)]


def _lack(data: Manifest, found: dict[str, list[int]], images: int, enough: int) -> str:
    if not found:
        named = any(name is not None for name in data.column("identity"))
        rows = "no row of split train (or without split)" if named else "no row"
        return f"{rows} has an identity: column identity says which images are of one class; {_HOW_TO}"
    if len(found) == 1:
        return f"all images show one identity, {next(iter(found))!r}: others are needed as negatives; {_HOW_TO}"
    sizes = sorted((len(rows) for rows in found.values()), reverse=True)
    many = "no identity has" if enough == 0 else "only one identity has"
    ways = f"--images {sizes[1]} takes fewer, " if sizes[1] > 1 else ""
    return (
        f"{many} {images} different images, the N of a class; the {len(found)} identities have at most {sizes[0]}: "
        f"{ways}--few-images repeat repeats them; {_HOW_TO}"
    )
