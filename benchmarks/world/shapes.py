"""The shape of each kind of object; proportions are part of an identity."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from world.meshes import Rng, Solid, arc, ball, block, cushion, lathe, piece, place, rounded, sweep, tube

_LYING = np.array([[1, 0, 0], [0, 0, -1], [0, 1, 0]], np.float32)  # turns the vertical axis to the viewer

# Goods of a shop


def box(rng: Rng) -> list[Solid]:
    """A package."""
    return [Solid("body", "main", block(rng.uniform(0.5, 1.0), rng.uniform(0.5, 1.3), rng.uniform(0.12, 0.7)))]


def carton(rng: Rng) -> list[Solid]:
    """A milk carton, with or without a screw cap."""
    w, h, d, gable = rng.uniform(0.4, 0.6), rng.uniform(0.8, 1.1), rng.uniform(0.4, 0.6), rng.uniform(0.15, 0.3)
    parts = [piece("body", "main", block(w, h, d, gable), max(w, h + gable, d))]
    if rng.random() < 0.5:
        size = rng.uniform(0.12, 0.2)
        parts.append(
            piece("cap", "second", tube(), (size, size * 0.5, size), (0, (h + gable) / 2 - gable * 0.3, d * 0.3))
        )
    return parts


def book(rng: Rng) -> list[Solid]:
    """A book: covers and pages."""
    w, h, d = rng.uniform(0.6, 0.8), rng.uniform(0.8, 1.0), rng.uniform(0.06, 0.25)
    pages = place(block(w * 0.97, h * 0.97, d * 0.9), h * 0.97, (0.02, 0, 0))
    cover = block(w, h, 0.02)
    front, back = (place(cover, h, (0, 0, z)) for z in (d / 2, -d / 2))
    spine = place(block(0.03, h, d), max(h, d), (-w / 2, 0, 0))
    return [*(Solid("cover", "main", mesh) for mesh in (front, back, spine)), Solid("pages", "pale", pages)]


def can(rng: Rng) -> list[Solid]:
    """A tin: straight sides, metal ends."""
    r, h = rng.uniform(0.25, 0.5), rng.uniform(0.5, 1.2)
    body = lathe([r, r], [0, h], rng.choice([1.0, 2.0]))
    rim = lathe([r * 0.94, r * 1.02, r * 1.02, r * 0.94], np.array([0, 0.1, 0.9, 1.0]) * 0.06, 1.0)
    extent = max(h, 2 * r)
    ends = [place(rim, 2 * r * 1.02, (0, y, 0)) for y in (h / 2, -h / 2)]
    return [piece("body", "main", body, extent), *(Solid("rim", "metal", e) for e in ends)]


def bottle(rng: Rng) -> list[Solid]:
    """A bottle or jar of random profile, with a cap."""
    y = np.linspace(0, 1, 18)
    shoulder, neck = rng.uniform(0.45, 0.85), rng.uniform(0.25, 0.75)
    drop = 1 / (1 + np.exp(-(y - shoulder) * rng.uniform(15, 40)))
    waist = 1 - rng.uniform(0, 0.25) * np.exp(-(((y - rng.uniform(0.2, 0.5)) / 0.15) ** 2))
    r = rng.uniform(0.16, 0.34) * waist * (1 - drop * (1 - neck))
    parts = [piece("body", "main", lathe(r, y, rng.choice([1.0, 2.0])), 1.0, (0, 0.5, 0))]
    high, wide = rng.uniform(0.05, 0.16), 2 * float(np.atleast_1d(r)[-1]) * rng.uniform(1.0, 1.25)
    if rng.random() < 0.75:
        parts.append(piece("cap", "second", tube(), (wide, high, wide), (0, 1 + high / 2 - 0.02, 0)))
    return parts


def pouch(rng: Rng) -> list[Solid]:
    """A filled bag."""
    return [Solid("body", "main", cushion(rng.uniform(0.6, 1.0), rng.uniform(0.8, 1.2), rng.uniform(0.1, 0.3)))]


def fruit(rng: Rng) -> list[Solid]:
    """A round fruit by its profile, with a stalk and perhaps a leaf."""
    t = np.linspace(0.02, np.pi - 0.02, 20)
    r = np.sin(t) ** rng.uniform(0.7, 1.2) * (1 + rng.uniform(-0.3, 0.3) * np.cos(t))
    y = -np.cos(t) * rng.uniform(0.7, 1.6)
    y = y - rng.uniform(0, 0.35) * np.exp(-(((t - np.pi) / 0.4) ** 2))  # a dent at the stalk
    extent = max(float(np.ptp(y)), 2 * float(r.max()))
    parts = [piece("body", "main", lathe(r, y, rng.choice([1.0, 2.0])), extent)]
    top, lean = float(np.ptp(y)) / 2 - 0.1, rng.uniform(-0.15, 0.15)
    stalk, leaf = rng.uniform(0.15, 0.4), rng.uniform(0.3, 0.6)

    if rng.random() < 0.7:
        path = np.array([[0, top - 0.15, 0], [lean / 2, top + stalk / 2, 0], [lean, top + stalk, 0]])
        parts.append(Solid("stalk", "dark", sweep(path, 0.035)))
        if rng.random() < 0.5:
            parts.append(piece("leaf", "green", cushion(1.0, 0.45, 0.05, 2), leaf, (leaf / 2, top + stalk / 2, 0)))

    return parts


def bananas(rng: Rng) -> list[Solid]:
    """A bent fruit or vegetable."""
    bend, thick = rng.uniform(0.3, 1.4), rng.uniform(0.1, 0.22)
    a = np.linspace(-bend, bend, 17)
    path = np.stack([np.sin(a) / bend, 1 - np.cos(a), 0 * a], 1)
    r = thick * (1 - np.abs(np.linspace(-1, 1, 17)) ** rng.uniform(2, 6)) ** 0.6 + 0.015
    return [
        Solid("body", "main", sweep(path, r, 14)),
        Solid("tip", "dark", sweep(path[-2:] + (path[-1] - path[-2]) * 0.8, 0.03)),
    ]


# Household objects


def vase(rng: Rng) -> list[Solid]:
    """A vase or pot, open above, sometimes with two handles."""
    y = np.linspace(0, 1, 20)
    r = 0.25 + 0.12 * np.sin(y * np.pi * rng.uniform(0.6, 1.8) + rng.uniform(0, 2)) + rng.uniform(-0.08, 0.12) * y
    inner = r[::-1] * 0.9
    body = lathe(np.r_[r, inner], np.r_[y, y[::-1] * 0.98 + 0.01], rng.choice([1.0, 2.0]))
    parts = [piece("body", "main", body, max(1.0, 2 * float(r.max())), (0, 0.5, 0))]
    size, at = rng.uniform(0.12, 0.2), rng.uniform(0.5, 0.8)
    if rng.random() < 0.4:
        edge = float(np.interp(at, y, r))
        for sign in (1, -1):
            ring = arc((sign * edge, at, 0), size, -np.pi / 2 * 1.1, np.pi / 2 * 1.1)
            ring[:, 0] = sign * edge + sign * np.abs(ring[:, 0] - sign * edge)
            parts.append(Solid("handle", "second", sweep(ring, 0.03)))
    return parts


def cup(rng: Rng) -> list[Solid]:
    """A cup with a handle."""
    top, bottom, h = rng.uniform(0.35, 0.55), rng.uniform(0.25, 0.45), rng.uniform(0.6, 1.1)
    profile = [bottom, (top + bottom) / 2, top, top * 0.92, bottom * 0.9]
    body = lathe(profile, np.array([0, 0.5, 1, 1, 0.1]) * h)
    ring, thick, stretch = rng.uniform(0.18, 0.28), rng.uniform(0.03, 0.06), rng.uniform(0.8, 1.3)
    path = arc(((top + bottom) / 2 * 0.96, 0.0, 0.0), ring, -np.pi / 2 * 1.05, np.pi / 2 * 1.05, stretch)
    return [
        piece("body", "main", body, max(h, 2 * max(top, bottom))),
        Solid("handle", "second", sweep(path, thick)),
    ]


def teapot(rng: Rng) -> list[Solid]:
    """A teapot: belly, lid with a knob, spout and handle."""
    t = np.linspace(0.25, np.pi - 0.35, 16)
    r = np.sin(t) ** rng.uniform(0.6, 1.3) * 0.5
    y = -np.cos(t) * rng.uniform(0.35, 0.6)
    parts = [piece("body", "main", lathe(r, y, 2.0), max(float(np.ptp(y)), 2 * float(r.max())))]
    top, rim = float(np.ptp(y)) / 2, float(r[-1])
    flat, knob = rng.uniform(0.15, 0.35), rng.uniform(0.06, 0.12)
    parts.append(piece("lid", "second", ball(), (2.2 * rim, flat, 2.2 * rim), (0, top, 0)))
    parts.append(piece("lid", "second", ball(), knob * 2, (0, top + flat / 2 + knob * 0.6, 0)))
    reach, lift = rng.uniform(0.25, 0.4), rng.uniform(0.1, 0.4)
    spout = np.array([[0.4, -0.1, 0], [0.4 + reach * 0.6, 0, 0], [0.4 + reach, lift, 0]])
    parts.append(Solid("spout", "main", sweep(spout, [0.12, 0.08, 0.05], uv=(0, 0.4, 0.3, 0.6))))
    ring = arc((-0.42, 0.02, 0), rng.uniform(0.18, 0.26), np.pi / 2, 3 * np.pi / 2, 1.1)
    parts.append(Solid("handle", "second", sweep(ring, 0.035)))

    return parts


def pan(rng: Rng) -> list[Solid]:
    """A pan or ladle: a bowl with a long handle."""
    r, depth, length = rng.uniform(0.3, 0.5), rng.uniform(0.08, 0.4), rng.uniform(0.4, 0.9)
    bowl = lathe([r * 0.8, r, r * 0.95, r * 0.75], np.array([0, 1, 1, 0.15]) * depth)
    path = np.array([[r * 0.9, depth * 0.3, 0], [r + length / 2, depth * 0.5, 0], [r + length, depth * 0.6, 0]])
    return [
        piece("bowl", "main", bowl, max(2 * r, depth)),
        Solid("handle", "second", sweep(path, [0.03, 0.045, 0.05])),
    ]


def lamp(rng: Rng) -> list[Solid]:
    """A table lamp: foot, stem and shade."""
    foot, stem, h = rng.uniform(0.18, 0.32), rng.uniform(0.3, 0.7), rng.uniform(0.3, 0.5)
    bulge = rng.uniform(0.03, 0.16)
    y = np.linspace(0, stem, 12)
    column = lathe(0.025 + bulge * np.sin(y / stem * np.pi) ** 2, y)
    shade = tube(rng.uniform(0.15, 0.4), 0.5, 24)
    wide = rng.uniform(0.5, 0.8)
    return [
        piece("foot", "second", tube(0.4, 0.5, 24), (2 * foot, 0.06, 2 * foot), (0, 0, 0)),
        piece("stem", "second", column, max(stem, 2 * bulge + 0.05), (0, stem / 2, 0)),
        piece("shade", "main", shade, (wide, h, wide), (0, stem + h / 2 - 0.05, 0)),
    ]


def chair(rng: Rng) -> list[Solid]:
    """A chair or stool: legs, seat, and mostly a back."""
    w, d, high, thick = rng.uniform(0.45, 0.7), rng.uniform(0.45, 0.65), rng.uniform(0.3, 0.6), rng.uniform(0.05, 0.14)
    slim, splay = rng.uniform(0.03, 0.08), rng.uniform(0.0, 0.08)
    parts = [piece("seat", "main", block(w, thick, d), max(w, d, thick), (0, high, 0))]
    for x in (-1, 1):
        for z in (-1, 1):
            foot = np.array([x * (w / 2 - slim + splay), 0, z * (d / 2 - slim + splay)])
            top = np.array([x * (w / 2 - slim), high, z * (d / 2 - slim)])
            parts.append(Solid("legs", "second", sweep(np.stack([foot, (foot + top) / 2, top]), slim, 8)))
    rise, lean = rng.uniform(0.3, 0.7), rng.uniform(0.0, 0.12)
    if rng.random() < 0.8:
        back = place(block(w, rise, thick * 0.7), max(w, rise), (0, high + rise / 2 + thick / 2, -d / 2 - lean / 2))
        parts.append(Solid("back", "main" if rng.random() < 0.6 else "second", back))
    return parts


def soap(rng: Rng) -> list[Solid]:
    """Something between a box, a cylinder and a ball."""
    shape = rounded(*(float(x) for x in rng.uniform(0.2, 1.6, 2)))
    return [piece("body", "main", shape, rng.uniform(0.4, 1.0, 3))]


def compound(rng: Rng) -> list[Solid]:
    """Two to five simple solids stuck together."""
    count = rng.integers(2, 6)
    names = ("body", "second piece", "third piece", "fourth piece", "fifth piece")
    parts = []
    for k in range(count):
        kind = rng.integers(5)
        a, b = rng.uniform(0.2, 1.4, 2)
        mesh = (block(1, 1, 1), tube(), ball(), rounded(float(a), float(b)), tube(0.1, 0.5))[kind]
        slot = "main" if k == 0 or rng.random() < 0.5 else "second"
        parts.append(piece(names[k], slot, mesh, rng.uniform(0.3, 1.0, 3), rng.uniform(-0.4, 0.4, 3)))
    return parts


# Animals, toys and cars


def animal(rng: Rng) -> list[Solid]:
    """Four legs, a body, a neck, a head with ears, a tail; perhaps a collar."""
    length, girth, leg = rng.uniform(0.8, 1.2), rng.uniform(0.3, 0.55), rng.uniform(0.3, 0.8)
    lift = leg + girth / 2
    solid = ball()
    parts = [piece("body", "main", solid, (length, girth, girth * rng.uniform(0.7, 1.0)), (0, lift, 0))]
    thin = rng.uniform(0.04, 0.08)

    for x in (-0.32, 0.32):
        for z in (-0.22, 0.22):
            knee = [x * length * 1.05, lift * 0.5, z * girth]
            path = np.array([[x * length, lift, z * girth], knee, [x * length, 0, z * girth]])
            parts.append(Solid("legs", "main", sweep(path, [thin * 1.6, thin, thin * 1.1], uv=(0, 0, 0.4, 1))))

    head, reach, rise = rng.uniform(0.22, 0.36), rng.uniform(0.5, 0.65) * length, rng.uniform(0.1, 0.5)
    neck = np.array([[reach * 0.6, lift, 0], [reach * 0.85, lift + rise / 2, 0], [reach + head * 0.2, lift + rise, 0]])
    parts.append(Solid("neck", "main", sweep(neck, [girth * 0.4, girth * 0.28, head * 0.4])))
    muzzle = rng.uniform(1, 1.8)
    parts.append(piece("head", "main", solid, (head * muzzle, head, head * 0.8), (reach + head / 3, lift + rise, 0)))
    nose = (reach + head / 3 + head * muzzle * 0.48, lift + rise, 0)
    parts.append(piece("nose", "dark", solid, head * 0.22, nose))
    for z in (-0.3, 0.3):
        eye = (reach + head * 0.55, lift + rise + head * 0.22, z * head)
        parts.append(piece("eyes", "dark", solid, head * 0.16, eye))
    ear, flop = rng.uniform(0.08, 0.22), rng.uniform(0.05, 0.12)
    for z in (-head / 3, head / 3):
        parts.append(piece("ears", "second", solid, (0.06, ear, flop), (reach, lift + rise + head / 2, z)))
    tail = rng.uniform(0.2, 0.6)
    end = [-length * 0.62, lift - tail * rng.uniform(-0.8, 0.8), 0]
    path = np.array([[-length * 0.45, lift, 0], [-length * 0.6, lift + tail * 0.1, 0], end])
    parts.append(Solid("tail", "main", sweep(path, [0.05, 0.04, 0.03])))
    if rng.random() < 0.4:
        ring = np.array([neck[1] - (neck[2] - neck[0]) * 0.06, neck[1], neck[1] + (neck[2] - neck[0]) * 0.06])
        parts.append(Solid("collar", "accent", sweep(ring, girth * 0.32)))

    return parts


def bear(rng: Rng) -> list[Solid]:
    """A sitting plush animal."""
    fat, head, ear = rng.uniform(0.4, 0.6), rng.uniform(0.35, 0.5), rng.uniform(0.1, 0.28)
    limb, long = rng.uniform(0.14, 0.22), rng.uniform(1.0, 1.8)
    solid = ball()
    top = fat * 0.95 + head * 0.35
    parts = [
        piece("body", "main", solid, (fat, fat * 1.15, fat * 0.9), (0, fat * 0.5, 0)),
        piece("head", "main", solid, (head, head * 0.92, head * 0.9), (0, top, 0)),
        piece("belly", "second", solid, (fat * 0.6, fat * 0.7, 0.1), (0, fat * 0.48, fat * 0.42)),
        piece("muzzle", "second", solid, (head * 0.45, head * 0.35, head * 0.3), (0, top - head * 0.1, head * 0.4)),
        piece("nose", "dark", solid, head * 0.13, (0, top - head * 0.03, head * 0.56)),
    ]
    tall = rng.uniform(0.8, 2.2)

    for s in (-1, 1):
        parts.append(piece("eyes", "dark", solid, head * 0.1, (s * head * 0.2, top + head * 0.1, head * 0.4)))
        at = (s * head * 0.38, top + head * 0.42, 0)
        parts.append(piece("ears", "second", solid, (ear, ear * tall, ear * 0.5), at))
        parts.append(piece("arms", "main", solid, (limb, limb * long, limb), (s * fat * 0.55, fat * 0.6, fat * 0.15)))
        size, at = (limb * 1.1, limb * 1.1, limb * long), (s * fat * 0.32, limb * 0.5, fat * 0.5)
        parts.append(piece("feet", "main", solid, size, at))

    return parts


def robot(rng: Rng) -> list[Solid]:
    """A toy figure of boxes and tubes."""
    w, h, d = rng.uniform(0.4, 0.6), rng.uniform(0.4, 0.6), rng.uniform(0.25, 0.4)
    head, leg, arm = rng.uniform(0.22, 0.36), rng.uniform(0.2, 0.4), rng.uniform(0.3, 0.5)
    solid, round_ = block(1, 1, 1), ball()
    top = leg + h + head / 2 + 0.03
    parts = [
        piece("body", "main", solid, (w, h, d), (0, leg + h / 2, 0)),
        piece("head", "second", round_ if rng.random() < 0.4 else solid, (head * 1.2, head, head), (0, top, 0)),
        piece("panel", "accent", solid, (w * 0.6, h * 0.4, 0.02), (0, leg + h * 0.55, d / 2)),
    ]

    for s in (-1, 1):
        parts.append(piece("eyes", "pale", round_, head * 0.25, (s * head * 0.28, top, head * 0.5)))
        parts.append(piece("arms", "second", tube(), (0.1, arm, 0.1), (s * (w / 2 + 0.07), leg + h - arm / 2, 0)))
        parts.append(piece("legs", "second", tube(), (0.13, leg, 0.13), (s * w * 0.28, leg / 2, 0)))

    height = rng.uniform(0.1, 0.2)
    if rng.random() < 0.5:
        parts.append(piece("antenna", "metal", tube(), (0.02, height, 0.02), (0, top + head / 2 + height / 2, 0)))
        parts.append(piece("antenna", "accent", round_, 0.07, (0, top + head / 2 + height, 0)))

    return parts


def car(rng: Rng) -> list[Solid]:
    """A car, van or truck: body, cabin, windows, wheels, lights."""
    length, width = rng.uniform(1, 1.4), rng.uniform(0.45, 0.6)
    low, high = rng.uniform(0.18, 0.32), rng.uniform(0.15, 0.35)
    soft, cabin, at = rng.uniform(0.25, 0.6), rng.uniform(0.4, 0.75), rng.uniform(-0.2, 0.1)
    base = 0.12
    parts = [
        piece("body", "main", rounded(soft, 0.3), (length, low * 1.4, width), (0, base + low * 0.6, 0)),
    ]
    slot, top = "main" if rng.random() < 0.6 else "second", base + low
    size = (length * cabin, high * 1.7, width * 0.88)
    parts.append(piece("cabin", slot, rounded(0.4, 0.35), size, (at, top + high * 0.35, 0)))
    pane = rounded(0.25, 0.2)
    for long, tall, wide, rise in ((0.82, 0.7, 0.9, 0.6), (0.99, 0.6, 0.7, 0.55)):
        size = (length * cabin * long, high * tall, width * wide)
        parts.append(piece("windows", "glass", pane, size, (at, top + high * rise, 0)))
    wheel, axle = rng.uniform(0.2, 0.3), rng.uniform(0.3, 0.36) * length

    for x in (-axle, axle):
        for s in (-1, 1):
            z = s * width / 2
            parts.append(piece("wheels", "dark", tube(around=20), (wheel, 0.09, wheel), (x, wheel / 2, z), _LYING))
            parts.append(
                piece("hubs", "metal", tube(around=14), (wheel * 0.55, 0.1, wheel * 0.55), (x, wheel / 2, z), _LYING)
            )

    for s in (-1, 1):
        parts.append(piece("lights", "pale", ball(), 0.07, (length * 0.47, base + low * 0.75, s * width * 0.35)))
    return parts


# Bags, shoes and hats


def bag(rng: Rng) -> list[Solid]:
    """A handbag or backpack: body, flap and straps."""
    w, h, d = rng.uniform(0.6, 1.0), rng.uniform(0.5, 0.9), rng.uniform(0.15, 0.4)
    body = place(rounded(0.35, 0.4), (w, h, d))
    flap = rng.uniform(0.25, 0.6) * h
    parts = [
        Solid("body", "main", body),
        piece("flap", "second", rounded(0.3, 0.3), (w * 1.02, flap, d * 0.5), (0, h / 2 - flap / 2, d * 0.3)),
    ]
    wide, rise = rng.uniform(0.15, 0.35) * w, rng.uniform(0.2, 0.6)
    path = arc((0, h / 2 - 0.02, 0), wide, 0, np.pi, rise / wide)
    parts.append(Solid("strap", "second", sweep(path, 0.025)))
    size = rng.uniform(0.05, 0.1)
    parts.append(piece("buckle", "metal", rounded(0.3, 0.3), (size, size, 0.04), (0, h / 2 - flap, d * 0.55)))
    return parts


def shoe(rng: Rng) -> list[Solid]:
    """A shoe or boot: sole, upper, toe and laces."""
    length, wide, tall = 1.0, rng.uniform(0.3, 0.42), rng.uniform(0.3, 0.75)
    sole, heel = rng.uniform(0.05, 0.12), rng.uniform(0.0, 0.12)
    parts = [
        piece("sole", "second", rounded(0.3, 0.6), (length, sole * 1.6, wide), (0, sole / 2, 0)),
        piece("toe", "main", rounded(0.8, 0.8), (length * 0.62, 0.32, wide * 0.95), (length * 0.18, sole + 0.06, 0)),
    ]
    size, back = (length * 0.5, tall, wide * 0.8), -length * 0.22
    parts.append(piece("upper", "main", rounded(0.5, 0.8), size, (back, sole + tall * 0.42, 0)))
    size = (length * 0.34, 0.06, wide * 0.6)
    parts.append(piece("opening", "dark", rounded(0.3, 0.9), size, (back, sole + tall * 0.9, 0)))

    if heel > 0.05:
        parts.append(piece("heel", "second", block(1, 1, 1), (0.25, heel * 2, wide * 0.8), (-length * 0.34, -heel, 0)))

    for k in range(3):
        place_ = (-length * 0.02 + k * 0.09, sole + 0.27 - k * 0.03, 0)
        parts.append(piece("laces", "pale", tube(), (0.03, wide * 0.5, 0.03), place_, _LYING))

    return parts


def hat(rng: Rng) -> list[Solid]:
    """A hat or cap: crown, band and brim or peak."""
    r, h = rng.uniform(0.28, 0.36), rng.uniform(0.2, 0.5)
    dome = rng.uniform(0.3, 1.0)
    y = np.linspace(0, 1, 12)
    crown = lathe(r * (1 - y**3 * dome * 0.95), y * h, 2.0)
    parts = [
        piece("crown", "main", crown, max(h, 2 * r), (0, h / 2, 0)),
        piece("band", "accent", tube(around=28), (2.05 * r, 0.06, 2.05 * r), (0, 0.05, 0)),
    ]
    wide, peak = rng.uniform(1.4, 2.2), rng.uniform(0.3, 0.6)

    if rng.random() < 0.6:
        parts.append(piece("brim", "main", tube(0.49, 0.5, 28), (2 * r * wide, 0.03, 2 * r * wide), (0, 0, 0)))
    else:
        parts.append(piece("peak", "second", rounded(0.2, 0.9), (r * 1.7, 0.04, peak + r), (0, 0.02, r * 0.8)))

    return parts


_KINDS = (
    box, carton, book, can, bottle, vase, pouch, fruit, bananas, cup, teapot, pan, lamp, chair, bag, soap, animal, bear,
    robot, car, shoe, hat, compound,
)  # fmt: skip
SHAPES: dict[str, Callable[[Rng], list[Solid]]] = {draw.__name__: draw for draw in _KINDS}
