"""The error for requests that do not fit."""

from __future__ import annotations


class RequestError(ValueError):
    """The images, pairs, masks or options of a request do not fit; the message says how to fix them."""
