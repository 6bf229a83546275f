"""The error for requests that do not fit."""

from __future__ import annotations


class RequestError(ValueError):
    """The images, pairs, masks or options of a request do not fit; the message says how to fix them.

    Attributes:
        reason: what does not fit, and how to fix it.
        source: the path, folder or pattern that cannot be used; "" where the reason is about something else.
    """

    def __init__(self, reason: str, source: str = "") -> None:
        super().__init__(reason, source)  # the arguments, by which an exception is copied
        self.reason = reason
        self.source = source

    def __str__(self) -> str:
        return f"{self.source!r}: {self.reason}" if self.source else self.reason
