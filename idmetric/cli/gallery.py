"""`idmetric gallery`: embed a folder once, search in it, find duplicates and identities."""

from __future__ import annotations

import argparse
import json
import os
import tempfile
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from functools import partial
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any

from idmetric.cli import options
from idmetric.cli.exits import CommandError, codes, ended, failed, say
from idmetric.cli.output import UsageError, check_not_read, check_output, check_stdout, write
from idmetric.cli.streams import guarded
from idmetric.cli.subcommands import Parser
from idmetric.images.paths import InputError, is_image, listed, matches, walk
from idmetric.io.decimals import four
from idmetric.io.hints import need
from idmetric.io.progress import Progress

if TYPE_CHECKING:
    from idmetric.gallery import Gallery, Update
    from idmetric.scoring.records import Records

COMMANDS = ("build", "query", "dedupe", "cluster", "prune")
IMAGES = "images.jsonl"  # of each model in a gallery; literal, so that a mistyped folder needs no torch
_EXAMPLES = """examples:
  idmetric gallery build photos/ --gallery index/ --model tiny
  idmetric gallery build --gallery index/                  again: embeds what is new or changed
  idmetric gallery query who.jpg --gallery index/ -k 5
  idmetric gallery query who.jpg --gallery index/ --distance joint --rerank 50
  idmetric gallery dedupe photos/ --model tiny --output duplicates.csv
  idmetric gallery cluster --gallery index/ --threshold 0.3 --output identities.csv
  idmetric gallery prune --gallery index/                  forget embeddings of images that are gone

Images are never deleted or moved."""


def is_meant(words: Sequence[str]) -> bool:
    """Whether the arguments of `idmetric-score` call this command, rather than name an image or folder `gallery`."""
    if words[:1] != ["gallery"] or os.path.isfile("gallery"):
        return False
    if not words[1:] or not words[1].startswith("-"):
        return (words[1:2] != [] and words[1] in COMMANDS) or not os.path.exists("gallery")
    return words[1] in ("-h", "--help")


def build_parser(prog: str = "idmetric gallery") -> Parser:
    """The parser of the subcommands and their options."""
    parser = Parser(
        prog=prog,
        description="Embed a folder of images once, then search it, find duplicates and group identities.",
        epilog=f"{_EXAMPLES}\n\n{codes(0, 1, 2, 4, 130)}",
    )
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", required=True, title="commands")
    for name, (line, add, prints) in _PARTS.items():
        part = commands.add_parser(name, help=line, description=f"{line[0].upper()}{line[1:]}.")
        add(part)
        _add_shared(part, prints)
    return parser


def _add_build(parser: Parser) -> None:
    parser.add_argument("sources", nargs="*", help="folders, images or manifests (default: those of the last build)")
    parser.add_argument("--add", action="store_true", help="add to the gallery's sources instead of replacing them")
    parser.add_argument("--quick", action="store_true", help="trust files with unchanged size and times (default: read "
                        "all)")  # fmt: skip
    parser.add_argument("--patches", action="store_true", help="keep patch tokens for --rerank: megabytes per image")
    parser.add_argument("--parquet", metavar="FILE", help="also write images and vectors there")


def _add_query(parser: Parser) -> None:
    parser.add_argument("images", nargs="+", help="images to search for")
    parser.add_argument("-k", type=int, default=10, help="hits per image (default: %(default)s)")
    options.add_distance(parser, "distance of the ranking; all but cls rank a shortlist (default: %(default)s)")
    parser.add_argument("--rerank", type=int, metavar="N", help="rank the N nearest again by --distance")
    parser.add_argument("--index", choices=("auto", "exact", "faiss"), default="auto", help="search method, with the "
                        "same answer (default: auto)")  # fmt: skip
    parser.add_argument("--query-mask-dir", metavar="DIR", help="folder with the masks of the queries")
    parser.add_argument("--exclude-same", action="store_true", help="leave out images with the query's own bytes")
    parser.add_argument("--calibration", metavar="FILE", help="add the probability of the same identity, from "
                        "`idmetric eval calibrate`; 'stored': saved with the model")  # fmt: skip


