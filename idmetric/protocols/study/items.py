"""Draws the questions of a study from a manifest: pairs or triplets of images, and sentinels with an obvious answer.

A manifest that already groups images (slots anchor and candidate; anchor, left and right; anchor, positive and
negative) gives its groups. Of any other manifest, pairs of one identity and of two are drawn as a calibration draws
them, half of the latter hard: an image and the distractor made from it, two identities of one category.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from idmetric.data.manifest.lineage import blocks, lineages
from idmetric.data.manifest.same_image import has_image, image_keys
from idmetric.data.manifest.table import Manifest
from idmetric.protocols.calibrate.pairs import Pairs, draw_pairs, usable
from idmetric.protocols.common.arrays import Ints
from idmetric.protocols.common.columns import texts
from idmetric.protocols.common.intervals import codes

Task = Literal["pairs", "triplets"]
Rows = tuple[int, ...]  # of a manifest: anchor and candidate, or anchor, left and right

SLOTS: dict[Task, tuple[str, ...]] = {"pairs": ("anchor", "candidate"), "triplets": ("anchor", "left", "right")}
CHOICES: dict[Task, tuple[str, str]] = {"pairs": ("same", "different"), "triplets": ("left", "right")}
_OTHERS = ("candidate", "positive", "negative", "left", "right")  # slots that make a pair with a group's anchor
_BOTH = (("left", "right"), ("positive", "negative"))  # slots that make a triplet with it
_TRIES = 16  # images to choose the least similar one from


def draw_items(data: Manifest, task: Task, count: int, seed: int = 0) -> list[Rows]:
    """Up to `count` different pairs or triplets in random order; left and right of a triplet are random.

    Raises:
        ValueError: if the manifest allows none.
    """
    rng = np.random.default_rng([seed, 1])
    found = _grouped(data, task) or _drawn(data, task, count, seed, rng)
    chosen = [found[k] for k in rng.permutation(len(found))[:count].tolist()]
    if task == "triplets":
        chosen = [(a, *((y, x) if rng.random() < 0.5 else (x, y))) for a, x, y in chosen]
    return chosen


def _grouped(data: Manifest, task: Task) -> list[Rows]:
    """All pairs or triplets of the manifest's groups; equal names in two splits are two groups."""
    members: dict[tuple[str, str | None], dict[str, list[int]]] = {}
    columns = (data.column("group"), data.column("split"), data.column("slot"), has_image(data).tolist())
    for row, (group, split, slot, image) in enumerate(zip(*columns, strict=True)):
        if group is not None and slot is not None and image:
            members.setdefault((group, split), {}).setdefault(slot, []).append(row)

    found: list[Rows] = []
    for own in members.values():
        anchors = own.get("anchor", [])
        if task == "pairs":
            found += [(a, b) for a in anchors for slot in _OTHERS for b in own.get(slot, [])]
        else:
            found += [(a, x, y) for a in anchors for p, q in _BOTH for x in own.get(p, []) for y in own.get(q, [])]
    return found


