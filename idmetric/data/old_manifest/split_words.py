"""The usual words for splits, in names of folders and files and in columns of tables.

Every importer and protocol reads them by these functions: Train, TRAIN, training and Training-Set are one split.
"""

from __future__ import annotations

import re
from functools import lru_cache

WORDS = {
    "train": ("train", "training"),
    "val": ("val", "valid", "validation"),
    "dev": ("dev", "development"),
    "test": ("test", "testing"),
    "eval": ("eval", "evaluation"),
    "query": ("query", "queries", "probe", "probes"),
    "gallery": ("gallery", "galleries", "database", "index"),
}
_SPLIT_OF = {word: split for split, words in WORDS.items() for word in words}
_SUFFIX = re.compile("[ _-]*(set|split|data|images|photos)$")  # training set, query_images


@lru_cache(4096)
def split_word(name: str) -> str | None:
    """The split that a word names in any case, a key of `WORDS`: "val" for Validation; None for other words."""
    word = name.strip().casefold()
    return _SPLIT_OF.get(word) or _SPLIT_OF.get(_SUFFIX.sub("", word))


def split_name(name: str) -> str:
    """The name of a split as manifests have it: that of `split_word`, or the text itself, such as dev2."""
    return split_word(name) or name
