"""Warnings and progress bars of libraries, left out for a while."""

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


@contextlib.contextmanager
def quiet_hub() -> Iterator[None]:
    """Without the warnings and progress bars of the Hub's client."""
    from huggingface_hub.utils import are_progress_bars_disabled, disable_progress_bars, enable_progress_bars

    shown = not are_progress_bars_disabled()
    disable_progress_bars()
    try:
        with quiet("huggingface_hub"):
            yield
    finally:
        if shown:
            enable_progress_bars()
