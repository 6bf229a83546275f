"""The options of `idmetric score`."""

from __future__ import annotations

from argparse import Namespace

from idmetric.cli.command import Parser, codes
from idmetric.cli.options import add_shared
from idmetric.metric.files import is_same_file

ALIAS = "idmetric-score"  # name of the stand-alone command


def build_parser(prog: str = ALIAS) -> Parser:
    """The parser of the command."""
    parser = Parser(
        prog=prog,
        usage="%(prog)s REFERENCE IMAGE [IMAGE ...] [options]\n"
        "       %(prog)s --ref PATH [--ref PATH ...] IMAGE [IMAGE ...] [options]\n"
        "       %(prog)s --pairs CSV [options]",
        description="Distance of images to a reference: lower = more likely the same object, animal or person.",
        epilog=codes(0, 1, 2, 3, 4, 130, 143),
    )
    add = parser.add_argument
    add(
        "paths",
        nargs="*",
        metavar="IMAGE",
        help="files, folders or patterns; the first one names the reference (or several, or an .idm file), unless "
        "--ref is given",
    )
    add(
        "--ref",
        action="append",
        default=[],
        metavar="PATH",
        help="reference image, folder or pattern, may be repeated; or an .idm file of embeddings",
    )
    add(
        "--pairs",
        metavar="CSV",
        help="score the pairs of a CSV file (- for standard input) with the columns a,b[,mask_a,mask_b] or "
        "ref,gen[,mask_ref,mask_gen]",
    )
    add_shared(parser, "--model", "--revision", "--distance", "--device", "--mask-dir")
    add(
        "--threshold",
        type=float,
        metavar="T",
        help="exit with status 3 if a distance exceeds T (default: that of --calibration)",
    )
    add_shared(parser, "--format", "--output")
    add(
        "--html",
        metavar="FILE",
        help="also write a page with the images sorted, next to their references (pip install 'idmetric[eval]')",
    )
    add_shared(parser, "--quiet", help="no progress, no warnings")
    parser.add_version()
    _add_more(parser)
    return parser


def _add_more(parser: Parser) -> None:
    """Add the less common options, in groups."""
    references = parser.add_argument_group("references")
    references.add_argument(
        "--aggregate",
        choices=("best", "mean"),
        default="best",
        help="distance to several references: the smallest (default) or the mean",
    )
    references.add_argument(
        "--include-refs",
        action="store_true",
        help="also score references that are among the images (default: left out)",
    )
    references.add_argument(
        "--no-copies",
        action="store_false",
        dest="copies",
        help="do not look for copies of a reference's pixels, nor among the references",
    )

    reading = parser.add_argument_group("reading images")
    add_shared(reading, "--outside", "--mask-id")
    reading.add_argument(
        "--preprocessing",
        choices=("standard", "release"),
        help="release: as the ID-Sim and NearID releases, which ignore EXIF orientation, transparency and masks",
    )
    add_shared(reading, "--on-error", help="unreadable images: stop (default), or skip and list them")

    running = parser.add_argument_group("model and speed")
    add_shared(running, "--dtype", "--batch-size", "--workers", "--cache")

    probability = parser.add_argument_group("probability, and threshold by it")
    add_shared(
        probability,
        "--calibration",
        help="add the probability of the same identity, and fail images beyond the threshold at 5 %% of pairs; from "
        "`idmetric eval calibrate`, or 'stored': saved with the model",
    )

    rest = parser.add_argument_group("other")
    rest.add_argument("--list-models", action="store_true", help="print the tables of `idmetric models` and exit")


def refuse_misuse(parser: Parser, args: Namespace) -> None:
    """End with status 2 if the options do not go together."""
    if args.html and args.output and is_same_file(args.html, args.output):
        parser.error("--html and --output name one file: give each its own")
    if args.pairs and (args.paths or args.ref):
        parser.error("--pairs takes no other images")
    if not args.pairs and len(args.paths) + len(args.ref) < 2:
        parser.error("give a reference and at least one candidate (or --ref, or --pairs)")
