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
from idmetric.tables import aligned, four

if TYPE_CHECKING:
    from idmetric.scoring.scores import Scores

MODEL = "tiny"
REFERENCE = "mug"
# name -> what the picture shows
CAPTIONS = {
    "mug": "a mug",
    "mug_elsewhere": "the same mug in another place",
    "another_mug": "another mug",
    "box": "a box",
}


def demo_images() -> dict[str, Path]:
    """The files of four small example pictures: a mug, the same mug elsewhere, another mug, a box.

    Returns:
        The path of each picture by its name: "mug", "mug_elsewhere", "another_mug", "box". They are rendered, 256 x 256
        pixels, and belong to the package.
    """
    return {name: Path(__file__).with_name("pictures") / f"{name}.webp" for name in CAPTIONS}


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
    from idmetric.scoring.score import score

    pictures = demo_images()
    reference = pictures.pop(REFERENCE)
    with fixable():
        scores = score(load(MODEL, device=args.device), reference, list(pictures.values()))
    write_with_page(_report(scores), None, partial(_write_page, scores, args.html) if args.html else None)
    return 0


def _write_page(scores: Scores, path: str) -> None:
    scores.write(path)
    say(f"wrote {path}")


def _report(scores: Scores) -> str:
    """The scores as a table, what they mean, and the commands to run next."""
    from idmetric.scoring.calibration import SURE

    table = [["distance", "P(same)", "answer", "picture"]]
    for row in scores.rows:
        caption = CAPTIONS[Path(row["image"]).stem]
        table.append([four(row["distance"]), f"{row['probability']:.2f}", row["answer"], caption])

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
