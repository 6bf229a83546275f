"""What the papers train and test on, rendered: views, matched distractors, part edits, context edits, edit grids.

Every picture follows from (seed, number, place in the structure, assets): not from what else was rendered, in which
order or by how many processes.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
from numpy.random import Generator

from idmetric.data.world.context import (
    Background,
    Context,
    draw_background,
    sample_background,
    sample_context,
    sample_light,
)
from idmetric.data.world.dice import stream
from idmetric.data.world.identity import DOMAINS, Edit, Identity, shared_assets
from idmetric.data.world.render import Light, Picture
from idmetric.data.world.scene import Shot, names, render_scene

FACTORS = ("background", "viewpoint", "light")
STRENGTHS = (0.0, 0.15, 0.3, 0.5, 0.75, 1.0)  # identity changes of the edit grid
LEVELS = (0.0, 0.25, 0.5, 0.75, 1.0)  # context changes of the edit grid
_TRIES = 12
_SEEN = 3.0  # mean change of the thing's pixels, 8-bit values, below which an edit can't be seen
_TURN = float(np.radians(75))  # viewpoint change of level 1
_PLAIN = Context(Background("studio", 0), 0.0, 0.15, 0.0, 0.8, (0.5, 0.5), 20.0, Light((0.3, 0.6, 1.0)), shadow=0.0)


@dataclass(frozen=True)
class Take:
    """One picture of a structure and what it shows.

    Attributes:
        name: within the identity, such as view-0, near-1-0.50. identity, context: what was rendered.
        key: whose identity it is: equal for views of one thing. role, parent, oracle: as in a manifest's `Row`.
        change: mean absolute change of the thing's pixels from the parent, 0..255; None where it isn't an edit.
        about: further parameters.
    """

    name: str
    identity: Identity
    context: Context
    shot: Shot
    key: str
    role: str = "real"
    parent: str | None = None
    oracle: float | None = None
    change: float | None = None
    about: Mapping[str, Any] | None = None

    @property
    def parameters(self) -> dict[str, Any]:
        """All that made the picture, as JSON values."""
        made = {"thing": asdict(self.identity), "context": asdict(self.context), **(self.about or {})}
        if self.change is not None:
            made["change"] = round(self.change, 3)
        plain: dict[str, Any] = json.loads(json.dumps(made))
        return plain


class World:
    """Things numbered 0, 1, 2, ...; everything about one follows from (seed, number, assets).

    Args:
        seed: which world. assets: folder of meshes and photos (see `Assets`), or None for procedural things alone.
        size: side of the pictures in pixels.
    """

    def __init__(self, seed: int, assets: Path | None = None, size: int = 224) -> None:
        self.seed, self.size = seed, size
        self.assets = shared_assets(assets)
        self._alike = lru_cache(maxsize=64)(self._find_alike)

    def __reduce__(self) -> tuple[Any, ...]:  # without what it remembers
        return World, (self.seed, self.assets.folder, self.size)

    def identity(self, number: int) -> Identity:
        """The thing of this number."""
        rng = np.random.default_rng([self.seed, number, 0])
        odds = self.assets.kinds
        return Identity(str(rng.choice(list(odds), p=list(odds.values()))), int(rng.integers(1 << 31)))

    def key(self, number: int) -> str:
        """The name of the identity."""
        return f"world-{self.seed}-{number:06d}"

    def domain(self, number: int) -> str:
        """Products, household, produce, fashion, animals or toys."""
        return DOMAINS[self.identity(number).kind]

    def context(self, number: int, view: int) -> Context:
        """The context of a view."""
        rng = np.random.default_rng([self.seed, number, 1, view])
        return sample_context(rng, self.identity(number).kind, self.assets)

    def render(self, identity: Identity, context: Context, part: str | None = None) -> Shot:
        """A picture."""
        return render_scene(identity, context, self.assets, self.size, part)

    def views(self, number: int, count: int) -> Iterator[Take]:
        """The thing in different contexts (multi-view positives); it shows at least 2 % of each picture."""
        identity, key = self.identity(number), self.key(number)
        for view in range(count):
            context = self.context(number, view)
            shot = self.render(identity, context)
            for again in range(_TRIES):  # hidden or out of the frame: smaller and in the middle
                if shot.coverage >= 0.02:
                    break
                scale = 0.6 + 0.02 * again
                context = replace(context, occluders=(), centre=(0.5, 0.5), scale=scale, figure=None)
                shot = self.render(identity, context)
            yield Take(f"view-{view}", identity, context, shot, key)

    def near(self, view: Take, number: int, strength: float, copy: int = 0) -> Take:
        """A distractor: another thing in the very context of a view (NearID, section 3.3).

        Args:
            strength: 1 = another thing of the same kind and silhouette family; less = the thing itself with its
                colours, print or proportions, or all of them, changed that much.
            copy: several distractors of one view differ by it.
        """
        level = round(strength * 1000)
        seed = np.random.default_rng([self.seed, number, 2, level, copy]).integers(1 << 31)  # one thing for all views
        other = self._alike(view.identity, strength, int(seed))
        shot = self.render(other, view.context)
        about = {"strength": strength}
        name = f"{view.name}-near-{strength:.2f}" + (f"-{copy}" if copy else "")
        key = f"{view.key}~near-{strength:.2f}" + (f"-{copy}" if copy else "")
        return Take(
            name, other, view.context, shot, key, "distractor", view.name, None, _change(view.shot, shot), about
        )

    def _find_alike(self, identity: Identity, strength: float, seed: int) -> Identity:
        """The thing edited so that it can be seen: from the front, in plain light."""
        first = self._glance(identity)
        for again in range(_TRIES):
            other = edit(identity, strength, stream(seed, again))
            if _change(first, self._glance(other)) >= _SEEN:
                break
        return other

    def _glance(self, identity: Identity) -> Shot:
        return render_scene(identity, _PLAIN, self.assets, 64)

    def part_edit(self, views: list[Take], number: int, copy: int = 0) -> list[Take]:
        """One part of the thing made of something else, in each view, with the part's mask and the oracle score.

        As in MTG: views 1 and 2 of a thing, each with its edit. A view in which the part doesn't show has none.
        """
        rng = np.random.default_rng([self.seed, number, 3, copy])
        identity = views[0].identity
        parts = self.assets.build(identity)
        options = rng.permutation([n for n in names(parts) if n not in ("body", "cloth")]).tolist()
        if any(p.region is not None for p in parts):
            options.insert(int(rng.integers(len(options) + 1)), "label")
        for name in [*options, *["label"] * _TRIES]:  # what bears no label, or shows no part, gets a label stuck on
            changed = identity.edited(Edit("part", 1.0, int(rng.integers(1 << 31)), name))
            takes = []
            for view in views:
                shot = self.render(changed, view.context, name)
                moved = _change(view.shot, shot, shot.part_mask)
                if 0.01 <= 1 - shot.oracle <= 0.7 and moved >= 4 * _SEEN:
                    takes.append(
                        Take(f"{view.name}-part-{copy}", changed, view.context, shot, f"{view.key}~part-{copy}",
                             "part-edit", view.name, shot.oracle, moved, {"part": name})
                    )  # fmt: skip
            if takes:
                return takes
        return []

    def context_edit(self, view: Take, number: int, copy: int = 0) -> Take:
        """The same thing in the same pose before another background in another light (ID-Sim, subset 2a)."""
        rng = np.random.default_rng([self.seed, number, 4, _number(view.name), copy])
        context = replace(
            view.context, background=sample_background(rng, view.identity.kind, self.assets), light=sample_light(rng),
            occluders=(), seed=int(rng.integers(1 << 31)),
        )  # fmt: skip
        shot = self.render(view.identity, context)
        return Take(f"{view.name}-context-{copy}", view.identity, context, shot, view.key, "context-edit", view.name)

    def identity_edit(self, view: Take, number: int, strength: float, copy: int = 0) -> Take:
        """The thing changed in the same context (ID-Sim, subset 2b): like `near`, another change for each view."""
        place = [self.seed, number, 5, _number(view.name), round(strength * 1000), copy]
        other = self._alike(view.identity, strength, int(np.random.default_rng(place).integers(1 << 31)))
        shot = self.render(other, view.context)
        tail = f"{strength:.2f}-{copy}"
        return Take(f"{view.name}-edit-{tail}", other, view.context, shot, f"{view.key}~{view.name}-edit-{tail}",
                    "identity-edit", view.name, None, _change(view.shot, shot), {"strength": strength})  # fmt: skip

    def grid(self, number: int, factor: str) -> Iterator[Take]:
        """Identity changes crossed with changes of one context factor (ID-Sim, section 4.4 and supplement F).

        Each picture's parameters hold factor, factor_change and identity_change in 0..1; the first picture, unchanged,
        is the anchor and every other's parent. Backgrounds are ordered by how far they are from the anchor's.
        """
        identity, key = self.identity(number), self.key(number)
        rng = np.random.default_rng([self.seed, number, 6])
        base = replace(self.context(number, 0), occluders=(), repeat=0.0, scale=0.75, centre=(0.5, 0.5), figure=None)
        base = replace(base, yaw=base.yaw if abs(base.yaw) < 0.6 else 0.3)
        steps = self._steps(base, factor, identity.kind, rng)
        other = int(np.random.default_rng([self.seed, number, 6, 1]).integers(1 << 31))  # the same in all grids
        anchor: Take | None = None
        for change, context in zip(LEVELS, steps, strict=True):
            for strength in STRENGTHS:
                thing = identity.edited(Edit("all", strength, other)) if strength else identity
                shot = self.render(thing, context)
                about = {"factor": factor, "factor_change": change, "identity_change": strength}
                take = Take(
                    f"grid-{factor}-{change:.2f}-{strength:.2f}", thing, context, shot,
                    key if not strength else f"{key}~grid-{strength:.2f}",
                    "real" if anchor is None else "identity-edit" if strength else "context-edit",
                    anchor.name if anchor else None, about=about,
                )  # fmt: skip
                anchor = anchor or take
                yield take

    def _steps(self, base: Context, factor: str, kind: str, rng: Generator) -> list[Context]:
        if factor == "background":
            own = draw_background(base.background, self.assets, self.size).astype(np.float32)
            others = [sample_background(rng, kind, self.assets) for _ in LEVELS[1:]]
            far = [float(np.abs(draw_background(b, self.assets, self.size) - own).mean()) for b in others]
            return [base, *(replace(base, background=others[k]) for k in np.argsort(far, kind="stable"))]
        if factor == "viewpoint":
            side = 1 if rng.random() < 0.5 else -1
            return [replace(base, yaw=base.yaw + side * _TURN * level) for level in LEVELS]
        if factor == "light":
            last = sample_light(rng)
            last = replace(
                last, strength=float(rng.choice([0.55, 1.5])), direction=(float(rng.choice([-2.0, 2.0])), 0.4, 0.4)
            )
            return [replace(base, light=_between(base.light, last, level)) for level in LEVELS]
        raise ValueError(f"no factor {factor!r}; there are {', '.join(FACTORS)}")

    def group(self, number: int, views: int = 3, distractors: int = 1) -> tuple[Picture, Picture, Picture]:
        """Pictures for training: of one thing, and of others almost like it.

        Returns:
            Views (V, size, size, 3) in different contexts, their masks (V, size, size), and distractors
            (K, size, size, 3): edits of random strength in the context of the k-th view.
        """
        takes = list(self.views(number, max(views, distractors)))
        strengths = stream(self.seed, number, "strength").choice([0.3, 0.5, 0.75, 1.0], distractors)
        decoys = [self.near(take, number, float(s)).shot.picture for take, s in zip(takes, strengths, strict=False)]
        shape = (self.size, self.size, 3)
        shown = takes[:views]
        return (
            np.stack([t.shot.picture for t in shown]) if shown else np.empty((0, *shape), np.uint8),
            np.stack([t.shot.mask for t in shown]) if shown else np.empty((0, *shape[:2]), np.uint8),
            np.stack(decoys) if decoys else np.empty((0, *shape), np.uint8),
        )


def edit(identity: Identity, strength: float, rng: Generator) -> Identity:
    """The thing with its colours, print or proportions, or all of them, changed by a strength in (0, 1]; 1 = all."""
    what = str(rng.choice(["colour", "print", "shape", "all"], p=[0.3, 0.35, 0.15, 0.2])) if strength < 1 else "all"
    return identity.edited(Edit(what, strength, int(rng.integers(1 << 31))))


def _between(a: Light, b: Light, amount: float) -> Light:
    def mix(x: Any, y: Any) -> Any:
        return tuple(mix(p, q) for p, q in zip(x, y, strict=True)) if isinstance(x, tuple) else x + (y - x) * amount

    return Light(*(mix(getattr(a, n), getattr(b, n)) for n in ("direction", "colour", "strength", "ambient")))


def _change(before: Shot, after: Shot, where: Picture | None = None) -> float:
    """Mean absolute difference of pixels (0..255) where either picture shows the thing, or within a mask."""
    inside = (before.mask | after.mask) > 127 if where is None else where > 127
    if not inside.any():
        return 0.0
    return float(np.abs(before.picture[inside].astype(np.int16) - after.picture[inside]).mean())


def _number(name: str) -> int:
    return int(name.split("-")[1])
