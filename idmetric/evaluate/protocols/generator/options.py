"""Options of the protocol `generator`."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from idmetric.evaluate.protocols.generator.layouts import LAYOUTS
from idmetric.evaluate.settings import Checked, option

OUTPUTS_HELP = "folder of generated images (--pattern or --layout), or table of them (.csv, .parquet, .jsonl)"


@dataclass(frozen=True)
class ReferencesOptions(Checked):
    """Where the photos of subjects are."""

    references: str | None = option(
        None, "a folder with a folder for each subject, or a path such as 'refs/{subject}/*.jpg'", metavar="PATH"
    )


@dataclass(frozen=True)
class OutputsOptions(ReferencesOptions):
    """Where generated images and the photos of their subjects are."""

    pattern: str | None = option(
        None,
        "names of output files below --data, such as '{method}/{subject}/{prompt}_{seed}.png'",
        metavar="PATTERN",
    )
    layout: str | None = option(None, "a published layout instead of --pattern", choices=tuple(LAYOUTS))
    benchmark: Path | None = option(
        None,
        "prompts and references of --layout uno, xversebench or psrbench (JSON), or vistorybench's folder of stories",
        metavar="PATH",
    )


@dataclass(frozen=True)
class CopyingOptions(Checked):
    """What else generated images are compared with: training images and prompts."""

    training: str | None = option(
        None, "images that the generators were trained on, given as --references are", metavar="PATH"
    )
    held_out: bool = option(False, "state that no reference was among the training images")
    clip_t: str | None = option(
        None,
        "CLIP or SigLIP for prompt fidelity: folder or Hub repository (pip install 'idmetric[eval]')",
        metavar="REPO",
    )
    copies: bool = option(True, "look for copies of references")
