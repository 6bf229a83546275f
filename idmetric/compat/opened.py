"""The metric that stands behind another measure's interface: named by the caller."""

from __future__ import annotations

from typing import Any

from idmetric.metric.errors import RequestError
from idmetric.metric.models.embedder import Embedder
from idmetric.metric.models.load import load


def metric_of(source: Any, option: str, theirs: tuple[str, ...], **options: Any) -> Embedder:
    """Open the metric that an option names, or take it as it is.

    Args:
        source: any name of `idmetric.load`, or a metric.
        option: what the caller's argument is called.
        theirs: the original's own models, which are none of this package.
        options: of `idmetric.load`; an opened metric takes `device` alone, and moves there.

    Raises:
        RequestError: without a name, for a model of the original, and for other options of an opened metric.
    """
    if isinstance(source, Embedder):
        device = options.pop("device", None)
        if options:
            raise RequestError(
                f"{', '.join(options)}: the metric is open already, give these to its own constructor, or name the "
                f'metric ({option}="tiny")'
            )
        return source if device is None else source.to(device)
    if not source or source in theirs:
        named = f"{option}={source!r} is not a model of idmetric" if source else "no metric is named"
        raise RequestError(
            f'{named}: say which one computes the distances, such as {option}="tiny" or {option}=IDSim(); '
            "its values are other ones than the original's"
        )
    return load(source, **options)


def refuse(measure: str, **options: tuple[Any, Any]) -> None:
    """RequestError for an option of the original that this package has no counterpart of.

    Args:
        options: the value of each, and the one value that is taken.
    """
    for name, (value, taken) in options.items():
        if value != taken:
            raise RequestError(f"{name}={value!r} is of {measure} alone: leave it out")
