"""`idmetric demo`: a first score without any photos: four pictures in the package, by the model in the package."""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from idmetric.cli.command import Parser, codes, ended, fixable, say, write_with_page
from idmetric.cli.options import add_shared
from idmetric.metric.files import need
from idmetric.scoring.demo import CAPTIONS, REFERENCE, demo_images
from idmetric.scoring.scores import Scores
from idmetric.tables import aligned, four

if TYPE_CHECKING:
    from idmetric.scoring.calibration import Calibration
    from idmetric.scoring.sheet import Album

MODEL = "tiny"


def build_parser(prog: str = "idmetric demo") -> Parser:
    """The parser of the command."""
    parser = Parser(
        prog=prog,
        description=f"Score example pictures in the package with {MODEL}, the small model in the package: it needs\n"
        "neither photos nor a download.",
        epilog=codes(0, 1, 2, 130, 143),
    )
    parser.add_argument("--html", metavar="PAGE", help="also write the page of `idmetric score --html`")
    add_shared(parser, "--device")
    return parser


def main(argv: Sequence[str] | None = None, prog: str = "idmetric demo") -> int:
    """Run the command; returns the exit status."""
    parser = build_parser(prog)
    args = parser.parse_args(argv)
    return ended(partial(_run, args), parser)


def _run(args: Namespace) -> int:
    if args.html:
        need("eval", "--html", jinja2="jinja2")
        from idmetric.page import check_page

        with fixable():
            check_page(args.html)
    from idmetric.metric.load import load
    from idmetric.scoring.calibration import calibration_of
    from idmetric.scoring.files import cross
    from idmetric.scoring.score import compare
    from idmetric.scoring.scores import ScoreSettings

    pictures = demo_images()
    reference = pictures.pop(REFERENCE)
    album = None
    with fixable():
        metric = load(MODEL, device=args.device)
        if args.html:
            from idmetric.scoring.sheet import Album

            album = Album(len(pictures) + 1, metric.background)
        calibration = calibration_of(metric, "stored", "cls")
        scores = compare(metric, cross([reference], list(pictures.values())), ScoreSettings(), album=album)

    write_page = None
    if album is not None:
        write_page = partial(_write_page, scores, album, args.html)
    assert calibration is not None  # of "stored"
    write_with_page(_report(scores, calibration), None, write_page)
    return 0


def _write_page(scores: Scores, album: Album, path: str) -> None:
    from idmetric.page import write_page
    from idmetric.scoring.sheet import score_page

    write_page(score_page(scores, album), path)
    say(f"wrote {path}")


def _report(scores: Scores, calibration: Calibration) -> str:
    """The scores as a table, what they mean, and the commands to run next."""
    from idmetric.scoring.calibration import SURE

    table = [["distance", "P(same)", "answer", "picture"]]
    for row in scores.rows:
        probability = f"{float(calibration.probability(row['distance'])):.2f}"
        caption = CAPTIONS[Path(row["image"]).stem]
        table.append([four(row["distance"]), probability, calibration.answer(row["distance"]), caption])

    meanings = [
        ["distance", "lower = more likely the same identity"],
        [
            "P(same)",
            "probability of the same identity where half of all pairs show one, by the calibration of the model",
        ],
        [
            "answer",
            f"same: P(same) of {SURE:g} or more. different: {1 - SURE:.1g} or less. unsure: between; look yourself, or",
        ],
        ["", "give more photos of the subject (--ref)"],
        ["pictures", str(demo_images()[REFERENCE].parent)],
    ]
    lines = [
        f"Pictures compared with one of {CAPTIONS[REFERENCE]}, by {MODEL}, the small model in the package:",
        "no download, but not for a paper.",
        "",
        *aligned(table),
        "",
        *aligned(meanings),
        "",
        "Your own photos, with a page to look at:",
        f"  idmetric score --model {MODEL} reference.jpg photos/ --html page.html",
        "",
    ]
    return "\n".join(lines)
