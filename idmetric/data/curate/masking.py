"""Random blackout of backgrounds in training samples, and the masks that it needs (NearID)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType

import numpy as np

from idmetric.data.manifest.lineage import parent_rows
from idmetric.data.manifest.table import Manifest, ManifestError
from idmetric.metric.files.tables import first_few

# NearID, section 4.1 "Role-Aware Data Augmentation": anchors, positives, distractors
MASK_PROB_APN = (0.5, 0.2, 0.6)
MASK_PROB = 1.0  # share of samples with any masking; the paper's three probabilities imply 1
_ROLE: Mapping[str, int] = MappingProxyType({"anchor": 0, "positive": 1, "negative": 2, "distractor": 2})


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
    draws = np.random.default_rng(seed).random(len(slots) + 1)
    gate = draws[0] < mask_prob
    return [bool(gate and u < mask_prob_apn[_ROLE[s]]) for s, u in zip(slots, draws[1:], strict=True)]


def inherit_masks(manifest: Manifest) -> Manifest:
    """The manifest with the parent's mask for edits and distractors without one, which keep its shape and place.

    (NearID's code masks a distractor by the mask of the positive that it was made from.) Context-edits inherit no mask,
    because they may have moved the object.
    """
    parent, role = parent_rows(manifest), manifest.column("role")
    path, data = manifest.column("mask"), manifest.column("mask_bytes")
    for k in range(len(manifest)):
        chain, at = {k}, k
        while path[at] is None and data[at] is None and role[at] in ("distractor", "identity-edit", "part-edit"):
            at = int(parent[at])
            if at < 0 or at in chain:
                break
            chain.add(at)
        if at >= 0:
            path[k], data[k] = path[at], data[at]
    return manifest.replace(mask=path, mask_bytes=data)


def missing_masks(manifest: Manifest) -> list[int]:
    """Numbers of the rows without a mask."""
    rows = enumerate(zip(manifest.column("mask"), manifest.column("mask_bytes"), strict=True))
    return [k for k, (path, data) in rows if path is None and data is None]


def require_masks(manifest: Manifest) -> None:
    """Check that every row has a mask.

    Raises:
        ManifestError: with the count and the first rows that lack one.
    """
    if missing := missing_masks(manifest):
        names = manifest.column("id")
        listed = ", ".join(first_few([f"row {k + 1} ({names[k]})" for k in missing]))
        raise ManifestError(f"{len(missing)} of {len(manifest)} rows lack a mask: {listed}; fill column 'mask'")
