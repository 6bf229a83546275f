"""The meaning of a distance: a similarity, and by a calibration the probability that two images show one identity."""

from __future__ import annotations

from typing import Any, Self

import torch
from torch import Tensor

from idmetric.metric.calibration import apply as calibrations
from idmetric.metric.calibration.apply import Calibration, CalibrationError
from idmetric.metric.checkpoints import format as checkpoint
from idmetric.metric.checkpoints.saving import Saved
from idmetric.metric.distance.embedding import Embedding
from idmetric.metric.files import StrPath
from idmetric.metric.images.masks import Images


class Calibrated(Saved):
    """A model that may have a calibration, in its folder or by `calibrate_with`.

    Attributes:
        calibration_source: what `calibrate_with` was given; None for the calibration in the folder.
    """

    calibration_source: StrPath | Calibration | None = None
    _calibration: Calibration | None = None

    def similarity(
        self,
        a: Images | Embedding,
        b: Images | Embedding,
        distance: str = "cls",
        **options: Any,
    ) -> Tensor:
        """1 - distance (ID-Sim Eq. 4): 1 for the same image, for `cls` the cosine. Arguments as for a distance."""
        result: Tensor = 1 - self(a, b, distance, **options)
        return result

    def probability(
        self,
        a: Images | Embedding,
        b: Images | Embedding,
        distance: str | None = None,
        *,
        prior: float | None = None,
        **options: Any,
    ) -> Tensor:
        """Probability that each image of a shows the same identity as its partner in b.

        It holds for pairs like those of `calibration`: see `idmetric eval calibrate`. A
        `CalibrationWarning` says so if these were not photos; `calibration.basis` is the same sentence.

        Args:
            a, b, options: as for a distance, such as mask_a= and outside=.
            distance: default the one that the calibration is for; another is refused.
            prior: share of same-identity pairs among your pairs; default the calibration's.

        Returns:
            Shape (B,), in (0, 1), without graph.

        Raises:
            CalibrationError: if there is no calibration, or it was made for another model, distance or way of masking.
        """
        calibration = self.calibration
        if calibration is None:
            raise CalibrationError(
                f"{self.label} has no calibration in its folder: make one with `idmetric eval calibrate`, and pass it "
                "to calibrate_with(file)"
            )
        if "joint_weight" in options:
            raise TypeError("a calibration is for joint_weight=1: probability() takes no other")
        calibration.check_distance(calibration.distance if distance is None else distance)
        for images, mask in ((a, "mask_a"), (b, "mask_b")):
            outside = "all"
            if options.get(mask) is not None:
                outside = options.get("outside", "black")
            if not isinstance(images, Embedding):  # how an Embedding was masked is not known
                calibration.check_outside(outside)
        calibration.warn()

        with torch.no_grad():
            distances: Tensor = self(a, b, calibration.distance, **options)
        probabilities = calibration.probability(distances.double().cpu().numpy(), prior)
        return torch.from_numpy(probabilities).to(distances.device, distances.dtype)

    @property
    def calibration(self) -> Calibration | None:
        """The calibration that `probability` uses: from `calibrate_with`, else the folder's calibration.json, or None.

        Raises:
            CalibrationError: if the file is damaged, or was made for other weights.
        """
        if self._calibration is None and self._files is not None:
            path = self._files.optional(checkpoint.CALIBRATION)
            if path is not None:
                self._calibration = self._checked(path)
        if self._calibration is None:
            return None

        model = self.calibrated_model(files=False)
        if self._has_changed() or self._calibration.model.settings != model.settings:
            self._calibration.check_model(model)  # which fails: the weights or `decode` have changed
        return self._calibration

    def calibrate_with(self, calibration: StrPath | Calibration) -> Self:
        """Use this calibration (a file, or one in memory) from now on; returns the metric.

        Raises:
            CalibrationError: if it cannot be read, or was made for another model.
        """
        self._calibration = self._checked(calibration)
        self.calibration_source = calibration
        return self

    def calibrated_model(self, files: bool = True) -> calibrations.Model:
        """The model that a calibration is bound to; with `files`, also their hash (a second for each gigabyte)."""
        content = None
        if files and self._files is not None and not self._has_changed():
            content = checkpoint.content_of(self._files)
        kind = type(self).__name__
        settings = self.label.removeprefix(f"{kind}:{self.short_name}")
        return calibrations.Model(kind, settings, self.revision, content, self.resolution)

    def _checked(self, source: StrPath | Calibration) -> Calibration:
        calibration = source if isinstance(source, Calibration) else calibrations.read(source)
        if not calibration.model.is_same(self.calibrated_model(files=False)):  # mostly the revision suffices
            calibration.check_model(self.calibrated_model())
        return calibration
