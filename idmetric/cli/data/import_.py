"""Turn a folder or a published dataset into a manifest.

examples:
  idmetric data import folder my_photos/ -o photos.parquet
  idmetric data import nearid Aleksandar/NearID Aleksandar/NearID-Flux -o nearid.parquet
  idmetric data import mveb HugC/MVEB-train --files 'sample/*.parquet' -o mveb.parquet --dry-run
  idmetric data import ilias ilias/ --option taxonomy=misc/taxonomy.json -o ilias.parquet
  idmetric data import table products.csv -o products.parquet --map identity=label --map path=photo --map shop=seller

Sources are files, folders, or datasets of the Hugging Face Hub (owner/name). Images that a dataset holds as bytes
become files in a folder next to OUT, OUT's name + _images; the same command resumes a stopped import. At the end every
image and mask is read once.
"""

from __future__ import annotations

from argparse import ArgumentParser, Namespace
from collections.abc import Sequence
from functools import partial
from pathlib import Path

from idmetric.cli.command import status_of
from idmetric.cli.data import common
from idmetric.cli.options import positive
from idmetric.data.importers import KINDS


def add_arguments(parser: ArgumentParser) -> None:
    """Add the options of `idmetric data import`."""
    add = parser.add_argument
    add("kind", choices=KINDS, metavar="KIND", help=f"one of {', '.join(KINDS)}")
    add("sources", nargs="+", metavar="SOURCE", help="a file, a folder, or owner/name on the Hub")
    add("--name", help="name of the dataset, which identities start with (default: the kind, or the folder or file)")
    add("--revision", metavar="COMMIT", help="branch, tag or commit on the Hub")
    add("--files", metavar="PATTERN", help="only these files of the source, such as 'train/*.parquet'")
    add("--map", action="append", default=[], metavar="COLUMN=NAME", help="name of this column in the source")
    add("--option", action="append", default=[], metavar="NAME=VALUE", help="option of the kind, see below")
    add("--limit", type=positive, metavar="N", help="only the first N rows of each source")
    add("--no-check", action="store_true", help="do not read the images and masks")
    common.add_on_error(parser)
    add("--dry-run", action="store_true", help="print what would be downloaded and written")
    common.add_output(parser)
    lines = ["kinds:"]
    for name, kind in KINDS.items():
        lines.append(f"  {name:<14} {kind.line}")
        lines += [f"  {'':<14}   --option {key}=...: {text}" for key, text in kind.options.items()]
    parser.epilog = "\n".join(lines)


def run(args: Namespace) -> int:
    """Import the images, check them, and write the manifest."""
    from idmetric.data.check import faults, without
    from idmetric.data.importers.run import ImportJob

    common.check_output(args.out)
    if args.dry_run and not KINDS[args.kind].local:
        datasets = [source for source in args.sources if not Path(source).exists()]
        if datasets:
            return _show_downloads(datasets, args)

    progress = partial(common.progress, quiet=args.quiet)
    job = ImportJob(
        args.kind,
        args.sources,
        images=args.out.with_name(f"{args.out.stem}_images"),
        name=args.name or "",
        revision=args.revision,
        files=args.files,
        columns=common.pairs(args.map, "--map"),
        options=common.pairs(args.option, "--option"),
        limit=args.limit,
        progress=progress,
        dry=args.dry_run,
    )
    table = job.run()
    problems = list(job.rejected)
    if not (args.no_check or args.dry_run):
        bad_rows = faults(table, progress=progress)
        table = without(table, {fault.row for fault in bad_rows})
        problems += map(str, bad_rows)
    if problems:
        common.leave_out(problems, args.on_error)
    if job.written:
        print(f"{'would write' if args.dry_run else 'wrote'} {len(job.written)} images to {job.images}")
    common.save(table, args.out, args.dry_run)
    return status_of(problems)


def _show_downloads(datasets: Sequence[str], args: Namespace) -> int:
    """Print the downloads of datasets on the Hub, since their rows are known only afterwards."""
    from idmetric.data.importers.source import hub_files

    for dataset in datasets:
        commit, sizes = hub_files(dataset, args.revision, args.files)
        size = sum(sizes.values()) / 1e9
        print(f"would download {len(sizes)} files of {dataset}@{commit}, {size:.2f} GB, and import them")
    return 0
