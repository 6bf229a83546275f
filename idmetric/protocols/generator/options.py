"""Options that say where outputs and references are, shared by the protocols that read them."""

from __future__ import annotations

import argparse
from pathlib import Path

from idmetric.protocols.generator.layouts import LAYOUTS
from idmetric.protocols.generator.outputs import Where


def add_outputs(parser: argparse.ArgumentParser) -> None:
    """Add the options of `where_of`."""
    text = "names of output files below --data, such as '{method}/{subject}/{prompt}_{seed}.png'"
    parser.add_argument("--pattern", metavar="PATTERN", help=text)
    parser.add_argument("--layout", choices=list(LAYOUTS), help="a published layout instead of --pattern")
    parser.add_argument("--benchmark", type=Path, metavar="FILE", help="prompts and references of --layout uno (JSON)")
    text = "a folder with a folder for each subject, or a path such as 'refs/{subject}/*.jpg'"
    parser.add_argument("--references", metavar="PATH", help=text)


def where_of(args: argparse.Namespace, training: str | None = None) -> Where:
    """The places that the options name."""
    return Where(args.data, args.pattern, args.layout, args.references, training, args.benchmark,
                 args.on_error == "skip")  # fmt: skip
