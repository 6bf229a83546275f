"""Count the rows, images and identities of a manifest, and list its faults.

examples:
  idmetric data info photos.csv                        counts, splits that share identities, missing files
  idmetric data info photos.csv --decode               also read every image and mask
  idmetric data info photos.csv --decode --on-error skip -o clean.parquet
                                                       write the manifest without unreadable rows
  idmetric data info photos.csv --strict && train      status 1 for faults that make results wrong
"""

from __future__ import annotations

import argparse
import sys
from functools import partial
from pathlib import Path

from idmetric.cli.data import common
from idmetric.io import json_file


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of `idmetric data info`."""
    common.add_input(parser)
    parser.add_argument("--decode", action="store_true", help="decode every image and mask, not only find the file")
    parser.add_argument("--need-masks", action="store_true", help="a row without a mask is a problem")
    parser.add_argument("--strict", action="store_true", help="status 1 if there is a serious problem (marked !)")
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.add_argument("-o", "--out", type=Path, help="with --on-error skip: the manifest to write, without bad rows")
    common.add_on_error(parser)
    common.add_dry_run(parser)


def run(args: argparse.Namespace) -> int:
    """Print the summary; with --on-error skip write the manifest without unreadable rows."""
    from dataclasses import asdict

    from idmetric.data.manifest import check
    from idmetric.data.manifest.summary import as_text, problems, summarize
    from idmetric.data.manifest.table import read

    if (args.out is not None) != (args.on_error == "skip"):
        raise ValueError("--on-error skip and --out go together: --out names the manifest without the rows left out")
    manifest = read(args.manifest)
    shown = partial(common.progress, quiet=args.quiet or not args.decode)
    found = check.faults(manifest, decode=args.decode, progress=shown)
    listed = problems(manifest, found, args.need_masks)
    if args.json:
        print(json_file.text({**asdict(summarize(manifest)), "problems": [asdict(p) for p in listed]}, indent=2))
    else:
        print(as_text(summarize(manifest), listed))
    if args.out is None:
        return 1 if args.strict and any(p.serious for p in listed) else 0
    kept = check.without(manifest, {fault.row for fault in found})
    for fault in found:
        print(f"skipped {fault}", file=sys.stderr)
    common.save(kept, args)
    return 4 if len(kept) < len(manifest) else 0
