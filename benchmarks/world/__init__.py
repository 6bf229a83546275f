"""A procedural world of identities: one object in many contexts, and other objects that look almost the same.

An identity is a shape with materials, parts and markings. A context is a camera, light, background, occluders and
sensor noise. VTK renders both from a seed, without weights or downloads.

    from world import World
    world = World(seed=0)
    views = list(world.views(7, 4))  # object number 7 in four contexts
    decoys = world.near(views, strength=0.5)  # another object in the same four contexts
"""

from __future__ import annotations

from world.assets import Assets
from world.context import Context, sample_context
from world.identity import Edit, Identity
from world.scene import Shot, render_scene
from world.structures import FACTORS, LEVELS, STRENGTHS, Take, World

__all__ = [
    "FACTORS",
    "LEVELS",
    "STRENGTHS",
    "Assets",
    "Context",
    "Edit",
    "Identity",
    "Shot",
    "Take",
    "World",
    "render_scene",
    "sample_context",
]
