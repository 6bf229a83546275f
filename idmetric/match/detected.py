"""Regions that a detector finds, for `match`, and the folder in which they are kept."""

from __future__ import annotations

import base64
import io
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from hashlib import sha256
from pathlib import Path
from threading import Lock
from typing import Any

from PIL import Image
from torch import Tensor

from idmetric.match.detect import Detector, Photo, photos_of
from idmetric.match.regions import Picture, Region
from idmetric.metric.files import StrPath, json_file
from idmetric.metric.files.output import replacing
from idmetric.metric.images.masks import Images, Masks, read_mask
from idmetric.metric.images.read import read_image


@dataclass(frozen=True, eq=False)
class DetectedRegions:
    """The regions of each image that a detector finds, as `regions` of `match`.

    Attributes:
        words: what to look for, see `Detector.detect`.
        references: instead, photos of a subject, or of several by name. masks: of a subject in its photos.
        keep: a folder in which regions are kept, by the image's pixels, what was looked for, and the detector.

    Raises:
        RequestError: without anything to look for, and for a detector that cannot look for it.
    """

    detector: Detector
    words: Sequence[str] = ()
    references: Images | Mapping[str, Images] = ()
    masks: Masks = None
    keep: StrPath | None = None
    _lock: Any = field(default_factory=Lock, init=False, repr=False)  # `match` reads images in several threads

    def __post_init__(self) -> None:
        for references in self._subjects:
            self.detector.checked(self.words, references)

    @property
    def _subjects(self) -> list[Images]:
        if isinstance(self.references, Mapping):
            return list(self.references.values()) or [()]
        return [self.references]

    @cached_property
    def _photos(self) -> list[list[Photo]]:
        return [photos_of(references, self.masks) for references in self._subjects]

    @cached_property
    def _queries(self) -> list[Any]:
        return [self.detector.query(photos) for photos in self._photos if photos]

    @cached_property
    def signature(self) -> str:
        """Detector, weights, settings, and what is looked for."""
        if self.words:
            return f"{self.detector.signature}, words {', '.join(self.words)}"
        digests = []
        for photos in self._photos:
            for picture, mask in photos:
                coverage = b"" if mask is None else read_mask(mask, picture.size[::-1]).numpy().tobytes()
                digests.append(_digest(picture, coverage))
            digests.append("of the next subject")
        return f"{self.detector.signature}, photos {sha256(' '.join(digests).encode()).hexdigest()[:12]}"

    def __call__(self, picture: Picture) -> list[Region]:
        """The regions of an image, from the folder or found now."""
        image = read_image(picture.detach()) if isinstance(picture, Tensor) else picture
        with self._lock:
            if self.keep is None:
                return self._found(image)
            path = Path(self.keep, f"{_digest(image, self.signature.encode())}.json")
            regions = _read(path)
            if regions is None:
                regions = self._found(image)
                _write(path, regions, self.signature)
            return regions

    def _found(self, image: Image.Image) -> list[Region]:
        return self.detector.find(image, self.words, self._queries).regions


def _write(path: Path, regions: Sequence[Region], signature: str) -> None:
    rows = []
    for region in regions:
        row: dict[str, Any] = {"box": region.box, "score": region.score, "label": region.label}
        if isinstance(region.mask, Image.Image):
            file = io.BytesIO()
            region.mask.convert("1").save(file, "PNG")
            row["mask"] = base64.b64encode(file.getvalue()).decode()
        rows.append(row)
    with replacing(path, parents=True) as temporary:
        temporary.write_text(json.dumps({"detector": signature, "regions": rows}), encoding="utf-8")


def _read(path: Path) -> list[Region] | None:
    """The regions in a kept file; None if there is none, or a damaged one."""
    regions = []
    try:
        for row in json_file.read(path)["regions"]:
            left, top, right, bottom = map(float, row["box"])
            mask = read_image(base64.b64decode(row["mask"])).convert("L") if "mask" in row else None
            regions.append(Region((left, top, right, bottom), mask, str(row["label"]), float(row["score"])))
    except (FileNotFoundError, ValueError, LookupError, TypeError):
        return None
    return regions


def _digest(image: Image.Image, data: bytes) -> str:
    """32 hex digits of an image's pixels and of what belongs to it."""
    digest = sha256(repr(image.size).encode() + image.tobytes())
    digest.update(sha256(data).digest())
    return digest.hexdigest()[:32]