def _add_dedupe(parser: Parser) -> None:
    _add_sources(parser)
    parser.add_argument("--neighbours", type=int, default=10, metavar="N", help="nearest images to compare with "
                        "(default: %(default)s)")  # fmt: skip
    parser.add_argument("--max-distance", type=float, metavar="D", help="also group images this near, whatever their "
                        "pixels")  # fmt: skip
    parser.add_argument("--keep", choices=("largest", "sharpest"), default="largest", help="image to keep of each "
                        "group (default: %(default)s)")  # fmt: skip


def _add_cluster(parser: Parser) -> None:
    _add_sources(parser)
    parser.add_argument("--threshold", type=float, metavar="D", help="largest distance within an identity (default: "
                        "from the calibration)")  # fmt: skip
    parser.add_argument("--false-accept-rate", type=float, default=0.01, metavar="R", help="choose the calibration's "
                        "threshold with this rate (default: %(default)s)")  # fmt: skip
    parser.add_argument("--linkage", choices=("average", "complete", "single"), default="average", help="default: "
                        "%(default)s")  # fmt: skip
    parser.add_argument("--calibration", metavar="FILE", help="default: the one saved with the model")


def _add_prune(parser: Parser) -> None:
    parser.add_argument("--others", action="store_true", help="also remove files in the folder of other models, "
                        "weights and versions of this package")  # fmt: skip


def _add_sources(parser: Parser) -> None:
    parser.add_argument("sources", nargs="*", help="folders, images or manifests; without --gallery, embeddings are "
                        "not kept")  # fmt: skip


# subcommand -> the line that describes it, the function that adds its options, whether it prints a table
_PARTS: dict[str, tuple[str, Callable[[Parser], None], bool]] = {
    "build": ("embed new and changed images", _add_build, False),
    "query": ("find the nearest images", _add_query, True),
    "dedupe": ("find near-duplicates, and which of them to keep", _add_dedupe, True),
    "cluster": ("group images by identity", _add_cluster, True),
    "prune": ("remove embeddings of images that are gone", _add_prune, False),
}


def _add_shared(parser: Parser, prints: bool) -> None:
    parser.add_argument("--gallery", "-g", metavar="DIR", help="folder of the gallery")
    if prints:
        options.add_format(parser, default=None)
        options.add_output(parser, "-o")
        parser.add_argument("--no-update", action="store_true", help="do not look for new and changed files first; "
                            "changed ones are left out of the answer")  # fmt: skip
    options.add_quiet(parser, "no progress, no warnings")

    model = parser.add_argument_group("model and speed")
    options.add_model(model, None, f"{options.MODELS} (default: the gallery's, or {options.DEFAULT_MODEL})")
    options.add_device(model)
    options.add_dtype(model, "that of the gallery, or float32")
    options.add_batch_size(model)
    options.add_workers(model)

    reading = parser.add_argument_group("reading images")
    options.add_mask_dir(reading)
    reading.add_argument("--masked", action="store_true", help="compare subjects alone, by the masks of the manifest")
    options.add_outside(reading, None)
    reading.add_argument("--trust-sources", action="store_true", help="read the source folders that are listed in a "
                         "gallery made elsewhere; needed once")  # fmt: skip


@guarded
def main(argv: Sequence[str] | None = None, prog: str = "idmetric gallery") -> int:
    """Run the command; returns the exit status."""
    parser = build_parser(prog)
    args = parser.parse_args(argv)
    if args.command in ("build", "query", "prune") and not args.gallery:
        parser.error("--gallery is needed: the folder to keep it in")
    if args.command in ("dedupe", "cluster") and not args.gallery and not args.sources:
        parser.error("give a folder, or --gallery")
    kept = "nothing was kept: with --gallery DIR the same command would resume"
    if args.gallery:
        kept = f"embeddings in {args.gallery} are kept, and the same command resumes"
    return ended(partial(_run, args), parser, kept)


