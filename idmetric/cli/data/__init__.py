"""`idmetric data`: make, check and convert manifests. Each command has a module here."""

from __future__ import annotations

import importlib
import os
from argparse import Namespace
from collections.abc import Sequence
from fnmatch import fnmatch
from functools import partial
from pathlib import Path

from idmetric.cli.command import Parser, codes, ended, files_among, fixable, refuse_inputs, warnings_as_lines
from idmetric.data.importers import KINDS
from idmetric.metric.files import need
from idmetric.metric.paths import walk

# command -> the line that describes it; each is a module here with add_arguments(parser) and run(args) -> int
COMMANDS = {
    "info": "summarize a manifest and list its faults",
    "import": "make a manifest of a folder or a published dataset",
    "merge": "join several manifests",
    "split": "split identities into train, validation and test",
    "curate": "balance, filter and cap identities as the papers do",
    "mine": "find hard negatives and hard pairs by nearest neighbors",
    "frames": "choose sharp frames of videos that show the subject well",
    "generate": "edit or generate images with diffusion models",
    "masks": "attach masks of a folder to images",
}
# optional packages that a subcommand needs in addition to pandas, and their extra; engines of `generate` report theirs
NEEDS: dict[str, tuple[str, dict[str, str]]] = {
    "frames": ("eval", {"av": "PyAV"}),
    "generate": ("generate", {}),
}


def build_parser(prog: str = "idmetric data") -> Parser:
    """The parser of the commands and their options."""
    parser = Parser(
        prog=prog,
        description="Make, check and convert manifests: tables of images (.parquet, .csv, .jsonl).",
        epilog=codes(0, 1, 2, 4, 130, 143),
    )
    parser.add_version()
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", title="commands")
    for name, line in COMMANDS.items():
        module_name = "import_" if name == "import" else name
        module = importlib.import_module(f"idmetric.cli.data.{module_name}")
        command = commands.add_parser(name, help=line, description=module.__doc__)
        module.add_arguments(command)
        command.set_defaults(run=module.run)
    return parser


def main(argv: Sequence[str] | None = None, prog: str = "idmetric data") -> int:
    """Run a command; returns the exit status."""
    parser = build_parser(prog)
    args = parser.parse_args(argv)
    return ended(partial(_run, args), parser)


def _run(args: Namespace) -> int:
    extra, packages = NEEDS.get(args.command, ("eval", {}))
    packages = {"pandas": "pandas", **packages}
    if getattr(args, "segment", None):
        packages["transformers"] = "transformers"
    need(extra, f"idmetric data {args.command}", **packages)
    with warnings_as_lines(), fixable():
        _keep_inputs(args)
        status: int = args.run(args)
    return status


def _keep_inputs(args: Namespace) -> None:
    """Refuse an output that is an input, or a table in an input folder."""
    inputs = list(files_among(value for name, value in vars(args).items() if name not in ("out", "command")))
    if args.command == "import" and not KINDS[args.kind].local:
        for folder in filter(os.path.isdir, args.sources):
            for path in walk(Path(folder)):
                if fnmatch(path.relative_to(folder).as_posix(), args.files or "*"):
                    inputs.append(path)
    refuse_inputs({"-o": getattr(args, "out", None)}, inputs)
