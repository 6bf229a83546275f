"""Set the column `split`. An identity, with all images made from its images, is in one split only.

examples:
  idmetric data split photos.parquet -o split.parquet --part train=0.8 --part val=0.1 --part test=0.1
  idmetric data split nearid.parquet -o split.parquet --part train=rest --part val=100 --part test=500
                                                      numbers of identities, as NearID does (18,786/100/500)
  idmetric data split photos.csv -o split.csv --part train=10 --part val=1 --dry-run
"""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from idmetric.cli import options
from idmetric.cli.data import common

if TYPE_CHECKING:
    from idmetric.data.manifest.table import Manifest


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of `idmetric data split`."""
    common.add_input(parser)
    parser.add_argument(
        "--part",
        action="append",
        required=True,
        metavar="NAME=SHARE",
        help="a split and its share of the identities (0..1), its number of them, or 'rest'; repeat for each split",
    )
    parser.add_argument("--seed", type=options.natural, default=0, help="seed of the split, 0 or more (default: 0)")
    parser.add_argument("--together", action="store_true", help="shares of all identities, not of each dataset's")
    parser.add_argument("--by-row", action="store_true", help="split rows regardless of identity: identities may leak")
    parser.add_argument("--overwrite", action="store_true", help="replace the splits of the manifest")
    common.add_output(parser)


def run(args: argparse.Namespace) -> int:
    """Split, check and write."""
    from idmetric.data.manifest.split import leaks, split, split_rows
    from idmetric.data.manifest.table import read

    parts = read_parts(args.part)
    manifest = read(args.manifest)
    if set(manifest.column("split")) - {None} and not args.overwrite:
        raise ValueError(f"{args.manifest}: has splits already; --overwrite replaces them, or filter it first")
    if args.by_row:
        done = split_rows(manifest, parts, args.seed)
    else:
        done = split(manifest, parts, args.seed, by_dataset=not args.together)
        crossing = leaks(done)
        if crossing:  # a bug, were it ever to happen
            raise RuntimeError(f"identities in two splits: {crossing}")
    print(_table(done, parts))
    if args.by_row and leaks(done):
        print(f"note: {len(leaks(done))} identities are in more than one split")
    common.save(done, args)
    return 0


def read_parts(given: list[str]) -> dict[str, float]:
    """Parse NAME=SHARE texts into shares or numbers; 'rest' is -1.

    Raises:
        ValueError: naming the text that cannot be parsed.
    """
    parts: dict[str, float] = {}
    for text in given:
        name, sign, share = text.partition("=")
        try:
            value = -1.0 if share == "rest" else float(share)
        except ValueError:
            sign = ""
            value = 0.0
        if not (name and sign) or (value < 0 and share != "rest"):
            raise ValueError(f"--part {text}: expected NAME=SHARE, such as train=0.8, val=100 or train=rest")
        if name in parts:
            raise ValueError(f"--part {text}: {name} is given twice")
        parts[name] = value
    fractions = [s for s in parts.values() if s != -1 and (0 < s < 1)]
    if fractions and -1 in parts.values():
        given_away = sum(s for s in parts.values() if s != -1)
        if given_away > 1 + 1e-9:
            raise ValueError(f"--part: the shares sum to {given_away:g}, more than 1; nothing is left for 'rest'")
        rest = max(0.0, 1 - given_away)
        parts = {name: rest if s == -1 else s for name, s in parts.items()}
    return parts


def _table(manifest: Manifest, parts: dict[str, float]) -> str:
    lines = [f"{'split':<12} {'images':>8} {'identities':>10}"]
    for name in [*parts, None]:
        rows = manifest.filter(split=name)
        if name is not None or len(rows):
            identities = len(set(rows.column("identity")) - {None})
            lines.append(f"{name or '(none)':<12} {len(rows):>8} {identities:>10}")
    return "\n".join(lines)
