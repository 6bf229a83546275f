"""`idmetric match`: which of several subjects are where in images and clips, and how near to their references.

Without subjects: how alike the images, or the frames of each clip, are to each other.
"""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from idmetric.cli.command import (
    WRONG_USAGE,
    CommandError,
    Parser,
    check_not_read,
    check_output,
    codes,
    counting_embeddings,
    ended,
    files_among,
    fixable,
    form_of,
    say,
    status_of,
    warnings_as_lines,
    write_with_page,
)
from idmetric.cli.options import add_shared, check_model, load_options
from idmetric.metric.errors import RequestError
from idmetric.metric.files import Progress, StrPath, need
from idmetric.scoring.scores import Limit

if TYPE_CHECKING:
    from idmetric.matching.consistency import Consistency
    from idmetric.matching.matching import MatchRequest
    from idmetric.matching.result import Match

_EXAMPLES = """examples:
  idmetric match --subject ann=refs/ann --subject rex=rex.idm images/ --regions boxes.json
  idmetric match --subject ann=refs/ann --subject rex=refs/rex images/ --detect person,dog
  idmetric match --subject cat=refs/cat --subject duck=refs/duck story/ --regions boxes.json --cast cast.csv
  idmetric match --subject ann=refs/ann clip.mp4 --rate 2"""


def build_parser(prog: str = "idmetric match") -> Parser:
    """The parser of the command."""
    parser = Parser(
        prog=prog,
        description="Several subjects in images and clips: which region shows which subject, and at what distance.",
        epilog=f"{_EXAMPLES}\n\n{codes(0, 1, 2, 4, 130, 143)}",
    )
    add = parser.add_argument
    add("images", nargs="+", metavar="IMAGE", help="images, videos, folders or patterns")
    add(
        "--subject",
        action="append",
        default=[],
        metavar="NAME=PATH",
        help="a subject's references: an image, folder or pattern, or an .idm file; may be repeated; without any, "
        "images and frames are compared with each other",
    )
    add(
        "--regions",
        metavar="FILE",
        help="boxes or masks: COCO .json, .csv with path,x,y,w,h[,label], or a folder of masks (default: whole images)",
    )
    add("--detect", metavar="WORDS", help="find regions by words, such as 'dog,person' (extra eval)")
    add(
        "--detector",
        metavar="MODEL",
        help="of --detect: a model of OWLv2's type, a folder or owner/name on the Hub (default: "
        "google/owlv2-base-patch16-ensemble)",
    )
    add("--rate", type=float, metavar="FPS", help="frames per second of clips (default: all frames)")
    add(
        "--cast",
        metavar="FILE",
        help="the subjects that should be in each image: .csv with image,subjects, names separated by ';' (default: "
        "all subjects)",
    )
    add(
        "--threshold",
        type=float,
        metavar="T",
        help="largest distance that counts as a subject (default: by five photos of it, or the calibration)",
    )
    add_shared(parser, "--calibration", help="for thresholds: of `idmetric eval calibrate` (default: the model's own)")
    add_shared(
        parser,
        "--outside",
        default="keep",
        choices=("keep", "black", "white"),
        help="pixels outside of a region's mask (default: keep)",
    )
    add_shared(parser, "--model", "--revision", "--distance", "--device", "--format", "--output")
    add("--html", metavar="FILE", help="also write a page of the images with their regions, the worst first")
    add_shared(
        parser, "--on-error", help="unreadable images and boxes that do not fit: stop (default), or skip and list"
    )
    add_shared(parser, "--batch-size", "--cache", "--quiet")
    parser.add_version()
    return parser


def main(argv: Sequence[str] | None = None, prog: str = "idmetric match") -> int:
    """Run the command; returns the exit status."""
    parser = build_parser(prog)
    args = parser.parse_intermixed_args(argv)
    return ended(partial(_run, args), parser)


