"""PODS: 100 household objects (Sundaram et al., personalized representations; ID-Sim, appendix D.1).

As a table: image, mask, label, scene_type in the parts train (3 images of each object, the gallery), test and
test_dense (12 of each, the queries). As folders: train/NAME/*.jpg, test/..., with train_masks/, test_masks/.

All parts show the same objects, so they are not splits of a manifest: the part goes to the free column `x_part`.
pods_info.json in the same folder gives the `split` of an object (val or test); without it, the split is test.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

from idmetric.data.importers.folders import pictures
from idmetric.data.importers.run import Columns, ImportJob
from idmetric.data.importers.source import read_json
from idmetric.data.old_manifest.errors import ManifestError
from idmetric.data.old_manifest.table import Row
from idmetric.data.split import split_name
from idmetric.metric.paths import matching

PARTS = ("train", "test", "test_dense")


def rows(job: ImportJob) -> Iterator[Row]:
    """A row for each photo."""
    root = Path(job.sources[0])
    folders = [path for path in matching(root, "*/") if _part(path.name) in ("train", "test")]
    if any(folder.is_dir() and not matching(folder, "*.arrow") for folder in folders):
        yield from _of_folders(job, root)
    else:
        yield from _of_table(job)


def _of_folders(job: ImportJob, root: Path) -> Iterator[Row]:
    about = _index(root)
    for picture in job.limited(pictures(root), root.name):
        part, *folders = picture.path.parts[:-1]
        part = _part(part)
        if part not in PARTS or len(folders) != 1:
            layout = f"{'/, '.join(PARTS)}/ and one folder for each object"
            raise ManifestError(f"{root / picture.path}: expected {layout}")
        yield picture.row(job, root, folders[0], parameters={"x_part": part}, **about(folders[0]))


def _of_table(job: ImportJob) -> Iterator[Row]:
    source = job.open("image", "label")
    about = _index(source.root)
    for record in job.records(source):
        label, part = record.text("label"), _part(record.shard.split or "") or None
        image = record.keep(record.values["image"])
        mask = record.keep(record.values.get("mask"), "mask")
        if not image:
            record.reject("no image")
            continue
        if label is None:
            record.reject("no label")
            continue
        parameters = {**record.about("label"), "x_part": part}
        name = f"{part or 'all'}/{record.number:05d}"
        yield job.row(label, name, parameters=parameters, **about(label), **image, **mask)


def _part(name: str) -> str:
    """The part that a folder or table of this name holds: "test_dense" for Test_Dense."""
    return split_name(name.lower())


def _index(root: Path) -> Callable[[str], Columns]:
    """A function that gives the columns of an object by the published index, if it is there."""
    path = root / "pods_info.json"
    index: Columns = {}
    if path.is_file():
        index = read_json(path, dict)
    splits, categories = index.get("class_to_split", {}), index.get("class_to_sc", {})
    return lambda label: {"split": splits.get(label, "test"), "domain": "objects", "category": categories.get(label)}
