"""A procedural world of identities: the same thing in many contexts, and things that are almost the same.

Rendered by software from procedural or given meshes and materials; numpy and Pillow alone.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

from idmetric.data.world.scene import (
    Assets,
    Context,
    Identity,
    Picture,
    edit_identity,
    render_scene,
    sample_context,
    sample_identity,
)

__all__ = [
    "Assets",
    "Context",
    "Identity",
    "World",
    "edit_identity",
    "render_scene",
    "sample_context",
    "sample_identity",
]


class World:
    """Identities numbered 0, 1, 2, ...; everything about one follows from (seed, number, assets).

    Args:
        seed: which world. assets: folder of meshes and photos (see `Assets`), or None for procedural things alone.
        size: side of the pictures in pixels.
    """

    def __init__(self, seed: int, assets: Path | None = None, size: int = 128) -> None:
        self.seed, self.size = seed, size
        self.assets = Assets(assets)

    def identity(self, index: int) -> Identity:
        """The thing of this number."""
        return sample_identity(np.random.default_rng([self.seed, index, 0]), self.assets)

    def group(self, index: int, views: int = 3, distractors: int = 1) -> tuple[Picture, Picture, Picture]:
        """Pictures of one identity, and of another almost like it.

        Returns:
            Views (V, size, size, 3) in different contexts, their masks (V, size, size), and distractors
            (K, size, size, 3): an edited identity in the context of the k-th view.
        """
        identity = self.identity(index)
        contexts = [
            sample_context(np.random.default_rng([self.seed, index, 1, v]), identity.kind, self.assets, self.size)
            for v in range(max(views, distractors))
        ]
        shots = [render_scene(identity, context, self.size) for context in contexts[:views]]
        other = edit_identity(identity, np.random.default_rng([self.seed, index, 2]), self.assets)
        decoys = [render_scene(other, context, self.size)[0] for context in contexts[:distractors]]
        shape = (self.size, self.size, 3)
        return (
            np.stack([s[0] for s in shots]) if shots else np.empty((0, *shape), np.uint8),
            np.stack([s[1] for s in shots]) if shots else np.empty((0, *shape[:2]), np.uint8),
            np.stack(decoys) if decoys else np.empty((0, *shape), np.uint8),
        )
