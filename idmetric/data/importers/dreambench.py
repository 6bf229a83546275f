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
from pathlib import Path
from statistics import fmean

from idmetric.data.importers.folders import FolderImage, pictures
from idmetric.data.importers.run import ImportJob
from idmetric.data.importers.source import Row, read_json
from idmetric.data.manifest import ManifestError
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


def dreambench_pp(job: ImportJob) -> Iterator[Row]:
    """The references, then a pair of reference and image for each generated image."""
    root = job.folder()
    if not (root / "images").is_dir():
        raise ManifestError(f"{root}: no folder images/; expected images/CATEGORY/NN.jpg and captions/CATEGORY/NN.txt")
    references = [_reference(root, picture) for picture in pictures(root / "images")]
    yield from job.rows(references, lambda reference: [reference])

    if "samples" not in job.options:
        if "ratings" in job.options:
            raise ManifestError("ratings need generated images: name their folder with --option samples=FOLDER")
        return
    folder = Path(job.options["samples"])
    files = [*filter(is_image, matching(folder, "*/tgt_image/*/*"))]
    if not files:
        raise ManifestError(f"{folder}: no METHOD/tgt_image/COLLECTION/PROMPT_NUMBER.jpg in the folder")
    ratings = read_ratings(Path(job.options["ratings"])) if "ratings" in job.options else {}
    by_id = {reference["id"]: reference for reference in references}
    yield from job.rows(files, lambda file: _pair(file, by_id, ratings))


def _reference(root: Path, picture: FolderImage) -> Row:
    """The row of a reference."""
    domain = picture.path.parent.name
    collection = f"{domain}_{picture.path.stem}"
    if domain in _LIVE:
        collection = f"live_subject_{collection}"
    captions_file = (root / "captions" / picture.id).with_suffix(".txt")
    row: Row = {
        "identity": collection,
        "id": collection,
        "path": picture.path,
        "split": "test",
        "domain": domain,
    }
    if captions_file.is_file():
        captions = text_lines(read_text(captions_file))
        row["category"] = next(iter(captions), None)
        row["parameters"] = {"prompts": captions[1:]}
    return row


def _pair(file: Path, references: dict[str, Row], ratings: Ratings) -> list[Row]:
    """The rows of a reference and of an image that a method generated of it."""
    run = file.parts[-4]
    match = _SAMPLE.fullmatch(f"{file.parent.name}/{file.name}")
    if match is None or match["collection"] not in references:
        raise ManifestError(f"{file}: no reference of this collection, or not named PROMPT_NUMBER")
    reference = references[match["collection"]]
    prompt, number = int(match["prompt"]), int(match["number"])
    ratings_of_image = {}  # rater -> rating; the first image of a prompt was rated
    for rater, methods in ratings.items():
        ratings_of_method = methods.get(method_of(run, methods) or "", {})
        rating = ratings_of_method.get((match["collection"], prompt))
        if number == 0 and rating is not None:
            ratings_of_image[rater] = rating
    human = [rating for rater, rating in ratings_of_image.items() if rater.split("/")[-1].startswith("group")]
    prompts = reference.get("parameters", {}).get("prompts", [])

    group = f"{reference['id']}/{run}/{prompt}_{number}"
    anchor = {
        **reference,
        "id": f"{group}/anchor",
        "group": group,
        "slot": "anchor",
        "parameters": None,
    }
    candidate = {
        "identity": None,  # the ratings judge whether it shows the subject
        "id": f"{group}/candidate",
        "path": file,
        "role": "context-edit",
        "engine": run,
        "text": prompts[prompt] if prompt < len(prompts) else None,
        "label": fmean(human) if human else None,
        "slot": "candidate",
        "parent": reference["id"],
        "parameters": {"prompt": prompt, "image": number, "ratings": ratings_of_image},
    }
    return [anchor, anchor | candidate]


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
