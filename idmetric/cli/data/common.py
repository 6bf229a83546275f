"""Parts that several commands share: input and output manifests, progress, and unreadable images."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from idmetric.cli import options
from idmetric.cli.command import say
from idmetric.metric.files import Progress
from idmetric.tables import first_few

if TYPE_CHECKING:
    import pandas as pd

T = TypeVar("T")
_SHOWN = 20  # images that an error lists


def add_input(parser: ArgumentParser) -> None:
    """Add the manifest that a command reads."""
    parser.add_argument("manifest", type=Path, help="the manifest to read: .parquet, .csv or .jsonl")


def add_output(parser: ArgumentParser) -> None:
    """Add the manifest that a command writes, and --quiet."""
    parser.add_argument("-o", "--out", type=Path, required=True, help="the manifest to write: .parquet, .csv or .jsonl")
    options.add_shared(parser, "--quiet")


def add_on_error(parser: ArgumentParser) -> None:
    """Add --on-error for images and masks."""
    text = "unreadable images: stop and list all (default), or leave them out"
    options.add_shared(parser, "--on-error", help=text)


def check_output(path: Path) -> None:
    """Check before the work that a manifest can be written there."""
    from idmetric.data.manifest import check_extension
    from idmetric.metric.files import check_writable

    check_extension(path)
    check_writable(path, parents=True)


def of_splits(table: pd.DataFrame, args: Namespace) -> pd.DataFrame:
    """The rows of the splits that --split names, or all rows."""
    from idmetric.data.manifest import take
    from idmetric.data.split import split_name

    if not args.split:
        return table
    names = [split_name(split) for split in args.split]
    for split, name in zip(args.split, names, strict=True):
        if name not in set(table["split"]):
            present = ", ".join(table["split"].dropna().unique()) or "no splits"
            raise ValueError(
                f"{args.data}: no split {split!r}; there are {present} (or make them: idmetric data split)"
            )
    return take(table, table["split"].isin(names))


def pairs(texts: Iterable[str], option: str) -> dict[str, str]:
    """The values of a repeated option NAME=VALUE."""
    values = {}
    for text in texts:
        name, _, value = text.partition("=")
        if not (name and value):
            raise ValueError(f"{option} {text}: expected NAME=VALUE")
        values[name] = value
    return values


def progress(items: Iterable[T], total: int | None, what: str, quiet: bool = False) -> Iterable[T]:
    """Iterate over the items and show progress on stderr."""
    return Progress("images", not quiet, verb=f"{what}:").over(items, total)


def refuse_leaks(table: pd.DataFrame) -> None:
    """Refuse a manifest with identities in more than one split."""
    from idmetric.data.split import leaks

    splits_of = leaks(table)
    if splits_of:
        lines = [f"{name!r} in {', '.join(splits)}" for name, splits in splits_of.items()]
        raise ValueError(
            f"{len(lines)} identities are in more than one split: {'; '.join(lines[:10])}. Split again: idmetric data "
            "split"
        )


def leave_out_rows(table: pd.DataFrame, problems: Mapping[int, str], on_error: str) -> None:
    """Report rows that cannot be used (number -> reason) as `leave_out` does."""
    leave_out([f"{table['id'][row]}: {reason}" for row, reason in problems.items()], on_error)


def leave_out(lines: Sequence[str], on_error: str) -> None:
    """Report images that cannot be used, a line for each: by an error or, with "skip", on stderr."""
    if on_error != "skip":
        text = "\n  ".join(first_few(lines, _SHOWN))
        raise ValueError(
            f"{len(lines)} images cannot be used; fix them, or leave them out by --on-error skip:\n  {text}"
        )
    for line in lines:
        say(f"left out {line}")
    say(f"{len(lines)} images left out")


def counted(table: pd.DataFrame) -> str:
    """The numbers of a manifest's images, texts and identities, for a line of output."""
    images = table["path"].notna().sum()
    content = f"{images} images"
    if images < len(table):
        content += f" and {len(table) - images} texts"
    return f"{content} of {table['identity'].nunique()} identities"


def save(table: pd.DataFrame, out: Path, dry: bool = False) -> None:
    """Write the manifest, unless the run is dry, and print its size."""
    from idmetric.data.manifest import write

    verb = "would write"
    if not dry:
        write(table, out)
        verb = "wrote"
    print(f"{verb} {out}: {counted(table)}")
