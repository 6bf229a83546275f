"""`idmetric match`: which of several subjects are where in images and clips, and how near to their references.

Without subjects: how alike the images, or the frames of each clip, are to each other.
"""

from __future__ import annotations

import os
from argparse import ArgumentTypeError, Namespace
from collections.abc import Iterator, Mapping, Sequence
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
    write,
)
from idmetric.cli.match_detect import add_detection, check_detection, detected_regions
from idmetric.cli.options import add_shared, check_model, load_options
from idmetric.metric.errors import RequestError
from idmetric.metric.files import Progress, StrPath, need
from idmetric.scoring.scores import Limit

if TYPE_CHECKING:
    from idmetric.matching.consistency import Consistency
    from idmetric.matching.request import MatchRequest
    from idmetric.matching.result import Match
    from idmetric.metric.images import Outside

_EXAMPLES = """examples:
  idmetric match --subject ann=refs/ann --subject rex=rex.idm images/ --regions boxes.json
  idmetric match --subject ann:person=refs/ann --subject rex:dog=refs/rex images/ --detect person,dog
  idmetric match --subject cat=refs/cat --subject duck=refs/duck story/ --regions boxes.json --cast cast.csv
  idmetric match --subject ann=refs/ann clip.mp4 --frames 2fps
  idmetric match clip.mp4 --frames all"""


def build_parser(prog: str = "idmetric match") -> Parser:
    """The parser of the command."""
    parser = Parser(
        prog=prog,
        description="Several subjects in images and clips: which region shows which subject, and at what distance.",
        epilog=f"{_EXAMPLES}\n\n{codes(0, 1, 2, 4, 130, 143)}",
    )
    parser.add_argument("images", nargs="*", metavar="IMAGE", help="images, videos, folders or patterns")
    parser.add_argument(
        "--subject",
        action="append",
        default=[],
        metavar="NAME[:WORD]=PATH",
        help="a subject's references: an image, folder or pattern, or an .idm file; WORD, such as dog, limits it to "
        "regions of that label; may be repeated; without any, images and frames are compared with each other",
    )
    parser.add_argument(
        "--clip",
        action="append",
        default=[],
        metavar="PATH",
        help="a folder of frames, or an animated WebP or PNG, that is one clip; may be repeated",
    )
    parser.add_argument(
        "--fps", type=float, default=1.0, metavar="RATE", help="frames per second of --clip folders (default: 1)"
    )
    parser.add_argument(
        "--frames",
        default="16",
        metavar="N",
        help="of each clip: so many at equal distances (default: 16), a rate such as 2fps, or 'all'",
    )
    parser.add_argument(
        "--grid", type=grid_size, metavar="ROWSxCOLUMNS", help="each image is a clip of so many panels, row by row"
    )
    parser.add_argument(
        "--regions",
        metavar="FILE",
        help="boxes or masks: COCO .json, .csv with path,x,y,w,h[,label], or a folder of masks (default: whole images)",
    )
    add_shared(parser, "--model", "--revision", "--distance", "--device")
    add_shared(parser, "--format", "--output")
    add_shared(parser, "--quiet")
    parser.add_version()

    add_detection(parser)
    rules = parser.add_argument_group("rules")
    rules.add_argument(
        "--missing",
        choices=("missing", "zero", "whole", "skip"),
        default="missing",
        help="value of a subject that is not found: none (default), similarity 0, that of the whole image, or leave "
        "the image out",
    )
    rules.add_argument(
        "--threshold",
        type=float,
        metavar="T",
        help="largest distance that counts as a subject (default: by five photos of it, else by the calibration)",
    )
    add_shared(
        rules, "--calibration", help="for thresholds: a file of `idmetric eval calibrate` (default: the model's own)"
    )
    rules.add_argument(
        "--cast",
        metavar="FILE",
        help="the subjects that should be in each image: .csv with image,subjects, names separated by ';' (default: "
        "all subjects)",
    )
    rules.add_argument("--aggregate", choices=("best", "mean"), default="best", help="over a subject's references")

    cutting = parser.add_argument_group("cutting regions")
    cutting.add_argument("--margin", type=float, default=0.0, help="context around a box, as a share of its sides")
    cutting.add_argument("--square", action="store_true", help="pad cuts to white squares")
    add_shared(
        cutting,
        "--outside",
        default="keep",
        help="pixels outside of a region's mask (default: keep); crop is black here, as cuts end at the mask's box",
    )
    run = parser.add_argument_group("run")
    add_shared(run, "--on-error", help="unreadable images and boxes that do not fit: stop (default), or skip and list")
    add_shared(run, "--batch-size", "--workers", "--cache", "--dtype")
    return parser


def main(argv: Sequence[str] | None = None, prog: str = "idmetric match") -> int:
    """Run the command; returns the exit status."""
    parser = build_parser(prog)
    args = parser.parse_intermixed_args(argv)
    return ended(partial(_run, args), parser)


