"""A model's settings and files: loaded weights are frozen and named; saved ones are named by their folder."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any, Self

import torch

from idmetric.metric.checkpoints import format as checkpoint
from idmetric.metric.checkpoints.fingerprint import weights_digest
from idmetric.metric.checkpoints.hub import Files
from idmetric.metric.checkpoints.naming import Named
from idmetric.metric.files import StrPath
from idmetric.metric.models import names
from idmetric.metric.models.devices import auto_device

_USUAL = {"preprocessing": "standard", "resize": "squash"}  # values that config.json leaves out


class Saved(Named):
    """A model that is loaded from files and saved to them.

    Args:
        name: the name by which the user opened it, e.g. "tiny".
        revision: which exact weights (`Checkpoint.revision`), "" for new ones.
        image_size: height and width of the encoder's input.
        files: the folder or repository that it was loaded from.
    """

    model_type = ""  # in config.json; models without one cannot be saved
    settings: Any  # the dataclass that is saved in config.json

    def __init__(self, name: str, revision: str, image_size: tuple[int, int], files: Files | None) -> None:
        super().__init__(name, _short_name(name, files), revision, image_size)
        self._files = files

    def config(self) -> dict[str, Any]:
        """The settings that config.json needs to rebuild this model, as plain JSON values: fields of `settings`."""
        config = asdict(self.settings)
        return {name: value for name, value in config.items() if (name, value) not in _USUAL.items()}

    def about(self) -> dict[str, str]:
        """Everything that this model's features depend on, the exact weights in memory included."""
        is_named = self._revision and not self._has_changed()
        return {
            **self.signature(),
            "weights": self._revision if is_named else weights_digest(self),
            "settings": json.dumps(self.config(), sort_keys=True, default=str),
        }

    def save_pretrained(self, folder: StrPath) -> None:
        """Write config.json and model.safetensors; `idmetric.load(folder)` opens them again."""
        if not self.model_type:
            raise NotImplementedError(f"{self.name} is opened by its name and cannot be saved")
        config = {"model_type": self.model_type, **self.config()}
        checkpoint.write(folder, config, self.state_dict())
        self._name_saved(folder, checkpoint.revision)

    @classmethod
    def from_pretrained(cls, source: StrPath, **options: Any) -> Self:
        """The same as calling the class: `IDSim.from_pretrained("run/")` is `IDSim("run/")`."""
        return cls(source, **options)  # type: ignore[arg-type]  # subclasses take the source first

    def train(self, mode: bool = True) -> Self:
        """As `nn.Module.train`, except that a frozen model stays in eval mode.

        So a metric kept inside a larger module gives the same scores when that module trains.
        """
        return super().train(mode and any(p.requires_grad for p in self.parameters()))

    def _finish(self, device: torch.device | str | None, dtype: torch.dtype | None) -> None:
        """Freeze weights that were just loaded, move them, and call them by the revision that they were loaded as."""
        self.requires_grad_(False).eval()
        self.to(auto_device() if device is None else device, dtype)
        self.take_revision(self._revision)

    def _name_saved(self, folder: StrPath, revision: Callable[[Path], str]) -> None:
        """Call weights that have no revision, or have changed, by that of the folder to which they were just saved."""
        if not self._revision or self._has_changed():
            self.take_revision(revision(Path(folder)))
            self._files = Files(folder)


def _short_name(name: str, files: Files | None) -> str:
    """A folder's own name, with "./" before it if a published model has that name; other names as they are."""
    if files is None or not files.local or not os.path.isdir(name):
        return name
    if not os.path.samefile(name, files.name):
        return name
    folder = os.path.realpath(name)
    short = os.path.basename(folder) or name
    return f"./{short}" if names.known(short) else short
