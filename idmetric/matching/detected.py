"""Regions that a detector finds, for `match`, and the folder in which they are kept."""

from __future__ import annotations

import json
import os
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from functools import cached_property
from pathlib import Path
from threading import Lock

from PIL import Image
from torch import Tensor

from idmetric.matching.codes import RunLengths
from idmetric.matching.detect import Detector, photos_of
from idmetric.matching.regions import Region
from idmetric.metric.files import BLANK, StrPath, read_json_file, replacing, seal, seal_problem
from idmetric.metric.images import Picture, read_image
from idmetric.metric.masks import Images, Masks, read_mask
from idmetric.store import content_key, settings_digest


class DetectedRegions:
    """The regions of each image that a detector finds, as `regions` of `match`.

    Args:
        words: what to look for, see `Detector.detect`.
        references: instead, photos of a subject, or of several by name. masks: of a subject in its photos.
        keep: a folder in which regions are kept, by image, query and detector. Files there that were damaged are
            written again, with a warning.

    Raises:
        RequestError: without anything to look for, and for a detector that cannot look for it.
        ImageReadError: naming the photo that cannot be read.
    """

    def __init__(
        self,
        detector: Detector,
        words: Sequence[str] = (),
        references: Images | Mapping[str, Images] = (),
        masks: Masks = None,
        keep: StrPath | None = None,
    ) -> None:
        if not isinstance(references, Mapping):
            references = {"": references}
        self.detector = detector
        self.keep = keep
        self._photos = {name: photos_of(photos, masks) for name, photos in references.items()}
        self._words = detector.checked(words, bool(self._photos) and all(self._photos.values()))
        self._lock = Lock()  # `match` reads images in several threads

    @cached_property
    def _queries(self) -> list[object]:
        return [self.detector.query(photos) for photos in self._photos.values() if photos]

    @cached_property
    def signature(self) -> str:
        """Detector, weights, settings and query."""
        if self._words:
            return f"{self.detector.signature}, words {', '.join(self._words)}"
        keys = []
        for name, photos in self._photos.items():
            for picture, mask in photos:
                coverage = b""
                if mask is not None:
                    coverage = read_mask(mask, picture.size[::-1]).numpy().tobytes()
                keys.append(content_key(_pixels(picture), coverage))
            keys.append(f"of {name}")
        return f"{self.detector.signature}, photos {settings_digest({'photos': keys})}"

    def __call__(self, picture: Picture) -> list[Region]:
        """The regions of an image, from the folder or found now."""
        if isinstance(picture, Tensor):
            picture = read_image(picture.detach())
        with self._lock:
            if self.keep is None:
                return self._find(picture)
            key = content_key(_pixels(picture), self.signature.encode())
            path = Path(self.keep, f"{key}.json")
            regions = _read(path)
            if regions is None:
                regions = self._find(picture)
                content = {**BLANK, "detector": self.signature, "regions": list(map(asdict, regions))}
                with replacing(path, parents=True) as temporary:
                    temporary.write_text(json.dumps(content), encoding="utf-8")
                    seal(temporary)
            return regions

    def _find(self, image: Image.Image) -> list[Region]:
        return self.detector.find(image, self._words, self._queries).regions


def _read(path: Path) -> list[Region] | None:
    """The regions in a kept file; None if there is none, and with a warning for a damaged one."""
    regions = []
    try:
        problem = seal_problem(path)
        if problem:
            raise ValueError(problem)
        for row in read_json_file(path)["regions"]:
            mask = None
            if row["mask"]:
                mask = RunLengths(row["mask"]["code"])
            regions.append(Region(tuple(row["box"]), mask, row["label"], row["score"]))
    except FileNotFoundError:
        return None
    except ValueError as error:
        message = f"the kept regions {os.fspath(path)!r} are damaged and are found again: {error}"
        warnings.warn(message, stacklevel=2)
        return None
    return regions


def _pixels(image: Image.Image) -> bytes:
    return repr(image.size).encode() + image.tobytes()
