"""Options of the protocols of `idmetric eval`, apart from the protocols: --help loads neither torch nor an extra."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from idmetric.cli.options import Options

# literals, as their modules import torch or pyarrow; tests compare them
BENCHMARKS = ("pods", "deepfashion2", "aerialcattle", "petface", "cute", "subjects2k")
CATEGORIES = ("object", "animal", "human", "style")
MATCHES = ("prototype", "mean", "mean_max", "nearest")
RENDERED = ("world", "sensitivity", "segmentation", "matches", "generator", "checkpoints")  # without --data
TASKS = ("ID-Rec", "Re-ID", "ID-Grd", "ID-Edit")

_MANIFEST = "manifest (.parquet, .csv, .jsonl), folder with a manifest, or folder with one folder per identity"
_OUTPUTS = "folder of generated images (--pattern or --layout), or table of them (.csv, .parquet, .jsonl)"
_SAMPLES = "folder of samples, or table of them with a column step (.csv, .parquet, .jsonl)"


def data_help(protocol: str) -> str:
    """The help of --data."""
    return {"generator": _OUTPUTS, "sets": _OUTPUTS, "checkpoints": _SAMPLES}.get(protocol, _MANIFEST)


def _add_outputs(options: Options) -> None:
    from idmetric.protocols.generator.layouts import LAYOUTS

    text = "names of output files below --data, such as '{method}/{subject}/{prompt}_{seed}.png'"
    options.add_argument("--pattern", metavar="PATTERN", help=text)
    options.add_argument("--layout", choices=list(LAYOUTS), help="a published layout instead of --pattern")
    text = "prompts and references of --layout uno or xversebench (JSON)"
    options.add_argument("--benchmark", type=Path, metavar="FILE", help=text)


def _add_references(options: Options) -> None:
    text = "a folder with a folder for each subject, or a path such as 'refs/{subject}/*.jpg'"
    options.add_argument("--references", metavar="PATH", help=text)


def _add_copying(options: Options) -> None:
    text = "images that the generators were trained on, given as --references are"
    options.add_argument("--training", metavar="PATH", help=text)
    text = "state that no reference was among the training images"
    options.add_argument("--held-out", action="store_true", help=text)
    text = "CLIP or SigLIP for prompt fidelity: folder or Hub repository (pip install 'idmetric[eval]')"
    options.add_argument("--clip-t", metavar="REPO", help=text)
    options.add_argument("--no-copies", action="store_true", help="do not look for copies of references")


def _folder(options: Options) -> None:
    options.add_argument("--k", type=int, nargs="+", default=[5], metavar="K", help="of recall@k and hit@k (default 5)")


def _world(options: Options) -> None:
    options.add_argument("--world-seed", type=int, default=1000, help="of the world (default %(default)s)")
    options.add_argument("--size", type=int, default=224, help="of its pictures (default %(default)s)")
    text = "objects with views, distractors and part edits (default %(default)s)"
    options.add_argument("--identities", type=int, default=100, help=text)
    text = "objects with edit grids; 0 = no sensitivity (default %(default)s)"
    options.add_argument("--grids", type=int, default=30, help=text)
    text = "of distractors (default %(default)s)"
    options.add_argument("--strengths", type=float, nargs="+", default=[1.0, 0.75, 0.5, 0.3], help=text)


def _nearid(options: Options) -> None:
    text = "count each sample's mean margin as a trial of PA, as the code that printed the paper's tables does"
    options.add_argument("--released-pa", action="store_true", help=text)


def _retrieval(options: Options) -> None:
    from idmetric.protocols.common.paper_numbers import ILGEN_TABLE_5

    options.add_argument("--k", type=int, metavar="K", help="depth of mAP for datasets not in ILGen's Table 2")
    text = "the paper's row to compare with (default: by the model)"
    options.add_argument("--paper", choices=tuple(ILGEN_TABLE_5), help=text)


def _idsim(options: Options) -> None:
    from idmetric.protocols.common.paper_numbers import IDSIM_ROWS

    options.add_argument("--set", choices=BENCHMARKS, help="which benchmark all rows are (default: by dataset)")
    text = "of each of CUTE's objects and modes (default 10, as in the paper)"
    options.add_argument("--triplets", type=int, default=10, metavar="N", help=text)
    options.add_argument("--paper", choices=IDSIM_ROWS, help="the paper's row to compare with (default: by the model)")


def _mveb(options: Options) -> None:
    from idmetric.protocols.common.paper_numbers import VISME_TABLE_1

    text = f"a set's meta-task ({', '.join(TASKS)}), where it is not one of MVEB's; may be repeated"
    options.add_argument("--task", action="append", default=[], metavar="DATASET=TASK", help=text)
    options.add_argument(
        "--paper", choices=tuple(VISME_TABLE_1), help="the paper's row to compare with (default: by the model)"
    )


def _mmeb(options: Options) -> None:
    from idmetric.protocols.common.paper_numbers import VISME_MMEB

    options.add_argument(
        "--paper", choices=tuple(VISME_MMEB), help="the paper's row to compare with (default: by the model)"
    )


def _sensitivity(options: Options) -> None:
    options.add_argument("--rescale", action="store_true", help="divide each kind of change by its largest")
    options.add_argument("--no-anchor", action="store_true", help="leave the anchor itself out of its grid")
    text = "objects to render grids of if there is no --data (default %(default)s, as in the paper)"
    options.add_argument("--identities", type=int, default=100, help=text)
    options.add_argument("--world-seed", type=int, default=1001, help="of the world (default %(default)s)")
    options.add_argument("--size", type=int, default=224, help="of its pictures (default %(default)s)")


def _segmentation(options: Options) -> None:
    options.add_argument("--references", type=int, default=1, metavar="N", help="images shown of a subject (default 1)")
    text = "how a patch is compared with the reference (default %(default)s; see docs/evaluate-patches.md)"
    options.add_argument("--match", choices=MATCHES, default="prototype", help=text)
    text = "images of other subjects to search for each subject (default: all)"
    options.add_argument("--others", type=int, metavar="N", help=text)
    text = "compare the mask's box or the mask itself with the reference (default %(default)s, as PODS's code)"
    options.add_argument("--score", choices=("box", "mask"), default="box", help=text)
    text = "longer side at which masks are compared, in pixels; 0 = their own (default %(default)s)"
    options.add_argument("--side", type=int, default=512, metavar="N", help=text)
    text = (
        "a Segment Anything Model: folder or Hub repository, such as facebook/sam-vit-huge (default: the prior alone)"
    )
    options.add_argument("--sam", metavar="SOURCE", help=text)
    text = "points on and off the subject (default 1 1; PODS's code: 2 0)"
    options.add_argument("--points", type=int, nargs=2, default=[1, 1], metavar="N", help=text)
    text = "objects to render if there is no --data (default %(default)s)"
    options.add_argument("--identities", type=int, default=30, metavar="N", help=text)


def _matches(options: Options) -> None:
    options.add_argument("--count", type=int, default=10, metavar="N", help="matches of a pair (default %(default)s)")
    text = "objects to render if there is no --data (default %(default)s)"
    options.add_argument("--identities", type=int, default=30, metavar="N", help=text)


def _ilias(options: Options) -> None:
    text = "depth of mAP and of the oracle (default: %(default)s)"
    options.add_argument("--k", type=int, default=1000, metavar="K", help=text)
    text = "keep {query: {image: score}} for ILIAS's evaluate.py; of one --model"
    options.add_argument("--scores", type=Path, metavar="FILE.json", help=text)


def _finer(options: Options) -> None:
    text = "which real images a query searches: those of its species or all (default: %(default)s)"
    options.add_argument("--gallery", choices=("species", "all"), default="species", help=text)


def _dreambench(options: Options) -> None:
    text = "ratings: the published folder, or a file with lists (default: those of an imported manifest)"
    options.add_argument("--ratings", type=Path, metavar="PATH", help=text)
    text = "only images of this category; may be repeated (default: all four)"
    options.add_argument("--category", action="append", choices=CATEGORIES, help=text)
    text = "round correlations to four decimals before they are averaged, as the released code does"
    options.add_argument("--published-rounding", action="store_true", help=text)


def _openset(options: Options) -> None:
    text = "make the splits, with this share of the identities unknown (default: the manifest's splits, else 0.5)"
    options.add_argument("--unknown", type=float, metavar="SHARE", help=text)
    text = "similarities under which a query is new (default: the threshold of the model's calibration)"
    options.add_argument("--threshold", type=float, nargs="+", default=[], metavar="TAU", help=text)
    text = "calibration for the threshold (default: the model's own)"
    options.add_argument("--calibration", type=Path, metavar="FILE", help=text)
    text = "false-accept rates of the calibration's thresholds (default: 0.01)"
    options.add_argument("--rate", type=float, nargs="+", default=[0.01], metavar="RATE", help=text)


def _generator(options: Options) -> None:
    _add_outputs(options)
    _add_references(options)
    _add_copying(options)
    text = "add CopyRate, which compares with mirrored references and does not detect copies"
    options.add_argument("--copy-rate", action="store_true", help=text)
    text = "also group by this field or column; may be repeated"
    options.add_argument("--by", action="append", default=[], metavar="COLUMN", help=text)
    options.add_argument("--against", metavar="METHOD", help="compare each method with this one (default: each two)")
    text = "similarities under which a subject has failed (default: the threshold of the model's calibration)"
    options.add_argument("--scr", type=float, nargs="+", default=[], metavar="TAU", help=text)
    text = "calibration for SCR (default: the model's own)"
    options.add_argument("--calibration", type=Path, metavar="FILE", help=text)
    text = "false-accept rate of the calibration's threshold (default: %(default)s)"
    options.add_argument("--rate", type=float, default=0.05, help=text)


def _sets(options: Options) -> None:
    _add_outputs(options)
    _add_references(options)
    options.add_argument("--pool", action="store_true", help="take all subjects as one set")
    options.add_argument("--biased", action="store_true", help="CMMD as in its released code (default: unbiased)")
    text = "random draws of n images of a set (default: %(default)s)"
    options.add_argument("--draws", type=int, default=100, metavar="N", help=text)


def _checkpoints(options: Options) -> None:
    text = "names of samples below --data, such as '{step}/{prompt}_{seed}.png' (default: as trainers name them)"
    options.add_argument("--pattern", metavar="PATTERN", help=text)
    _add_references(options)
    _add_copying(options)
    text = "images of the base model for equal prompts and seeds, named as in --data (default: those of step 0)"
    options.add_argument("--base", type=Path, metavar="DIR", help=text)
    text = "a prompt without the subject, for drift alone; may be repeated (default: drift over all prompts)"
    options.add_argument("--drift-prompt", action="append", default=[], metavar="PROMPT", help=text)
    text = "a prompt in each line, for samples that are named by the number of their prompt"
    options.add_argument("--prompts", type=Path, metavar="FILE", help=text)
    text = "share of copies that the best step may have (default: %(default)s)"
    options.add_argument("--max-copies", type=float, default=0.0, metavar="SHARE", help=text)
    text = "how far CLIP-T of the best step may lie below the highest (default: %(default)s)"
    options.add_argument("--clip-tolerance", type=float, default=0.02, metavar="COSINE", help=text)


def _calibrate(options: Options) -> None:
    from idmetric.calibration.fitting import METHODS

    text = "write the calibration there (default: MODEL.calibration.json in --out)"
    options.add_argument("--save", type=Path, metavar="FILE", help=text)
    text = "isotonic (default) assumes no shape; platt, a logistic curve, is better where identities are few"
    options.add_argument("--method", choices=METHODS, default="isotonic", help=text)
    text = "false-accept rates to find thresholds for (default 0.1 0.05 0.01)"
    options.add_argument("--rates", type=float, nargs="+", default=[0.1, 0.05, 0.01], metavar="RATE", help=text)
    options.add_argument("--pairs", type=int, default=10, metavar="N", help="of one identity, at most (default 10)")
    options.add_argument("--folds", type=int, default=5, metavar="N", help="of cross-fitting (default 5)")
    text = "further pairs of two identities, for thresholds at low rates such as 0.001 (default 0)"
    options.add_argument("--strangers", type=int, default=0, metavar="N", help=text)
    text = "measure that calibration on the pairs instead of making one; 'stored': the one in each model's folder"
    options.add_argument("--check", metavar="FILE", help=text)
    options.add_argument("--about", default="", metavar="TEXT", help="a description of the data, kept in the file")


def _study(options: Options) -> None:
    text = "share of votes for one answer from which a label counts (default: %(default)s, as in ID-Sim)"
    options.add_argument("--agreement", type=float, default=0.8, metavar="SHARE", help=text)
    text = "pairs with less agreement: drop (default) leaves them out of AP and AUC, different is ID-Sim's rule"
    options.add_argument("--undecided", choices=("drop", "different"), default="drop", help=text)


# protocol -> the function that adds its own options
OPTIONS: dict[str, Callable[[Options], None]] = {
    "folder": _folder,
    "world": _world,
    "nearid": _nearid,
    "retrieval": _retrieval,
    "idsim": _idsim,
    "mveb": _mveb,
    "mmeb": _mmeb,
    "sensitivity": _sensitivity,
    "segmentation": _segmentation,
    "matches": _matches,
    "ilias": _ilias,
    "finer": _finer,
    "dreambench": _dreambench,
    "openset": _openset,
    "generator": _generator,
    "sets": _sets,
    "checkpoints": _checkpoints,
    "calibrate": _calibrate,
    "study": _study,
}
