"""What several commands share: input and output manifests, progress, and images that cannot be read."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from idmetric.io.progress import Progress

if TYPE_CHECKING:
    from idmetric.data.manifest.table import Manifest

T = TypeVar("T")


def add_input(parser: argparse.ArgumentParser) -> None:
    """The manifest that a command reads."""
    parser.add_argument("manifest", type=Path, help="the manifest to read: .parquet, .csv or .jsonl")


def add_output(parser: argparse.ArgumentParser) -> None:
    """The manifest that a command writes, and a dry run."""
    parser.add_argument("-o", "--out", type=Path, required=True, help="the manifest to write: .parquet, .csv or .jsonl")
    add_dry_run(parser)


def add_dry_run(parser: argparse.ArgumentParser) -> None:
    """--dry-run and --quiet."""
    parser.add_argument("--dry-run", action="store_true", help="say what would be done, write nothing")
    parser.add_argument("--quiet", action="store_true", help="no progress")


def add_on_error(parser: argparse.ArgumentParser) -> None:
    """What becomes of images that cannot be read."""
    text = "an unreadable image or mask: stop with the list of all (default), or leave it out"
    parser.add_argument("--on-error", choices=("fail", "skip"), default="fail", help=text)


def natural(text: str) -> int:
    """A seed: a whole number from 0 on."""
    return _at_least(text, 0)


def positive(text: str) -> int:
    """A number of things: a whole number from 1 on."""
    return _at_least(text, 1)


def _at_least(text: str, least: int) -> int:
    try:
        value = int(text)
    except ValueError:
        value = least - 1
    if value < least:
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number from {least} on")
    return value


def check_output(path: Path, dry_run: bool = False) -> None:
    """Check that a manifest can be written there, before the work and not after it.

    Raises:
        ValueError: for another ending than those of manifests.
        OutputError: if nothing can be written there; not asked in a dry run.
    """
    from idmetric.data.manifest.table import FORMATS
    from idmetric.io.output import check

    if path.suffix not in FORMATS:
        raise ValueError(f"{path}: a manifest ends in {', '.join(FORMATS)}")
    if not dry_run:
        check(path, parents=True)


def progress(items: Iterable[T], total: int | None, what: str, quiet: bool = False) -> Iterable[T]:
    """The items, with progress on stderr."""
    return Progress("images", not quiet, verb=f"{what}:").over(items, total)


def take_out(problems: Mapping[str, str], on_error: str, shown: int = 20) -> None:
    """List rows (id -> reason) that cannot be used: an error that says how to go on, or with "skip" lines on stderr.

    Raises:
        ValueError: unless `on_error` is "skip".
    """
    lines = [f"{name}: {reason}" for name, reason in problems.items()]
    if on_error == "skip":
        for line in lines:
            print(f"idmetric-data: left out {line}", file=sys.stderr)
        print(f"idmetric-data: {len(lines)} images left out", file=sys.stderr)
        return
    more = [f"and {len(lines) - shown} more"] if len(lines) > shown else []
    listed = "\n  ".join([*lines[:shown], *more])
    raise ValueError(f"{len(lines)} images cannot be used; fix them, or leave them out by --on-error skip:\n  {listed}")


def save(manifest: Manifest, args: argparse.Namespace) -> None:
    """Write the manifest to --out, or with --dry-run say what would be written."""
    identities = len(set(manifest.column("identity")) - {None})
    verb = "would write" if args.dry_run else "wrote"
    if not args.dry_run:
        manifest.write(args.out)
    print(f"{verb} {args.out}: {len(manifest)} images of {identities} identities")
