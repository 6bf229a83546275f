"""`idmetric`: one command with subcommands, each a module that only its own call imports."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Sequence

from idmetric.cli.command import WRONG_USAGE, Parser

# subcommand -> the module with its main(argv, prog), and the line that describes it
COMMANDS = {
    "demo": ("idmetric.cli.demo", "a first score, of example pictures in the package"),
    "models": ("idmetric.cli.list_models", "what each model needs, and which fits this machine"),
    "score": ("idmetric.cli.score", "distances of images to references, or of listed pairs"),
    "match": ("idmetric.cli.match", "several subjects in images: who is where"),
    "gallery": ("idmetric.cli.gallery", "search a folder, find duplicates, group identities"),
    "eval": ("idmetric.cli.eval", "run the papers' evaluation protocols, calibrate"),
    "train": ("idmetric.cli.train", "train the papers' models"),
    "data": ("idmetric.cli.data", "make, check and convert manifests"),
}
_EXAMPLES = """examples:
  idmetric demo
  idmetric score reference.jpg generated/ --model tiny
  idmetric gallery build photos/ --gallery index/
  idmetric eval folder --data photos/ --model tiny

`idmetric COMMAND --help` lists the options of a command."""


def build_parser() -> Parser:
    """The parser of the command, with the names of its subcommands."""
    parser = Parser(
        prog="idmetric", description="Do two images show the same object, animal or person?", epilog=_EXAMPLES
    )
    parser.add_version()
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", title="commands")
    for name, (_, line) in COMMANDS.items():
        commands.add_parser(name, help=line)
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Run a subcommand; returns its exit status."""
    words = list(sys.argv[1:] if argv is None else argv)
    if not words:
        build_parser().print_help(sys.stderr)
        return WRONG_USAGE
    name = build_parser().parse_args(words[:1]).command  # ends here for help, the version and unknown names
    status: int = importlib.import_module(COMMANDS[name][0]).main(words[1:], prog=f"idmetric {name}")
    return status


if __name__ == "__main__":
    sys.exit(main())
