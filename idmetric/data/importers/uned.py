"""UnED's splits of datasets (Ypsilantis et al., ICCV 2023): github nikosips/Universal-Image-Embeddings.

data/info_files/met/train.json     a list of {"path": "met/MET/...", "class_id": 17, ...}
data/images/met/MET/...            the images of each dataset, from its own authors
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path, PurePosixPath

from idmetric.data.importers.run import Job
from idmetric.data.importers.source import SourceError, locate, read_json
from idmetric.data.manifest.table import Row

# folder -> name of the dataset, and ILGen's domain (Real-S and Real-ALL, section 4.1)
SETS = {
    "met": ("MET", "art"),
    "gldv2": ("GLDv2", "landmark"),
    "sop": ("SOP", "product"),
    "inshop": ("InShop", "product"),
    "rp2k": ("RP2k", "product"),
}


def rows(job: Job) -> Iterator[Row]:
    """A row for each training image; an image of several classes has no identity."""
    root = job.folder()
    for folder in ("info_files", "images"):
        if not (root / folder).is_dir():
            raise SourceError(f"{root / folder}: no such folder; the source is UnED's folder data with both")
    for name, (dataset, domain) in SETS.items():
        file = root / "info_files" / name / "train.json"
        for entry in job.limited(read_json(file, list), name):
            try:
                path, classes = str(entry["path"]), entry["class_id"]
            except (KeyError, TypeError) as error:
                shown = str(entry)[:60]
                raise SourceError(f'{file}: an image must have a "path" and a "class_id", not {shown}') from error
            one = classes[0] if isinstance(classes, list) and len(classes) == 1 else classes
            yield Row(
                None if isinstance(one, list) else f"{job.name}/{name}/{one}",
                path=str(_file(path, root / "images", name).absolute()),
                id=f"{job.name}/train/{path}",
                dataset=dataset,
                split="train",
                domain=domain,
            )


def _file(path: str, images: Path, name: str) -> Path:
    """The file of a path; unpacked with an older unzip, RP2k's Chinese names have #U4e2d for each letter."""
    file = locate(path, images, name, inside=True)
    if name != "rp2k" or path.isascii() or file.exists():
        return file
    plain = "".join(letter if letter.isascii() else f"#U{ord(letter):04x}" for letter in path)
    return Path(images, PurePosixPath(plain))
