"""Checks that a manifest is complete enough for NearID; the errors name the commands that make the missing parts."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

import numpy as np

from idmetric.data.curate.masking import require_masks
from idmetric.data.manifest.table import Manifest, ManifestError
from idmetric.train.nearid.data import PARTS, Identity, Rows, Shape


def check(identities: Sequence[Identity], notes: Sequence[str], *, distractors: bool) -> None:
    """Check that there are identities to compare, and distractors where the loss needs some.

    Args:
        notes: about rows that are left out, for the message.

    Raises:
        ManifestError: naming the missing views or distractors.
    """
    left = f" (left out: {'; '.join(notes)})" if notes else ""
    if len(identities) < 2:
        few = "no identity has" if not identities else "only one identity has"
        raise ManifestError(
            f"{few} two views in the training rows{left}: NearID needs another view of each, and other identities as "
            "negatives; `idmetric data import nearid` imports them, `idmetric data world --views 3` renders some"
        )
    if distractors and not any(any(identity.near) for identity in identities):
        raise ManifestError(
            f"no view has a distractor{left}: a row of role distractor or part-edit whose parent is the view's id; "
            "`idmetric data generate --task distractor` makes them, `idmetric data import nearid` and `import mtg` "
            "import them, `idmetric data world --distractors 1` renders some; --objective info-nce needs none"
        )


def check_masks(data: Manifest, identities: Sequence[Identity]) -> None:
    """Check that all pictures have a mask, after `idmetric.data.curate.masking.inherit_masks`.

    Raises:
        ManifestError: naming the first rows without a mask.
    """
    try:
        require_masks(data.take(rows_of(identities)))
    except ManifestError as error:
        raise ManifestError(
            f"{error} (`idmetric data import nearid`, `import mtg` and `idmetric data world` do; edits use the mask of "
            "their parent), or train without black backgrounds: --mask-prob 0"
        ) from error


def check_oracle(data: Manifest, identities: Sequence[Identity], shape: Shape) -> None:
    """Check that some tuple can hold two distractors of different oracle scores.

    Raises:
        ManifestError: if none can.
    """
    scores = data.column("oracle")
    for identity in identities:
        known = [{scores[row] for row in rows} - {None} for rows in identity.near]
        if shape.near == "anchor" and any(len(one) > 1 for one in known):
            return
        if shape.near == "views" and any(len(a | b) > 1 for k, a in enumerate(known) if a for b in known[:k] if b):
            return
    raise ManifestError(
        "no tuple can hold two distractors of different oracle scores, which --objective oracle ranks: give part-edits "
        "with column 'oracle' (`idmetric data import mtg`), and --near views if each view has only one of them"
    )


def best_measure(data: Manifest, held_out: Sequence[Identity]) -> str:
    """The measure of validation that marks the best checkpoint: SSR where there are distractors; "" = none."""
    if not held_out:
        return ""
    roles = data.column("role")
    found = {roles[row] for identity in held_out for rows in identity.near for row in rows}
    return "ssr" if found - {PARTS} else "part_ssr" if found else "map"


def rows_of(identities: Sequence[Identity]) -> Rows:
    """All rows that tuples may hold."""
    found = {row for identity in identities for rows in (identity.views, *identity.near) for row in rows}
    return np.array(sorted(found), np.int64)


def fingerprint(data: Manifest, identities: Sequence[Identity]) -> str:
    """16 hex digits that follow from the identities and the names of their rows."""
    names = data.column("id")
    used = [[[names[row] for row in rows] for rows in (identity.views, *identity.near)] for identity in identities]
    return hashlib.sha256(repr(used).encode()).hexdigest()[:16]
