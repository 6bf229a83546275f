"""Pictures of an object in a context, with exact masks of the object and of its parts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageFilter

from world.assets import Assets
from world.context import Context, draw_background, occlude
from world.identity import Identity
from world.render import Floats, Part, Picture, renderer

_STEP = 16  # smallest visible change of a pixel, in 8-bit values


@dataclass(frozen=True)
class Shot:
    """A rendered picture.

    Attributes:
        picture: (size, size, 3) uint8.
        mask: (size, size) uint8, 255 where the object or one of its copies is visible.
        part_mask: (size, size) uint8, 255 where the requested part is visible; None without a request.
    """

    picture: Picture
    mask: Picture
    part_mask: Picture | None = None

    @property
    def coverage(self) -> float:
        """Share of the picture that shows the object, 0..1."""
        return float((self.mask > 127).mean())

    @property
    def oracle(self) -> float:
        """1 - |part| / |object|, in pixels (NearID, section 3.4); 1 if no part was requested."""
        if self.part_mask is None:
            return 1.0
        return 1.0 - float((self.part_mask > 127).sum()) / max(int((self.mask > 127).sum()), 1)


def _changes(before: Shot, after: Shot, where: Picture | None) -> NDArray[np.int16]:
    """Absolute differences (N, 3) of the pixels where either picture shows the object, or within a mask."""
    inside = (before.mask | after.mask) > 127 if where is None else where > 127
    changes: NDArray[np.int16] = np.abs(before.picture[inside].astype(np.int16) - after.picture[inside])
    return changes


def mean_change(before: Shot, after: Shot, where: Picture | None = None) -> float:
    """Mean absolute difference of pixels (0..255) where either picture shows the object, or within a mask."""
    changes = _changes(before, after, where)
    return float(changes.mean()) if len(changes) else 0.0


def share_changed(before: Shot, after: Shot, where: Picture | None = None) -> float:
    """Share of the same pixels that change by at least `_STEP` in some channel."""
    changes = _changes(before, after, where)
    return float((changes.max(-1) >= _STEP).mean()) if len(changes) else 0.0


def share_reshaped(before: Shot, after: Shot) -> float:
    """Share of the two silhouettes that only one covers; a print that merely shifts leaves it at 0."""
    either = ((before.mask | after.mask) > 127).sum()
    return float(((before.mask ^ after.mask) > 127).sum() / max(int(either), 1))


def render_scene(identity: Identity, context: Context, assets: Assets, size: int, part: str | None = None) -> Shot:
    """Render the object in the context.

    Args:
        part: name of a part to return a mask of.
    """
    parts = assets.build(identity, context.figure)
    drawn = renderer(size)
    color, alpha = drawn.draw(parts, context.pose, context.light)
    own = names(parts)
    whole = drawn.regions(parts, context.pose, own) if len(own) < len({p.name for p in parts}) else alpha
    masks = [whole.copy()] if part is None else [whole.copy(), drawn.regions(parts, context.pose, (part,))]
    picture: Floats = draw_background(context.background, assets, size).astype(np.float32) / np.float32(255)
    picture *= np.array(context.light.color, np.float32) * (0.55 + 0.45 * context.light.strength)
    _shade(picture, alpha, context)
    if context.repeat:
        picture = _beside(picture, color, alpha, masks, round(context.repeat * size))
    picture = picture * (1 - alpha[..., None]) + color * alpha[..., None]
    occlude(picture, masks, context.occluders, assets)
    image = Image.fromarray((picture.clip(0, 1) * 255).astype(np.uint8))
    if context.blur:
        image = image.filter(ImageFilter.GaussianBlur(context.blur * size / 224))
    pixels = np.asarray(image)
    if context.noise:
        noise = np.random.default_rng(context.seed).standard_normal((size, size, 3), dtype=np.float32)
        pixels = (pixels + noise * np.float32(context.noise)).clip(0, 255).astype(np.uint8)

    return Shot(pixels, *(_solid(m) for m in masks))


def names(parts: Sequence[Part]) -> tuple[str, ...]:
    """The names of the parts that belong to the object, in order."""
    return tuple(dict.fromkeys(p.name for p in parts if p.name != "figure"))


def _solid(mask: Floats) -> Picture:
    """The mask with sharp edges: 255 where the coverage exceeds one half."""
    return np.where(mask > 0.5, np.uint8(255), np.uint8(0))


def _shade(picture: Floats, alpha: Floats, context: Context) -> None:
    """Darken the background by a soft shadow away from the light, in place."""
    if not context.shadow:
        return
    size = len(picture)
    x, y, z = context.light.direction
    shift = (-0.06 * x / max(z, 0.3), 0.05 + 0.03 * max(y, 0))
    small = Image.fromarray((alpha * 255).astype(np.uint8)).resize((size // 4, size // 4))
    soft = small.filter(ImageFilter.GaussianBlur(size / 4 * 0.03)).resize((size, size))
    moved = soft.transform(
        (size, size), Image.Transform.AFFINE, (1, 0, -shift[0] * size, 0, 1, -shift[1] * size), fillcolor=0
    )
    picture *= 1 - context.shadow * 0.6 * (np.asarray(moved, dtype=np.float32) / 255)[..., None]


def _beside(picture: Floats, color: Floats, alpha: Floats, masks: Sequence[Floats], step: int) -> NDArray[np.float32]:
    """The picture with copies to the left and right, behind the object; the masks, changed in place, include them."""
    size = len(picture)
    originals = [m.copy() for m in masks]
    for shift in range(-2 * step, 2 * step + 1, max(step, 1)):
        if shift and abs(shift) < size:
            moved = _shift(alpha, shift)
            picture = picture * (1 - moved[..., None]) + _shift(color, shift) * moved[..., None]
            for k in range(1, len(masks)):  # a part is hidden where a later copy's other parts cover it
                masks[k][:] = np.where(moved > 0.5, _shift(originals[k], shift), masks[k])
            masks[0][:] = np.maximum(masks[0], _shift(originals[0], shift))
    for mask, original in zip(masks[1:], originals[1:], strict=True):
        mask[:] = np.where(alpha > 0.5, original, mask)
    return picture


def _shift(x: Floats, columns: int) -> Floats:
    moved = np.zeros_like(x)
    if columns > 0:
        moved[:, columns:] = x[:, :-columns]
    else:
        moved[:, :columns] = x[:, -columns:]
    return moved
