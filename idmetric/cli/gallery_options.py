"""Options of `idmetric gallery`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from idmetric.cli import options
from idmetric.cli.command import Parser, codes

_EXAMPLES = """examples:
  idmetric gallery build photos/ --gallery index/ --model tiny
  idmetric gallery build --gallery index/                  again: embeds what is new or changed
  idmetric gallery query who.jpg --gallery index/ -k 5
  idmetric gallery dedupe photos/ --model tiny --output duplicates.csv
  idmetric gallery cluster --gallery index/ --threshold 0.3 --output identities.csv
  idmetric gallery prune --gallery index/                  forget embeddings of images that are gone

Images are never deleted or moved."""


def build_parser(prog: str = "idmetric gallery") -> Parser:
    """The parser of the subcommands and their options."""
    parser = Parser(
        prog=prog,
        description="Embed a folder of images once, then search it, find duplicates and group identities.",
        epilog=f"{_EXAMPLES}\n\n{codes(0, 1, 2, 4, 130)}",
    )
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", required=True, title="commands")
    parser.set_defaults(**_ABSENT)
    for name, (line, add, prints) in _PARTS.items():
        part = commands.add_parser(name, help=line, description=f"{line[0].upper()}{line[1:]}.")
        add(part)
        _add_shared(part, name, prints)
    return parser


def _add_build(parser: Parser) -> None:
    parser.add_argument("sources", nargs="*", help="folders, images or manifests (default: those of the last build)")
    parser.add_argument("--add", action="store_true", help="add to the gallery's sources instead of replacing them")
    parser.add_argument("--quick", action="store_true", help="trust files with unchanged size and times (default: read "
                        "all)")  # fmt: skip
    parser.add_argument("--patches", action="store_true", help="keep patch tokens for --rerank: megabytes per image")
    parser.add_argument("--parquet", metavar="FILE", help="also write images and vectors there")


def _add_query(parser: Parser) -> None:
    parser.add_argument("images", nargs="+", help="images to search for")
    parser.add_argument("-k", type=int, default=10, help="hits per image (default: %(default)s)")
    options.add_distance(parser, "distance of the ranking; all but cls rank a shortlist (default: %(default)s)")
    parser.add_argument("--rerank", type=int, metavar="N", help="rank the N nearest again by --distance")
    parser.add_argument("--query-mask-dir", metavar="DIR", help="folder with the masks of the queries")
    parser.add_argument("--exclude-same", action="store_true", help="leave out images with the query's own bytes")
    parser.add_argument("--calibration", metavar="FILE", help="add the probability of the same identity, from "
                        "`idmetric eval calibrate`; 'stored': saved with the model")  # fmt: skip


def _add_dedupe(parser: Parser) -> None:
    _add_sources(parser)
    parser.add_argument("--neighbors", type=int, default=10, metavar="N", help="nearest images to compare with "
                        "(default: %(default)s)")  # fmt: skip
    parser.add_argument("--max-distance", type=float, metavar="D", help="also group images this near, whatever their "
                        "pixels")  # fmt: skip
    parser.add_argument("--keep", choices=("largest", "sharpest"), default="largest", help="image to keep of each "
                        "group (default: %(default)s)")  # fmt: skip


def _add_cluster(parser: Parser) -> None:
    _add_sources(parser)
    _add_identities(parser)


def _add_identities(parser: Parser) -> None:
    parser.add_argument("--threshold", type=float, metavar="D", help="largest distance within an identity (default: "
                        "from the calibration)")  # fmt: skip
    parser.add_argument("--false-accept-rate", type=float, default=0.01, metavar="R", help="choose the calibration's "
                        "threshold with this rate (default: %(default)s)")  # fmt: skip
    parser.add_argument("--linkage", choices=("average", "complete", "single"), default="average", help="default: "
                        "%(default)s")  # fmt: skip
    parser.add_argument("--calibration", metavar="FILE", help="default: the one saved with the model")


def _add_report(parser: Parser) -> None:
    _add_dedupe(parser)
    _add_identities(parser)


def _add_info(parser: Parser) -> None:
    parser.add_argument("--check", action="store_true", help="read all files to count the changed ones (default: "
                        "compare size, times and inode)")  # fmt: skip


def _add_prune(parser: Parser) -> None:
    parser.add_argument(
        "--others", action="store_true", help="also remove files in the folder of other models and weights"
    )


def _add_sources(parser: Parser) -> None:
    parser.add_argument("sources", nargs="*", help="folders, images or manifests; without --gallery, embeddings are "
                        "not kept")  # fmt: skip


# values of options that only some subcommands have
_ABSENT: dict[str, Any] = {
    "sources": [], "images": [], "output": None, "parquet": None, "calibration": None, "query_mask_dir": None,
    "add": False, "patches": False, "no_update": False, "mask_dir": None, "trust_sources": False,
}  # fmt: skip
# subcommand -> the line that describes it, the function that adds its options, whether it prints a table
_PARTS: dict[str, tuple[str, Callable[[Parser], None], bool]] = {
    "build": ("embed new and changed images", _add_build, False),
    "query": ("find the nearest images", _add_query, True),
    "dedupe": ("find near-duplicates, and which of them to keep", _add_dedupe, True),
    "cluster": ("group images by identity", _add_cluster, True),
    "report": ("make a page of duplicates, identities and neighbors", _add_report, True),
    "info": ("describe a gallery without opening its model", _add_info, True),
    "prune": ("remove embeddings of images that are gone", _add_prune, False),
}


def _add_shared(parser: Parser, name: str, prints: bool) -> None:
    parser.add_argument("--gallery", "-g", metavar="DIR", help="folder of the gallery")
    if name == "report":
        parser.add_argument("--output", "-o", metavar="FILE", required=True, help="write the page there")
    elif prints:
        options.add_format(parser, default=None)
        options.add_output(parser, "-o")
    if name == "info":
        options.add_quiet(parser, "no warnings")
        return  # it opens no model and reads no sources
    if prints:
        parser.add_argument("--no-update", action="store_true", help="do not look for new and changed files first; "
                            "changed ones are left out of the answer")  # fmt: skip
    options.add_quiet(parser, "no progress, no warnings")

    model = parser.add_argument_group("model and speed")
    options.add_model(model, None, f"{options.MODELS} (default: the gallery's, or {options.DEFAULT_MODEL})")
    options.add_device(model)
    options.add_dtype(model, "that of the gallery, or float32")
    options.add_batch_size(model)
    options.add_workers(model)

    reading = parser.add_argument_group("reading images")
    options.add_mask_dir(reading)
    reading.add_argument("--masked", action="store_true", help="compare subjects alone, by the masks of the manifest")
    options.add_outside(reading, None)
    options.add_decode(reading, None, "the gallery's, or ")
    reading.add_argument("--trust-sources", action="store_true", help="read the source folders that are listed in a "
                         "gallery made elsewhere; needed once")  # fmt: skip
