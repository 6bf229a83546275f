"""`idmetric score`: distances of images to a reference, sorted, from the shell.

Exit status: 0 scored; 1 an error (on stderr; nothing on stdout, unless --output or --html failed in the end); 2 wrong
usage; 3 a distance exceeds --fail-over; 4 files were skipped (--on-error skip) and none exceeds it. A --cache that
cannot be written is a warning, and does not change the status.
"""

from __future__ import annotations

import math
import os
import sys
from argparse import Namespace
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

from idmetric.cli.command import (
    WRONG_USAGE,
    CommandError,
    Parser,
    check_not_read,
    check_output,
    codes,
    counting_embeddings,
    ended,
    form_of,
    say,
    status_of,
    warnings_as_lines,
    write_with_page,
)
from idmetric.cli.options import add_shared, check_model, load_options
from idmetric.metric.errors import RequestError
from idmetric.metric.files import Progress, is_same_file, need
from idmetric.metric.paths import ABSENT
from idmetric.scoring.pairs import ScoreRequest, absent_files, check_masks, read_pairs, request_of
from idmetric.tables import first_few

if TYPE_CHECKING:
    from idmetric.scoring.scores import Scores
    from idmetric.scoring.sheet import Album

ALIAS = "idmetric-score"  # name of the stand-alone command
_SKIP = "; --on-error skip scores the others"


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
        "--ref", action="append", default=[], metavar="PATH", help="reference image, folder or pattern; may be repeated"
    )
    add(
        "--pairs",
        metavar="CSV",
        help="score the pairs of a CSV file (- for standard input) with the columns a,b[,mask_a,mask_b] or "
        "ref,gen[,mask_ref,mask_gen]",
    )
    add_shared(parser, "--model", "--revision", "--distance")
    add("--threshold", type=float, metavar="T", help="say pass or fail: the largest distance that passes")
    add("--fail-over", type=float, metavar="T", help="exit with status 3 if a distance exceeds T")
    add_shared(
        parser,
        "--calibration",
        help="of `idmetric eval calibrate`: adds the answer same, unsure or different, and its probability (default: "
        "the one saved with the model)",
    )
    add_shared(parser, "--format", "--output")
    add("--html", metavar="FILE", help="also write a page of the images, nearest first (pip install 'idmetric[eval]')")
    add_shared(parser, "--mask-dir", "--mask-id")
    add_shared(parser, "--on-error", help="unreadable images: stop (default), or skip and list them")
    add_shared(parser, "--device", "--dtype", "--batch-size", "--cache")
    add_shared(parser, "--quiet", help="no progress, no warnings")
    parser.add_version()
    return parser


def main(argv: Sequence[str] | None = None, prog: str = ALIAS) -> int:
    """Run the command; returns the exit status."""
    parser = build_parser(prog)
    args = parser.parse_intermixed_args(argv)  # options may stand between the files
    outputs = [path for path in (args.html, args.output) if path]
    if len(outputs) == 2 and is_same_file(*outputs):
        parser.error("--html and --output name one file: give each its own")
    if args.fail_over is not None and math.isnan(args.fail_over):
        parser.error("--fail-over must be a number")
    if args.pairs and (args.paths or args.ref):
        parser.error("--pairs takes no other images")
    count = len(args.paths) + len(args.ref)
    if not args.pairs and count < 2:
        parser.error("give a reference and at least one candidate (or --ref, or --pairs)")
    return ended(partial(_run, args), parser)


def _run(args: Namespace) -> int:
    """Check names and options, which should not wait for the model, then score; returns the exit status."""
    try:
        request = _checked_request(args)
        check_model(args.model)
        scores = _score_and_write(args, request)
    except RequestError as error:
        raise CommandError(str(error), WRONG_USAGE) from error

    over = [] if args.fail_over is None else scores.beyond(args.fail_over)
    if not over:
        return status_of(scores.skipped)
    if not args.quiet:
        worst = max(over, key=lambda row: row["distance"])
        share = f"{len(over)} of {len(scores.rows)}"
        farthest = f"{worst['image']} at {worst['distance']:.4f}"
        say(f"exit status 3: {share} exceed {args.fail_over:g}, the farthest is {farthest}")
    return 3