def _run(args: argparse.Namespace) -> int:
    _check(args)
    from idmetric.checkpoints.errors import CheckpointError
    from idmetric.gallery import GalleryError
    from idmetric.images.read import ImageReadError

    command: Callable[[argparse.Namespace, Gallery], int] = {
        "build": _build, "query": _query, "dedupe": _dedupe, "cluster": _cluster, "prune": _prune
    }[args.command]  # fmt: skip
    with warnings.catch_warnings(), ExitStack() as stack:
        warnings.simplefilter("ignore" if args.quiet else "always", UserWarning)
        warnings.showwarning = lambda message, *_, **__: say(str(message))
        try:
            args.folder = args.gallery or stack.enter_context(_temporary())
            return command(args, _open(args))
        except BrokenPipeError:
            raise
        except (CheckpointError, GalleryError, ImageReadError, ImportError, ValueError, RuntimeError, OSError) as error:
            return failed(error)
        except MemoryError:
            return failed("out of memory: use fewer --workers or a smaller --batch-size")


def _check(args: argparse.Namespace) -> None:
    """Check packages, paths and outputs before the model is opened.

    Raises:
        MissingExtraError, UsageError, CommandError: naming the first fault.
    """
    if args.command == "cluster":
        need("eval", "gallery cluster", scipy="SciPy")
    if getattr(args, "parquet", None):
        need("data", "--parquet", pyarrow="pyarrow")
    if getattr(args, "index", None) == "faiss":
        need("scale", "--index faiss", faiss="FAISS")

    sources, images = (getattr(args, name, []) for name in ("sources", "images"))
    try:
        args.sources = [path for source in sources for path in matches(source) or [source]]
        args.images = [path for image in images for path in listed(image)]
    except InputError as error:
        raise UsageError(str(error)) from error
    for path in [*args.sources, *args.images]:
        if not os.path.exists(path):
            raise UsageError(f"there is no {path!r}")
    if args.gallery and not args.sources and not any(Path(args.gallery).glob(f"*/{IMAGES}")):
        raise CommandError(
            f"{args.gallery!r} is not a gallery: make one with idmetric gallery build FOLDER --gallery {args.gallery}"
        )

    if hasattr(args, "output"):
        check_stdout(args.output)
    _keep_inputs(args)
    for output in (getattr(args, "output", None), getattr(args, "parquet", None)):
        check_output(output)


def _keep_inputs(args: argparse.Namespace) -> None:
    """Refuse outputs that are inputs, including files in the gallery's sources that may be read."""
    from idmetric.gallery import GalleryError, models_of
    from idmetric.gallery.sources import recorded
    from idmetric.gallery.trust import named_sources

    outputs = {"--output": getattr(args, "output", None), "--parquet": getattr(args, "parquet", None)}
    sources, folders = list(args.sources), [getattr(args, "mask_dir", None), getattr(args, "query_mask_dir", None)]
    with suppress(GalleryError):  # reported when the gallery is opened
        known = models_of(args.gallery) if args.gallery else []
        there = [source for model in known for source in recorded(model["sources"])]
        readable = there if args.trust_sources else named_sources(Path(args.gallery)) if args.gallery else []
        for source in there:
            if source in readable:
                sources.append(source.path)
                folders.append(source.mask_dir)
    given: list[str] = [*args.images, *(path for path in (getattr(args, "calibration", None), *sources) if path)]
    inside = (
        path for folder in [*sources, *folders] if folder and os.path.isdir(folder) for path in walk(Path(folder))
    )
    check_not_read(outputs, chain(given, (str(path) for path in inside if is_image(path))))


@contextmanager
def _temporary() -> Iterator[str]:
    """A folder for a gallery that is not kept."""
    from idmetric.gallery.trust import forget

    with tempfile.TemporaryDirectory(prefix="idmetric-") as folder:
        try:
            yield folder
        finally:
            forget(Path(folder))


