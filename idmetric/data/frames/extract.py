"""Extraction of chosen frames into files with a manifest; finished clips are skipped (ID-Sim, appendix A.2.1).

    extraction = Extraction(SAMPLINGS["got10k"], seed=0)
    records = [extract(clip, "frames", extraction) for clip in find_clips("GOT-10k/train", masks="masks")]
    to_manifest(records, "frames", dataset="got10k").write("frames.parquet")

A clip's folder holds its frames (000012.png), their masks (000012_mask.png) and clip.json. Where the annotation numbers
several objects, file names start with the object's number (3_000012.png).
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from idmetric.data.frames.annotations import Categories
from idmetric.data.frames.choose import Faults, Pick, Sampling, choose
from idmetric.data.frames.clips import Clip, ClipError
from idmetric.data.frames.footage import open_clip
from idmetric.data.generate.masks import Sam
from idmetric.data.manifest.table import Manifest, Row
from idmetric.metric.files import json_file

RECORD = "clip.json"  # in the folder of a finished clip
FREE = ("frame", "time", "blur", "coverage")  # columns x_... of the manifest
Record = dict[str, Any]


@dataclass(frozen=True)
class Extraction:
    """Settings of an extraction; each clip's record stores them, and a resumed run must use the same.

    Attributes:
        sam: draws masks of boxes; records name its weights. None: clips have masks.
    """

    sampling: Sampling
    seed: int = 0
    sam: Sam | None = None

    @property
    def noted(self) -> dict[str, Any]:
        """The settings as JSON values."""
        plain: dict[str, Any] = json.loads(json.dumps(asdict(replace(self, sam=None))))
        return {**plain, "sam": None if self.sam is None else self.sam.base.key}


def extract(clip: Clip, folder: str | os.PathLike[str], extraction: Extraction, skip: bool = False) -> Record:
    """Write the chosen frames of a clip and their masks to its own folder in `folder`, atomically; return its record.

    A finished clip is not read again. An instance with fewer than `least` valid frames is left out.

    Args:
        skip: skip frames and masks that cannot be read; the record lists them.

    Returns:
        The record, which `clip.json` in the clip's folder stores: clip, folder, settings, unreadable (messages),
        reasons (why -> number of frames that were not valid) and instances, each with object and frames.

    Raises:
        ClipError: if the clip's annotation is missing or does not fit; if the video is unreadable; if frames or masks
            are unreadable and `skip` is false; or if the clip's folder was made with other settings.
    """
    folder = Path(folder)
    name = folder_name(clip.name)
    record = finished(clip, folder, extraction)

    if record is None:
        partial = folder / f".{name}.partial"
        shutil.rmtree(partial, ignore_errors=True)
        partial.mkdir(parents=True)
        try:
            record = _write(clip, partial, extraction, skip)
            shutil.rmtree(folder / name, ignore_errors=True)  # of a damaged record
            os.replace(partial, folder / name)
        finally:
            shutil.rmtree(partial, ignore_errors=True)

    if record["unreadable"] and not skip:
        raise ClipError("\n".join(record["unreadable"]))
    return record


def finished(clip: Clip, folder: Path, extraction: Extraction) -> Record | None:
    """The record of a finished clip, else None; it must have been written with the same settings.

    Raises:
        ClipError: if it was made with others. OSError: if it cannot be read now, as without permission.
    """
    path = folder / folder_name(clip.name) / RECORD
    try:
        record: Record = json_file.read(path)
        made = dict(record["settings"])
    except (FileNotFoundError, ValueError, TypeError, KeyError):  # not there, or damaged
        return None
    if made != extraction.noted:
        raise ClipError(
            f"{path.parent}: made with other settings: use the same, write to another folder, or remove this one"
        )
    return record


def folder_name(clip: str) -> str:
    """A folder name for a clip that is readable, and valid and unique on every file system."""
    readable = re.sub(r"[^A-Za-z0-9-]+", "_", clip)[-80:].strip("_-") or "clip"
    digest = hashlib.sha256(clip.encode(errors="surrogatepass")).hexdigest()[:8]
    return f"{readable}-{digest}"


def to_manifest(
    records: Sequence[Mapping[str, Any]],
    folder: str | os.PathLike[str],
    dataset: str | None = None,
    category_level: int | None = None,
    categories: Categories | None = None,
) -> Manifest:
    """The manifest of extracted frames, with paths relative to `folder`.

    The identity is dataset/clip or dataset/clip/object. Free columns are x_frame (index in the clip), x_time (seconds),
    x_blur and x_coverage.

    Args:
        category_level: number (from 1) of the part of the clip's name that is its category, as in LaSOT's
            airplane/airplane-1.
        categories: (clip, object) -> category, for clips without such a part; see `idmetric.data.frames.annotations`.
    """
    rows = []
    extra: list[Mapping[str, Any]] = []
    for record in records:
        parts = record["clip"].split("/")
        category = parts[category_level - 1] if category_level and 1 <= category_level < len(parts) else None
        for instance in record["instances"]:
            if len(instance["frames"]) < record["settings"]["sampling"]["least"]:
                continue
            own = category or (categories or {}).get((record["clip"], instance["object"]))
            names = (dataset, record["clip"], instance["object"] or None)
            identity = "/".join(str(name) for name in names if name is not None)
            for frame in instance["frames"]:
                made = {**record["settings"], "clip": record["clip"], "window": frame["window"]}
                made["object"], seed = instance["object"], made.pop("seed")
                path, mask = (f"{record['folder']}/{frame[key]}" for key in ("path", "mask"))
                rows.append(Row(identity, path, dataset=dataset, category=own, mask=mask, seed=seed, parameters=made))
                extra.append(frame)

    columns = {f"x_{key}": [frame[key] for frame in extra] for key in FREE}
    return Manifest.from_rows(rows, Path(folder)).replace(**columns)


def _write(clip: Clip, folder: Path, extraction: Extraction, skip: bool) -> Record:
    sampling, faults = extraction.sampling, Faults()
    footage = open_clip(clip, sampling.fps, extraction.sam)
    frames: dict[int, list[dict[str, Any]]] = {}

    for pick in choose(footage, sampling, extraction.seed, faults):
        entry = _save(pick, folder, footage.indexed)
        entry["time"] = round(float(footage.times[pick.index]), 6)
        frames.setdefault(pick.object.number, []).append(entry)

    if faults.unreadable and not skip:
        raise ClipError("\n".join(faults.unreadable))
    for kept in frames.values():
        if len(kept) < sampling.least:
            for file in (entry[key] for entry in kept for key in ("path", "mask")):
                (folder / file).unlink()

    record = {
        "clip": clip.name, "folder": folder_name(clip.name), "settings": extraction.noted,
        "unreadable": faults.unreadable, "reasons": dict(faults.reasons),
        "instances": [{"object": number, "frames": frames.get(number, [])} for number in sorted(faults.seen)],
    }  # fmt: skip
    (folder / RECORD).write_text(json.dumps(record, indent=1, ensure_ascii=False), encoding="utf-8")
    return record


def _save(pick: Pick, folder: Path, indexed: bool) -> dict[str, Any]:
    stem = f"{pick.object.number}_{pick.index:06d}" if indexed else f"{pick.index:06d}"
    path, mask = f"{stem}.png", f"{stem}_mask.png"
    pick.image.save(folder / path)
    Image.fromarray(pick.object.mask.astype(np.uint8) * 255).save(folder / mask)
    found = {"frame": pick.index, "window": pick.window, "blur": pick.blur, "coverage": pick.object.coverage}
    return {"path": path, "mask": mask, **found}
