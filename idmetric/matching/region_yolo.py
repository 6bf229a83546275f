"""YOLO's files of labels, one for each image, and the names of their classes.

0 0.5 0.5 0.2 0.3           class, center, width and height, in fractions of the image; a confidence may follow
0 0.1 0.1 0.4 0.1 0.4 0.4   class, and the corners of a polygon or of a turned rectangle
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from functools import cached_property, partial
from typing import Any

from idmetric.matching.annotations import Annotation, checked_region, label_text, number_of, outline_of
from idmetric.matching.codes import Polygons
from idmetric.matching.regions import Region
from idmetric.metric.errors import RequestError
from idmetric.metric.files import json_file
from idmetric.metric.files.hints import need

_NAMES = ("data.yaml", "data.yml", "classes.txt", "obj.names")
_LEVELS = 3  # of folders, from the labels upwards, in which names are looked for
_MOST = 2**24  # bytes of a file
_SLACK = 0.01  # by which rounding may take a fraction out of 0..1


class YoloClasses:
    """The names of classes in data.yaml (`names`), classes.txt or obj.names, and the labels that refer to them.

    Args:
        folder: of the labels; the names are in it, or up to two folders above.
        source: the file of names, if it is known.
    """

    def __init__(self, folder: str, source: str = "") -> None:
        self.folder = folder
        self.given_source = source

    @cached_property
    def source(self) -> str:
        """The file of names; "" without one, where a class is called by its number."""
        if self.given_source:
            return self.given_source
        folder = os.path.abspath(self.folder)
        for _ in range(_LEVELS):
            for file_name in _NAMES:
                path = os.path.join(folder, file_name)
                if os.path.isfile(path):
                    return path
            folder = os.path.dirname(folder)
        return ""

    @cached_property
    def _content(self) -> Mapping[str, Any]:
        """What the file of names says, as in YAML."""
        if not self.source:
            return {"names": {}}
        text = json_file.read_text(self.source, _MOST)
        if self.source.lower().endswith((".yaml", ".yml")):
            return _parsed(self.source, text)
        lines = [line.strip() for line in text.splitlines()]
        return {"names": dict(enumerate(lines))}

    @cached_property
    def names(self) -> dict[int, str]:
        """The name of each class."""
        names = self._content.get("names")
        if isinstance(names, list):
            names = dict(enumerate(names))
        if not isinstance(names, Mapping):
            raise RequestError(f"{self.source} has no `names`, a list of classes")
        return {int(number_of(number)): label_text(name) for number, name in names.items()}

    def name_of(self, number: float) -> str:
        """The name of a class; RequestError for one that the file lacks."""
        if number < 0 or not number.is_integer():
            raise RequestError(f"its class is {number:g}: a whole number from 0 is needed")
        if not self.source:
            return str(int(number))
        if not self.names.get(int(number)):
            raise RequestError(f"its class is {number:g}, which {self.source} lacks: add its name")
        return self.names[int(number)]

    def read_labels(self, path: str) -> list[Annotation]:
        """The lines of a file of labels; an empty file is of an image without objects."""
        annotations = []
        lines = json_file.read_text(path, _MOST).splitlines()
        for number, line in enumerate(lines, 1):
            if line.strip():
                annotations.append(Annotation(f"{path}, line {number}", partial(self._region, line)))
        return annotations

    def _region(self, line: str) -> Region:
        values = [number_of(text) for text in line.split()]
        label = self.name_of(values[0])
        sides = values[1:]
        if "kpt_shape" in self._content:  # keypoints follow the box
            sides = sides[:4]
        score = sides.pop() if len(sides) == 5 else None
        if not sides or min(sides) < -_SLACK or max(sides) > 1 + _SLACK:
            raise RequestError(
                f"{line.strip():.60} is not CLASS x y width height, or CLASS x y x y ..., in fractions of 0..1"
            )
        if len(sides) == 4:
            x, y, width, height = sides
            box = (x - width / 2, y - height / 2, x + width / 2, y + height / 2)
            return checked_region(box, None, label, score)
        return checked_region(None, Polygons([outline_of(sides)], in_fractions=True), label)


def _parsed(path: str, text: str) -> Mapping[str, Any]:
    need("eval", f"reading {path}", yaml="PyYAML")
    import yaml

    try:
        content = yaml.safe_load(text)
    except (yaml.YAMLError, RecursionError, ValueError) as error:
        raise RequestError(f"{path} is not YAML: {error}") from error
    if not isinstance(content, Mapping):
        raise RequestError(f"{path} has no `names`, a list of classes")
    return content
