"""`idmetric embed`: embeddings of very many images as a folder of Parquet files, here or on a Ray cluster."""

from __future__ import annotations

import os
from argparse import Namespace
from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING

from idmetric.cli.command import Parser, UsageError, codes, ended, fixable, say, status_of, warnings_as_lines
from idmetric.cli.options import add_shared, check_model, load_options
from idmetric.metric.files.hints import need_all
from idmetric.metric.files.progress import Progress
from idmetric.metric.images.paths import exists, matches

if TYPE_CHECKING:
    from idmetric.gallery.scale import Summary

_EXAMPLES = """examples:
  idmetric embed photos/ --out embeddings/ --model tiny
  idmetric embed photos/ --out embeddings/ --model tiny        again: only missing and changed files
  idmetric embed photos/ --out patches/ --patches --half
  idmetric embed s3://bucket/photos --out s3://bucket/embeddings --ray --address auto --gpus 1
  idmetric embed shards/ --out embeddings/ --ray --column image --id-column sku      Parquet files"""
# options that are arguments of `embed_dataset` and `embed_on_ray`, and of the latter alone
_SHARED = ("patches", "stored", "batch_size", "workers", "on_error")
_ON_RAY = ("address", "cpus", "gpus", "column", "column_id")


def build_parser(prog: str = "idmetric embed") -> Parser:
    """The parser of the command."""
    parser = Parser(
        prog=prog,
        usage="%(prog)s SOURCE [SOURCE ...] --out DIR [options]",
        description="Embeddings of very many images as a folder of Parquet files, here or on a Ray cluster.\n"
        "The same command resumes a run that was stopped. To search among images, see idmetric gallery.",
        epilog=f"{_EXAMPLES}\n\n{codes(0, 1, 2, 4, 130, 143)}",
    )
    add = parser.add_argument
    add(
        "sources",
        nargs="+",
        metavar="SOURCE",
        help="folders, images and manifests; also addresses (s3://, gs://, ...) of folders and images",
    )
    add("--out", "-o", required=True, metavar="DIR", help="folder or address of the embeddings")
    add_shared(parser, "--model", "--revision", "--device", "--dtype", "--batch-size")
    text = "threads that read images (default: one per core, at most 8; with --ray: as --cpus)"
    add_shared(parser, "--workers", help=text)
    add("--patches", action="store_true", help="keep patch tokens too: megabytes per image")
    add(
        "--half",
        action="store_const",
        dest="stored",
        default="float32",
        const="float16",
        help="store float16 instead of float32",
    )
    add_shared(parser, "--decode")
    text = "unreadable images: stop, or list them in the column error (default)"
    add_shared(parser, "--on-error", default="skip", help=text)
    add_shared(parser, "--quiet", help="no progress, no warnings")

    add = parser.add_argument_group("cluster", "pip install 'idmetric[scale]'").add_argument
    add("--ray", action="store_true", help="run on a cluster, by Ray Data")
    add("--address", help="address of the cluster; 'auto': the one of this machine (default: start Ray here)")
    add("--column", help="the sources are Parquet files; column that holds image bytes, or datasets' struct with them")
    add(
        "--id-column",
        dest="column_id",
        metavar="COLUMN",
        default="id",
        help="column with their unique names (default: %(default)s)",
    )
    add("--cpus", type=float, default=1, metavar="N", help="CPUs per process (default: 1)")
    add("--gpus", type=float, default=0, metavar="N", help="GPUs per process (default: 0)")
    return parser


def main(argv: Sequence[str] | None = None, prog: str = "idmetric embed") -> int:
    """Run the command; returns the exit status."""
    parser = build_parser(prog)
    args = parser.parse_args(argv)
    if not args.ray and (args.address or args.gpus or args.column):
        parser.error("--address, --gpus and --column are for Ray Data: add --ray")

    return ended(partial(_run, args), parser, f"finished files are in {args.out}, and the same command resumes")


def _run(args: Namespace) -> int:
    args.sources = [path for source in args.sources for path in matches(source) or [source]]
    for path in args.sources:
        if "://" not in path and not exists(path):
            raise UsageError(f"there is no {path!r}")  # before the model is opened

    extras = {"data": {"pyarrow": "pyarrow"}}
    if args.ray:
        extras["scale"] = {"ray": "Ray"}
    need_all("idmetric embed", extras)
    check_model(args.model)
    with (
        warnings_as_lines(args.quiet),
        fixable(RuntimeError, in_one_line=True),
        Progress("images", not args.quiet, verb="embedded") as progress,
    ):
        summary = _embed(args, progress)

    for image, reason in summary.unreadable.items():
        say(f"no embedding of {image}: {reason}")
    if not args.quiet:
        say(f"{summary} in {args.out}")
    return status_of(summary.unreadable)


def _embed(args: Namespace, progress: Progress) -> Summary:
    from idmetric.gallery.scale import embed_dataset, embed_on_ray
    from idmetric.metric.models import names
    from idmetric.metric.models.load import load

    source = args.model
    if names.check(source) == "folder":
        source = os.path.abspath(source)
    model = partial(load, source, **load_options(args))
    shared = {name: getattr(args, name) for name in _SHARED}
    if not args.ray:
        return embed_dataset(args.sources, args.out, model=model, progress=progress, **shared)

    from ray.data import DataContext

    DataContext.get_current().enable_progress_bars = not args.quiet
    on_ray = {name: getattr(args, name) for name in _ON_RAY}
    return embed_on_ray(args.sources, args.out, model=model, **on_ray, **shared)
