"""PODS: 100 household objects (Sundaram et al., personalized representations; ID-Sim, appendix D.1).

As a table: image, mask, label, scene_type in the parts train (3 images of each object, the gallery), test and
test_dense (12 of each, the queries). As folders: train/NAME/*.jpg, test/..., with train_masks/, test_masks/.

All parts show the same objects, so they are not splits of a manifest: the part goes to the free column `x_part`.
pods_info.json in the same folder gives the `split` of an object (val or test); without it, the split is test.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from idmetric.data.importers.folders import pictures
from idmetric.data.importers.run import Job
from idmetric.data.importers.source import SourceError, read_json
from idmetric.data.manifest.table import Row

PARTS = ("train", "test", "test_dense")


def rows(job: Job) -> Iterator[Row]:
    """A row for each photo."""
    root = Path(job.sources[0])
    if any((root / part).is_dir() and not any((root / part).glob("*.arrow")) for part in PARTS[:2]):
        yield from _folders(job, root)
    else:
        yield from _table(job)


def _table(job: Job) -> Iterator[Row]:
    source = job.open()
    job.need(source, "image", "label")
    about = _info(source.root)
    for record in job.rows(source):
        label, part = record.values["label"], record.shard.split
        image = record.keep(record.values["image"])
        if not image or label is None:
            record.reject("no label" if image else "no image")
            continue
        yield Row(
            f"{job.name}/{label}",
            id=f"{job.name}/{part or 'all'}/{record.number:05d}",
            dataset=job.name,
            parameters={**record.about("label"), "x_part": part},
            **_about(about, str(label)),
            **image,
            **record.keep(record.values.get("mask"), "mask"),
        )


def _folders(job: Job, root: Path) -> Iterator[Row]:
    about = _info(root)
    for picture in job.limited(pictures(root), root.name):
        part, *folders = picture.path.parts[:-1]
        if part not in PARTS or len(folders) != 1:
            raise SourceError(f"{root / picture.path}: expected {'/, '.join(PARTS)}/ and one folder for each object")
        yield picture.row(job, root, folders[0], parameters={"x_part": part}, **_about(about, folders[0]))


def _info(root: Path) -> dict[str, Any]:
    """The published index of the objects, or {} if it is absent."""
    path = root / "pods_info.json"
    return read_json(path, dict) if path.is_file() else {}


def _about(info: dict[str, Any], label: str) -> dict[str, Any]:
    split, kind = info.get("class_to_split", {}).get(label, "test"), info.get("class_to_sc", {}).get(label)
    return {"split": split, "domain": "objects", "category": kind}