def _checked_request(args: Namespace) -> ScoreRequest:
    """The images to score; outputs that would replace an input are refused, and inputs that are missing."""
    if args.html:
        need("eval", "--html", jinja2="jinja2")
    check_output(args.output)
    if args.pairs:
        request = read_pairs(args.pairs, args.on_error)
    else:
        references = args.ref or [args.paths.pop(0)]
        request = request_of(references, args.paths)

    inputs = [args.pairs, args.calibration, args.model]
    for folder in (args.model, args.mask_dir):
        if folder and os.path.isdir(folder):
            inputs += [entry.path for entry in os.scandir(folder)]
    for image in request.read:
        inputs += [image.image, image.mask]
    outputs = {"--output": args.output, "--html": args.html}
    check_not_read(outputs, [path for path in inputs if path])

    check_masks(request, args.mask_dir, args.mask_id)
    absent = absent_files(request) if args.on_error == "fail" else []
    if absent:
        problems = [f"cannot read image {path}: {ABSENT}" for path in absent]
        reasons = "; ".join(first_few(problems, 20))
        count = f"{len(absent)} images: " if len(absent) > 1 else ""
        raise CommandError(f"{count}{reasons}{_SKIP}")
    calibration = args.calibration
    if calibration and calibration != "stored" and not os.path.exists(calibration):
        raise CommandError(f"cannot read {calibration!r}: the file does not exist")
    return request


def _score_and_write(args: Namespace, request: ScoreRequest) -> Scores:
    """Score, print the scores and write the page."""
    from idmetric.metric.images import ImageReadError

    messages: list[str] = []

    def warn(message: str) -> None:
        messages.append(message)
        if not args.quiet:
            say(message)

    with warnings_as_lines(show=warn), counting_embeddings(args.quiet):
        try:
            scores, album = _score(args, request)
        except RequestError:
            raise
        except (ImportError, ValueError, RuntimeError, OSError) as error:
            hint = _SKIP if isinstance(error, ImageReadError) else ""
            raise CommandError(f"{' '.join(str(error).split())}{hint}") from error
    for image, reason in scores.skipped.items():
        say(f"skipped {image}: {reason}")
    if not scores.rows:
        raise CommandError("no image could be scored")

    form = form_of(args)
    if form in ("csv", "jsonl"):
        warn(scores.answered_by)  # which these have no place for
    write_page = None
    if album is not None:
        from idmetric.page import write_page as write_html
        from idmetric.scoring.sheet import score_page

        page = score_page(scores, album, messages=messages)
        write_page = partial(write_html, page, args.html)
    text = getattr(scores, f"to_{form}")()
    write_with_page(text, args.output, write_page)
    for path in (args.output, args.html):
        if path and not args.quiet:
            say(f"wrote {path}")
    return scores


def _score(args: Namespace, request: ScoreRequest) -> tuple[Scores, Album | None]:
    """The scores, and with --html the pictures of the page."""
    from idmetric.metric.load import load
    from idmetric.scoring.score import ScoreSettings, scores_of

    if args.html:
        from idmetric.page import check_page

        check_page(args.html)
    settings = ScoreSettings(
        distance=args.distance,
        mask_dir=args.mask_dir,
        mask_id=args.mask_id,
        on_error=args.on_error,
        cache=args.cache,
        calibration=args.calibration,
        threshold=args.threshold,
        batch_size=args.batch_size,
    )
    if args.quiet:
        os.environ |= {"HF_HUB_DISABLE_PROGRESS_BARS": "1", "HF_HUB_VERBOSITY": "error"}
    metric = load(args.model, **load_options(args))
    album = None
    if args.html:
        from idmetric.scoring.sheet import Album

        album = Album(len(request.read), metric.background)
    with Progress("pairs" if args.pairs else "images", not args.quiet, verb="scored") as progress:
        scores = scores_of(metric, request, settings, progress=progress, album=album)
    if args.threshold is not None:
        scores = replace(scores, threshold_source="option --threshold")
    return scores, album


if __name__ == "__main__":
    sys.exit(main())
