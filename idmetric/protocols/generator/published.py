"""The published number of each method, where the model is a published score that was opened by its name."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from idmetric.models.named import NamedScore
from idmetric.protocols.common import intervals
from idmetric.protocols.common.arrays import Array
from idmetric.protocols.common.result import Value
from idmetric.protocols.common.scorers import Settings
from idmetric.protocols.generator.columns import means_of
from idmetric.protocols.generator.images import Images, Names


def published(model: Any, images: Images, settings: Settings) -> tuple[NamedScore | None, list[str]]:
    """The published score that a model names, if it is defined for these images, and otherwise a note on the reason."""
    named: NamedScore | None = getattr(model, "named", None)
    if named is None:
        return None, []
    if settings.distance != "cls" or settings.look.masked:
        return None, ["no published number: it is of whole images, by --distance cls"]
    if named.references == "frames":
        return None, ["no published number: it follows the frames of one video (idmetric score)"]
    several = [name for name in dict.fromkeys(images.subject) if len(images.references[name]) > 1]
    if named.references == "own" and several:
        return None, [
            "no published number: it compares each image with the one reference that it was generated from, and "
            f"{len(several)} subjects have several"
        ]
    return named, []


def value_of(named: NamedScore, identity: Array, subject: Names, settings: Settings) -> Value:
    """The published number of a method's images, of their mean cosines (N,) with the references of their subject (N,).

    The mean over images and their reference, or, of a score over all pairs of images and references, the mean over
    subjects of each subject's pairs; then the source's clamp and factor, also of the interval's ends.
    """
    if named.references == "all":
        each = means_of(identity, subject)
        identity, subject = np.array(list(each.values())), np.array(list(each), dtype=object)
    plain = intervals.mean(identity, subject, settings)

    def of(mean: float) -> float:
        return named.value([[mean]])

    low, high = (None if end is None else of(end) for end in (plain.low, plain.high))
    return replace(plain, value=of(plain.value), low=low, high=high)
