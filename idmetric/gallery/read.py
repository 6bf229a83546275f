"""Read an image with its mask, and name it by its content."""

from __future__ import annotations

import io
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from idmetric.gallery.index import Item
from idmetric.metric.images.masks import MaskId
from idmetric.metric.images.opening import Named, open_file
from idmetric.metric.images.read import ImageReadError, Outside
from idmetric.metric.scoring.pipeline import Input, Source, problem_of

if TYPE_CHECKING:
    from idmetric.gallery.sources import Entry
    from idmetric.metric.models.embedder import Embedder


@dataclass(frozen=True)
class Masking:
    """Whether a gallery sees subjects alone, where images have masks. outside, mask_id: see `Embedder.embed`."""

    masked: bool
    outside: Outside
    mask_id: MaskId | None

    def about(self, metric: Embedder) -> dict[str, str]:
        """Everything that embeddings depend on: the model, its weights as they are now, and these settings."""
        return metric.about(self.outside if self.masked else None, self.mask_id)


def source_of(image: Entry | Item, data: bytes, mask: bytes | None) -> Source:
    """The bytes of an image and its mask, with the names of their files."""
    mask_name = image.files[-1] if image.files else f"of {image.place}"
    return Source.of(Named(data, image.place), None if mask is None else Named(mask, mask_name))


def load(
    metric: Embedder,
    entry: Entry,
    item: Item,
    is_known: Callable[[str], bool],
    masking: Masking,
) -> Input[Item]:
    """Read an image and prepare it for the model.

    Args:
        item: the item so far; it is returned with key, size and problem.
        is_known: whether content of a key is embedded already, and needs no pixels.
    """
    try:
        data = entry.image()
        mask = entry.mask() if masking.masked and entry.mask is not None else None
        source = source_of(entry, data, mask)
        item = replace(item, key=source.key, size=len(data))
        with suppress(Exception), open_file(io.BytesIO(data)) as opened:  # only its head; load_image reports the reason
            item = replace(item, width=opened.width, height=opened.height)
        if is_known(item.key):
            return Input(item, item.key)
        pixels, cover = metric.load_image(source.image, source.mask, masking.outside, mask_id=masking.mask_id)
        return Input(item, item.key, pixels, cover)
    except ImageReadError as error:
        item = replace(item, problem=problem_of(error, entry.place))
    except OSError as error:
        named = f"{error.filename}: " if error.filename not in (None, entry.place) else ""
        item = replace(item, problem=f"{named}{error.strerror or error}")
    return Input(item, item.key, problem=item.problem)
