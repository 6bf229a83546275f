"""Options that protocols of generated images share."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import replace

from idmetric.protocols.common.result import Result
from idmetric.protocols.generator.outputs import Where


def asked(results: Sequence[Result], args: argparse.Namespace, *names: str) -> list[Result]:
    """The results with these options of the command line among their settings, as far as they are given."""
    given = {name: value for name in names if (value := getattr(args, name)) is not None}
    return [replace(result, settings={**result.settings, **given}) for result in results]


def where_of(args: argparse.Namespace, training: str | None = None) -> Where:
    """The places that the options name."""
    return Where(args.data, args.pattern, args.layout, args.references, training, args.benchmark,
                 args.on_error == "skip", None if args.out is None else args.out / "cells")  # fmt: skip
