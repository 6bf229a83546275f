"""Subjects and the images to locate them in, for the protocol `segmentation`."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from typing import Literal

import numpy as np

from idmetric.data.manifest.table import Manifest
from idmetric.distance.patches import MATCHES, Match
from idmetric.protocols.common.columns import free, listed
from idmetric.protocols.common.scorers import Settings
from idmetric.protocols.idsim_table2c_segmentation.persam import PerSAM

_REFERENCE, _TARGETS = "train", ("test_dense", "test")  # PODS's parts


@dataclass(frozen=True)
class Options:
    """Options of this protocol in addition to `scorers.Settings`.

    Attributes:
        references: images shown of each subject; PerSAM, and so Table 2c, takes one.
        match: see `idmetric.scoring.heatmaps`.
        others: number of images of other subjects to search for each subject, drawn by the seed; None = all, as on
            PODS.
        score: the part of a target compared with the reference: the mask's box, or the mask.
        side: longer side, in pixels, at which masks are compared; 0 = their own. Maps are smooth: it changes little.
        sam: runs PerSAM; None leaves it out.
    """

    references: int = 1
    match: Match = "prototype"
    others: int | None = None
    score: Literal["box", "mask"] = "box"
    side: int = 512
    sam: PerSAM | None = None

    def __post_init__(self) -> None:
        if self.references < 1 or (self.others is not None and self.others < 0) or self.side < 0:
            raise ValueError("at least one reference, and none or more others and pixels")
        if self.match not in MATCHES or self.score not in ("box", "mask"):
            raise ValueError(f"match is one of {', '.join(MATCHES)}, score is box or mask")


@dataclass(frozen=True)
class Task:
    """A subject: rows of its references, of targets that show it, and of targets that do not."""

    subject: str
    references: tuple[int, ...]
    own: tuple[int, ...]
    others: tuple[int, ...]


def tasks(data: Manifest, settings: Settings, options: Options) -> tuple[list[Task], list[str]]:
    """A task for each identity with references and targets, and notes on identities without."""
    identity, ids, part = data.column("identity"), data.column("id"), free(data, "part")
    masked = [mask is not None for mask in data.sources("mask")]
    shown = next((p for p in _TARGETS if p in part), None) if _REFERENCE in part else None
    refs: dict[str, list[int]] = defaultdict(list)
    targets: dict[str, list[int]] = defaultdict(list)

    for row in sorted(range(len(data)), key=lambda r: ids[r]):
        if identity[row] is None or not masked[row]:
            continue
        given = part[row] == _REFERENCE if shown else len(refs[identity[row]]) < options.references
        if given and len(refs[identity[row]]) < options.references:
            refs[identity[row]].append(row)
        elif not given and (not shown or part[row] == shown):
            targets[identity[row]].append(row)

    able = [name for name in refs if len(refs[name]) == options.references and targets[name]]
    if not able:
        raise ValueError(
            f"no identity has {options.references} reference(s) and a target with masks: give images of the same "
            "subject with masks of it (column mask)"
        )

    everyone = np.array([row for name in able for row in targets[name]])
    owner = np.array([name for name in able for _ in targets[name]], dtype=object)
    found = []

    for k, name in enumerate(able):
        strangers = everyone[owner != name]
        if options.others is not None and options.others < len(strangers):
            strangers = np.sort(np.random.default_rng([settings.seed, k]).choice(strangers, options.others, False))
        found.append(Task(name, tuple(refs[name]), tuple(targets[name]), tuple(strangers.tolist())))

    left = sorted({n for n in identity if n is not None} - set(able))
    notes = [f"{len(left)} identities lack a reference or a target with a mask: {listed(left)}"] if left else []
    return found, notes
