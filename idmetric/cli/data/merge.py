"""Join several manifests into one, with paths relative to the output.

examples:
  idmetric data merge met.parquet ilias.parquet forb.parquet -o all.parquet
  idmetric data merge photos.parquet edits.parquet -o both.parquet --shared
                          equal identity names mean the same identity, as for edits made from the photos
"""

from __future__ import annotations

from argparse import ArgumentParser, Namespace
from pathlib import Path

from idmetric.cli.data.common import add_output, counted, save


def add_arguments(parser: ArgumentParser) -> None:
    """Add the options of `idmetric data merge`."""
    parser.add_argument("manifests", nargs="+", type=Path, help="the manifests: .parquet, .csv or .jsonl")
    parser.add_argument(
        "--shared", action="store_true", help="an identity in two manifests is the same one (default: refuse it)"
    )
    add_output(parser)


def run(args: Namespace) -> int:
    """Merge the manifests, print their sizes, and write the result."""
    from idmetric.data.manifest import merge, read

    tables = [read(path) for path in args.manifests]
    merged = merge(tables, shared=args.shared)
    for path, table in zip(args.manifests, tables, strict=True):
        print(f"{path}: {counted(table)}")
    save(merged, args.out)
    return 0
