"""Subjects and the images to locate them in, for the protocol `segmentation`."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass

import numpy as np

from idmetric.data.manifest.table import Manifest
from idmetric.protocols.common.columns import free, listed
from idmetric.protocols.common.scorers import Settings
from idmetric.protocols.options import SegmentationOptions

_REFERENCE, _TARGETS = "train", ("test_dense", "test")  # PODS's parts


@dataclass(frozen=True)
class Task:
    """A subject: rows of its references, of targets that show it, and of targets that do not."""

    subject: str
    references: tuple[int, ...]
    own: tuple[int, ...]
    others: tuple[int, ...]


def tasks(data: Manifest, settings: Settings, options: SegmentationOptions) -> tuple[list[Task], list[str]]:
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
