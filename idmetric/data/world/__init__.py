"""A procedural world of identities: the same thing in many contexts, and things that are almost the same.

An identity is shape, materials, parts and markings; a context is camera, light, background, what is in front, and
sensor noise. Rendered by VTK from a seed, without weights or downloads.

    from idmetric.data.world import World
    world = World(seed=0)
    views = list(world.views(7, 4))  # thing number 7, four times
    decoys = world.near(views, strength=0.5)  # another thing in the same four contexts
"""

from __future__ import annotations

from idmetric.data.world.context import Context, sample_context
from idmetric.data.world.identity import Assets, Edit, Identity
from idmetric.data.world.scene import Shot, render_scene
from idmetric.data.world.structures import FACTORS, LEVELS, STRENGTHS, Take, World

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