def _open(args: argparse.Namespace) -> Gallery:
    """Open the gallery and its model; options that are not given are as at its last build."""
    import torch

    from idmetric.gallery import Gallery
    from idmetric.images.masks import parse_mask_id
    from idmetric.models.load import load

    masked = bool(args.masked or args.mask_dir)
    known = _built(args, masked)
    outside: Any = args.outside or (known["outside"] if known and known["outside"] != "all" else "black")
    masked = masked or bool(known and known["outside"] != "all")
    label = args.mask_id or (known.get("mask_id") if known else None)
    mask_id = parse_mask_id(label) if label else None
    if mask_id is not None and not masked:
        raise UsageError("--mask-id needs masks: --mask-dir or --masked")
    source = args.model or (known["opened"] if known else options.DEFAULT_MODEL)
    if args.model and os.path.isdir(args.model):
        source = os.path.abspath(args.model)  # it opens from another folder too
    dtype = args.dtype or (known["dtype"] if known and not args.model else None)
    chosen: dict[str, Any] = {"dtype": getattr(torch, dtype)} if dtype else {}
    revision = args.revision or (known["opened_revision"] if known else "")
    if revision:
        chosen["revision"] = revision
    if known and not args.model and (reading := json.loads(known["settings"]).get("preprocessing")):
        chosen["preprocessing"] = reading
    metric = load(source, device=args.device, **chosen)
    calibration = getattr(args, "calibration", None)
    if calibration and calibration != "stored":
        metric.calibrate_with(calibration)
    return Gallery(
        args.folder, metric, masked=masked, outside=outside, mask_id=mask_id,
        patches=bool(getattr(args, "patches", False)), opened=source, opened_revision=revision,
    )  # fmt: skip


def _built(args: argparse.Namespace, masked: bool) -> dict[str, str] | None:
    """Settings of the gallery's only model that fits the options; None if --model chooses another, or none fits."""
    from idmetric.gallery import models_of

    if args.model:
        return None
    found = [{**m["about"], **{k: m[k] for k in ("opened", "opened_revision")}} for m in models_of(args.folder)]
    if masked:
        found = [m for m in found if m["outside"] != "all"]
    if args.mask_id:
        found = [m for m in found if m.get("mask_id") == args.mask_id]
    different = {
        (m["opened"], args.revision or m["opened_revision"], m["outside"] + " of " * bool(m.get("mask_id"))
        + m.get("mask_id", ""), m["dtype"]): m for m in found
    }  # fmt: skip
    if len(different) > 1:
        names = ", ".join(
            f"{opened}{f' at {revision}' * bool(revision)} (looking at {outside}, {dtype})"
            for opened, revision, outside, dtype in sorted(different)
        )
        raise UsageError(
            f"{args.folder!r} holds galleries of {names}: say which, by --model, --revision and --mask-dir or --masked"
        )
    return next(iter(different.values()), None)


def _update(args: argparse.Namespace, gallery: Gallery, quick: bool, wait: bool = True) -> Update:
    with Progress("images", not args.quiet, verb="embedded") as progress:
        done = gallery.update(
            *getattr(args, "sources", []), mask_dir=args.mask_dir, add=getattr(args, "add", False), quick=quick,
            batch_size=args.batch_size, workers=args.workers, progress=progress, wait=wait,
            trust_sources=args.trust_sources,
        )  # fmt: skip
    for place, reason in done.unreadable.items():
        say(f"left out {place}: {reason}")
    for name in done.damaged:
        say(f"the shard {name} was damaged: its images were embedded again")
    return done


def _refresh(args: argparse.Namespace, gallery: Gallery) -> int:
    """Update the gallery before it answers; returns the exit status."""
    from idmetric.gallery import BusyError, GalleryWriteError

    if args.no_update and not getattr(args, "sources", []):
        return 0
    if not getattr(args, "sources", []):
        len(gallery)  # an error if there is no gallery: an answer makes none
    try:
        return 4 if _update(args, gallery, quick=True, wait=bool(getattr(args, "sources", []))).unreadable else 0
    except (BusyError, GalleryWriteError) as error:
        if getattr(args, "sources", []):
            raise
        say(f"warning: {error}; the answer is from its last update")
        gallery.reload()
        return 0


