"""Random blackout of backgrounds in training samples, and the masks that it needs (NearID)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType

import numpy as np

from idmetric.data.old_manifest.lineage import parent_rows
from idmetric.data.old_manifest.table import Manifest, ManifestError
from idmetric.tables import first_few

# NearID, section 4.1 "Role-Aware Data Augmentation": anchors, positives, distractors
MASK_PROB_APN = (0.5, 0.2, 0.6)
MASK_PROB = 1.0  # share of samples with any masking; the paper's three probabilities imply 1
_ROLE: Mapping[str, int] = MappingProxyType({"anchor": 0, "positive": 1, "negative": 2, "distractor": 2})
_IN_PLACE = ("distractor", "identity-edit", "part-edit")  # roles of rows that show their parent's shape


def draw_masking(
    slots: Sequence[str],
    seed: int | Sequence[int],
    mask_prob: float = MASK_PROB,
    mask_prob_apn: tuple[float, float, float] = MASK_PROB_APN,
) -> list[bool]:
    """Draw the images of one sample to mask.

    With probability `mask_prob`, each image of the sample is masked independently with the probability of its slot.
    (NearID, section 4.1; the released code has a default `mask_prob` of 0, the paper's numbers imply 1.)

    Args:
        slots: of the sample's images: anchor, positive, negative (or distractor).
        seed: whole numbers that determine the draw, such as (seed, epoch, sample).
        mask_prob, mask_prob_apn: probabilities in [0, 1]; the three are for anchor, positive, negative.
    """
    gate, *draws = np.random.default_rng(seed).random(len(slots) + 1)
    probabilities = [mask_prob_apn[_ROLE[slot]] for slot in slots]
    return [bool(gate < mask_prob and draw < p) for draw, p in zip(draws, probabilities, strict=True)]


def inherit_masks(manifest: Manifest) -> Manifest:
    """The manifest with the parent's mask for edits and distractors without one, which keep its shape and place.

    (NearID's code masks a distractor by the mask of the positive that it was made from.) Context-edits inherit no mask,
    because they may have moved the object.
    """
    parents, roles = parent_rows(manifest), manifest.column("role")
    masks, mask_bytes = manifest.column("mask"), manifest.column("mask_bytes")
    for row in range(len(manifest)):
        source = row
        visited: set[int] = set()  # a row may be its own ancestor
        while masks[source] is None and mask_bytes[source] is None and roles[source] in _IN_PLACE:
            visited.add(source)
            source = int(parents[source])
            if source < 0 or source in visited:
                break
        if source >= 0:
            masks[row], mask_bytes[row] = masks[source], mask_bytes[source]
    return manifest.replace(mask=masks, mask_bytes=mask_bytes)


def missing_masks(manifest: Manifest) -> list[int]:
    """Numbers of the rows without a mask."""
    masks, mask_bytes = manifest.column("mask"), manifest.column("mask_bytes")
    return [row for row in range(len(manifest)) if masks[row] is None and mask_bytes[row] is None]


def require_masks(manifest: Manifest) -> None:
    """Check that every row has a mask.

    Raises:
        ManifestError: with the count and the first rows that lack one.
    """
    missing = missing_masks(manifest)
    if missing:
        ids = manifest.column("id")
        listed = ", ".join(first_few([f"row {row + 1} ({ids[row]})" for row in missing]))
        raise ManifestError(f"{len(missing)} of {len(manifest)} rows lack a mask: {listed}; fill column 'mask'")
