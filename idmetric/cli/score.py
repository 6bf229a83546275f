"""`idmetric score`: distances of images to a reference, sorted, from the shell.

Exit status: 0 scored; 1 an error (on stderr; nothing on stdout, unless --output or --html failed in the end); 2 wrong
usage; 3 a distance exceeds --threshold; 4 files were skipped (--on-error skip) and none exceeds it. A --cache that
cannot be written is a warning, and does not change the status.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING

from idmetric.cli import options
from idmetric.cli.command import (
    CommandError,
    Parser,
    UsageError,
    check_not_read,
    check_output,
    codes,
    ended,
    say,
    warnings_as_lines,
    write,
)
from idmetric.cli.options import check_model, load_options
from idmetric.metric.files.hints import need
from idmetric.metric.files.output import is_same_file
from idmetric.metric.files.progress import Progress
from idmetric.metric.files.tables import aligned, first_few
from idmetric.metric.images.paths import ABSENT, InputError
from idmetric.metric.scoring.files import Cross, absent_files, check_masks, cross, files_read
from idmetric.metric.scoring.pairs import Pairs, read_pairs
from idmetric.metric.scoring.scores import RequestError, Scores, ScoreSettings

if TYPE_CHECKING:
    from idmetric.evaluate.report.album import Album

ALIAS = "idmetric-score"  # name of the stand-alone command
_SKIP = "; --on-error skip scores the others"
_SHOWN = 20  # absent files that an error lists


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
    parser.add_argument("paths", nargs="*", metavar="IMAGE", help="files, folders or patterns; the first one names "
                        "the reference (or several), unless --ref is given")  # fmt: skip
    parser.add_argument("--ref", action="append", default=[], metavar="PATH", help="reference image, folder or "
                        "pattern; may be repeated")  # fmt: skip
    parser.add_argument("--pairs", metavar="CSV", help="score the pairs of a CSV file (- for standard "
                        "input) with the columns a,b[,mask_a,mask_b] or ref,gen[,mask_ref,mask_gen]")  # fmt: skip
    options.add_model(parser)
    options.add_distance(parser)
    options.add_device(parser)
    options.add_mask_dir(parser)
    parser.add_argument("--threshold", type=float, metavar="T", help="exit with status 3 if a distance exceeds T")
    options.add_format(parser)
    options.add_output(parser)
    parser.add_argument("--html", metavar="FILE", help="also write a page with the images sorted, next to their "
                        "references (pip install 'idmetric[report]')")  # fmt: skip
    options.add_quiet(parser, "no progress, no warnings")
    parser.add_version()
    _add_more(parser)
    return parser


def _add_more(parser: Parser) -> None:
    """Add the less common options, in groups."""
    references = parser.add_argument_group("references")
    references.add_argument("--aggregate", choices=("best", "mean"), default="best", help="distance to several "
                            "references: the smallest (default) or the mean")  # fmt: skip
    references.add_argument("--include-refs", action="store_true", help="also score references that are among the "
                            "images (default: left out)")  # fmt: skip
    references.add_argument("--no-copies", action="store_true", help="do not look for copies of a reference's pixels")

    reading = parser.add_argument_group("reading images")
    options.add_outside(reading)
    reading.add_argument("--preprocessing", choices=("standard", "release"), help="release: as the ID-Sim and NearID "
                         "releases, which ignore EXIF orientation, transparency and masks")  # fmt: skip
    options.add_decode(reading)
    options.add_on_error(reading, fail="stop", skip="skip and list them")

    running = parser.add_argument_group("model and speed")
    options.add_dtype(running)
    options.add_batch_size(running)
    options.add_workers(running)
    running.add_argument("--cache", metavar="DIR", help="keep embeddings there, by image content: the same command "
                         "resumes, and another embeds only new images")  # fmt: skip

    probability = parser.add_argument_group("probability")
    probability.add_argument("--calibration", metavar="FILE", help="add the probability of the same identity, from "
                             "`idmetric eval calibrate`; 'stored': saved with the model")  # fmt: skip
    probability.add_argument("--prior", type=float, metavar="P", help="with --calibration: expected share of images "
                             "with the same identity (default: as in its pairs)")  # fmt: skip

    other = parser.add_argument_group("other")
    other.add_argument("--html-details", type=options.natural, default=500, metavar="N", help="with --html: show "
                       "matched patches of the N nearest images, 0 = none (default: %(default)s)")  # fmt: skip
    other.add_argument("--list-models", action="store_true", help="print the models and exit")


def main(argv: Sequence[str] | None = None, prog: str = ALIAS) -> int:
    """Run the command; returns the exit status."""
    parser = build_parser(prog)
    args = parser.parse_intermixed_args(argv)  # options may stand between the files
    if args.list_models:
        return ended(_list_models, parser)
    if reason := _misuse(args):
        parser.error(reason)
    kept = "nothing was kept: with --cache DIR the same command would resume"
    if args.cache:
        kept = f"embeddings in {args.cache} are kept, and the same command resumes"
    return ended(partial(_run, args), parser, kept)


def _misuse(args: argparse.Namespace) -> str | None:
    """The reason why the options do not go together; None if they do."""
    if args.html and args.output and is_same_file(args.html, args.output):
        return "--html and --output name one file: give each its own"
    if args.pairs and (args.paths or args.ref):
        return "--pairs takes no other images"
    if not args.pairs and len(args.paths) + len(args.ref) < 2:
        return "give a reference and at least one candidate (or --ref, or --pairs)"
    return None


def _run(args: argparse.Namespace) -> int:
    """Check names and options, which should not wait for the model, then score."""
    if args.html:
        need("report", "--html", jinja2="jinja2")
    try:
        check_output(args.output)
        if args.pairs:
            work: Cross | Pairs = read_pairs(Path(args.pairs), args.on_error)
        else:
            references, candidates = (args.ref, args.paths) if args.ref else (args.paths[:1], args.paths[1:])
            work = cross(references, candidates, args.include_refs)
        given = [path for path in (args.pairs, args.calibration) if path]
        if os.path.isdir(args.model):
            given += [entry.path for entry in os.scandir(args.model)]
        elif os.path.isfile(args.model):
            given.append(args.model)
        check_not_read({"--output": args.output, "--html": args.html}, chain(given, files_read(work, args.mask_dir)))
        check_masks(work, args.mask_dir, args.mask_id is not None, args.preprocessing or "standard")
        if args.on_error == "fail" and (absent := absent_files(work)):
            reasons = first_few([f"cannot read image {path}: {ABSENT}" for path in absent], _SHOWN)
            several = f"{len(absent)} images: " if len(absent) > 1 else ""
            raise CommandError(f"{several}{'; '.join(reasons)}{_SKIP}")
        if args.calibration and args.calibration != "stored" and not os.path.exists(args.calibration):
            raise CommandError(f"cannot read {args.calibration!r}: there is no such file")
        check_model(args.model)
        return _scored(args, work)
    except (RequestError, InputError) as error:
        raise UsageError(str(error)) from error


def _scored(args: argparse.Namespace, work: Cross | Pairs) -> int:
    """Score, print the scores and write the page; returns the exit status."""
    from idmetric.metric.images.read import ImageReadError

    messages: list[str] = []

    def warn(message: str) -> None:
        messages.append(message)
        if not args.quiet:
            say(message)

    with warnings_as_lines(show=warn):
        try:
            scores, album = _scores(args, work)
        except RequestError:
            raise
        except (ImportError, ValueError, RuntimeError, OSError) as error:
            hint = _SKIP if isinstance(error, ImageReadError) else ""
            raise CommandError(f"{' '.join(str(error).split())}{hint}") from error
    for lost in scores.skipped:
        say(f"skipped {lost['image']}: {lost['reason']}")
    if not scores.rows:
        raise CommandError("no image could be scored")

    try:
        write(getattr(scores, f"to_{args.format}")(), args.output)
    finally:  # even if nobody reads stdout any more
        if album is not None:
            _write_page(args, scores, album, messages)
    for path in (args.output, args.html):
        if path and not args.quiet:
            say(f"wrote {path}")
    return _status(args, scores)


def _scores(args: argparse.Namespace, work: Cross | Pairs) -> tuple[Scores, Album | None]:
    """The scores, and with --html the pictures of the page."""
    from idmetric.metric.models.load import load
    from idmetric.metric.scoring.compare import calibration_of, compare

    if args.html:
        from idmetric.evaluate.report.page import check_page

        check_page(args.html)
    settings = ScoreSettings(
        args.distance, args.aggregate, args.mask_dir, args.mask_id, args.outside, args.on_error, args.cache,
        args.calibration, args.prior, not args.no_copies, args.threshold, args.batch_size, args.workers,
    )  # fmt: skip
    if args.quiet:
        os.environ |= {"HF_HUB_DISABLE_PROGRESS_BARS": "1", "HF_HUB_VERBOSITY": "error"}
    chosen = load_options(args.dtype, args.revision, args.preprocessing, args.decode)
    metric = load(args.model, device=args.device, **chosen)
    settings = replace(settings, calibration=calibration_of(metric, args.calibration, args.distance))
    album = None
    if args.html:
        from idmetric.evaluate.report.album import Album

        album = Album(metric, work.pictures, args.html_details)
    with Progress("pairs" if args.pairs else "images", not args.quiet, verb="scored") as progress:
        return compare(metric, work, settings, progress=progress, watcher=album), album


def _write_page(args: argparse.Namespace, scores: Scores, album: Album, messages: list[str]) -> None:
    from idmetric.evaluate.report.html import score_page
    from idmetric.evaluate.report.page import write_page

    try:
        write_page(score_page(scores, album, messages=messages), args.html)
    except OSError as error:
        kept = f"are in {args.output}" if args.output else "were printed"
        raise CommandError(f"{error}; the scores {kept}") from error


def _status(args: argparse.Namespace, scores: Scores) -> int:
    """The exit status, with a line on stderr if a distance exceeds --threshold."""
    over = scores.failing
    if not over:
        return 4 if scores.skipped else 0
    if not args.quiet:
        worst = max(over, key=lambda row: row["distance"])
        say(
            f"exit status 3: {len(over)} of {len(scores.rows)} exceed --threshold {args.threshold:g}, the farthest is "
            f"{worst['image']} at {worst['distance']:.4f}"
        )
    return 3


def _list_models() -> int:
    check_output(None, "leave it open")
    write(list_models(), instead="direct it to another disk")
    return 0


def list_models() -> str:
    """The tables of --list-models: models, published scores, frozen encoders."""
    from idmetric.metric.checkpoints import released
    from idmetric.metric.checkpoints.format import CONFIG, WEIGHTS
    from idmetric.metric.models.idsim import TINY
    from idmetric.metric.models.named import FROZEN, NAMED

    size = (TINY / WEIGHTS).stat().st_size / 1e9
    side = json.loads((TINY / CONFIG).read_text(encoding="utf-8"))["image_size"]
    lines = [["model", "download", "license", "resolution", "distance", "state", "repository"],
             ["tiny", f"{size:.3f} GB", "apache-2.0", f"{side}x{side}", "cls", "in the package", ""]]  # fmt: skip
    for name, release in released.models().items():
        state = "cached" if released.is_cached(release) else "not fetched"
        lines.append([name, f"{release.gigabytes} GB", release.license, release.resolution, "cls", state, release.repo])
    scores = [["score", "encoder", "source"], *([name, s.backbone, s.source] for name, s in NAMED.items())]
    frozen = [["frozen encoder", "timm's name"], *([name, encoder] for name, (encoder, _) in FROZEN.items())]
    return "\n\n".join("\n".join(aligned(table)) for table in (lines, scores, frozen)) + "\n"


if __name__ == "__main__":
    sys.exit(main())
