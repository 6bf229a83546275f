"""Extraction of chosen frames into files with a manifest; finished clips are skipped (ID-Sim, appendix A.2.1).

    extraction = Extraction(SAMPLINGS["got10k"], seed=0)
    records = [extract(clip, "frames", extraction) for clip in find_clips("GOT-10k/train", masks="masks")]
    write(to_table(records, "frames", dataset="got10k"), "frames.parquet")

A clip's folder holds its frames (000012.png), their masks (000012_mask.png) and clip.json. Where the annotation numbers
several objects, file names start with the object's number (3_000012.png).
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from operator import itemgetter
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from PIL import Image

from idmetric.data.frames.choose import Faults, Pick, Sampling, choose
from idmetric.data.frames.clips import AnnotatedClip
from idmetric.data.frames.footage import Footage, open_clip
from idmetric.data.frames.sam import Sam
from idmetric.data.manifest import checked
from idmetric.matching.frames import ClipError
from idmetric.metric.files import StrPath, read_json_file

if TYPE_CHECKING:
    import pandas as pd

RECORD = "clip.json"  # in the folder of a finished clip
OWN = ("frame", "time", "blur", "coverage")  # own columns of the manifest
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
        sampling = {**asdict(self.sampling), "coverage": list(self.sampling.coverage)}
        return {"sampling": sampling, "seed": self.seed, "sam": self.sam and self.sam.weights.key}


def extract(clip: AnnotatedClip, folder: StrPath, extraction: Extraction, skip: bool = False) -> Record:
    """Write the chosen frames of a clip and their masks to its own folder in `folder`, atomically; return its record.

    A finished clip is not read again. An instance with fewer than `least` valid frames is left out.

    Args:
        skip: skip frames and masks that cannot be read; the record lists them.

    Returns:
        The record, which `clip.json` in the clip's folder stores: clip, settings, unreadable (messages), reasons (why
        -> number of frames that were not valid), instances (their number), short (of them, that were left out) and
        frames.

    Raises:
        ClipError: if the clip's annotation is missing or does not fit; if the video is unreadable; if frames or masks
            are unreadable and `skip` is false; or if the clip's folder was made with other settings.
    """
    target = Path(folder, folder_name(clip.name))
    partial = target.with_name(f".{target.name}.partial")
    if (target / RECORD).is_file():
        record: Record = read_json_file(target / RECORD)
        if record["settings"] != extraction.noted:
            raise ClipError(f"{target}: made with other settings: use the same, or write to another folder")
    else:
        shutil.rmtree(partial, ignore_errors=True)
        partial.mkdir(parents=True)
        try:
            record = _write(clip, partial, extraction, skip)
            os.replace(partial, target)
        finally:
            shutil.rmtree(partial, ignore_errors=True)

    if record["unreadable"] and not skip:
        raise ClipError("\n".join(record["unreadable"]))
    return record


def folder_name(clip: str) -> str:
    """A folder name for a clip that is readable, and valid and unique on every file system."""
    readable = re.sub(r"[^A-Za-z0-9-]+", "_", clip)[-80:].strip("_-") or "clip"
    digest = hashlib.sha256(clip.encode(errors="surrogatepass")).hexdigest()[:8]
    return f"{readable}-{digest}"


def to_table(
    records: Sequence[Record],
    folder: StrPath,
    dataset: str | None = None,
    categories: Mapping[tuple[str, int], str] | None = None,
) -> pd.DataFrame:
    """The manifest of extracted frames in `folder`.

    The identity is dataset/clip or dataset/clip/object. Own columns are frame (index in the clip), time (seconds), blur
    and coverage.

    Args:
        categories: (clip, object) -> category.
    """

    rows = []
    for record in records:
        clip, settings = record["clip"], dict(record["settings"])
        seed = settings.pop("seed")
        for frame in record["frames"]:
            number = frame["object"]
            names = (dataset, clip, number or None)
            row = {
                "identity": "/".join(str(name) for name in names if name is not None),
                "path": f"{folder_name(clip)}/{frame['path']}",
                "mask": f"{folder_name(clip)}/{frame['mask']}",
                "dataset": dataset,
                "category": (categories or {}).get((clip, number)),
                "seed": seed,
                "parameters": {**settings, "clip": clip, "window": frame["window"], "object": number},
            }
            for column in OWN:
                row[column] = frame[column]
            rows.append(row)
    return checked(rows, folder)


def _write(clip: AnnotatedClip, folder: Path, extraction: Extraction, skip: bool) -> Record:
    """Write the frames of a clip and its record."""
    faults = Faults()
    footage = open_clip(clip, extraction.sampling.fps, extraction.sam)
    frames = []
    for pick in choose(footage, extraction.sampling, extraction.seed, faults):
        frames.append(_save(pick, folder, footage))
    if faults.unreadable and not skip:
        raise ClipError("\n".join(faults.unreadable))

    # instances with too few frames are left out
    counts = Counter(frame["object"] for frame in frames)
    short = {number for number in faults.objects if counts[number] < extraction.sampling.least}
    kept = []
    for frame in sorted(frames, key=itemgetter("object")):
        if frame["object"] not in short:
            kept.append(frame)
            continue
        (folder / frame["path"]).unlink()
        (folder / frame["mask"]).unlink()

    record = {
        "clip": clip.name,
        "settings": extraction.noted,
        "unreadable": faults.unreadable,
        "reasons": dict(faults.reasons),
        "instances": len(faults.objects),
        "short": len(short),
        "frames": kept,
    }
    (folder / RECORD).write_text(json.dumps(record, indent=1, ensure_ascii=False), encoding="utf-8")
    return record


def _save(pick: Pick, folder: Path, footage: Footage) -> dict[str, Any]:
    """Write a frame and its mask; returns its part of the record."""
    name = f"{pick.index:06d}"
    if footage.indexed:
        name = f"{pick.object.number}_{name}"
    pick.image.save(folder / f"{name}.png")
    mask = Image.fromarray(pick.object.mask.astype(np.uint8) * 255)
    mask.save(folder / f"{name}_mask.png")
    return {
        "object": pick.object.number,
        "window": pick.window,
        "path": f"{name}.png",
        "mask": f"{name}_mask.png",
        "frame": pick.index,
        "time": round(float(footage.times[pick.index]), 6),
        "blur": pick.blur,
        "coverage": pick.object.coverage,
    }