def _run(args: Namespace) -> int:
    need("eval", "idmetric match", scipy="SciPy")
    check_output(args.output)
    if not args.images and not args.clip:
        raise CommandError("no images: give files, folders or --clip", WRONG_USAGE)
    subjects, words = _subjects(args.subject)
    if not subjects:
        _check_without_subjects(args)
    check_model(args.model)
    check_detection(args)
    with warnings_as_lines(), fixable(RuntimeError, in_one_line=True):
        try:
            request = _request(args, subjects, words)
            check_not_read({"--output": args.output}, _files_read(args, subjects))
            result = _matched(args, subjects, words, request)
        except RequestError as error:
            raise CommandError(str(error), WRONG_USAGE) from error
    for image, reason in result.skipped.items():
        say(f"skipped {image}: {reason}")
    write(getattr(result, f"to_{form_of(args)}")(), args.output)
    if args.output and not args.quiet:
        say(f"wrote {args.output}")
    return status_of(result.skipped)


def _check_without_subjects(args: Namespace) -> None:
    """Refuse options that are of subjects, where images and frames are compared with each other."""
    for name in ("cast", "threshold", "calibration"):
        if getattr(args, name) is not None:
            raise CommandError(f"--{name} is for subjects: name them by --subject", WRONG_USAGE)


def _request(args: Namespace, subjects: Mapping[str, str], words: Mapping[str, str]) -> MatchRequest:
    """Images, frames, regions and casts, before a model is opened."""
    from idmetric.matching.request import MatchRequest

    return MatchRequest.of(
        _sources(args),
        list(subjects),
        list(words.values()),
        frames=args.frames,
        regions=args.regions,
        cast=args.cast,
        on_error=args.on_error,
    )


def _files_read(args: Namespace, subjects: Mapping[str, str]) -> Iterator[StrPath]:
    """Yield images, clips, references and the files of other options."""
    from idmetric.matching.clips import Clip, sources_of

    yield from files_among([args.regions, args.cast, args.calibration])
    for source in sources_of([*args.images, *args.clip, *subjects.values()]):
        yield from files_among([source.source if isinstance(source, Clip) else source])


def _matched(
    args: Namespace, subjects: Mapping[str, str], words: Mapping[str, str], request: MatchRequest
) -> Match | Consistency:
    from idmetric.matching.consistency import consistency
    from idmetric.matching.matching import match
    from idmetric.matching.regions import Cut
    from idmetric.metric.load import load

    outside: Outside = args.outside
    if outside == "crop":
        outside = "black"
    metric = load(args.model, **load_options(args))
    detected = detected_regions(args, metric, subjects)
    if detected is not None:
        request = request.with_regions(detected)
    with counting_embeddings(args.quiet), Progress("images", not args.quiet, verb="matched") as progress:
        shared: dict[str, Any] = {
            "cut": Cut(margin=args.margin, square=args.square, outside=outside),
            "on_error": args.on_error,
            "batch_size": args.batch_size,
            "workers": args.workers,
            "cache": args.cache,
            "progress": progress,
        }
        if not subjects:
            return consistency(metric, request, **shared)
        threshold = None
        if args.threshold is not None:
            threshold = Limit(args.threshold, "option --threshold")
        return match(
            metric,
            subjects,
            request,
            words=words,
            missing=args.missing,
            distance=args.distance,
            aggregate=args.aggregate,
            threshold=threshold,
            calibration=args.calibration,
            **shared,
        )


def _sources(args: Namespace) -> list[Any]:
    """Images and clips, each file once."""
    from idmetric.matching.clips import Clip, sources_of
    from idmetric.metric.images import ImageReadError

    try:
        sources = sources_of(args.images)
    except ImageReadError as error:
        raise CommandError(str(error), WRONG_USAGE) from error
    by_path: dict[str, Any] = {}
    for source in sources:
        path = source
        if isinstance(source, Clip):
            path = source.source
        path = os.path.normpath(path)
        if args.grid:
            source = Clip(path, grid=args.grid)
        by_path.setdefault(path, source)
    clips = [Clip(path, args.fps) for path in args.clip]
    return [*by_path.values(), *clips]


def grid_size(text: str) -> tuple[int, int]:
    """Rows and columns, as the type of an option."""
    rows, _, columns = text.partition("x")
    if not rows.isdecimal() or not columns.isdecimal() or not int(rows) or not int(columns):
        raise ArgumentTypeError(f"{text!r} is not ROWSxCOLUMNS, such as 2x4")
    return int(rows), int(columns)


def _subjects(entries: Sequence[str]) -> tuple[dict[str, str], dict[str, str]]:
    """The references and the class words of subjects by their names, of --subject NAME=PATH or NAME:WORD=PATH."""
    subjects: dict[str, str] = {}
    words: dict[str, str] = {}
    for entry in entries:
        key, sign, source = entry.partition("=")
        name, _, word = key.partition(":")
        if not sign or not name or not source:
            raise CommandError(f"--subject {entry}: write NAME=PATH, such as rex=refs/rex", WRONG_USAGE)
        if name in subjects:
            raise CommandError(f"--subject: two subjects are called {name!r}: rename one of them", WRONG_USAGE)
        subjects[name] = source
        if word:
            words[name] = word
    return subjects, words
