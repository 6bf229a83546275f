"""Read an image with its mask, and name it by its content."""

from __future__ import annotations

import io
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING

from idmetric.gallery.index import Item
from idmetric.metric.images.masks import MaskId
from idmetric.metric.images.opening import Named, open_file
from idmetric.metric.images.read import ImageReadError, Outside
from idmetric.metric.scoring.keys import content_key
from idmetric.metric.scoring.pipeline import Input

if TYPE_CHECKING:
    from torch import Tensor

    from idmetric.gallery.sources import Entry
    from idmetric.metric.models.embedder import Embedder

_EMPTY = "the file is empty: fetch or write it again"


def load_pixels(
    metric: Embedder,
    of: Entry | Item,
    image: bytes,
    mask: bytes | None,
    outside: Outside,
    mask_id: MaskId | None = None,
) -> tuple[Tensor, Tensor | None]:
    """Return pixels and mask as the model sees them; an ImageReadError names the file that cannot be read."""
    cover = None if mask is None else Named(mask, of.files[-1] if of.files else f"the mask of {of.place}")
    return metric.load_image(Named(image, of.place), cover, outside, mask_id=mask_id)


def load(
    metric: Embedder, entry: Entry, item: Item, is_known: Callable[[str], bool], *, masked: bool,
    outside: Outside = "keep", mask_id: MaskId | None = None,
) -> Input[Item]:  # fmt: skip
    """Read an image and prepare it for the model.

    Args:
        item: the item so far; it is returned with key, size and problem.
        is_known: whether content of a key is embedded already, and needs no pixels.
        masked: whether only the subject is embedded, where there is a mask. outside, mask_id: see `Embedder.embed`.
    """
    try:
        image = entry.image()
        mask = entry.mask() if masked and entry.mask is not None else None
    except OSError as error:
        named = f"{error.filename}: " if error.filename not in (None, entry.place) else ""
        return _lost(replace(item, problem=f"{named}{error.strerror or error}"))
    item = replace(item, key=content_key(image, mask), size=len(image))
    if not image or mask == b"":
        empty = f"{entry.files[-1]}: " if image and entry.files else "" if not image else "its mask: "
        return _lost(replace(item, problem=f"{empty}{_EMPTY}"))
    try:
        with open_file(io.BytesIO(image)) as opened:  # only its head
            item = replace(item, width=opened.width, height=opened.height)
    except Exception:  # load_pixels below reports the reason
        pass
    if is_known(item.key):
        return Input(item, item.key)
    try:
        return Input(item, item.key, *load_pixels(metric, entry, image, mask, outside, mask_id))
    except ImageReadError as error:
        problem = error.reason if error.source == entry.place else f"{error.source}: {error.reason}"
        return _lost(replace(item, problem=problem))


def _lost(item: Item) -> Input[Item]:
    return Input(item, item.key, problem=item.problem)
