"""DreamBench++: 150 references, 9 prompts each, generated images and their ratings (Peng et al.).

    images/object/00.jpg  captions/object/00.txt      the subject's name, then its 9 prompts, one per line
    SAMPLES/METHOD.../tgt_image/object_00_motorcycle/0_0.jpg      prompt 0, first image
    RATINGS/.../group1/METHOD-cp.json                 {"object_00_motorcycle-0": 3, ...}, 0-4, concept preservation

Collections and ratings are matched by category and number (object_00), because published files disagree on a few names.
A reference and a generated image form a group with the slots anchor and candidate. The candidate's label is the mean of
the human ratings, and its parameters hold every rating.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from statistics import fmean

from idmetric.data.importers.folders import pictures
from idmetric.data.importers.run import Columns, ImportJob
from idmetric.data.importers.source import read_json
from idmetric.data.old_manifest.errors import ManifestError
from idmetric.data.old_manifest.table import Row
from idmetric.metric.files import read_text
from idmetric.metric.paths import is_image, matching
from idmetric.tables import text_lines

_LIVE = ("animal", "human")
_SAMPLE = re.compile(r"(?P<collection>[a-z_]+?_\d+)(_.*)?/(?P<prompt>\d+)_(?P<number>\d+)\.\w+")
_KEY = re.compile(r"(?P<collection>[a-z_]+?_\d+)_.*-(?P<prompt>\d+)(_0)?")
_OTHER = ("prompt_following", "raw_data")  # folders with ratings of another question, or from before they were merged
_SPELLED = {"vit_huge": "vit_h", "vit_giant": "vit_g"}  # in names of image folders -> in names of ratings

# rater -> method -> (collection, prompt) -> rating
Ratings = dict[str, dict[str, dict[tuple[str, int], float]]]


def rows(job: ImportJob) -> Iterator[Row]:
    """The references, then a pair of reference and image for each generated image."""
    references = {}
    for row in _references(job, job.folder()):
        references[row.id.removeprefix(f"{job.name}/")] = row
        yield row
    ratings: Ratings = {}
    if "ratings" in job.options:
        ratings = read_ratings(Path(job.options["ratings"]))
    if "samples" in job.options:
        yield from _samples(job, Path(job.options["samples"]), references, ratings)
    elif ratings:
        raise ManifestError("ratings need generated images: name their folder with --option samples=FOLDER")


def _references(job: ImportJob, root: Path) -> Iterator[Row]:
    folder = root / "images"
    if not folder.is_dir():
        raise ManifestError(f"{root}: no folder images/; expected images/CATEGORY/NN.jpg and captions/CATEGORY/NN.txt")
    for picture in job.limited(pictures(folder), root.name):
        category = picture.path.parent.name
        collection = f"{category}_{picture.path.stem}"
        if category in _LIVE:
            collection = f"live_subject_{collection}"
        columns: Columns = {"split": "test", "domain": category}
        file = root / "captions" / picture.path.with_suffix(".txt")
        if file.is_file():
            captions = text_lines(read_text(file))
            columns |= {"category": next(iter(captions), None), "parameters": {"prompts": captions[1:]}}
        yield job.row(collection, collection, folder / picture.path, **columns)


def _samples(job: ImportJob, folder: Path, references: dict[str, Row], ratings: Ratings) -> Iterator[Row]:
    files = [*filter(is_image, matching(folder, "*/tgt_image/*/*"))]
    if not files:
        raise ManifestError(f"{folder}: no METHOD/tgt_image/COLLECTION/PROMPT_NUMBER.jpg in the folder")
    for path in job.progress(files, len(files), folder.name):
        run = path.parts[-4]
        match = _SAMPLE.fullmatch(f"{path.parent.name}/{path.name}")
        if match is None or match["collection"] not in references:
            raise ManifestError(f"{path}: no reference of this collection, or not named PROMPT_NUMBER")
        reference = references[match["collection"]]
        prompt, number = int(match["prompt"]), int(match["number"])
        ratings_of_image = {}
        if number == 0:
            ratings_of_image = _ratings_of(run, (match["collection"], prompt), ratings)
        human = [rating for rater, rating in ratings_of_image.items() if rater.split("/")[-1].startswith("group")]

        group = f"{reference.id}/{run}/{prompt}_{number}"
        anchor = replace(reference, id=f"{group}/anchor", group=group, slot="anchor", parameters=None)
        yield anchor
        prompts = (reference.parameters or {}).get("prompts", [])
        yield replace(
            anchor,
            identity=None,  # the ratings judge whether it shows the subject
            id=f"{group}/candidate",
            path=str(path.absolute()),
            role="context-edit",
            engine=run,
            text=prompts[prompt] if prompt < len(prompts) else None,
            label=fmean(human) if human else None,
            slot="candidate",
            parent=reference.id,
            parameters={"prompt": prompt, "image": number, "ratings": ratings_of_image},
        )


def _ratings_of(run: str, item: tuple[str, int], ratings: Ratings) -> dict[str, float]:
    """rater -> rating of the first image of a collection and a prompt in the folder of a method."""
    ratings_of_item = {}
    for rater, methods in ratings.items():
        method = method_of(run, methods)
        if method is not None and item in methods[method]:
            ratings_of_item[rater] = methods[method][item]
    return ratings_of_item


def method_of(run: str, methods: Iterable[str]) -> str | None:
    """The method that generated the images of a folder, or None.

    The folder's name is the method's, or starts with it and continues with settings of the run. Two methods are spelled
    out there (ip_adapter_plus_vit_huge_sdxl_... for ip_adapter_plus_vit_h_sdxl).
    """
    for long, short in _SPELLED.items():
        run = run.replace(long, short)
    return max((method for method in methods if f"{run}_".startswith(f"{method}_")), key=len, default=None)


def read_ratings(folder: Path) -> Ratings:
    """All ratings of concept preservation in a folder: RATER/METHOD-cp.json or RATER/METHOD.json.

    Ratings of prompt following are ignored, and so are ratings from before they were merged: raw_data/, and a folder
    RATER/METHOD/ next to RATER/METHOD.json. An item with rating null or NaN counts as not rated.
    """
    ratings: Ratings = {}
    for path in matching(folder, "**/*.json"):
        rater = path.parent.relative_to(folder)
        method = path.stem.removesuffix("-cp")
        is_other = method.endswith("-pf") or any(part.startswith(_OTHER) for part in rater.parts)
        is_merged = path.parent != folder and Path(f"{path.parent}.json").is_file()
        if not is_other and not is_merged:
            ratings.setdefault(rater.as_posix(), {})[method] = read_rating_file(path)
    if not ratings:
        raise ManifestError(f"{folder}: no ratings (RATER/METHOD-cp.json) in the folder")
    return ratings


def read_rating_file(path: Path) -> dict[tuple[str, int], float]:
    """(collection, prompt) -> rating of a file of one rater and method; items rated null or NaN are absent."""
    ratings: dict[tuple[str, int], float] = {}
    for name, value in read_json(path, dict).items():
        if value is None or value != value:  # the rater's answer was not readable
            continue
        match = _KEY.fullmatch(name)
        if match is None or not isinstance(value, int | float):
            raise ManifestError(f"{path}: {name!r}: {value!r} is not a rating of COLLECTION-PROMPT")
        item = match["collection"], int(match["prompt"])
        if ratings.setdefault(item, float(value)) != value:
            raise ManifestError(f"{path}: {name!r} is rated twice")
    return ratings
