"""Set the column `split`. An identity, with all images made from its images, is in one split only.

examples:
  idmetric data split photos.parquet -o split.parquet --part train=0.8 --part val=0.1 --part test=0.1
  idmetric data split nearid.parquet -o split.parquet --part train=rest --part val=100 --part test=500
                                                      numbers of identities, as NearID does (18,786/100/500)
"""

from __future__ import annotations

from argparse import ArgumentParser, Namespace
from collections.abc import Sequence
from contextlib import suppress

from idmetric.cli import options
from idmetric.cli.data import common
from idmetric.tables import aligned


def add_arguments(parser: ArgumentParser) -> None:
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
    parser.add_argument("--by-row", action="store_true", help="split rows regardless of identity: identities may leak")
    parser.add_argument("--overwrite", action="store_true", help="replace the splits of the manifest")
    common.add_output(parser)


def run(args: Namespace) -> int:
    """Split and write."""
    from idmetric.data.manifest import read
    from idmetric.data.split import leaks, split, split_rows

    parts = read_parts(args.part)
    table = read(args.manifest)
    if table["split"].notna().any() and not args.overwrite:
        raise ValueError(f"{args.manifest}: has splits already; --overwrite replaces them, or filter it first")
    split_by = split_rows if args.by_row else split
    table = split_by(table, parts, args.seed)

    lines = [["split", "images", "identities"]]
    for name in dict.fromkeys([*parts, *table["split"]]):
        rows = table[table["split"].isna() if name is None else table["split"] == name]
        lines.append([name or "(none)", str(len(rows)), str(rows["identity"].nunique())])
    print("\n".join(aligned(lines, right=(1, 2))))
    if args.by_row and (crossing := leaks(table)):
        print(f"note: {len(crossing)} identities are in more than one split")
    common.save(table, args.out)
    return 0


def read_parts(texts: Sequence[str], option: str = "--part") -> dict[str, float]:
    """Parse NAME=SHARE texts into shares or numbers; 'rest' is -1."""
    from idmetric.data.split import split_name

    parts: dict[str, float] = {}
    for text in texts:
        name, _, share = text.partition("=")
        value = -1.0
        if share != "rest":
            with suppress(ValueError):
                value = float(share)
        if not name or (value < 0 and share != "rest"):
            raise ValueError(f"{option} {text}: expected NAME=SHARE, such as train=0.8, val=100 or train=rest")
        name = split_name(name)
        if name in parts:
            raise ValueError(f"{option} {text}: {name} is given twice")
        parts[name] = value
    return parts
