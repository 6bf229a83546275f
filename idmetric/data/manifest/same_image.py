"""Keys that are equal for rows of the same image, i.e. one file under any spelling of its path, or equal bytes."""

from __future__ import annotations

import os
from hashlib import blake2b

import numpy as np
from numpy.typing import NDArray

from idmetric.data.manifest.table import Manifest


def has_image(manifest: Manifest) -> NDArray[np.bool_]:
    """Whether each row (N,) has an image; the others are texts alone."""
    path, held = (np.asarray(manifest.table[column].is_valid()) for column in ("path", "image_bytes"))
    return np.asarray(path | held, dtype=bool)


def image_keys(manifest: Manifest) -> list[str]:
    """The key of each row's image (N,): its absolute path, or a hash of its bytes; rows of text alone have a key each.

    "./a.jpg", "b/../a.jpg" and the absolute path are one file. Files are not opened, so copies of a file and links to
    it have other keys.
    """
    root = os.path.abspath(manifest.root)
    whole: dict[str, str] = {}
    keys = []
    for row, path in enumerate(manifest.column("path")):
        if path is None:
            data = manifest.table["image_bytes"][row].as_buffer()
            if data is None:
                keys.append(f"\0text of row {row}")
                continue
            keys.append(f"\0{blake2b(data, digest_size=16).hexdigest()}")
            continue
        if path not in whole:
            whole[path] = os.path.normcase(os.path.normpath(os.path.join(root, path)))
        keys.append(whole[path])
    return keys
