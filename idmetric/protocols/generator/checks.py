"""What can go wrong before anything is embedded: options that do not fit the data, references seen in training."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from idmetric.data.manifest.table import Manifest
from idmetric.embed.keys import key_of
from idmetric.models.embedder import Embedder
from idmetric.protocols.common.columns import Truths, free, listed
from idmetric.protocols.common.scorers import Models, Settings, by_label, calibrated
from idmetric.protocols.generator.images import Images
from idmetric.protocols.generator.pattern import REFERENCE, TRAINING

ALL = "all"


def check(data: Manifest, by: Sequence[str], against: str | None) -> None:
    """Refuse options that do not fit the data.

    Raises:
        ValueError: for an unknown column or method, or without images.
    """
    images = Images.of(data)
    if not len(images.rows):
        raise ValueError("no generated images of subjects with references")
    if against is not None and against not in images.methods:
        raise ValueError(f"--against {against!r}: no such method; there are {', '.join(images.methods)}")
    list(groups_of(images, data, by))


def groups_of(images: Images, data: Manifest, by: Sequence[str]) -> Iterator[tuple[str, Truths]]:
    """Names of groups, and their images (G,)."""
    yield ALL, np.ones(len(images.rows), dtype=bool)
    for column in by:
        name = f"x_{column}"
        if name not in data.table.column_names or column in ("role", "held_out"):
            have = sorted(c[2:] for c in data.table.column_names if c.startswith("x_"))
            raise ValueError(f"--by {column}: no such column; there are {', '.join(have)}")
        values = np.array(free(data, column), dtype=object)[images.rows]
        for value in dict.fromkeys(values):
            if value is not None:
                yield f"{column}: {value}", values == value


def refuse_judges(models: Models) -> None:
    """Refuse models that give no similarities of all pairs.

    Raises:
        ValueError: naming them.
    """
    judges = [name for name, model in models.items() if hasattr(model, "bind")]
    if judges:
        raise ValueError(f"{', '.join(judges)}: judges score pairs one by one; leave them out")


def notes_on(data: Manifest, images: Images, held_out: bool, prefix: str = "") -> list[str]:
    """Notes on missing places, on subjects without images, and on references seen in training.

    Args:
        prefix: before a method's name, such as "step ".
    """
    notes = []
    total = len(set(images.places()))
    for method, lacking in images.missing().items():
        places = listed("/".join(part for part in place if part) for place in lacking)
        notes.append(
            f"{prefix}{method} lacks {len(lacking)} of {total} combinations of subject, prompt and seed: {places}"
        )
    shown = set(images.subject)
    unused = [name for name in images.references if name not in shown]
    if unused:
        notes.append(f"no images of {len(unused)} subjects with references: {listed(unused)}")
    single = [name for name, rows in images.references.items() if len(rows) == 1 and name in shown]
    if single:
        notes.append(f"{len(single)} subjects have one reference and no real-versus-real value: {listed(single)}")
    return notes + _held_out(data, held_out)


def _held_out(data: Manifest, held_out: bool) -> list[str]:
    """Warn of references that generators were trained on, and of a missing statement about that."""
    role, stated = free(data, "role"), free(data, "held_out")
    ids = data.column("id")
    rows = {name: [k for k, one in enumerate(role) if one == name] for name in (REFERENCE, TRAINING)}
    trained = {_key(data, k) for k in rows[TRAINING]} - {None}
    seen = [ids[k] for k in rows[REFERENCE] if stated[k] == "no" or _key(data, k) in trained]
    if seen:
        return [
            f"WARNING: generators were trained on {len(seen)} of {len(rows[REFERENCE])} references, which rewards "
            f"copying: {listed(seen)}; use held-out photos"
        ]
    if held_out or trained or all(stated[k] == "yes" for k in rows[REFERENCE]):
        return []
    return ["WARNING: nothing states that references were held out from training, where copying would be rewarded: "
            "give --training PATH, a column held_out, or --held-out"]  # fmt: skip


def _key(data: Manifest, row: int) -> str | None:
    try:
        return key_of(data.source(row) or b"")
    except OSError:
        return None  # reported when it is embedded


def thresholds_of(
    model: Any, settings: Settings, given: Sequence[float] = (), calibration: Path | None = None, rate: float = 0.05
) -> tuple[dict[str, float], list[str]]:
    """Column -> similarity under which a subject has failed, and a note on its origin.

    Raises:
        CalibrationError: for a calibration of another model, distance or way of masking.
        ValueError: if the calibration has no threshold at this false-accept rate, or a given one is not finite.
    """
    if given:
        return by_label(given, "SCR@"), []
    tau = calibrated(model, settings, calibration, rate)
    if tau is None:
        lacks = "no SCR: the model has no calibration for this distance; give --scr or --calibration"
        return {}, [lacks] if isinstance(model, Embedder) else []
    return {"SCR": tau}, [
        f"SCR: subjects with a mean similarity under {tau:.3f}, which {100 * rate:g} % of the pairs of two identities "
        "reach in the calibration"
    ]  # fmt: skip
