"""`idmetric-score embed`: embeddings of very many images as a folder of Parquet files, here or on a Ray cluster.

Exit status: 0 done; 1 an error (on stderr); 2 wrong usage; 4 done, but images could not be read (they are listed).
"""

from __future__ import annotations

import argparse
import logging
import os
import sys
import warnings
from collections.abc import Sequence
from contextlib import suppress
from functools import partial
from typing import Any

from idmetric.cli.exits import ended
from idmetric.cli.streams import guarded
from idmetric.cli.subcommands import Parser
from idmetric.images.paths import matches
from idmetric.io.hints import need
from idmetric.io.progress import Progress

DTYPES = ("float32", "float16", "bfloat16", "float64")
DEFAULT_MODEL = "dinov3_vitl16"
ROWS = 256  # scale.chunks.ROWS; literal, so that --help is quick; a test compares them
_EXAMPLES = """examples:
  idmetric-score embed photos/ --out embeddings/ --model tiny
  idmetric-score embed photos/ --out embeddings/ --model tiny        again: only what is missing or has changed
  idmetric-score embed --list files.txt --out embeddings/ --patches --half
  idmetric-score embed shards/ --out embeddings/ --column image      Parquet files with images in a column
  idmetric-score embed s3://bucket/photos --out s3://bucket/embeddings --ray --address auto --gpus 1

Exit status: 0 done, 1 error, 2 wrong usage, 4 done, but images could not be read."""


def is_meant(words: Sequence[str]) -> bool:
    """Whether a command line of idmetric-score means this command, and not an image that is called `embed`."""
    return words[:1] == ["embed"] and len(words) > 1 and not os.path.isfile("embed")


def build_parser() -> argparse.ArgumentParser:
    """The options."""
    parser = Parser(
        prog="idmetric-score embed", epilog=_EXAMPLES, formatter_class=argparse.RawDescriptionHelpFormatter,
        description="Embeddings of very many images as a folder of Parquet files. The same command resumes "
        "a run that was stopped. (To search among images, find duplicates or identities: idmetric-score gallery.)",
    )  # fmt: skip
    parser.add_argument("sources", nargs="*", help="folders, images, Parquet files, or addresses (s3://, gs://, ...)")
    parser.add_argument("--list", action="append", default=[], metavar="FILE", help="a text file with a path on each "
                        "line, relative to its folder; may be repeated")  # fmt: skip
    parser.add_argument("--allow", action="append", default=[], metavar="PROTOCOL", help="open addresses of this "
                        "protocol (s3, gs, ...) that appear in tables and lists; may be repeated (default: only local "
                        "files and the protocol of the table or list itself)")  # fmt: skip
    parser.add_argument("--out", "-o", required=True, metavar="DIR", help="folder or address to keep the embeddings in")
    parser.add_argument("--model", default=DEFAULT_MODEL, help="as for idmetric-score (default: %(default)s)")
    parser.add_argument("--revision", metavar="COMMIT", help="commit of the model's Hub repository")
    parser.add_argument("--device", help="cuda, mps, cpu, ... (default: the best there is)")
    parser.add_argument("--dtype", choices=DTYPES, help="of the model (default: float32; for visid_* that of the "
                        "weights)")  # fmt: skip
    parser.add_argument("--patches", action="store_true", help="keep patch tokens too: megabytes an image")
    parser.add_argument("--half", action="store_true", help="store float16 instead of float32")
    parser.add_argument("--column", help="of Parquet sources, with the images: bytes or paths (default: the first of "
                        "image_bytes, image, bytes, path)")  # fmt: skip
    parser.add_argument("--id-column", metavar="COLUMN", help="of Parquet sources, with names (default: id or path)")
    parser.add_argument("--batch-size", type=int, default=32, metavar="N", help="images per pass (default: 32)")
    parser.add_argument("--workers", type=int, metavar="N", help="threads that read images ahead of the model "
                        "(default: one for each core, at most 8; with --ray: --cpus)")  # fmt: skip
    parser.add_argument("--rows", type=int, default=ROWS, metavar="N", help="images of an output file, on average; a "
                        "run that is killed loses one at most (default: %(default)s)")  # fmt: skip
    parser.add_argument("--quick", action="store_true", help="trust output files that hold the right names; default: "
                        "read all images to see which have changed")  # fmt: skip
    parser.add_argument("--on-error", choices=("skip", "fail"), default="skip",
                        help="list unreadable images in the column error (default), or stop")  # fmt: skip
    parser.add_argument("--quiet", action="store_true", help="no progress, no warnings")
    cluster = parser.add_argument_group("cluster", "pip install 'idmetric[scale]'")
    cluster.add_argument("--ray", action="store_true", help="by Ray Data, on the machines of a cluster")
    cluster.add_argument("--address", help="of the cluster; 'auto': the one that this machine is in (default: Ray is "
                         "started here)")  # fmt: skip
    cluster.add_argument("--actors", type=int, metavar="N", help="processes that embed (default: as many as there is "
                         "room for)")  # fmt: skip
    cluster.add_argument("--cpus", type=float, metavar="N", help="CPUs of each (default: 1)")
    cluster.add_argument("--gpus", type=float, metavar="N", help="GPUs of each (default: 0)")
    return parser


