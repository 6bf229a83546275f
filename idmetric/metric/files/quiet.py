"""Warnings of libraries, left out for a while."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterator


@contextlib.contextmanager
def quiet(*loggers: str) -> Iterator[None]:
    """Without the warnings of libraries that say what we say better, or nothing that a user needs."""
    levels = {name: logging.getLogger(name).level for name in loggers}
    for name in levels:
        logging.getLogger(name).setLevel(logging.ERROR)
    try:
        yield
    finally:
        for name, level in levels.items():
            logging.getLogger(name).setLevel(level)
