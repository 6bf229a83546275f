"""Warnings of a library, left out where our own message says more."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterator


@contextlib.contextmanager
def quiet(logger: str) -> Iterator[None]:
    """Without the warnings of a library that says what we say better: the Hub client's retries, missing weights."""
    handlers = logging.getLogger(logger).handlers[:]

    def grave(record: logging.LogRecord) -> bool:  # one for each call, so that overlapping calls do not meet
        return record.levelno >= logging.ERROR

    for handler in handlers:
        handler.addFilter(grave)
    try:
        yield
    finally:
        for handler in handlers:
            handler.removeFilter(grave)
