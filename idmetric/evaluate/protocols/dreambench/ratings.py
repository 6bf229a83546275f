"""Reads the ratings of DreamBench++'s generated images from the published files, and pairs them by key.

    ratings/data_human_rating/merged_data/group1/emu2-cp.json      {"object_00_mug-4": 3, ...}
    ratings/data_nearid_rating/emu2.json                           metrics: 100 x cosine, "object_00_mug-4_0"

An item is a collection and the number of a prompt: ("object_00", 4). It does not include the object's name, since files
disagree about one (magic_cube, rubik's_cube), nor its place in the file.

Images are pairs of a manifest by `idmetric data import dreambench_pp`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from idmetric.evaluate.protocols.common.columns import parameters
from idmetric.evaluate.protocols.common.paper_numbers import rows

if TYPE_CHECKING:
    from pandas import DataFrame

    from idmetric.data.importers.dreambench import Ratings

Item = tuple[str, int]
METHODS = rows("nearid", "table_2")

CATEGORIES = {"object": "object", "animal": "live_subject_animal", "human": "live_subject_human", "style": "style"}

# published folder -> rater; in comments the column of NearID's Table 2
_FOLDERS = {
    "data_gpt_rating/concept_preservation_full": "gpt",  # G
    "data_dino_rating": "dino",  # D
    "data_clipi_rating": "clip",  # C
    "data_backbone_rating": "siglip2",  # S: mean-pooled tokens
    "data_backbone_maphead_rating": "siglip2-map",  # its own attention pooling
    "data_nearid_rating": "nearid",
    "data_vsm_rating": "vsm",
    "data_qwen3vl_30b_rating": "qwen3vl-30b",
}
_HUMAN = re.compile(r"group\d+")


def read(folder: str | Path) -> Ratings:
    """Ratings in a folder: rater -> method -> item -> rating. The human groups are group1, group2, ...

    Raises:
        ValueError: naming the folder, if it has no human ratings, or two folders of one rater; or a malformed file.
    """
    from idmetric.data.importers.dreambench import read_ratings

    folder = Path(folder)
    if not folder.is_dir():
        raise ValueError(f"{folder}: no such folder of ratings")
    ratings: Ratings = {}
    for path, methods in read_ratings(folder).items():
        # the rater's folder may be the one that was named
        name = _name(folder.resolve().as_posix() if path == "." else path)
        if name in ratings:
            raise ValueError(f"{folder}: two folders of {name}'s ratings, one of them {path}: name the one to use")
        ratings[name] = methods
    if not humans(ratings):
        raise ValueError(f"{folder}: no human ratings (.../group1/METHOD-cp.json) among {', '.join(sorted(ratings))}")
    return ratings


def humans(ratings: Mapping[str, Any]) -> list[str]:
    """The raters who are groups of humans."""
    return sorted(rater for rater in ratings if _HUMAN.fullmatch(rater))


def rated_methods(ratings: Ratings) -> list[str]:
    """The methods with human ratings, in the order of NearID's Table 2, others after them."""
    order = {method: number for number, method in enumerate(METHODS)}
    methods: set[str] = set()
    for name in humans(ratings):
        methods.update(ratings[name])
    return sorted(methods, key=lambda method: (order.get(method, len(order)), method))


def category_of(item: Item) -> str:
    """animal, human, object or style.

    Raises:
        ValueError: for a collection of none of them.
    """
    for category, prefix in CATEGORIES.items():
        if item[0].startswith(f"{prefix}_"):
            return category
    raise ValueError(f"{item[0]!r} is a collection of no category: they start with {', '.join(CATEGORIES.values())}")


def _name(path: str) -> str:
    """Short name of a rater, by the path of their folder."""
    for folder, name in _FOLDERS.items():
        if f"/{path}".endswith(f"/{folder}"):
            return name
    stem = path.rsplit("/", 1)[-1]
    return stem if _HUMAN.fullmatch(stem) else path


@dataclass(frozen=True)
class RatedPair:
    """A generated image: method and item, and the rows of its reference and of itself in the manifest."""

    method: str
    item: Item
    reference: int
    generated: int


def pairs(data: DataFrame, ratings: Ratings) -> list[RatedPair]:
    """The generated images that people rated: the first of each prompt.

    Raises:
        ValueError: if two runs are of one method, or a generated image has no reference.
    """
    from idmetric.data.importers.dreambench import method_of

    groups = [ratings[name] for name in humans(ratings)]
    methods = sorted(rated_methods(ratings))
    anchors = data[data["slot"] == "anchor"]
    references = dict(zip(anchors["group"], anchors.index, strict=True))
    parameters_of = parameters(data)
    images: dict[tuple[str, Item], RatedPair] = {}
    engines: dict[tuple[str, Item], str] = {}
    candidates = data[(data["slot"] == "candidate") & data["engine"].notna()]
    for row in candidates[["id", "group", "engine", "parent"]].itertuples():
        about = parameters_of[row.Index]
        if about.get("image", 0) != 0:
            continue
        method = method_of(row.engine, methods)
        # the collection, such as object_00, ends the reference's id
        item = (row.parent or "").rsplit("/", 1)[-1], int(about["prompt"])
        if method is None or not all(item in group.get(method, {}) for group in groups):
            continue
        if row.group not in references:
            raise ValueError(f"{row.id}: its reference (the anchor of its group) is not in the manifest")
        engine = engines.setdefault((method, item), row.engine)
        if engine != row.engine:
            raise ValueError(f"{engine} and {row.engine} are both images of {method}: leave one of them out")
        images.setdefault((method, item), RatedPair(method, item, references[row.group], row.Index))

    return list(images.values())
