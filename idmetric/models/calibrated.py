"""Probabilities that two images show one identity: a model and its calibration."""

from __future__ import annotations

import os
from typing import Self

import torch
from torch import Tensor

from idmetric.calibration import apply as calibrations
from idmetric.calibration.apply import Calibration, CalibrationError
from idmetric.checkpoints.format import CALIBRATION, content_of
from idmetric.checkpoints.hub import Files
from idmetric.images.masks import Images, MaskId, Masks
from idmetric.images.read import Outside
from idmetric.models.embedding import Embedding
from idmetric.models.identified import IdentifiedModel


class CalibratedModel(IdentifiedModel):
    """A model with `probability`, for which calling it gives distances."""

    def __init__(self, name: str, revision: str, files: Files | None) -> None:
        super().__init__(name, revision, files)
        self._calibration: Calibration | None = None

    def probability(
        self,
        a: Images | Embedding,
        b: Images | Embedding,
        distance: str | None = None,
        *,
        prior: float | None = None,
        calibration: str | os.PathLike[str] | Calibration | None = None,
        mask_a: Masks = None,
        mask_b: Masks = None,
        mask_id: MaskId | None = None,
        outside: Outside = "black",
        batch_size: int = 32,
    ) -> Tensor:
        """Probability that each image of a shows the same identity as its partner in b.

        It holds for pairs like those of its calibration: see `idmetric eval calibrate`. A
        `CalibrationWarning` says so if these were not photos; `calibration.basis` is the same sentence.

        Args:
            a, b, mask_a, mask_b, mask_id, outside, batch_size: as for a distance.
            distance: default the one that the calibration is for; another is refused.
            prior: share of same-identity pairs among your pairs; default the calibration's.
            calibration: a file or a `Calibration`; default that of `calibrate_with`, or calibration.json in
                the model's folder.

        Returns:
            Shape (B,), in (0, 1), without graph.

        Raises:
            CalibrationError: if there is no calibration, or it was made for another model, distance or way of masking.
        """
        found = self.calibration if calibration is None else self._checked(calibration)
        if found is None:
            raise CalibrationError(
                f"{self.label} has no calibration in its folder: make one with `idmetric eval calibrate`, and pass it "
                "to calibrate_with(file) or as calibration="
            )
        found.check_distance(found.distance if distance is None else distance)
        for images, mask in ((a, mask_a), (b, mask_b)):
            if not isinstance(images, Embedding):  # how an Embedding was masked is not known
                found.check_outside("all" if mask is None else outside)
        found.warn()
        with torch.no_grad():
            far = self(
                a, b, found.distance, mask_a=mask_a, mask_b=mask_b, mask_id=mask_id, outside=outside,
                batch_size=batch_size,
            )  # fmt: skip
        return torch.from_numpy(found.probability(far.double().cpu().numpy(), prior)).to(far.device, far.dtype)

    @property
    def calibration(self) -> Calibration | None:
        """The calibration that `probability` uses: from `calibrate_with`, else the folder's calibration.json, or None.

        Raises:
            CalibrationError: if the file is damaged, or was made for other weights.
        """
        if self._calibration is None and self._files is not None:
            path = self._files.optional(CALIBRATION)
            if path is not None:
                self._calibration = self._checked(path)

        found, now = self._calibration, self.calibrated_model(files=False)
        if found is not None and (self._has_changed() or found.model.settings != now.settings):
            found.check_model(now)  # which fails: the weights or `decode` have changed
        return self._calibration

    def calibrate_with(self, calibration: str | os.PathLike[str] | Calibration) -> Self:
        """Use this calibration (a file, or one in memory) from now on; returns the metric.

        Raises:
            CalibrationError: if it cannot be read, or was made for another model.
        """
        self._calibration = self._checked(calibration)
        return self

    def calibrated_model(self, files: bool = True) -> calibrations.Model:
        """The model that a calibration is bound to; with `files`, also their hash (a second for each gigabyte)."""
        content = None
        if files and self._files is not None and not self._has_changed():
            content = content_of(self._files)
        settings = self.label.removeprefix(f"{type(self).__name__}:{self.short_name}")
        return calibrations.Model(type(self).__name__, settings, self.revision, content, self.resolution)

    def _checked(self, calibration: str | os.PathLike[str] | Calibration) -> Calibration:
        found = calibration if isinstance(calibration, Calibration) else calibrations.read(calibration)
        if not found.model.is_same(self.calibrated_model(files=False)):  # mostly the revision suffices
            found.check_model(self.calibrated_model())
        return found
