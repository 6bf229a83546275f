"""Where the regions of images come from: lists, a dict, a CSV file, a COCO file, files of masks.

regions=[(40, 60, 220, 300), (0.5, 0.1, 0.9, 0.8)]  # of one image or clip; of several, a list of such lists
regions={"street/01.jpg": [(40, 60, 220, 300)]}     # the end of an image's path -> its regions; also "clip.mp4 @ 12"
regions="boxes.csv"                                 # columns path,x,y,w,h[,label,width,height]; or a DataFrame
regions="boxes.json"                                # COCO: boxes, and polygons or run-length codes as masks
regions="masks/"                                    # masks/IMAGE/LABEL.png, or masks/IMAGE.png

What a file says of the size of its images is used, and what would turn its boxes is refused.
"""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import chain
from pathlib import Path
from typing import Any

from idmetric.matching.coco import read_coco
from idmetric.matching.listed_paths import by_path, names_text, reason_of
from idmetric.matching.regions import Region, Regions, as_region, is_region
from idmetric.metric import paths
from idmetric.metric.errors import RequestError
from idmetric.tables import number_of, read_table

RegionsByPath = Mapping[str, Sequence[Region]]
# the number of an image or clip, and the name of the image or frame -> its regions, None if none are listed
FindRegions = Callable[[int, str], Sequence[Region] | None]
_SIZE = ("x", "y", "w", "h")
_CORNERS = ("left", "top", "right", "bottom")
_OTHERS = ("path", "image", "label", "width", "height", "rotation")


def region_finder(regions: Regions, names: Sequence[Sequence[str]]) -> FindRegions:
    """The function that finds an image's regions.

    Args:
        regions: see this module; None stands for whole images.
        names: of each image or clip, the name of the image, or of each frame.

    Raises:
        RequestError: for regions that do not fit the images, and for files that cannot be read.
    """
    if regions is None:
        return lambda number, name: [Region()]
    all_names = list(chain.from_iterable(names))
    listed = _listed(regions, all_names)
    if listed is None:
        lists = _lists_of(regions, len(names))
        return lambda number, name: lists[number]

    of_images = by_path(listed, all_names, "regions")
    if not of_images:
        raise RequestError(
            f"none of the images ({names_text(all_names)}) has regions ({names_text(listed)} have): compare the paths"
        )
    return lambda number, name: of_images.get(name)


def _listed(regions: Any, names: Sequence[str]) -> RegionsByPath | None:
    """Regions by path, of a dict, a table, a file or a folder; None for lists."""
    if isinstance(regions, str | os.PathLike):
        return read_regions(os.fspath(regions), names)
    if hasattr(regions, "columns"):  # a DataFrame, for which pandas need not be there
        rows = regions.to_dict("records")
        return _of_rows("the table of regions", regions.columns, enumerate(rows))
    if not isinstance(regions, Mapping):
        return None

    by_name: dict[str, list[Region]] = {}
    for path, of_image in regions.items():
        try:
            by_name[str(path)] = list(map(as_region, of_image))
        except RequestError as error:
            raise RequestError(f"regions of {path}: {error}") from error
    return by_name


def _lists_of(regions: Any, count: int) -> list[list[Region]]:
    """A list of regions for each image or clip; that of a single one may stand for itself."""
    is_flat = all(map(is_region, regions))
    if count == 1 and is_flat:
        return [list(map(as_region, regions))]
    has_regions = any(map(is_region, regions))
    if len(regions) != count or has_regions:
        raise RequestError(f"{len(regions)} regions were given for {count} images: give a list for each image")
    return [list(map(as_region, of_source)) for of_source in regions]


# Files


