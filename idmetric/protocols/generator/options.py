"""Options that protocols of generated images share."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from idmetric.protocols.common.result import Result
from idmetric.protocols.generator.layouts import LAYOUTS
from idmetric.protocols.generator.outputs import Where


def add_outputs(parser: argparse.ArgumentParser) -> None:
    """--pattern, --layout, --benchmark: names of outputs; see `where_of`."""
    text = "names of output files below --data, such as '{method}/{subject}/{prompt}_{seed}.png'"
    parser.add_argument("--pattern", metavar="PATTERN", help=text)
    parser.add_argument("--layout", choices=list(LAYOUTS), help="a published layout instead of --pattern")
    text = "prompts and references of --layout uno or xversebench (JSON)"
    parser.add_argument("--benchmark", type=Path, metavar="FILE", help=text)


def add_references(parser: argparse.ArgumentParser) -> None:
    """--references."""
    text = "a folder with a folder for each subject, or a path such as 'refs/{subject}/*.jpg'"
    parser.add_argument("--references", metavar="PATH", help=text)


def add_copying(parser: argparse.ArgumentParser) -> None:
    """--training, --held-out, --clip-t and --no-copies."""
    text = "images that the generators were trained on, given as --references are"
    parser.add_argument("--training", metavar="PATH", help=text)
    text = "state that no reference was among the training images"
    parser.add_argument("--held-out", action="store_true", help=text)
    text = "CLIP or SigLIP for prompt fidelity: folder or Hub repository (pip install 'idmetric[visid]')"
    parser.add_argument("--clip-t", metavar="REPO", help=text)
    parser.add_argument("--no-copies", action="store_true", help="do not look for copies of references")


def asked(results: Sequence[Result], args: argparse.Namespace, *names: str) -> list[Result]:
    """The results with these options of the command line among their settings, as far as they are given."""
    given = {name: value for name in names if (value := getattr(args, name)) is not None}
    return [replace(result, settings={**result.settings, **given}) for result in results]


def where_of(args: argparse.Namespace, training: str | None = None) -> Where:
    """The places that the options name."""
    return Where(args.data, args.pattern, args.layout, args.references, training, args.benchmark,
                 args.on_error == "skip", None if args.out is None else args.out / "cells")  # fmt: skip
