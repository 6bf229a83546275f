"""The pages of `idmetric eval study build`: questions about pairs or triplets of images, answered in a browser.

A page holds small copies of its images, and of each question a random id. File names, identities, right answers and
which questions are sentinels stay out of it. See `idmetric.report.page` for the common parts of all pages.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

from idmetric.images.read import ImageReadError, read_image
from idmetric.protocols.judges.questions import INDIVIDUAL
from idmetric.protocols.study.study import Question, Study, Task
from idmetric.report.page import render, write_page
from idmetric.report.pictures import data_uri

_QUALITY = 90  # of the encoder, as fine traits decide
_PART = 0.9  # of the sides of an image that a sentinel compares with itself
_CAPTIONS: Mapping[Task, tuple[str, ...]] = {
    "pairs": ("Image A", "Image B"), "triplets": ("Reference", "Left image", "Right image"),
}  # fmt: skip
_CHOICES: Mapping[Task, tuple[tuple[str, str], ...]] = {
    "pairs": (("same", "Same"), ("different", "Different")),
    "triplets": (("left", "Left image"), ("right", "Right image")),
}


def write_pages(study: Study, folder: Path, progress: Callable[[int, int], None] | None = None) -> list[Path]:
    """Write page-1.html, page-2.html, ... to a folder; returns their paths.

    Args:
        progress: called with (images done, images to do).

    Raises:
        ValueError: naming every image that cannot be read, before anything is written; ImportError: without jinja2.
    """
    pages = study.pages
    total, done = sum(len(q.rows) for page in pages.values() for q in page), 0
    written: list[tuple[Path, str]] = []
    problems: dict[str, None] = {}

    for number, questions in pages.items():
        pictures: dict[str, int] = {}
        asked: list[dict[str, object]] = []
        for question in questions:
            try:
                shown = [pictures.setdefault(uri, len(pictures)) for uri in _pictures(study, question)]
                asked.append({"id": question.id, "images": shown})
            except (ImageReadError, OSError) as error:
                problems[str(error)] = None
            done += len(question.rows)
            if progress is not None:
                progress(done, total)
        if not problems:
            written.append((folder / f"page-{number}.html", _page(study, number, asked, list(pictures))))

    if problems:
        listed = "\n  ".join(problems)
        raise ValueError(f"{len(problems)} images cannot be read: repair them or take their rows out:\n  {listed}")
    for path, page in written:
        write_page(page, path)
    return [path for path, _ in written]


def _page(study: Study, number: int, asked: list[dict[str, object]], pictures: list[str]) -> str:
    criterion = " ".join(INDIVIDUAL.split())
    record = {"study": study.id, "page": number, "task": study.task, "questions": asked, "pictures": pictures}
    return render(
        "study", ("theme.js", "study.js"), {"record": record},
        title=study.title, task=study.task, study=study.id, page=number, pages=len(study.pages), count=len(asked),
        side=study.side, criterion=criterion, traits=criterion.partition("? ")[2], captions=_CAPTIONS[study.task],
        choices=_CHOICES[study.task],
    )  # fmt: skip


def _pictures(study: Study, question: Question) -> Iterator[str]:
    """The images of a question as data addresses; a sentinel that repeats its anchor shows the middle of it there."""
    anchor = study.items.source(question.rows[0]) if question.sentinel else None
    for k, row in enumerate(question.rows):
        source = study.items.source(row)
        picture = read_image(source or b"")
        if k and source == anchor:
            width, height = picture.size
            left, top = round(width * (1 - _PART) / 2), round(height * (1 - _PART) / 2)
            picture = picture.crop((left, top, max(left + 1, width - left), max(top + 1, height - top)))
        # a byte for each pixel: noise alone takes more
        yield data_uri(picture, study.side * study.side, study.side, _QUALITY)
