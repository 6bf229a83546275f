"""Pascal VOC's XML, one file for each image: boxes by corners as they are written, in pixels, and polygons."""

from __future__ import annotations

import re
from functools import partial
from xml.etree import ElementTree

from idmetric.matching.annotations import Annotation, box_by_corners, checked_region, outline_of, size_of_image
from idmetric.matching.codes import Polygons
from idmetric.matching.regions import Region
from idmetric.metric.errors import RequestError
from idmetric.metric.files import json_file

_MOST = 2**24  # bytes of a file


def read_voc(path: str) -> list[Annotation]:
    """The objects of an XML file; it may not define entities, which can name other files or fill the memory."""
    text = _xml_text(path)
    if re.search("<!(DOCTYPE|ENTITY)", text, re.IGNORECASE):
        raise RequestError("it defines types or entities of XML, which annotations do not need: remove them")
    try:
        root = ElementTree.fromstring(text)
    except (ElementTree.ParseError, RecursionError, ValueError) as error:
        raise RequestError(f"it is not XML: {error}") from error
    if root.tag == "annotations":
        raise RequestError("it is CVAT's own XML: export the task as COCO 1.0")
    if root.tag != "annotation":
        raise RequestError(f"it is not an annotation of Pascal VOC: it begins with <{root.tag:.40}>")
    annotations = []
    for number, voc_object in enumerate(root.findall("object"), 1):
        annotations.append(Annotation(f"{path}, object {number}", partial(_voc_region, root, voc_object)))
    return annotations


def _xml_text(path: str) -> str:
    """The text of an XML file, by its byte order mark or the encoding that it names."""
    data = json_file.read_bytes(path, _MOST)
    encoding = "utf-8-sig"
    named = re.match(rb"<\?xml[^>]*encoding=[\"']([A-Za-z0-9._-]+)", data)
    if data.startswith((b"\xff\xfe", b"\xfe\xff")):
        encoding = "utf-16"
    elif named:
        encoding = named[1].decode()
    try:
        return data.decode(encoding)
    except (LookupError, ValueError) as error:
        raise RequestError(f"it is not text in {encoding}: {error}") from error


def _voc_region(root: ElementTree.Element, voc_object: ElementTree.Element) -> Region:
    image_size = size_of_image(root.findtext("size/width"), root.findtext("size/height"))
    box_element = voc_object.find("bndbox")
    box = None
    if box_element is not None:
        box = box_by_corners([box_element.findtext(side) for side in ("xmin", "ymin", "xmax", "ymax")])
    mask = None
    polygon = voc_object.find("polygon")
    if polygon is not None:
        mask = Polygons([_voc_outline(polygon)])
    score = voc_object.findtext("confidence") or voc_object.findtext("score")
    return checked_region(box, mask, voc_object.findtext("name"), score, image_size)


def _voc_outline(polygon: ElementTree.Element) -> list[float]:
    """The corners of <x1> <y1> <x2> ..., as Roboflow writes them, or of <pt><x><y>, as the LabelMe of the web does."""
    values = []
    for element in polygon.iter():
        if re.fullmatch("[xy][0-9]*", element.tag):
            values.append(element.text)
    return outline_of(values)
