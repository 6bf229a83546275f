"""Turn a folder or a published dataset into a manifest.

examples:
  idmetric data import folder my_photos/ -o photos.parquet
  idmetric data import nearid Aleksandar/NearID Aleksandar/NearID-Flux -o nearid.parquet --images nearid_images
  idmetric data import mveb HugC/MVEB-train --files 'sample/*.parquet' -o mveb.parquet --dry-run
  idmetric data import ilias ilias/ --option crop=queries --option taxonomy=misc/taxonomy.json -o ilias.parquet
  idmetric data import table products.csv -o products.parquet --map identity=label --map path=photo --map x_shop=seller

Sources are files, folders, or datasets of the Hugging Face Hub (owner/name). Images that a dataset holds as bytes
become files in --images; the same command resumes a stopped import. At the end every image
and mask is read once.
"""

from __future__ import annotations

import argparse
import sys
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from idmetric.cli.data import common
from idmetric.cli.options import positive
from idmetric.data.importers import KINDS

if TYPE_CHECKING:
    from idmetric.data.importers.run import Job
    from idmetric.data.manifest.table import Manifest


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of `idmetric data import`."""
    parser.add_argument("kind", choices=KINDS, metavar="KIND", help=f"one of {', '.join(KINDS)}")
    parser.add_argument("sources", nargs="+", metavar="SOURCE", help="a file, a folder or owner/name on the Hub")
    text = "name of the dataset, which identities start with (default: the kind, or the folder or file)"
    parser.add_argument("--name", help=text)
    parser.add_argument("--images", type=Path, metavar="DIR", help="folder for images (default: OUT's name + _images)")
    text = "keep images that the source holds as bytes in the .parquet (for small datasets); files stay files"
    parser.add_argument("--embed", action="store_true", help=text)
    parser.add_argument("--revision", metavar="COMMIT", help="branch, tag or commit on the Hub")
    parser.add_argument("--files", metavar="PATTERN", help="only these files of the source, such as 'train/*.parquet'")
    parser.add_argument(
        "--map", action="append", default=[], metavar="COLUMN=NAME", help="name of this column in the source"
    )
    parser.add_argument(
        "--option", action="append", default=[], metavar="NAME=VALUE", help="option of the kind, see below"
    )
    parser.add_argument("--limit", type=positive, metavar="N", help="only the first N rows of each source")
    parser.add_argument("--no-check", action="store_true", help="do not read the images and masks")
    common.add_on_error(parser)
    common.add_output(parser)
    lines = ["kinds:"]
    for name, kind in KINDS.items():
        lines.append(f"  {name:<14} {kind.line}")
        lines += [f"  {'':<14}   --option {key}=...: {text}" for key, text in kind.options.items()]
    parser.epilog = "\n".join(lines)


def run(args: argparse.Namespace) -> int:
    """Import the images, check them, and write the manifest."""
    from idmetric.data.importers.run import listed
    from idmetric.data.importers.run import run as import_rows

    job = make_job(args)
    if args.dry_run and not KINDS[args.kind].local and not all(Path(source).exists() for source in args.sources):
        return _show_downloads(args)
    manifest = import_rows(job)
    bad: list[str] = [*job.rejected]
    kept = manifest
    if not (args.no_check or args.dry_run):
        kept, faults = _checked(manifest, args)
        bad += faults
    if bad and args.on_error == "fail":
        raise ValueError(listed(bad, "images cannot be imported"))
    for line in bad:
        print(f"skipped {line}", file=sys.stderr)
    if job.images.folder is not None and (job.images.written or job.images.reused):
        verb = "would write" if args.dry_run else "wrote"
        print(f"{verb} {job.images.written} images to {job.images.folder}, {job.images.reused} were there already")
    if job.images.replaced:
        print(
            f"note: {job.images.replaced} of them were there with another content. If another dataset's images are in "
            "that folder, import it again elsewhere (--images)",
            file=sys.stderr,
        )
    common.save(kept, args)
    return 4 if bad else 0


def make_job(args: argparse.Namespace) -> Job:
    """The job that the options describe.

    Raises:
        ValueError: for options that contradict each other.
    """
    from idmetric.data.importers.images import Images
    from idmetric.data.importers.run import make_job as checked_job

    common.check_output(args.out, args.dry_run)
    if args.embed and (args.images is not None or args.out.suffix != ".parquet"):
        raise ValueError("--embed keeps images in a .parquet: it goes neither with --images nor with another format")
    folder = None if args.embed else args.images or args.out.with_name(f"{args.out.stem}_images")
    return checked_job(
        args.kind, args.sources, images=Images(folder, dry=args.dry_run), name=args.name, revision=args.revision,
        files=args.files, columns=common.pairs(args.map, "--map"), options=common.pairs(args.option, "--option"),
        limit=args.limit, progress=partial(common.progress, quiet=args.quiet),
    )  # fmt: skip


def _checked(manifest: Manifest, args: argparse.Namespace) -> tuple[Manifest, list[str]]:
    from idmetric.data.manifest import check

    found = check.faults(manifest, progress=partial(common.progress, quiet=args.quiet))
    return check.without(manifest, {fault.row for fault in found}), [str(fault) for fault in found]


def _show_downloads(args: argparse.Namespace) -> int:
    """Print the downloads of datasets on the Hub, since their rows are known only afterwards."""
    from idmetric.data.importers.source import SourceError, hub_files

    for source in args.sources:
        if Path(source).exists():
            continue
        if source.count("/") != 1:
            raise SourceError(f"{source}: no such file or folder, and no dataset of the Hub (owner/name)")
        commit, files = hub_files(source, args.revision, args.files)
        size = sum(n for _, n in files) / 1e9
        print(f"would download {len(files)} files of {source}@{commit}, {size:.2f} GB, and import them")
    return 0
