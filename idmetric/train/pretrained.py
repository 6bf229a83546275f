"""Where a timm model's first weights come from, the same for every recipe: `--backbone-weights`."""

from __future__ import annotations

from pathlib import Path

RANDOM = "random"
HELP = "its weights: a local file or folder instead of the Hub's; random = new ones, for experiments"


def weights_file(backbone: str, given: str, revision: str | None = None) -> str:
    """The file of a timm model's weights; "" for random ones, which only "random" asks for.

    Args:
        backbone: timm's name.
        given: "", those of its Hub repository; a file in timm's format, or a folder with it as model.safetensors;
            "random".
        revision: commit of the Hub repository.

    Raises:
        CheckpointError: if they are not there or cannot be fetched.
    """
    # here, as --help reads the names above
    from idmetric.checkpoints import format as checkpoint
    from idmetric.checkpoints.errors import CheckpointError
    from idmetric.checkpoints.hub import Hub
    from idmetric.models import backbone as backbones

    if given == RANDOM:
        return ""
    if not given:
        try:
            return backbones.pretrained_file(backbone, Hub(revision))  # locked: processes of a machine fetch it once
        except CheckpointError as error:
            raise CheckpointError(f"{error}. To train, name a local file or folder: --backbone-weights PATH") from error
    path = Path(given, checkpoint.WEIGHTS) if Path(given).is_dir() else Path(given)
    if not path.is_file():
        raise CheckpointError(f"--backbone-weights {given}: no such file, {path} (random = new ones, for experiments)")
    return str(path)
