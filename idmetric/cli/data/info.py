"""Count the rows, images and identities of a manifest, and list its faults.

examples:
  idmetric data info photos.csv                        counts, splits that share identities, missing files
  idmetric data info photos.csv --decode               also read every image and mask
  idmetric data info photos.csv --strict && train      status 1 for problems, which make results wrong
"""

from __future__ import annotations

from argparse import ArgumentParser, Namespace
from functools import partial

from idmetric.cli import options
from idmetric.cli.command import check_output
from idmetric.cli.data import common


def add_arguments(parser: ArgumentParser) -> None:
    """Add the options of `idmetric data info`."""
    common.add_input(parser)
    parser.add_argument("--decode", action="store_true", help="decode every image and mask, not only find the file")
    parser.add_argument("--need-masks", action="store_true", help="a row without a mask is a problem")
    parser.add_argument("--strict", action="store_true", help="status 1 if there is a problem")
    options.add_shared(parser, "--quiet")


def run(args: Namespace) -> int:
    """Print the summary and the problems."""
    from idmetric.data.check import faults
    from idmetric.data.manifest import read
    from idmetric.data.summary import as_text, problems

    check_output(None, "leave it open")
    table = read(args.manifest)
    progress = partial(common.progress, quiet=args.quiet or not args.decode)
    cases = problems(table, faults(table, decode=args.decode, progress=progress), args.need_masks)
    print(as_text(table, cases))
    return 1 if args.strict and cases else 0
