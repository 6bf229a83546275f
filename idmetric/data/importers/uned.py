"""UnED's splits of datasets (Ypsilantis et al., ICCV 2023): github nikosips/Universal-Image-Embeddings.

data/info_files/met/train.json     a list of {"path": "met/MET/...", "class_id": 17, ...}
data/images/met/MET/...            the images of each dataset, from its own authors
"""

from __future__ import annotations

from collections.abc import Iterator

from idmetric.data.importers.run import ImportJob, as_list, as_name
from idmetric.data.importers.source import locate, read_json
from idmetric.data.old_manifest.errors import ManifestError
from idmetric.data.old_manifest.table import Row

# folder -> name of the dataset, and ILGen's domain (Real-S and Real-ALL, section 4.1)
SETS = {
    "met": ("MET", "art"),
    "gldv2": ("GLDv2", "landmark"),
    "sop": ("SOP", "product"),
    "inshop": ("InShop", "product"),
    "rp2k": ("RP2k", "product"),
}


def rows(job: ImportJob) -> Iterator[Row]:
    """A row for each training image; an image of several classes has no identity."""
    root = job.folder()
    for name, (dataset, domain) in SETS.items():
        info = root / "info_files" / name / "train.json"
        for entry in job.limited(read_json(info, list), name):
            try:
                path, classes = str(entry["path"]), entry["class_id"]
            except (KeyError, TypeError) as error:
                raise ManifestError(
                    f'{info}: an image must have a "path" and a "class_id", not {str(entry)[:60]}'
                ) from error
            file = locate(path, root / "images", name, inside=True)
            classes = as_list(classes)
            identity = None
            if len(classes) == 1:
                identity = f"{name}/{as_name(classes[0], f'{info}: class_id of {path}')}"
            yield job.row(identity, f"train/{path}", file, dataset=dataset, split="train", domain=domain)
