"""The options of each protocol, as `idmetric eval PROTOCOL --help` lists them. Loads no torch.

They are apart from the protocols, which load torch. Options that all protocols share are `scorers.EvalSettings`.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from idmetric.evaluate.protocols.common.paper_numbers import rows
from idmetric.evaluate.protocols.generator.layouts import LAYOUTS
from idmetric.metric.files.settings import Checked, option

# literals, as their modules import torch or pyarrow; tests compare them
BENCHMARKS = ("pods", "deepfashion2", "aerialcattle", "petface", "cute", "subjects2k")
CATEGORIES = ("object", "animal", "human", "style")

_PAPER = "the paper's row to compare with (default: by the model)"


@dataclass(frozen=True)
class FolderOptions(Checked):
    """Options of the protocol `folder`."""

    k: tuple[int, ...] = option((5,), "of recall@k and hit@k", least=1, metavar="K")


@dataclass(frozen=True)
class NearIDOptions(Checked):
    """Options of the protocol `nearid`."""

    released_pa: bool = option(
        False, "count each sample's mean margin as a trial of PA, as the code that printed the paper's tables does"
    )


@dataclass(frozen=True)
class RetrievalOptions(Checked):
    """Options of the protocol `retrieval`."""

    k: int | None = option(
        None, "depth of mAP for datasets not in ILGen's Table 2 (default: all)", least=1, metavar="K"
    )
    paper: str | None = option(None, _PAPER, choices=rows("ilgen", "table_5"))


@dataclass(frozen=True)
class IDSimOptions(Checked):
    """Options of the protocol `idsim`."""

    set: str | None = option(None, "which benchmark all rows are (default: by dataset)", choices=BENCHMARKS)
    paper: str | None = option(None, _PAPER, choices=rows("idsim", "fig_25", "table_2b", "table_2a"))


@dataclass(frozen=True)
class MVEBOptions(Checked):
    """Options of the protocol `mveb`."""

    task: tuple[str, ...] = option(
        (),
        "a set's meta-task (ID-Rec, Re-ID, ID-Grd, ID-Edit), where it is not one of MVEB's; may be repeated",
        metavar="DATASET=TASK",
        repeated=True,
    )
    paper: str | None = option(None, _PAPER, choices=rows("visme", "mveb"))


@dataclass(frozen=True)
class MMEBOptions(Checked):
    """Options of the protocol `mmeb`."""

    paper: str | None = option(None, _PAPER, choices=rows("visme", "mmeb"))


@dataclass(frozen=True)
class SensitivityOptions(Checked):
    """Options of the protocol `sensitivity`."""

    rescale: bool = option(False, "divide identity changes, and each factor's changes, by their largest")


@dataclass(frozen=True)
class SegmentationOptions(Checked):
    """Options of the protocol `segmentation`."""

    others: int | None = option(
        None, "images of other subjects to search for each subject, drawn by the seed (default: all)", least=0
    )
    sam: str | None = option(
        None,
        "a Segment Anything Model for PerSAM: folder or Hub repository, such as facebook/sam-vit-huge "
        "(default: the prior alone)",
        metavar="SOURCE",
    )


@dataclass(frozen=True)
class MatchesOptions(Checked):
    """Options of the protocol `matches`."""

    count: int = option(10, "matches of a pair", least=1)


@dataclass(frozen=True)
class ILIASOptions(Checked):
    """Options of the protocol `ilias`."""

    k: int = option(1000, "depth of mAP and of the oracle", least=1, metavar="K")


@dataclass(frozen=True)
class DreamBenchOptions(Checked):
    """Options of the protocol `dreambench`."""

    category: tuple[str, ...] = option(
        CATEGORIES,
        "only images of this category; may be repeated (default: all four)",
        choices=CATEGORIES,
        repeated=True,
    )
    ratings: Path | None = option(None, "the published folder of ratings (default: those of an imported manifest)")


@dataclass(frozen=True)
class OpenSetOptions(Checked):
    """Options of the protocol `openset`."""

    unknown: float | None = option(
        None,
        "make the splits, with this share of the identities unknown (default: the manifest's splits, else 0.5)",
        metavar="SHARE",
    )
    threshold: tuple[float, ...] = option(
        (),
        "similarities under which a query is new (default: the threshold of the model's calibration)",
        metavar="TAU",
    )
    calibration: Path | None = option(None, "calibration for the threshold (default: the model's own)", metavar="FILE")
    rate: tuple[float, ...] = option((0.01,), "false-accept rates of the calibration's thresholds", metavar="RATE")

    def __post_init__(self) -> None:
        if self.unknown is not None and not 0 <= self.unknown < 1:
            raise ValueError(f"--unknown {self.unknown:g}: a share of the identities, 0 or more and below 1")


@dataclass(frozen=True)
class CalibrateOptions(Checked):
    """Options of the protocol `calibrate`."""

    method: Literal["isotonic", "platt"] = option(
        "isotonic",
        "curve to keep; the other one is measured too. isotonic (default) assumes no shape; platt, a logistic curve, "
        "is better where identities are few",
    )
    rates: tuple[float, ...] = option((0.1, 0.05, 0.01), "false-accept rates to find thresholds for", metavar="RATE")
    pairs: int = option(10, "of one identity, at most", least=1)
    strangers: int = option(
        0, "further pairs of two identities, which only thresholds see: low rates such as 0.001 need thousands", least=0
    )
    check: str | None = option(
        None,
        "measure that calibration on the pairs instead of making one; 'stored': the one in each model's folder "
        "(default: make one)",
        metavar="FILE",
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if not all(0 < rate < 1 for rate in self.rates):
            raise ValueError(f"rates lie between 0 and 1, got {self.rates}")


@dataclass(frozen=True)
class AgreementOptions(Checked):
    """Options of the protocol `agreement`."""

    agreement: float = option(
        0.8,
        "share of votes for one answer from which a label counts, above 0.5 (default 0.8, as in ID-Sim)",
        metavar="SHARE",
    )
    undecided: Literal["drop", "different"] = option(
        "drop", "pairs with less agreement: drop (default) leaves them out of AP and AUC, different is ID-Sim's rule"
    )

    def __post_init__(self) -> None:
        if not 0.5 < self.agreement <= 1:
            raise ValueError(f"agreement is above 0.5 and at most 1, got {self.agreement}")


@dataclass(frozen=True)
class _Outputs(Checked):
    pattern: str | None = option(
        None,
        "names of output files below --data, such as '{method}/{subject}/{prompt}_{seed}.png'",
        metavar="PATTERN",
    )
    layout: str | None = option(None, "a published layout instead of --pattern", choices=tuple(LAYOUTS))
    benchmark: Path | None = option(
        None, "prompts and references of --layout uno or xversebench (JSON)", metavar="FILE"
    )


@dataclass(frozen=True)
class _References(Checked):
    references: str | None = option(
        None, "a folder with a folder for each subject, or a path such as 'refs/{subject}/*.jpg'", metavar="PATH"
    )


@dataclass(frozen=True)
class _Copying(Checked):
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


@dataclass(frozen=True)
class GeneratorOptions(_Copying, _References, _Outputs):
    """Options of the protocol `generator`."""

    by: tuple[str, ...] = option(
        (), "also group by this field or column; may be repeated", metavar="COLUMN", repeated=True
    )
    against: str | None = option(None, "compare each method with this one (default: each two)", metavar="METHOD")
    scr: tuple[float, ...] = option(
        (),
        "similarities under which a subject has failed (default: the threshold of the model's calibration)",
        metavar="TAU",
    )
    calibration: Path | None = option(None, "calibration for SCR (default: the model's own)", metavar="FILE")
    rate: float = option(0.05, "false-accept rate of the calibration's threshold")


@dataclass(frozen=True)
class SetsOptions(_References, _Outputs):
    """Options of the protocol `sets`."""

    pool: bool = option(False, "take all subjects as one set")
    draws: int = option(100, "random draws of n images of a set", least=2)


@dataclass(frozen=True)
class CheckpointsOptions(_Copying, _References):
    """Options of the protocol `checkpoints`."""

    pattern: str | None = option(
        None,
        "names of samples below --data, such as '{step}/{prompt}_{seed}.png' (default: as trainers name them)",
        metavar="PATTERN",
    )
    base: Path | None = option(
        None,
        "images of the base model for equal prompts and seeds, named as in --data (default: those of step 0)",
        metavar="DIR",
    )
    drift_prompt: tuple[str, ...] = option(
        (),
        "a prompt without the subject, for drift alone; may be repeated (default: drift over all prompts)",
        metavar="PROMPT",
        repeated=True,
    )
    prompts: Path | None = option(
        None, "a prompt in each line, for samples that are named by the number of their prompt", metavar="FILE"
    )
    max_copies: float = option(0.0, "share of copies that the best step may have", metavar="SHARE")
    clip_tolerance: float = option(0.02, "how far CLIP-T of the best step may lie below the highest", metavar="COSINE")


# protocol -> its options
OPTIONS: dict[str, type[Checked]] = {
    "folder": FolderOptions,
    "nearid": NearIDOptions,
    "retrieval": RetrievalOptions,
    "idsim": IDSimOptions,
    "mveb": MVEBOptions,
    "mmeb": MMEBOptions,
    "sensitivity": SensitivityOptions,
    "segmentation": SegmentationOptions,
    "matches": MatchesOptions,
    "ilias": ILIASOptions,
    "dreambench": DreamBenchOptions,
    "openset": OpenSetOptions,
    "generator": GeneratorOptions,
    "sets": SetsOptions,
    "checkpoints": CheckpointsOptions,
    "calibrate": CalibrateOptions,
    "agreement": AgreementOptions,
}