def _drawn(data: Manifest, task: Task, count: int, seed: int, rng: np.random.Generator) -> list[Rows]:
    """Half of the pairs show one identity; a triplet is a pair of two identities and another image of the anchor's."""
    kept = np.flatnonzero(has_image(data))
    known = usable(data.take(kept).replace(x_row=kept))
    if not len(known):
        raise ValueError("no row has an identity, and no group an anchor and a candidate: there is nothing to ask")
    row = np.array(known.column("x_row"), dtype=np.int64)

    several = sum(images > 1 for images in Counter(known.column("identity")).values())
    pairs = draw_pairs(known, each=-(-count // max(1, several)), seed=seed)
    if task == "triplets":
        return [tuple(row[list(three)].tolist()) for three in _triplets(known, pairs, rng)]

    own, other = np.flatnonzero(pairs.same), np.flatnonzero(~pairs.same)
    half = min(len(own), len(other), (count + 1) // 2)
    chosen = np.concatenate([rng.permutation(own)[:half], rng.permutation(other)[: min(half, count - half)]])
    return list(zip(row[pairs.a[chosen]].tolist(), row[pairs.b[chosen]].tolist(), strict=True))


def _triplets(data: Manifest, pairs: Pairs, rng: np.random.Generator) -> list[Rows]:
    """A positive for each pair of two identities: another image of its first image's identity, else of its second's."""
    identity, image = data.column("identity"), image_keys(data)
    views: dict[str, list[int]] = {}
    for row, name in enumerate(identity):
        views.setdefault(name, []).append(row)

    found: list[Rows] = []
    for k in np.flatnonzero(~pairs.same).tolist():
        ends = (int(pairs.a[k]), int(pairs.b[k]))
        for anchor, negative in (ends, ends[::-1]):
            others = [row for row in views[identity[anchor]] if image[row] != image[anchor]]
            if others:
                found.append((anchor, others[int(rng.integers(len(others)))], negative))
                break
    return found


def owners(data: Manifest, items: Ints) -> Ints:
    """The units that intervals draw: the identities (N, 2) of a pair's images, or (N,) of a triplet's anchor.

    An image of unknown identity counts with its anchor, and an anchor of unknown identity for itself.

    Args:
        items: (N, 2) rows of pairs, or (N, 3) of triplets.
    """
    identity, image = codes(data.column("identity")), codes(image_keys(data))
    anchor, other = items[:, 0], items[:, 1]
    first = np.where(identity[anchor] < 0, -1 - image[anchor], identity[anchor])
    second = np.where(identity[other] < 0, first, identity[other])
    found: Ints = np.stack([first, second], 1) if items.shape[1] == 2 else first
    return found


# Sentinels


def draw_sentinels(data: Manifest, task: Task, count: int, seed: int, page: int) -> list[tuple[Rows, str]]:
    """Questions with an obvious answer, and that answer; half of them have one answer, half the other.

    An image is the same as itself (the page shows a part of it on one side), and different from an image of another
    subject: of 16 drawn ones, of another category or dataset where there are several, the least similar in color.

    Raises:
        ValueError: if all images belong to one subject.
    """
    rng = np.random.default_rng([seed, 2, page])
    unlike = _Unlike(data, rng)
    found: list[tuple[Rows, str]] = []
    for answer in rng.permutation([CHOICES[task][k % 2] for k in range(count)]).tolist():
        row = unlike.any_row()
        if task == "pairs":
            found.append(((row, row if answer == "same" else unlike.other(row)), answer))
        else:
            other = unlike.other(row)
            found.append(((row, row, other) if answer == "left" else (row, other, row), answer))
    return found


class _Unlike:
    """Draws images, and for each one of another subject that looks different."""

    def __init__(self, data: Manifest, rng: np.random.Generator) -> None:
        self.data, self.rng = data, rng
        self.rows = np.flatnonzero(has_image(data))
        self.family = blocks(data)
        if len(set(self.family[self.rows].tolist())) < 2:  # groups of triplets join unrelated images
            self.family = lineages(data)
        if len(set(self.family[self.rows].tolist())) < 2:
            raise ValueError("sentinels need images of two subjects, and all images here belong to one: --sentinels 0")
        kinds = list(zip(texts(data, "dataset"), texts(data, "category"), strict=True))
        number = {kind: k for k, kind in enumerate(dict.fromkeys(kinds))}
        self.kind = np.array([number[kind] for kind in kinds], dtype=np.int64)
        self.small: dict[int, NDArray[np.float64]] = {}

    def any_row(self) -> int:
        return int(self.rng.choice(self.rows))

    def other(self, row: int) -> int:
        strangers = self.rows[self.family[self.rows] != self.family[row]]
        further = strangers[self.kind[strangers] != self.kind[row]]
        pool: Sequence[int] = self.rng.permutation(further if len(further) else strangers)[:_TRIES].tolist()
        return max(pool, key=lambda one: float(np.abs(self._look(one) - self._look(row)).mean()))

    def _look(self, row: int) -> NDArray[np.float64]:
        """The image at 8 x 8 pixels."""
        if row not in self.small:
            self.small[row] = np.asarray(self.data.image(row).resize((8, 8)), dtype=np.float64)
        return self.small[row]
