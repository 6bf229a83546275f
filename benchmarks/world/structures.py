"""Rendered counterparts of the papers' data: views, matched distractors, part edits, context edits, edit grids.

A picture depends on (seed, number, place in the structure, assets) alone, and a distractor also on the views that it is
matched to. Other renderings, their order and the number of processes do not change it.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.random import Generator

from world.assets import shared_assets
from world.context import Context, draw_background, sample_background, sample_context, sample_light
from world.identity import DOMAINS, Edit, Identity, stream
from world.render import Light
from world.scene import Shot, mean_change, names, render_scene, share_changed, share_reshaped

VERSION = 2  # increases when the pictures of a seed change
FACTORS = ("background", "viewpoint", "light")
STRENGTHS = (0.0, 0.15, 0.3, 0.5, 0.75, 1.0)  # identity changes of the edit grid
LEVELS = (0.0, 0.25, 0.5, 0.75, 1.0)  # context changes of the edit grid
_TRIES = 12
_SEEN = 0.1  # share of the object's pixels that an edit must change visibly
_COVERAGE = (0.02, 0.85)  # share of a picture that shows the object
_TURN = float(np.radians(75))  # viewpoint change of level 1


@dataclass(frozen=True)
class Take:
    """One picture of a structure, with everything that made it.

    Attributes:
        number: of the object, or of the object that was edited.
        name: unique within the number, such as view-0 or view-1-near-0.50.
        identity, context: the rendered object and its context.
        key: name of the identity, equal for all views of one object.
        role, parent, oracle: as in a manifest's `Row`.
        change: for edits of the identity, the mean absolute change of the object's pixels in the same context, 0..255;
            None for other pictures.
        about: further parameters.
    """

    number: int
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
        """Everything that made the picture, as JSON values."""
        made = {"thing": asdict(self.identity), "context": asdict(self.context), **(self.about or {})}
        if self.change is not None:
            made["change"] = round(self.change, 3)
        plain: dict[str, Any] = json.loads(json.dumps(made))
        return plain


class World:
    """Objects numbered 0, 1, 2, ..., each determined by (seed, number, assets).

    Args:
        seed: of the world.
        assets: folder of meshes and photos (see `Assets`), or None for procedural objects only.
        size: side of the pictures in pixels.
    """

    def __init__(self, seed: int, assets: Path | None = None, size: int = 224) -> None:
        self.seed, self.size = seed, size
        self.assets = shared_assets(assets)

    def identity(self, number: int) -> Identity:
        """The identity of this number."""
        rng = stream(self.seed, number, 0)
        odds = self.assets.kinds
        return Identity(str(rng.choice(list(odds), p=list(odds.values()))), int(rng.integers(1 << 31)))

    def key(self, number: int) -> str:
        """The name of the identity."""
        return f"world-{self.seed}-{number:06d}"

    def domain(self, number: int) -> str:
        """The object's domain: products, household, produce, fashion, animals or toys."""
        return DOMAINS[self.identity(number).kind]

    def context(self, number: int, view: int) -> Context:
        """The context of a view."""
        rng = stream(self.seed, number, 1, view)
        return sample_context(rng, self.identity(number).kind, self.assets)

    def strength(self, number: int, strengths: Sequence[float]) -> float:
        """One of the strengths, drawn at random for this number."""
        return float(stream(self.seed, number, "strength").choice(sorted(strengths)))

    def render(self, identity: Identity, context: Context, part: str | None = None) -> Shot:
        """Render an identity in a context."""
        return render_scene(identity, context, self.assets, self.size, part)

    def views(self, number: int, count: int) -> Iterator[Take]:
        """The object in different contexts (multi-view positives); it covers 2 to 85 % of each picture."""
        identity, key = self.identity(number), self.key(number)
        for view in range(count):
            context = self.context(number, view)
            shot = self.render(identity, context)
            for again in range(_TRIES):
                if shot.coverage < _COVERAGE[0]:  # hidden or out of the frame: move it to the middle
                    context = replace(context, occluders=(), center=(0.5, 0.5), scale=0.6 + 0.02 * again, figure=None)
                elif shot.coverage > _COVERAGE[1]:  # it fills the frame: move it away
                    context = replace(context, scale=0.75 * context.scale, repeat=0.75 * context.repeat)
                else:
                    break
                shot = self.render(identity, context)
            yield Take(number, f"view-{view}", identity, context, shot, key)

    def near(self, views: Sequence[Take], strength: float, copy: int = 0) -> list[Take]:
        """Distractors: one other object in the contexts of the views, visibly different in each of them.

        NearID's distractors (section 3.3) may show another object in every view; for that, pass views one by one.

        Args:
            strength: 1 = another object of the same kind and silhouette family; less = the same object with its colors,
                print or proportions, or all of them, changed by that amount.
            copy: number that distinguishes several distractors of the same views.
        """
        tail = f"near-{strength:.2f}" + (f"-{copy}" if copy else "")
        place = [self.seed, views[0].number, 2, round(strength * 1000), copy]
        return self._others(views, strength, place, "distractor", tail, f"{views[0].key}~{tail}")

    def _others(
        self, views: Sequence[Take], strength: float, place: list[int], role: str, tail: str, key: str
    ) -> list[Take]:
        """One other object in the contexts of the views; `place` selects the random streams that draw it."""
        other, shots = self._visible(views, lambda again: edit(views[0].identity, strength, stream(*place, again)))
        return [
            _edited(
                v, tail, shot, role, identity=other, key=key, change=mean_change(v.shot, shot),
                about={"strength": strength},
            )
            for v, shot in zip(views, shots, strict=True)
        ]  # fmt: skip

    def _visible(self, views: Sequence[Take], candidate: Callable[[int], Identity]) -> tuple[Identity, list[Shot]]:
        """An edit that is visible in each view, or the best of some tries by the view where it is least visible."""
        best, least = None, -1.0
        for again in range(_TRIES):
            thing = candidate(again)
            shots = [self.render(thing, v.context) for v in views]
            judge = share_reshaped if thing.edits[-1].what == "shape" else share_changed
            shown = min(judge(v.shot, shot) for v, shot in zip(views, shots, strict=True))
            if shown > least:
                best, least = (thing, shots), shown
            if least >= _SEEN:
                break
        assert best is not None
        return best

    def part_edit(self, views: Sequence[Take], copy: int = 0) -> list[Take]:
        """The views with one part made of another material, with the part's mask and the oracle score.

        As in MTG: views 1 and 2 of an object, each with its edit. A view that doesn't show the part gets no edit.
        """
        rng = stream(self.seed, views[0].number, 3, copy)
        identity = views[0].identity
        parts = self.assets.build(identity)
        options = rng.permutation([n for n in names(parts) if n not in ("body", "cloth")]).tolist()
        if any(p.region is not None for p in parts):
            options.insert(int(rng.integers(len(options) + 1)), "label")
        for name in [*options, *["label"] * _TRIES]:  # in the end, stick a label on
            changed = identity.edited(Edit("part", 1.0, int(rng.integers(1 << 31)), name))
            takes = [take for view in views if (take := self._part(view, changed, name, copy))]
            if takes:
                return takes
        return []

    def _part(self, view: Take, changed: Identity, part: str, copy: int) -> Take | None:
        shot = self.render(changed, view.context, part)
        assert shot.part_mask is not None
        large_enough = (shot.part_mask > 127).mean() >= 0.001 and 0.01 <= 1 - shot.oracle <= 0.7
        if not large_enough or share_changed(view.shot, shot, shot.part_mask) < 0.5:
            return None
        return _edited(
            view, f"part-{copy}", shot, "part-edit", identity=changed, key=f"{view.key}~part-{copy}",
            oracle=shot.oracle, change=mean_change(view.shot, shot, shot.part_mask), about={"part": part},
        )  # fmt: skip

    def context_edit(self, view: Take, copy: int = 0) -> Take:
        """The same object in the same pose, with another background and light (ID-Sim, subset 2a)."""
        rng = stream(self.seed, view.number, 4, _place(view), copy)
        context = replace(
            view.context, background=sample_background(rng, view.identity.kind, self.assets), light=sample_light(rng),
            occluders=(), seed=int(rng.integers(1 << 31)),
        )  # fmt: skip
        return _edited(view, f"context-{copy}", self.render(view.identity, context), "context-edit", context=context)

    def identity_edit(self, view: Take, strength: float, copy: int = 0) -> Take:
        """The object changed, in the same context (ID-Sim, subset 2b): as `near`, with another change for each view."""
        place = [self.seed, view.number, 5, _place(view), round(strength * 1000), copy]
        tail = f"edit-{strength:.2f}-{copy}"
        return self._others([view], strength, place, "identity-edit", tail, f"{view.key}~{view.name}-{tail}")[0]

    def grid(self, number: int, factors: Sequence[str] = FACTORS) -> Iterator[Take]:
        """Identity changes crossed with changes of context factors, one at a time (ID-Sim, 4.4 and supplement F).

        The parameters of each picture hold factor, factor_change and identity_change in 0..1. The pictures with an
        unchanged context come first and count for every factor (their factor is "none"). The first of them, unchanged,
        is the anchor and the parent of all others. Backgrounds are ordered by their distance from the anchor's.
        """
        identity, base = self.identity(number), self._base(number)
        first = Take(number, "", identity, base, self.render(identity, base), self.key(number))

        def smallest(again: int) -> Identity:
            seed = int(stream(self.seed, number, 7, again).integers(1 << 31))
            return identity.edited(Edit("all", STRENGTHS[1], seed))

        other = self._visible([first], smallest)[0].edits[-1].seed  # even its smallest change is visible
        cells = [("none", 0.0, base)]

        for factor in factors:
            rng = stream(self.seed, number, 6, factor)
            steps = self._steps(base, factor, identity.kind, rng)
            cells += [(factor, level, context) for level, context in zip(LEVELS[1:], steps, strict=True)]

        anchor = f"grid-none-{0:.2f}-{0:.2f}"
        for factor, level, context in cells:
            plain = self.render(identity, context)
            for strength in STRENGTHS:
                thing = identity.edited(Edit("all", strength, other)) if strength else identity
                shot = self.render(thing, context) if strength else plain
                name = f"grid-{factor}-{level:.2f}-{strength:.2f}"
                yield Take(
                    number, name, thing, context, shot,
                    key=self.key(number) + (f"~grid-{strength:.2f}" if strength else ""),
                    role="identity-edit" if strength else "real" if name == anchor else "context-edit",
                    parent=None if name == anchor else anchor,
                    change=mean_change(plain, shot) if strength else None,
                    about={"factor": factor, "factor_change": level, "identity_change": strength},
                )  # fmt: skip

    def _base(self, number: int) -> Context:
        """The unchanged context of a grid: the whole object, centered, seen nearly from the front."""
        base = replace(self.context(number, 0), occluders=(), repeat=0.0, scale=0.75, center=(0.5, 0.5), figure=None)
        return replace(base, yaw=base.yaw if abs(base.yaw) < 0.6 else 0.3)

    def _steps(self, base: Context, factor: str, kind: str, rng: Generator) -> list[Context]:
        """The contexts of a factor at its levels above 0."""
        if factor == "background":
            own = draw_background(base.background, self.assets, self.size).astype(np.float32)
            others = [sample_background(rng, kind, self.assets) for _ in LEVELS[1:]]
            far = [float(np.abs(draw_background(b, self.assets, self.size) - own).mean()) for b in others]
            return [replace(base, background=others[k]) for k in np.argsort(far, kind="stable")]

        if factor == "viewpoint":
            side = 1 if rng.random() < 0.5 else -1
            return [replace(base, yaw=base.yaw + side * _TURN * level) for level in LEVELS[1:]]
        if factor == "light":
            last = sample_light(rng)
            last = replace(
                last, strength=float(rng.choice([0.55, 1.5])), direction=(float(rng.choice([-2.0, 2.0])), 0.4, 0.4)
            )
            return [replace(base, light=_between(base.light, last, level)) for level in LEVELS[1:]]

        raise ValueError(f"no factor {factor!r}; there are {', '.join(FACTORS)}")


def edit(identity: Identity, strength: float, rng: Generator) -> Identity:
    """The identity with colors, print or proportions, or all of them, changed by a strength in (0, 1].

    At strength 1, all of them change.
    """
    what = str(rng.choice(["color", "print", "shape", "all"], p=[0.3, 0.35, 0.15, 0.2])) if strength < 1 else "all"
    return identity.edited(Edit(what, strength, int(rng.integers(1 << 31))))


def _edited(view: Take, tail: str, shot: Shot, role: str, **changes: Any) -> Take:
    """An edit of a picture, named after it; it differs in the given fields."""
    return replace(view, name=f"{view.name}-{tail}", parent=view.name, shot=shot, role=role, **changes)


def _between(a: Light, b: Light, amount: float) -> Light:
    def mix(x: Any, y: Any) -> Any:
        return tuple(mix(p, q) for p, q in zip(x, y, strict=True)) if isinstance(x, tuple) else x + (y - x) * amount

    return Light(*(mix(getattr(a, n), getattr(b, n)) for n in ("direction", "color", "strength", "ambient")))


def _place(take: Take) -> int:
    """The number of a view."""
    return int(take.name.split("-")[1])
