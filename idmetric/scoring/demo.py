"""The example pictures in the package, which `idmetric demo` scores."""

from __future__ import annotations

from pathlib import Path

REFERENCE = "mug"
# name -> what the picture shows
CAPTIONS = {
    "mug": "a mug",
    "mug_elsewhere": "the same mug in another place",
    "another_mug": "another mug",
    "box": "a box",
}


def demo_images() -> dict[str, Path]:
    """The files of four small example pictures: a mug, the same mug elsewhere, another mug, a box.

    Returns:
        The path of each picture by its name: "mug", "mug_elsewhere", "another_mug", "box". They are rendered, 256 x 256
        pixels, and belong to the package.
    """
    folder = Path(__file__).with_name("pictures")
    paths = {}
    for name in CAPTIONS:
        paths[name] = folder / f"{name}.webp"
    return paths
