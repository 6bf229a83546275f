"""Names of stored embeddings: a folder for each model and way of looking, a key for the content of each image.

An embedding may be reused only for the same image, seen in the same way by the same weights. So its key is a hash of
the bytes of image and mask (`content_key`), and the name of its folder holds a hash of everything else that it depends
on (`Embedder.about`), including the weights in memory.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from idmetric.metric.files import StrPath
from idmetric.metric.files.folders import is_hidden
from idmetric.metric.files.json_file import read_bytes

MASKED = "-m"
VARIABLE = "IDMETRIC_CACHE"  # of the environment: the folder of embeddings for all commands that name none


def cache_folder(folder: StrPath | None) -> Path | None:
    """The folder of embeddings that the caller names, else that of the environment; None without both."""
    folder = folder or os.environ.get(VARIABLE)
    return Path(folder) if folder else None


# Models


def settings_digest(facts: Mapping[str, Any]) -> str:
    """Return a hash of a JSON object: 16 hex digits."""
    return hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()[:16]


def folder_name(facts: Mapping[str, str]) -> str:
    """Return the name of a folder of embeddings with these facts (`Embedder.about`): the model's name and a hash.

    The version of this package does not enter the hash: embeddings outlive releases.
    """
    name = re.sub("[^A-Za-z0-9._-]+", "-", facts["model"]).strip("-.")[-60:].lstrip("-.")
    return f"{name}.{settings_digest({key: value for key, value in facts.items() if key != 'idmetric'})}"


def stores_in(folder: StrPath, name: str) -> list[Path]:
    """Return the folders in a folder that hold a file of this name, sorted; none if the folder does not exist.

    Raises:
        PermissionError: if the folder or one in it is closed to the user, so that it may hold such a file.
    """
    stores = []
    try:
        for entry in sorted(os.listdir(folder)):
            if is_hidden(entry):
                continue
            with contextlib.suppress(FileNotFoundError, NotADirectoryError):
                os.stat(os.path.join(folder, entry, name))
                stores.append(Path(folder, entry))
    except (FileNotFoundError, NotADirectoryError):
        return []
    return stores


# Images


def content_key(image: bytes, mask: bytes | None = None) -> str:
    """Return the key of exactly this content: 32 hex digits, followed by `MASKED` for a masked image."""
    digest = hashlib.blake2b(image, digest_size=16)
    if mask is None:
        return digest.hexdigest()
    digest.update(b"\0" + hashlib.blake2b(mask, digest_size=16).digest())
    return digest.hexdigest() + MASKED


def is_masked(key: str) -> bool:
    """Whether a key is of a masked image."""
    return MASKED in key


def key_of(image: StrPath | bytes, mask: StrPath | bytes | None = None) -> str:
    """Return the `content_key` of an image and its mask, given by their files or bytes; raises as `content`."""
    return content_key(content(image), None if mask is None else content(mask))


def content(source: StrPath | bytes) -> bytes:
    """Read all bytes of a file; bytes are returned as they are.

    Raises:
        OSError: as `read_bytes`.
    """
    if isinstance(source, bytes):
        return source
    return read_bytes(source)
