"""`idmetric score`: distances of images to a reference, sorted, from the shell.

Exit status: 0 scored; 1 an error (on stderr; nothing on stdout, unless --output or --html failed in the end); 2 wrong
usage; 3 a distance exceeds the threshold (--threshold, else that of --calibration);
4 files were skipped (--on-error skip) and none exceeds it. A --cache that cannot be written is a warning, and does not
change the status.
"""

from __future__ import annotations

import os
import sys
from argparse import Namespace
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING

from idmetric.cli.command import (
    WRONG_USAGE,
    CommandError,
    check_not_read,
    check_output,
    counting_embeddings,
    ended,
    form_of,
    say,
    status_of,
    warnings_as_lines,
    write_with_page,
)
from idmetric.cli.options import check_model, load_options
from idmetric.cli.score_parser import ALIAS, build_parser, refuse_misuse
from idmetric.evaluate.settings import values_of
from idmetric.metric.errors import RequestError
from idmetric.metric.files import Progress, need
from idmetric.metric.paths import ABSENT
from idmetric.scoring.files import Cross, absent_files, check_masks, cross, mask_path
from idmetric.scoring.limits import Limit
from idmetric.scoring.pairs import Pairs, read_pairs
from idmetric.scoring.scores import Scores, ScoreSettings
from idmetric.tables import first_few

if TYPE_CHECKING:
    from idmetric.scoring.sheet import Album

_SKIP = "; --on-error skip scores the others"


def main(argv: Sequence[str] | None = None, prog: str = ALIAS) -> int:
    """Run the command; returns the exit status."""
    parser = build_parser(prog)
    args = parser.parse_intermixed_args(argv)  # options may stand between the files
    if args.list_models:
        from idmetric.cli.list_models import print_models

        return ended(print_models, parser)
    refuse_misuse(parser, args)
    return ended(partial(_run, args), parser)


def _run(args: Namespace) -> int:
    """Check names and options, which should not wait for the model, then score."""
    if args.html:
        need("eval", "--html", jinja2="jinja2")
    try:
        check_output(args.output)
        if args.pairs:
            work: Cross | Pairs = read_pairs(Path(args.pairs), args.on_error)
        else:
            references = args.ref or [args.paths.pop(0)]
            work = cross(references, args.paths, args.include_refs)
        _check_files(args, work)
        check_model(args.model)
        return _scored(args, work)
    except RequestError as error:
        raise CommandError(str(error), WRONG_USAGE) from error


def _check_files(args: Namespace, work: Cross | Pairs) -> None:
    """Refuse outputs that would replace an input, and inputs that are missing or do not fit."""
    inputs = [path for path in (args.pairs, args.calibration, args.model) if path]
    if os.path.isdir(args.model):
        inputs += [entry.path for entry in os.scandir(args.model)]
    check_not_read({"--output": args.output, "--html": args.html}, chain(inputs, _files_read(work, args.mask_dir)))

    check_masks(work, args.mask_dir, args.mask_id is not None, args.preprocessing or "standard")
    absent = absent_files(work) if args.on_error == "fail" else []
    if absent:
        lines = [f"cannot read image {path}: {ABSENT}" for path in absent]
        reasons = "; ".join(first_few(lines, 20))
        if len(absent) > 1:
            reasons = f"{len(absent)} images: {reasons}"
        raise CommandError(f"{reasons}{_SKIP}")
    if args.calibration and args.calibration != "stored" and not os.path.exists(args.calibration):
        raise CommandError(f"cannot read {args.calibration!r}: the file does not exist")


def _files_read(work: Cross | Pairs, mask_dir: str | None) -> Iterator[str]:
    """Yield images and masks in order."""
    for file in work.files:
        yield file[0]
        mask = mask_path(mask_dir, file)
        if mask:
            yield mask


def _scored(args: Namespace, work: Cross | Pairs) -> int:
    """Score, print the scores and write the page; returns the exit status."""
    from idmetric.metric.images import ImageReadError

    messages: list[str] = []

    def warn(message: str) -> None:
        messages.append(message)
        if not args.quiet:
            say(message)

    with warnings_as_lines(show=warn), counting_embeddings(args.quiet):
        try:
            scores, album = _scores(args, work)
        except RequestError:
            raise
        except (ImportError, ValueError, RuntimeError, OSError) as error:
            hint = _SKIP if isinstance(error, ImageReadError) else ""
            raise CommandError(f"{' '.join(str(error).split())}{hint}") from error
    for skipped in scores.skipped:
        say(f"skipped {skipped['image']}: {skipped['reason']}")
    if not scores.rows:
        raise CommandError("no image could be scored")

    write_page = None
    if album is not None:
        write_page = partial(_write_page, args, scores, album, messages)
    write_with_page(getattr(scores, f"to_{form_of(args)}")(), args.output, write_page)
    for path in (args.output, args.html):
        if path and not args.quiet:
            say(f"wrote {path}")
    return _status(args, scores)


def _scores(args: Namespace, work: Cross | Pairs) -> tuple[Scores, Album | None]:
    """The scores, and with --html the pictures of the page."""
    from idmetric.metric.load import load
    from idmetric.scoring.calibration import calibration_of
    from idmetric.scoring.score import compare, limit_of

    if args.html:
        from idmetric.page import check_page

        check_page(args.html)
    values = values_of(args, ScoreSettings)
    if args.threshold is not None:
        values["threshold"] = Limit(args.threshold, "option --threshold")
    settings = ScoreSettings(**values)  # checks them before the model is opened
    if args.quiet:
        os.environ |= {"HF_HUB_DISABLE_PROGRESS_BARS": "1", "HF_HUB_VERBOSITY": "error"}
    metric = load(args.model, **load_options(args))
    if args.calibration:
        calibration = calibration_of(metric, args.calibration, args.distance, outside=None)
        settings = replace(settings, calibration=calibration, calibrated=limit_of(calibration))
    album = None
    if args.html:
        from idmetric.scoring.sheet import Album

        album = Album(work.pictures, metric.background)
    with Progress("pairs" if args.pairs else "images", not args.quiet, verb="scored") as progress:
        return compare(metric, work, settings, progress=progress, album=album), album


def _write_page(args: Namespace, scores: Scores, album: Album, messages: list[str]) -> None:
    from idmetric.page import write_page
    from idmetric.scoring.sheet import score_page

    write_page(score_page(scores, album, messages=messages), args.html)


def _status(args: Namespace, scores: Scores) -> int:
    """The exit status, with a line on stderr if a distance exceeds the threshold."""
    over = scores.failing
    if not over:
        return status_of(scores.skipped)
    if not args.quiet:
        worst = max(over, key=lambda row: row["distance"])
        count = f"{len(over)} of {len(scores.rows)} exceed the threshold {scores.limit}"
        say(f"exit status 3: {count}, the farthest is {worst['image']} at {worst['distance']:.4f}")
    return 3


if __name__ == "__main__":
    sys.exit(main())