def _build(args: argparse.Namespace, gallery: Gallery) -> int:
    done = _update(args, gallery, args.quick)
    if args.parquet:
        gallery.to_parquet(args.parquet)
    if not args.quiet:
        say(f"{done} in {args.folder} by {gallery.metric.model_id}")
    return 4 if done.unreadable else 0


def _query(args: argparse.Namespace, gallery: Gallery) -> int:
    status = _refresh(args, gallery)
    masks = None
    if args.query_mask_dir:
        from idmetric.gallery.sources import mask_of

        masks = [mask_of(args.query_mask_dir, image) for image in args.images]
    hits = gallery.query(
        args.images, args.k, masks=masks, distance=args.distance, rerank=args.rerank, index=args.index,
        exclude_same=args.exclude_same, probability=bool(args.calibration), batch_size=args.batch_size,
    )  # fmt: skip
    shown = ("query", "rank", "distance", *(["probability"] if args.calibration else []), "image")
    note = "  ".join(f"{k}={v}" for k, v in gallery.metric.signature(args.distance).items())
    if args.calibration and gallery.metric.calibration is not None:
        note = f"{gallery.metric.calibration.basis}\n{note}"
    _print(args, hits, shown, note)
    return status


def _dedupe(args: argparse.Namespace, gallery: Gallery) -> int:
    from idmetric.gallery.clusters import near_duplicates

    status = _refresh(args, gallery)
    with Progress("pairs", not args.quiet, verb="compared") as progress:
        found = near_duplicates(
            gallery, neighbours=args.neighbours, max_distance=args.max_distance, keep=args.keep, progress=progress
        )
    spare = sum(not row["keep"] for row in found)
    note = f"{len(gallery)} images, {len(found) - spare} groups of near-duplicates, {spare} could go"
    _print(args, found, ("group", "keep", "reason", "width", "height", "image"), note)
    return status


def _cluster(args: argparse.Namespace, gallery: Gallery) -> int:
    from idmetric.gallery.clusters import identities

    status = _refresh(args, gallery)
    found = identities(gallery, threshold=args.threshold, false_accept_rate=args.false_accept_rate,
                       linkage=args.linkage)  # fmt: skip
    sizes = [row["size"] for row in found if row["centre"]]
    note = f"{len(found)} images, {len(sizes)} groups, {sum(size == 1 for size in sizes)} of them of one image"
    _print(args, found, ("group", "size", "centre", "distance", "image"), note)
    return status


def _prune(args: argparse.Namespace, gallery: Gallery) -> int:
    len(gallery)  # an error if there is none
    status = 4 if _update(args, gallery, quick=True).unreadable else 0
    done = gallery.prune(others=args.others)
    if not args.quiet:
        say(f"{done}, {len(gallery)} images in {args.folder}")
    return status


def _print(args: argparse.Namespace, found: Records, shown: Sequence[str], note: str) -> None:
    ending = Path(args.output).suffix.lstrip(".") if args.output else ""
    form = args.format or (ending if ending in ("json", "jsonl", "csv") else "table")
    texts = {"json": found.to_json, "jsonl": found.to_jsonl, "csv": found.to_csv}
    write(texts[form]() if form in texts else _table(found, shown) + note + "\n", args.output)


def _table(found: Records, shown: Sequence[str]) -> str:
    cells = [[_cell(row[name]) for name in shown] for row in found]
    widths = [max(map(len, column)) for column in zip(shown, *cells, strict=True)]
    lines = [
        "  ".join(x.ljust(w) for x, w in zip(line, widths, strict=True)).rstrip() for line in [list(shown), *cells]
    ]
    return "\n".join(lines) + "\n"


def _cell(value: Any) -> str:
    if isinstance(value, bool):
        return "yes" if value else ""
    return four(value) if isinstance(value, float) else str(value)