def _run(args: Namespace) -> int:
    """Check the request before the model is loaded, then match; returns the exit status."""
    need("eval", "idmetric match", scipy="SciPy", pandas="pandas")
    check_output(args.output)
    subjects = _subjects(args.subject)
    check_model(args.model)
    with warnings_as_lines(), fixable(RuntimeError, in_one_line=True):
        try:
            request = _request(args, subjects)
            result = _matched(args, subjects, request)
        except RequestError as error:
            raise CommandError(str(error), WRONG_USAGE) from error
    for image, reason in result.skipped.items():
        say(f"skipped {image}: {reason}")

    text = getattr(result, f"to_{form_of(args)}")()
    write_with_page(text, args.output, partial(result.write, args.html) if args.html else None)
    for path in (args.output, args.html):
        if path and not args.quiet:
            say(f"wrote {path}")
    return status_of(result.skipped)


def _subjects(entries: Sequence[str]) -> dict[str, str]:
    """The references of subjects by their names, of --subject NAME=PATH."""
    subjects: dict[str, str] = {}
    for entry in entries:
        name, sign, source = entry.partition("=")
        if not sign or not name or not source:
            raise CommandError(f"--subject {entry}: write NAME=PATH, such as rex=refs/rex", WRONG_USAGE)
        if name in subjects:
            raise CommandError(f"--subject: two subjects are called {name!r}: rename one of them", WRONG_USAGE)
        subjects[name] = source
    return subjects


def _request(args: Namespace, subjects: dict[str, str]) -> MatchRequest:
    """Images, regions and casts; options that do not fit, and outputs that would replace an input, are refused."""
    from idmetric.matching.matching import MatchRequest

    for_subjects = {"--cast": args.cast, "--threshold": args.threshold, "--calibration": args.calibration}
    if not subjects:
        for option, value in {**for_subjects, "--html": args.html}.items():
            if value is not None:
                raise CommandError(f"{option} is for subjects: name them by --subject", WRONG_USAGE)
    for first, second in (("regions", "detect"), ("threshold", "calibration")):
        if getattr(args, first) is not None and getattr(args, second) is not None:
            raise CommandError(f"--{first} and --{second}: give one of them", WRONG_USAGE)
    if args.detector and not args.detect:
        raise CommandError("--detector is for --detect", WRONG_USAGE)
    if args.html:
        from idmetric.page import check_page

        check_page(args.html)
    outputs = {"--output": args.output, "--html": args.html}
    check_not_read(outputs, _files_read(args, subjects))
    return MatchRequest.of(args.images, list(subjects), args.regions, args.cast, args.on_error)


def _files_read(args: Namespace, subjects: dict[str, str]) -> Iterator[StrPath]:
    """Yield images, clips, references and the files of other options."""
    from idmetric.matching.clips import sources_of

    yield from files_among([args.regions, args.cast, args.calibration])
    yield from files_among(sources_of([*args.images, *subjects.values()]))


def _matched(args: Namespace, subjects: dict[str, str], request: MatchRequest) -> Match | Consistency:
    from idmetric.matching.consistency import consistency
    from idmetric.matching.detect import WordDetector
    from idmetric.matching.matching import match
    from idmetric.metric.load import load
    from idmetric.scoring.calibration import Calibration

    threshold: Any = None
    if args.threshold is not None:
        threshold = Limit(args.threshold, "option --threshold")
    elif args.calibration is not None:
        threshold = Calibration.read(args.calibration)
    detector = None
    if args.detect:
        options = {"source": args.detector} if args.detector else {}
        detector = WordDetector(args.detect.split(","), device=args.device, **options)
    metric = load(args.model, **load_options(args))
    with counting_embeddings(args.quiet), Progress("images", not args.quiet, verb="matched") as progress:
        shared: dict[str, Any] = {
            "outside": args.outside,
            "rate": args.rate,
            "detector": detector,
            "on_error": args.on_error,
            "store": args.cache,
            "batch_size": args.batch_size,
            "progress": progress,
        }
        if not subjects:
            return consistency(metric, request, **shared)
        return match(metric, subjects, request, threshold=threshold, distance=args.distance, **shared)
