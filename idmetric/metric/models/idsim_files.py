"""The files behind the names of ID-Sim models: "tiny", releases, folders and Hub repositories."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from idmetric.metric.checkpoints import format as checkpoint
from idmetric.metric.checkpoints import released
from idmetric.metric.checkpoints.errors import CheckpointError
from idmetric.metric.checkpoints.format import Checkpoint
from idmetric.metric.checkpoints.hub import Files, Hub
from idmetric.metric.files import StrPath
from idmetric.metric.models.released_idsim import read_idsim
from idmetric.metric.models.tiny import TINY


def read_checkpoint(
    name: str,
    hub: Hub,
    variant: str | None,
    backbone_weights: StrPath | None,
    backbone_args: Mapping[str, Any] | None,
) -> Checkpoint:
    """Read the model of that name, the `source` of an `IDSim`; the other arguments as there.

    Raises:
        CheckpointError: if the weights cannot be found, fetched or understood.
    """
    if name == "tiny":
        return checkpoint.read(Files(TINY, hub))
    release = released.find(name, released.IDSIM)
    if release is None and Path(name, released.ADAPTER_CONFIG).is_file():
        release = released.IDSIM.get(variant or released.idsim_variant(name) or "")
        if release is None:
            raise CheckpointError(
                f"{name!r} holds an ID-Sim adapter, but its name does not show for which backbone: pass variant=, one "
                f"of {', '.join(released.IDSIM)}"
            )
    files = released.files_of(name, released.IDSIM, hub)
    if release is not None:
        return read_idsim(release, files, backbone_weights=backbone_weights, backbone_args=backbone_args)
    return checkpoint.read(files)
