"""The functions that draw a shape of each kind; proportions are part of an identity."""

from __future__ import annotations

from collections.abc import Callable

from idmetric.data.world.figures import animal, bear, car, robot
from idmetric.data.world.goods import bananas, book, bottle, box, can, carton, fruit, pouch
from idmetric.data.world.household import chair, compound, cup, lamp, pan, soap, teapot, vase
from idmetric.data.world.solids import Rng, Solid
from idmetric.data.world.wear import bag, hat, shoe

_KINDS = (
    box, carton, book, can, bottle, vase, pouch, fruit, bananas, cup, teapot, pan, lamp, chair, bag, soap, animal, bear,
    robot, car, shoe, hat, compound,
)  # fmt: skip
SHAPES: dict[str, Callable[[Rng], list[Solid]]] = {draw.__name__: draw for draw in _KINDS}