@guarded
def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; returns the exit status."""
    parser = build_parser()
    args = parser.parse_args(argv)
    for name in ("batch_size", "workers", "rows", "actors"):
        if getattr(args, name) is not None and getattr(args, name) < 1:
            parser.error(f"--{name.replace('_', '-')} must be at least 1")
    if not args.sources and not args.list:
        parser.error("give a folder, images, a Parquet file, or --list")
    if not args.ray and (args.address or args.actors or args.cpus is not None or args.gpus is not None):
        parser.error("--address, --actors, --cpus and --gpus are of a cluster: add --ray")
    args.sources = [path for source in args.sources for path in matches(source) or [source]]
    for path in [*args.sources, *args.list]:
        if "://" not in path and not os.path.exists(path):
            parser.error(f"there is no {path!r}")  # before the model is waited for
    return ended(partial(_run, args), parser, f"finished files are in {args.out}, and the same command resumes")


def _run(args: argparse.Namespace) -> int:
    need("data", "idmetric-score embed", pyarrow="pyarrow")
    if args.ray:
        need("scale", "--ray", ray="Ray")
    from idmetric.checkpoints.errors import CheckpointError

    with warnings.catch_warnings():
        warnings.simplefilter("ignore" if args.quiet else "always", UserWarning)
        warnings.showwarning = lambda message, *_, **__: _say(str(message))
        try:
            with Progress("images", not args.quiet, verb="embedded") as progress:
                done = _embed(args, progress)
        except (CheckpointError, ImportError, ValueError, RuntimeError, OSError, MemoryError) as error:
            _say(f"error: {' '.join(str(error).split())}")
            return 1
    for image, reason in done.unreadable.items():
        _say(f"no embedding of {image}: {reason}")
    if not args.quiet:
        _say(f"{done} in {args.out}")
    return 4 if done.unreadable else 0


def _embed(args: argparse.Namespace, progress: Progress) -> Any:
    import torch

    from idmetric.models.load import load
    from idmetric.scale import embed_dataset, embed_on_ray

    options: dict[str, Any] = {"dtype": getattr(torch, args.dtype)} if args.dtype else {}
    if args.revision:
        options["revision"] = args.revision
    source = os.path.abspath(args.model) if os.path.isdir(args.model) else args.model
    model = partial(load, source, device=args.device, **options)
    shared: dict[str, Any] = {
        "model": model, "lists": args.list, "patches": args.patches, "stored": "float16" if args.half else "float32",
        "column": args.column, "column_id": args.id_column, "batch_size": args.batch_size, "workers": args.workers,
        "rows": args.rows, "quick": args.quick, "on_error": args.on_error, "allow": args.allow,
        "progress": progress,
    }  # fmt: skip
    if not args.ray:
        return embed_dataset(args.sources, args.out, **shared)
    with suppress(ImportError):  # it is said below
        import ray.data  # noqa: F401

        for name in ("ray", "ray.data"):  # they set their levels as they are imported
            logging.getLogger(name).setLevel(logging.ERROR if args.quiet else logging.WARNING)
    cpus, gpus = (1 if args.cpus is None else args.cpus), args.gpus or 0
    return embed_on_ray(
        args.sources, args.out, address=args.address, actors=args.actors, cpus=cpus, gpus=gpus, **shared
    )


def _say(line: str) -> None:
    print(f"idmetric-score embed: {line}", file=sys.stderr)
