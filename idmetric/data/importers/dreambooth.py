"""The dataset of DreamBooth: github google/dreambooth, `dataset/NAME/NN.jpg` (Ruiz et al., CVPR 2023, section 4.1)."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from idmetric.data.importers.folders import pictures_of
from idmetric.data.importers.run import Job
from idmetric.data.importers.source import SourceError
from idmetric.data.manifest.table import Row
from idmetric.io import json_file

_CLASSES = "prompts_and_classes.txt"
_LIVE = {"cat", "dog"}  # the paper's live subjects


def rows(job: Job) -> Iterator[Row]:
    """A row for each photo; the category is the subject's class, the domain "animals" or "objects"."""
    for source in job.sources:
        root = job.folder(source)
        root = root / "dataset" if (root / "dataset").is_dir() else root
        classes = read_classes(root / _CLASSES)
        for picture in pictures_of(job, root):
            if len(picture.path.parts) != 2:
                raise SourceError(f"{root / picture.path}: expected dataset/NAME/NN.jpg")
            subject = picture.path.parts[0]
            kind = classes.get(subject)
            yield Row(
                identity=f"{job.name}/{subject}",
                id=f"{job.name}/{picture.path}",
                dataset=job.name,
                domain=None if kind is None else "animals" if kind in _LIVE else "objects",
                category=kind,
                **picture.files(root),
            )


def read_classes(path: Path) -> dict[str, str]:
    """Subject -> class, from the lines `subject,class` between the heading and the next empty line; {} without file."""
    if not path.is_file():
        return {}
    lines = [line.strip() for line in json_file.read_text(path, "utf-8-sig").splitlines()]
    if "subject_name,class" not in lines:
        raise SourceError(f"{path}: no heading 'subject_name,class'")
    found = {}
    for line in lines[lines.index("subject_name,class") + 1 :]:
        if "," not in line:
            break
        subject, kind = line.split(",", 1)
        found[subject.strip()] = kind.strip()
    return found
