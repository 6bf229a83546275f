"""`idmetric-data`: make, check and turn manifests, from the shell. One file per command.

Exit status: 0 done; 1 an error (on stderr); 2 wrong usage; 4 done, but some images were skipped (--on-error skip).
"""

from __future__ import annotations

import argparse
import importlib
import os
import sys
from collections.abc import Sequence
from fnmatch import fnmatch
from functools import partial
from pathlib import Path

from idmetric import __version__
from idmetric.checkpoints.errors import CheckpointError
from idmetric.cli.exits import ended
from idmetric.cli.streams import guarded
from idmetric.cli.subcommands import Parser
from idmetric.data.importers import KINDS
from idmetric.images.paths import walk
from idmetric.io.hints import need

# command -> the line that describes it; each is a module here with add_arguments(parser) and run(args) -> int
COMMANDS = {
    "info": "summary of a manifest, and what is wrong with it",
    "import": "a manifest of a folder or a published dataset",
    "merge": "several manifests as one",
    "split": "train, validation and test splits that no identity crosses",
    "curate": "balance, filter and cap identities as the papers do",
    "mine": "hard negatives and hard pairs by nearest neighbours",
    "frames": "sharp, well covered frames of videos",
    "world": "render the procedural identity world",
    "generate": "edit or generate images with diffusion models",
}
# optional packages that each subcommand needs; the engines of `generate` report theirs
_TABLES, _BAR = {"pyarrow": "pyarrow"}, {"tqdm": "tqdm"}
NEEDS = {
    "info": ("data", _TABLES),
    "import": ("data", _TABLES | _BAR),
    "merge": ("data", _TABLES),
    "split": ("data", _TABLES),
    "curate": ("data", _TABLES | _BAR),
    "mine": ("data", _TABLES | _BAR),
    "frames": ("data", _TABLES | _BAR | {"av": "PyAV"}),
    "world": ("world", _TABLES | _BAR | {"vtkmodules": "VTK"}),
    "generate": ("generate", _TABLES | _BAR),
}
RESUMES = ("import", "mine", "frames", "world", "generate")  # the others take seconds


def build_parser() -> argparse.ArgumentParser:
    """The commands and their options."""
    parser = Parser(
        prog="idmetric-data",
        description="Make, check and turn manifests: tables of images (.parquet, .csv, .jsonl).",
        epilog="Exit status: 0 done, 1 error, 2 wrong usage, 4 done but images were skipped.",
    )
    parser.add_argument("--version", action="version", version=f"idmetric {__version__}")
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", required=True)
    for name, line in COMMANDS.items():
        module = importlib.import_module(f"idmetric.cli.data.{'import_' if name == 'import' else name}")
        sub = commands.add_parser(
            name, help=line, description=module.__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
        )
        module.add_arguments(sub)
        sub.set_defaults(run=module.run)
    return parser


@guarded
def main(argv: Sequence[str] | None = None) -> int:
    """Run a command; returns the exit status."""
    parser = build_parser()
    args = parser.parse_args(argv)
    kept = "finished work is kept, and the same command resumes" if args.command in RESUMES else "nothing was written"
    return ended(partial(_run, args), parser, kept)


def _run(args: argparse.Namespace) -> int:
    extra, packages = NEEDS[args.command]
    need(extra, f"idmetric-data {args.command}", **packages)
    try:
        _keep_inputs(args)
        return int(args.run(args))
    except BrokenPipeError:
        raise
    except Exception as error:
        if not _is_mendable(error):
            raise  # a bug, and shown
        print(f"idmetric-data: error: {error}", file=sys.stderr)
        return 1


def _keep_inputs(args: argparse.Namespace) -> None:
    """Refuse an output that is an input, or a table in an input folder.

    Raises:
        OutputError: naming it.
    """
    from idmetric.io.output import files_among, refuse_inputs

    given = list(files_among(value for name, value in vars(args).items() if name not in ("out", "command")))
    if args.command == "import" and not KINDS[args.kind].local:
        folders = [Path(source) for source in args.sources if os.path.isdir(source)]
        tables = ((path, path.relative_to(folder).as_posix()) for folder in folders for path in walk(folder))
        given += [path for path, name in tables if fnmatch(name, args.files or "*")]
    refuse_inputs({"-o": getattr(args, "out", None)}, given)


def _is_mendable(error: Exception) -> bool:
    """Whether the user can mend what an error says."""
    return isinstance(error, ValueError | OSError | ImportError | CheckpointError)


if __name__ == "__main__":
    sys.exit(main())
