"""The functions that draw a shape of each kind; proportions are part of an identity."""

from __future__ import annotations

from collections.abc import Callable

from idmetric.data.world.figures import animal, bear, car, robot
from idmetric.data.world.goods import bananas, book, bottle, box, can, carton, fruit, pouch
from idmetric.data.world.household import chair, compound, cup, lamp, pan, soap, teapot, vase
from idmetric.data.world.solids import Rng, Solid
from idmetric.data.world.wear import bag, hat, shoe

SHAPES: dict[str, Callable[[Rng], list[Solid]]] = {
    "box": box,
    "carton": carton,
    "book": book,
    "can": can,
    "bottle": bottle,
    "vase": vase,
    "pouch": pouch,
    "fruit": fruit,
    "bananas": bananas,
    "cup": cup,
    "teapot": teapot,
    "pan": pan,
    "lamp": lamp,
    "chair": chair,
    "bag": bag,
    "soap": soap,
    "animal": animal,
    "bear": bear,
    "robot": robot,
    "car": car,
    "shoe": shoe,
    "hat": hat,
    "compound": compound,
}
