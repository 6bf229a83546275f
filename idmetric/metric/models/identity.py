"""Which model made a score: label, revision, resolution, in one string and in the signature of a score."""

from __future__ import annotations

from typing import Any

from idmetric.version import __version__


class Identity:
    """A base class: a model defines its label, revision, image_size and dtype."""

    @property
    def resolution(self: Any) -> str:
        """Height x width in pixels at which images are seen."""
        height, width = self.image_size
        return f"{height}x{width}"

    @property
    def model_id(self: Any) -> str:
        """Model, exact weights and resolution in one string, which every Embedding carries."""
        return f"{self.label}@{self.revision}/{self.resolution}"

    def signature(self: Any, distance: str = "cls") -> dict[str, str]:
        """Model, revision, distance, resolution, dtype, version: reported with a score, they make it reproducible."""
        return {
            "model": self.label,
            "revision": self.revision,
            "distance": distance,
            "resolution": self.resolution,
            "dtype": str(self.dtype).removeprefix("torch."),
            "idmetric": __version__,
        }
