"""The boundary to the user: public functions whose errors show the caller's line and a message."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import ParamSpec, TypeVar

P = ParamSpec("P")
Returned = TypeVar("Returned")


def public(function: Callable[P, Returned]) -> Callable[P, Returned]:
    """Decorates a public function: errors of this package reach the caller without the package's own frames.

    A mistyped keyword argument gets a suggestion. Errors that pass through a function of the caller's, such as an
    encoder, keep their frames, and so do other errors, which may be faults of this package.
    """

    @wraps(function)
    def call(*args: P.args, **options: P.kwargs) -> Returned:
        __tracebackhide__ = True  # IPython leaves this frame out
        try:
            return function(*args, **options)
        except Exception as error:
            from idmetric.metric.files.hints import for_the_caller

            explained = for_the_caller(error, function, options)
            if explained is None:
                raise
            raise explained.with_traceback(None) from None

    return call
