"""Animals, toys and cars."""

from __future__ import annotations

import numpy as np

from idmetric.data.world.solids import Rng, Solid, ball, block, piece, rounded, sweep, tube


def animal(rng: Rng) -> list[Solid]:
    """Four legs, a body, a neck, a head with ears, a tail; perhaps a collar."""
    length, girth, leg = rng.uniform(0.8, 1.2), rng.uniform(0.3, 0.55), rng.uniform(0.3, 0.8)
    lift = leg + girth / 2
    solid = ball()
    parts = [piece("body", "main", solid, (length, girth, girth * rng.uniform(0.7, 1.0)), (0, lift, 0))]
    thin = rng.uniform(0.04, 0.08)

    for x in (-0.32, 0.32):
        for z in (-0.22, 0.22):
            path = np.array(
                [[x * length, lift, z * girth], [x * length * 1.05, lift * 0.5, z * girth], [x * length, 0, z * girth]]
            )
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
    path = np.array(
        [
            [-length * 0.45, lift, 0],
            [-length * 0.6, lift + tail * 0.1, 0],
            [-length * 0.62, lift - tail * rng.uniform(-0.8, 0.8), 0],
        ]
    )
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
        parts.append(
            piece("ears", "second", solid, (ear, ear * tall, ear * 0.5), (s * head * 0.38, top + head * 0.42, 0))
        )
        parts.append(piece("arms", "main", solid, (limb, limb * long, limb), (s * fat * 0.55, fat * 0.6, fat * 0.15)))
        parts.append(
            piece("feet", "main", solid, (limb * 1.1, limb * 1.1, limb * long), (s * fat * 0.32, limb * 0.5, fat * 0.5))
        )

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
        piece(
            "cabin",
            "main" if rng.random() < 0.6 else "second",
            rounded(0.4, 0.35),
            (length * cabin, high * 1.7, width * 0.88),
            (at, base + low + high * 0.35, 0),
        ),
        piece(
            "windows",
            "glass",
            rounded(0.25, 0.2),
            (length * cabin * 0.82, high * 0.7, width * 0.9),
            (at, base + low + high * 0.6, 0),
        ),
        piece(
            "windows",
            "glass",
            rounded(0.25, 0.2),
            (length * cabin * 0.99, high * 0.6, width * 0.7),
            (at, base + low + high * 0.55, 0),
        ),
    ]
    wheel, axle = rng.uniform(0.2, 0.3), rng.uniform(0.3, 0.36) * length
    turned = np.array([[1, 0, 0], [0, 0, -1], [0, 1, 0]], np.float32)

    for x in (-axle, axle):
        for s in (-1, 1):
            z = s * width / 2
            parts.append(piece("wheels", "dark", tube(around=20), (wheel, 0.09, wheel), (x, wheel / 2, z), turned))
            parts.append(
                piece("hubs", "metal", tube(around=14), (wheel * 0.55, 0.1, wheel * 0.55), (x, wheel / 2, z), turned)
            )

    for s in (-1, 1):
        parts.append(piece("lights", "pale", ball(), 0.07, (length * 0.47, base + low * 0.75, s * width * 0.35)))
    return parts
