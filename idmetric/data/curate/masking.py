"""Random blackout of backgrounds in training samples, and the masks that it needs (NearID)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType

import numpy as np
import pandas as pd

from idmetric.data.manifest import ManifestError, numbered, with_columns
from idmetric.data.split import parent_rows
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
    rng = np.random.default_rng(seed)
    gate, *draws = rng.random(len(slots) + 1)
    is_masked = []
    for slot, draw in zip(slots, draws, strict=True):
        probability = mask_prob_apn[_ROLE[slot]]
        is_masked.append(bool(gate < mask_prob and draw < probability))
    return is_masked


def inherit_masks(table: pd.DataFrame) -> pd.DataFrame:
    """The manifest with the parent's mask for edits and distractors without one, which keep its shape and place.

    (NearID's code masks a distractor by the mask of the positive that it was made from.) Context-edits inherit no mask,
    because they may have moved the object.
    """
    parents = parent_rows(table)
    has_parent = parents >= 0
    masks = table["mask"].to_numpy(copy=True)
    is_in_place = table["role"].isin(_IN_PLACE).to_numpy()
    may_inherit = is_in_place & has_parent
    while True:  # a parent may inherit too
        is_missing = pd.isna(masks)
        parent_has_mask = ~is_missing[parents]
        rows = np.flatnonzero(may_inherit & is_missing & parent_has_mask)
        if not len(rows):
            break
        masks[rows] = masks[parents[rows]]
    return with_columns(table, mask=masks)


def require_masks(table: pd.DataFrame) -> None:
    """Check that every row has a mask.

    Raises:
        ManifestError: with the count and the first rows that lack one.
    """
    table = numbered(table)
    lacks_mask = table["mask"].isna()
    names = table["id"][lacks_mask]
    rows = []
    for row, name in names.items():
        rows.append(f"row {row + 1} ({name})")
    if rows:
        listed = ", ".join(first_few(rows))
        raise ManifestError(f"{len(rows)} of {len(table)} rows lack a mask: {listed}; fill column 'mask'")
