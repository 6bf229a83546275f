"""Names of stored embeddings: a folder for each model and way of looking, a key for the content of each image.

An embedding may be reused only for the same image, seen in the same way by the same weights. So its key is a hash of
the bytes of image and mask (`content_key`), and the name of its folder holds a hash of everything else that it depends
on (`Embedder.about`), including the weights in memory.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

MASK_RULES = 2  # version of the rules for masks: a masked image embedded by older rules is embedded again
MASKED = f"-m{MASK_RULES}"


# Models


def settings_digest(facts: Mapping[str, Any]) -> str:
    """Return a hash of a JSON object: 16 hex digits."""
    return hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()[:16]


def folder_name(facts: Mapping[str, str]) -> str:
    """Return the name of a folder of embeddings with these facts (`Embedder.about`): the model's name and a hash.

    The version of this package is no part of the hash: embeddings outlive releases.
    """
    name = re.sub("[^A-Za-z0-9._-]+", "-", facts["model"]).strip("-.")[-60:].lstrip("-.")
    return f"{name}.{settings_digest({key: value for key, value in facts.items() if key != 'idmetric'})}"


# Images


def content_key(image: bytes, mask: bytes | None = None) -> str:
    """Return the key of exactly this content: 32 hex digits, followed by `MASKED` for a masked image."""
    digest = hashlib.blake2b(image, digest_size=16)
    if mask is None:
        return digest.hexdigest()
    digest.update(b"\0" + hashlib.blake2b(mask, digest_size=16).digest())
    return digest.hexdigest() + MASKED


def key_of(image: str | bytes | os.PathLike[str], mask: str | bytes | os.PathLike[str] | None = None) -> str:
    """Return the `content_key` of an image and its mask, given by their files or bytes.

    Raises:
        OSError: if a file cannot be read.
    """
    return content_key(_bytes(image), None if mask is None else _bytes(mask))


def _bytes(source: str | bytes | os.PathLike[str]) -> bytes:
    return source if isinstance(source, bytes) else Path(source).read_bytes()