def read_regions(path: str, names: Sequence[str]) -> RegionsByPath:
    """The regions in a file or folder, of these images or of more; RequestError naming what cannot be used."""
    _, ending = os.path.splitext(path.lower())
    try:
        if os.path.isdir(path):
            return _of_masks(path, names)
        if paths.is_image(path):
            return {name: [Region(mask=path)] for name in names}
        if ending == ".json":
            return read_coco(path)
        if ending in (".csv", ".tsv", ".jsonl"):
            table = read_table(path, known=(*_OTHERS, *_SIZE, *_CORNERS))
            return _of_rows(path, table.columns, table.records())
    except RequestError:
        raise
    except (OSError, ValueError) as error:
        raise RequestError(f"cannot read regions {path}: {reason_of(error)}") from error
    raise RequestError(f"cannot read regions {path}: give a COCO .json, a .csv with path,x,y,w,h, or a folder of masks")


def _of_rows(source: str, columns: Sequence[str], rows: Iterable[tuple[int, Mapping[str, Any]]]) -> RegionsByPath:
    """The regions in the numbered rows of a table; a row of a path alone lists an image without regions.

    A table that `Match.write` wrote has the path as `image`, and a row for each subject and region.
    """
    name = "image" if "image" in columns and "path" not in columns else "path"
    sides = _CORNERS if set(_CORNERS) <= set(columns) else _SIZE
    missing = {name, *sides} - set(columns)
    if missing:
        needed = "path,x,y,w,h or path,left,top,right,bottom are needed"
        raise RequestError(f"{source} has no column {', '.join(sorted(missing))}: {needed}")

    regions: dict[str, list[Region]] = defaultdict(list)
    for number, row in rows:
        cells = {}
        for column, cell in row.items():
            is_empty = cell in (None, "") or cell != cell  # NaN in a DataFrame
            if not is_empty:
                cells[column] = str(cell)
        if name not in cells:
            raise RequestError(f"{source}, row {number}: it names no image")
        of_image = regions[cells.pop(name)]
        if not cells.keys() & {*sides, "label"}:
            continue
        try:
            region = _of_cells(cells, sides)
        except ValueError as error:
            raise RequestError(f"{source}, row {number}: {error}") from error
        if region not in of_image:
            of_image.append(region)
    return regions


def _of_cells(cells: Mapping[str, str], sides: Sequence[str]) -> Region:
    turn = cells.get("rotation", "0")
    if number_of(turn) != 0:
        raise ValueError(f"its box is turned by {turn} degrees: give an upright box, or a mask")
    left, top, right, bottom = _numbers(cells, sides)
    if sides == _SIZE:
        right += left
        bottom += top
    image_size = None
    if "width" in cells or "height" in cells:
        width, height = _numbers(cells, ("width", "height"))
        image_size = (int(width), int(height))
    label = cells.get("label", "")
    return Region((left, top, right, bottom), label=label.strip(), image_size=image_size)


def _numbers(cells: Mapping[str, str], columns: Sequence[str]) -> list[float]:
    numbers = []
    for column in columns:
        if column not in cells:
            raise ValueError(f"column {column!r} is empty")
        numbers.append(number_of(cells[column]))
    return numbers


def _of_masks(folder: str, names: Sequence[str]) -> RegionsByPath:
    """A region for each mask of an image: IMAGE/LABEL.png, or IMAGE.png without a label.

    IMAGE is the end of the image's path, with as many of its folders as there are below the folder of masks, without
    its ending; that of a frame is such as "clip.mp4 @ 12".
    """
    listed: dict[str, list[Region]] = defaultdict(list)
    for mask in paths.images_below(Path(folder)):
        path = mask.relative_to(folder).with_suffix("")
        folder_path = str(path.parent)
        listed[str(path)].append(Region(mask=mask))
        listed[folder_path].append(Region(mask=mask, label=path.name))

    name_of_stem = {}
    for name in names:
        stem, _ = os.path.splitext(name)
        if " @ " in name:
            stem = name
        name_of_stem[stem] = name
    of_stems = by_path(listed, list(name_of_stem), "masks")
    return {name_of_stem[stem]: regions for stem, regions in of_stems.items()}
