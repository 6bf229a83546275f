"""UnED's splits of eight datasets (Ypsilantis et al., ICCV 2023): github nikosips/Universal-Image-Embeddings.

data/info_files/met/train.json     a list of {"path": "met/MET/...", "class_id": 17, ...}
data/images/met/MET/...            the images of each dataset, from its own authors
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path, PurePosixPath

from idmetric.data.importers.run import Job
from idmetric.data.importers.source import SourceError, locate, read_json
from idmetric.data.manifest.table import Row

# folder -> name of the dataset, and ILGen's domain where it has one
SETS = {
    "met": ("MET", "art"), "gldv2": ("GLDv2", "landmark"), "sop": ("SOP", "product"), "inshop": ("InShop", "product"),
    "rp2k": ("RP2k", "product"), "cars": ("Cars196", None), "food2k": ("Food2k", None), "inat": ("iNaturalist", None),
}  # fmt: skip
ILGEN = ("met", "gldv2", "sop", "inshop", "rp2k")  # of Real-S and Real-ALL (ILGen, section 4.1)
SPLITS = ("train", "val", "test", "index", "small_train", "small_index")


def rows(job: Job) -> Iterator[Row]:
    """A row for each image of the chosen sets and splits; an image of several classes has no identity."""
    sets = _chosen(job, "sets", ",".join(ILGEN), tuple(SETS))
    splits = _chosen(job, "splits", "train", SPLITS)
    root = job.folder()
    for folder in ("info_files", "images"):
        if not (root / folder).is_dir():
            raise SourceError(f"{root / folder}: no such folder; the source is UnED's folder data with both")
    for name in sets:
        for split in splits:
            yield from _split(job, root, name, split)


def _split(job: Job, root: Path, name: str, split: str) -> Iterator[Row]:
    """The rows of one info file, up to the job's limit."""
    file = root / "info_files" / name / f"{split}.json"
    dataset, domain = SETS[name]
    for entry in job.limited(read_json(file, list), f"{name} {split}"):
        try:
            path, classes = str(entry["path"]), entry["class_id"]
        except (KeyError, TypeError) as error:
            raise SourceError(f'{file}: an image must have a "path" and a "class_id", not {str(entry)[:60]}') from error
        one = classes[0] if isinstance(classes, list) and len(classes) == 1 else classes
        yield Row(
            None if isinstance(one, list) else f"{job.name}/{name}/{one}",
            path=str(_file(path, root / "images", name).absolute()),
            id=f"{job.name}/{split}/{path}",
            dataset=dataset,
            split=split,
            domain=domain,
        )


def _file(path: str, images: Path, name: str) -> Path:
    """The file of a path; unpacked with an older unzip, RP2k's Chinese names have #U4e2d for each letter."""
    file = locate(path, images, name, inside=True)
    if name != "rp2k" or path.isascii() or file.exists():
        return file
    plain = "".join(letter if letter.isascii() else f"#U{ord(letter):04x}" for letter in path)
    return Path(images, PurePosixPath(plain))


def _chosen(job: Job, option: str, default: str, known: tuple[str, ...]) -> list[str]:
    """The names of an option, separated by commas."""
    names = [part.strip() for part in job.options.get(option, default).split(",")]
    if unknown := [part for part in names if part not in known]:
        raise SourceError(f"option {option}: unknown {unknown[0]!r}; there are {', '.join(known)}")
    return list(dict.fromkeys(names))
