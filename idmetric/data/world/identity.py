"""Identities: the recipe of an object, and edits that turn it, a little or entirely, into another object."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

# how often each kind of object occurs
ODDS: Mapping[str, float] = {
    "box": 6, "carton": 4, "book": 2, "can": 3, "bottle": 5, "vase": 2, "pouch": 4, "fruit": 4, "bananas": 1, "cup": 2,
    "teapot": 1, "pan": 1, "lamp": 1, "chair": 1.5, "bag": 2, "soap": 1, "animal": 4, "bear": 2, "robot": 1.5, "car": 3,
    "shoe": 2, "hat": 1, "compound": 1, "garment": 8, "mesh": 4, "shape": 2,
}  # fmt: skip
DOMAINS: Mapping[str, str] = {
    **dict.fromkeys(("box", "carton", "book", "can", "bottle", "pouch", "mesh", "shape"), "products"),
    **dict.fromkeys(("vase", "cup", "teapot", "pan", "lamp", "chair", "soap", "compound"), "household"),
    **dict.fromkeys(("fruit", "bananas"), "produce"),
    **dict.fromkeys(("garment", "bag", "shoe", "hat"), "fashion"),
    **dict.fromkeys(("animal", "bear"), "animals"),
    **dict.fromkeys(("robot", "car"), "toys"),
}


@dataclass(frozen=True)
class Edit:
    """A change of identity.

    Attributes:
        what: "colour" (other hues or brightness), "print" (some choices of the main material's design are redrawn),
            "shape" (proportions move towards another object's), "part" (one part gets another material; part "label":
            a label is stuck on), "all" (the first three together; at strength 1 every material changes too).
        strength: 0..1; 0 = no change.
        seed: of the replacement.
        part: name of the part, for "part".
    """

    what: str
    strength: float
    seed: int
    part: str = ""


@dataclass(frozen=True)
class Identity:
    """The recipe of an object, from which `Assets.build` builds its parts.

    Attributes:
        kind: a key of `ODDS`.
        seed: of shape and materials.
        edits: applied in order. They keep the kind and the topology of the shape, so the edited object has a
            silhouette of the same family.
    """

    kind: str
    seed: int
    edits: tuple[Edit, ...] = ()

    def edited(self, *edits: Edit) -> Identity:
        """The identity after further edits."""
        return replace(self, edits=(*self.edits, *edits))
