"""`idmetric gallery`: embed a folder once, search in it, find duplicates and identities."""

from __future__ import annotations

import argparse
import json
import math
import os
import tempfile
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from functools import partial
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any

from idmetric.cli import options
from idmetric.cli.command import (
    CommandError,
    Parser,
    UsageError,
    check_not_read,
    check_output,
    codes,
    ended,
    fixable,
    say,
    warnings_as_lines,
    write,
)
from idmetric.cli.options import check_model, load_options
from idmetric.metric.files.hints import need
from idmetric.metric.files.progress import Progress
from idmetric.metric.files.tables import aligned, four
from idmetric.metric.images.paths import InputError, exists, is_image, listed, matches, walk
from idmetric.metric.scoring.keys import stores_in

if TYPE_CHECKING:
    from idmetric.gallery import Gallery
    from idmetric.metric.scoring.records import Records

IMAGES = "images.jsonl"  # of each model in a gallery; a literal, as a mistyped folder should not import torch
_EXAMPLES = """examples:
  idmetric gallery build photos/ --gallery index/ --model tiny
  idmetric gallery build photos/ --gallery index/          again: embeds what is new or changed
  idmetric gallery query who.jpg --gallery index/ -k 5
  idmetric gallery dedupe photos/ --model tiny --output duplicates.csv
  idmetric gallery cluster --gallery index/ --threshold 0.3 --output identities.csv
  idmetric gallery prune --gallery index/                  forget embeddings of images that are gone

Images are never deleted or moved."""
_PACKAGES = {"cluster": {"scipy": "SciPy"},
             "report": {"scipy": "SciPy", "jinja2": "jinja2"}}  # fmt: skip
_PRINT = ("query", "dedupe", "cluster", "info")  # have a result for stdout


# Options


def build_parser(prog: str = "idmetric gallery") -> Parser:
    """The parser of the subcommands and their options."""
    parser = Parser(
        prog=prog,
        description="Embed a folder of images once, then search it, find duplicates and group identities.",
        epilog=f"{_EXAMPLES}\n\n{codes(0, 1, 2, 4, 130, 143)}",
    )
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", required=True, title="commands")
    for name, (line, add) in _PARTS.items():
        part = commands.add_parser(name, help=line, description=f"{line[0].upper()}{line[1:]}.")
        part.set_defaults(**_ABSENT)
        add(part)
        is_needed = name in ("build", "query", "info", "prune")
        part.add_argument("--gallery", "-g", metavar="DIR", required=is_needed, help="folder of the gallery")
        if name in ("query", "dedupe", "cluster", "info"):
            options.add_format(part, default=None)
            options.add_output(part, "-o")
        options.add_quiet(part, "no progress, no warnings")
        if name != "info":
            _add_model(part)
    return parser


def _add_build(parser: Parser) -> None:
    parser.add_argument("sources", nargs="+", help="folders, images or manifests")
    parser.add_argument("--quick", action="store_true", help="trust files with unchanged size and times (default: read "
                        "all)")  # fmt: skip
    parser.add_argument("--patches", action="store_true", help="keep patch tokens for --rerank: megabytes per image")
    parser.add_argument("--parquet", metavar="FILE", help="also write images and vectors there")


def _add_query(parser: Parser) -> None:
    parser.add_argument("images", nargs="+", help="images to search for")
    parser.add_argument("-k", type=int, default=10, help="hits per image (default: %(default)s)")
    options.add_distance(parser, "distance of the ranking; all but cls rank a shortlist (default: %(default)s)")
    parser.add_argument("--rerank", type=int, metavar="N", help="rank the N nearest again by --distance")
    parser.add_argument("--query-mask-dir", metavar="DIR", help="folder with the masks of the queries")
    parser.add_argument("--exclude-same", action="store_true", help="leave out images with the query's own bytes")
    parser.add_argument("--calibration", metavar="FILE", help="add the probability of the same identity, from "
                        "`idmetric eval calibrate`; 'stored': saved with the model")  # fmt: skip
    parser.add_argument("--unknown-above", type=distance, metavar="D", help="answer with each hit's identity, or "
                        "'unknown' above this distance; 'calibrated': that of the calibration")  # fmt: skip
    _add_rate(parser)


def distance(text: str) -> float | str:
    """A distance, or the word `calibrated`."""
    if text == "calibrated":
        return text
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not 0 <= value < math.inf:
        raise argparse.ArgumentTypeError(f"{text!r} is neither a distance, such as 0.3, nor 'calibrated'")
    return value


def _add_rate(parser: Parser) -> None:
    parser.add_argument("--false-accept-rate", type=float, default=0.01, metavar="R", help="choose the calibration's "
                        "threshold with this rate (default: %(default)s)")  # fmt: skip


def _add_dedupe(parser: Parser, fast: bool = True) -> None:
    _add_sources(parser)
    if fast:
        parser.add_argument("--fast", action="store_true", help="compare perceptual hashes of the sources alone, "
                            "without a model: misses crops, links similar pictures")  # fmt: skip
    parser.add_argument("--neighbors", type=int, default=10, metavar="N", help="nearest images to compare with "
                        "(default: %(default)s)")  # fmt: skip
    parser.add_argument("--max-distance", type=float, metavar="D", help="also group images this near, whatever their "
                        "pixels")  # fmt: skip
    parser.add_argument("--keep", choices=("largest", "sharpest"), default="largest", help="image to keep of each "
                        "group (default: %(default)s)")  # fmt: skip


def _add_cluster(parser: Parser, sources: bool = True) -> None:
    if sources:
        _add_sources(parser)
    parser.add_argument("--threshold", type=float, metavar="D", help="largest distance within an identity (default: "
                        "from the calibration)")  # fmt: skip
    _add_rate(parser)
    parser.add_argument("--linkage", choices=("average", "complete", "single"), default="average", help="default: "
                        "%(default)s")  # fmt: skip
    parser.add_argument("--calibration", metavar="FILE", help="default: the one saved with the model")


def _add_report(parser: Parser) -> None:
    _add_dedupe(parser, fast=False)
    _add_cluster(parser, sources=False)
    parser.add_argument("--output", "-o", metavar="FILE", required=True, help="write the page there")


def _add_info(parser: Parser) -> None:
    parser.add_argument("--check", action="store_true", help="read all files to count the changed ones (default: "
                        "compare size, times and inode)")  # fmt: skip


def _add_prune(parser: Parser) -> None:
    parser.add_argument(
        "--others", action="store_true", help="also remove files in the folder of other models and weights"
    )


def _add_sources(parser: Parser) -> None:
    parser.add_argument("sources", nargs="*", help="folders, images or manifests, embedded first (default: the images "
                        "of the last build); without --gallery, embeddings are not kept")  # fmt: skip


# values of options that only some subcommands have
_ABSENT: dict[str, Any] = {
    "sources": [], "images": [], "output": None, "parquet": None, "calibration": None, "query_mask_dir": None,
    "patches": False, "mask_dir": None, "model": None, "fast": False,
}  # fmt: skip
# subcommand -> the line that describes it, and the function that adds its options
_PARTS: dict[str, tuple[str, Callable[[Parser], None]]] = {
    "build": ("embed new and changed images", _add_build),
    "query": ("find the nearest images", _add_query),
    "dedupe": ("find near-duplicates, and which of them to keep", _add_dedupe),
    "cluster": ("group images by identity", _add_cluster),
    "report": ("make a page of duplicates, identities and neighbors", _add_report),
    "info": ("describe a gallery without opening its model", _add_info),
    "prune": ("remove embeddings of images that are gone", _add_prune),
}


def _add_model(parser: Parser) -> None:
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
    options.add_decode(reading, None, "the gallery's, or ")


# Running


def main(argv: Sequence[str] | None = None, prog: str = "idmetric gallery") -> int:
    """Run the command; returns the exit status."""
    parser = build_parser(prog)
    args = parser.parse_args(argv)
    if not args.sources and (args.fast or not args.gallery):
        parser.error("--fast needs folders, images or manifests" if args.fast else "give a folder, or --gallery")
    if args.fast and (args.keep != "largest" or args.max_distance is not None or args.masked or args.mask_dir):
        parser.error("--fast hashes whole images alone: leave out --keep, --max-distance, --masked and --mask-dir")
    kept = "nothing was kept: with --gallery DIR the same command would resume"
    if args.gallery:
        kept = f"embeddings in {args.gallery} are kept, and the same command resumes"
    return ended(partial(_run, args), parser, kept)


def _run(args: argparse.Namespace) -> int:
    _check(args)
    with warnings_as_lines(args.quiet), fixable(RuntimeError, in_one_line=True), ExitStack() as stack:
        if args.command == "info":
            return _info(args)
        if args.fast:
            return _fast(args)
        args.folder = args.gallery or stack.enter_context(tempfile.TemporaryDirectory(prefix="idmetric-"))
        gallery = _open(args)
        status = _update(args, gallery) if args.sources else 0
        if args.command == "build":
            return status
        files = (file for item in gallery.items for file in item.files)
        check_not_read({"--output": args.output}, files)
        answer = {"query": _query, "dedupe": _dedupe, "cluster": _cluster, "report": _report, "prune": _prune}
        return answer[args.command](args, gallery) or status or (4 if gallery.stale else 0)


def _check(args: argparse.Namespace) -> None:
    """Check packages, paths and outputs before the model is opened.

    Raises:
        MissingExtraError, UsageError, CommandError: naming the first fault.
    """
    packages = {"pyarrow": "pyarrow"} if args.parquet else _PACKAGES.get(args.command, {})
    need("gallery", f"gallery {args.command}", **packages)
    try:
        args.sources = [path for source in args.sources for path in matches(source) or [source]]
        args.images = [path for image in args.images for path in listed(image)]
    except InputError as error:
        raise UsageError(str(error)) from error
    for path in [*args.sources, *args.images]:
        if not exists(path):
            raise UsageError(f"there is no {path!r}")
    if args.model:
        check_model(args.model)
    if args.gallery and not args.sources and not stores_in(args.gallery, IMAGES):
        raise CommandError(
            f"{args.gallery!r} is not a gallery: make one with idmetric gallery build FOLDER --gallery {args.gallery}"
        )

    folders = [*args.sources, args.mask_dir, args.query_mask_dir]
    inside = (path for folder in folders if folder and os.path.isdir(folder) for path in walk(Path(folder)))
    given = filter(None, [*args.images, *args.sources, args.calibration])
    outputs = {"--output": args.output, "--parquet": args.parquet}
    check_not_read(outputs, chain(given, (str(path) for path in inside if is_image(path))))
    for output in filter(None, outputs.values()):
        check_output(output)
    if args.command in _PRINT and not args.output:
        check_output(None)


def _open(args: argparse.Namespace) -> Gallery:
    """Open the gallery and its model; options that are not given are as at its last build."""
    from idmetric.gallery import Gallery
    from idmetric.metric.images.kinds import parse_mask_id
    from idmetric.metric.models import names
    from idmetric.metric.models.load import imports_module, load

    known = {} if args.model else _built(args)
    known_masked = known.get("outside", "all") != "all"
    outside: Any = args.outside or (known["outside"] if known_masked else "black")
    masked = bool(args.masked or args.mask_dir or known_masked)
    mask_id = args.mask_id or (parse_mask_id(known["mask_id"]) if "mask_id" in known else None)
    if mask_id is not None and not masked:
        raise UsageError("--mask-id needs masks: --mask-dir or --masked")

    source = args.model or known.get("opened", options.DEFAULT_MODEL)
    if not args.model and imports_module(source):  # a gallery may come from somebody else
        raise UsageError(f"the gallery was made with the class {source}: name it with --model if you trust that module")
    if args.model and names.check(args.model) == "folder":
        source = os.path.abspath(args.model)  # it opens from another folder too
    revision = args.revision or known.get("opened_revision", "")
    preprocessing = json.loads(known["settings"]).get("preprocessing") if known else None
    chosen = load_options(args.dtype or known.get("dtype"), revision, preprocessing, args.decode or known.get("decode"))
    metric = load(source, device=args.device, **chosen)
    if args.calibration and args.calibration != "stored":
        metric.calibrate_with(args.calibration)
    return Gallery(
        args.folder, metric, masked=masked, outside=outside, mask_id=mask_id,
        patches=args.patches, opened=source, opened_revision=revision,
    )  # fmt: skip


def _built(args: argparse.Namespace) -> dict[str, str]:
    """Settings of the gallery's only model that fits the options; empty if there is none."""
    from idmetric.gallery import models_of

    found = [{**m["about"], "opened": m["opened"], "opened_revision": m["opened_revision"]}
             for m in models_of(args.folder)]  # fmt: skip
    if args.masked or args.mask_dir:
        found = [m for m in found if m["outside"] != "all"]
    if args.decode:
        found = [m for m in found if m.get("decode", "exact") == args.decode] or found
    if len(found) > 1:
        names = ", ".join(sorted(f"{m['opened']} ({m['dtype']}, looking at {m['outside']}, "
                                 f"{m.get('decode', 'exact')} decoding)" for m in found))  # fmt: skip
        raise UsageError(
            f"{args.folder!r} holds galleries of {names}: say which, by --model and the other options of its build"
        )
    return found[0] if found else {}


def _update(args: argparse.Namespace, gallery: Gallery) -> int:
    """Bring the gallery up to date with the sources; returns the exit status."""
    with Progress("images", not args.quiet, verb="embedded") as progress:
        done = gallery.update(
            *args.sources, mask_dir=args.mask_dir, quick=args.command != "build" or args.quick,
            batch_size=args.batch_size, workers=args.workers, progress=progress,
        )  # fmt: skip
    for place, reason in done.unreadable.items():
        say(f"left out {place}: {reason}")
    for line in done.damaged:
        say(line)
    if args.parquet:
        gallery.to_parquet(args.parquet)
        if not args.quiet:
            say(f"wrote {args.parquet}")
    if args.command == "build" and not args.quiet:
        say(f"{done} in {args.folder} by {gallery.metric.model_id}")
    return 4 if done.unreadable else 0


def _query(args: argparse.Namespace, gallery: Gallery) -> int:
    from idmetric.gallery.sources import mask_of

    masks = [mask_of(args.query_mask_dir, image) for image in args.images] if args.query_mask_dir else None
    limit = args.unknown_above
    if limit == "calibrated":
        from idmetric.gallery.clusters import calibrated_threshold

        limit = calibrated_threshold(gallery, args.false_accept_rate, args.distance)
    hits = gallery.query(
        args.images, args.k, masks=masks, distance=args.distance, rerank=args.rerank,
        exclude_same=args.exclude_same, probability=bool(args.calibration), unknown_above=limit,
        batch_size=args.batch_size,
    )  # fmt: skip
    known = any(row["identity"] is not None for row in hits)  # from a manifest
    shown = ("query", "rank", "distance", *(["probability"] if args.calibration else []),
             *(["answer"] if limit is not None else []), "image", *(["identity"] if known else []))  # fmt: skip
    note = "  ".join(f"{k}={v}" for k, v in gallery.metric.signature(args.distance).items())
    if args.unknown_above is not None:
        note = f"unknown above {four(limit)}\n{note}"
    if args.calibration and gallery.metric.calibration is not None:
        note = f"{gallery.metric.calibration.basis}\n{note}"
    _print(args, hits, shown, note, f"{len(hits)} hits")
    return 0


def _dedupe(args: argparse.Namespace, gallery: Gallery) -> int:
    found = _near_duplicates(args, gallery)
    note = f"{len(gallery)} images, {_counted(found, 'of near-duplicates')}"
    _print(args, found, ("group", "keep", "reason", "width", "height", "image"), note, note)
    return 0


def _fast(args: argparse.Namespace) -> int:
    from idmetric.gallery.fast import fast_duplicates

    with Progress("images", not args.quiet, verb="hashed") as progress:
        found, problems = fast_duplicates(args.sources, progress=progress)
    for place, reason in problems.items():
        say(f"left out {place}: {reason}")
    note = _counted(found, "by hash alone")
    _print(args, found, ("group", "keep", "reason", "bits", "width", "height", "image"), note, note)
    return 4 if problems else 0


def _counted(found: Records, what: str) -> str:
    groups, spare = len({row["group"] for row in found}), sum(not row["keep"] for row in found)
    return f"{groups} {'group' if groups == 1 else 'groups'} {what}, {spare} could go"


def _near_duplicates(args: argparse.Namespace, gallery: Gallery) -> Records:
    from idmetric.gallery.clusters import near_duplicates

    with Progress("pairs", not args.quiet, verb="compared") as progress:
        return near_duplicates(gallery, neighbors=args.neighbors, max_distance=args.max_distance, keep=args.keep,
                               progress=progress)  # fmt: skip


def _cluster(args: argparse.Namespace, gallery: Gallery) -> int:
    found = _identities(args, gallery)
    sizes = [row["size"] for row in found if row["center"]]
    note = f"{len(found)} images, {len(sizes)} groups, {sum(size == 1 for size in sizes)} of them of one image"
    _print(args, found, ("group", "size", "center", "distance", "image"), note, note)
    return 0


def _identities(args: argparse.Namespace, gallery: Gallery) -> Records:
    from idmetric.gallery.clusters import identities

    return identities(gallery, threshold=args.threshold, false_accept_rate=args.false_accept_rate,
                      linkage=args.linkage)  # fmt: skip


def _report(args: argparse.Namespace, gallery: Gallery) -> int:
    from idmetric.evaluate.report.gallery import gallery_page
    from idmetric.evaluate.report.page import check_page, write_page

    check_page(args.output)
    copies = _near_duplicates(args, gallery)
    groups, note = None, ""
    try:
        groups = _identities(args, gallery)
    except ValueError as error:  # without a calibration, say
        note = str(error)
    page = gallery_page(gallery, copies, groups, signature=gallery.metric.signature("cls"), note=note,
                        faults=gallery.stale)  # fmt: skip
    write_page(page, args.output)
    if not args.quiet:
        count = len({row["group"] for row in copies})
        say(f"wrote {args.output}: {len(gallery)} images, {count} duplicate groups")
    return 0


def _info(args: argparse.Namespace) -> int:
    from idmetric.gallery.info import gallery_info

    found = gallery_info(args.gallery, check=args.check)
    if args.format in (None, "table") and not args.output:  # a line per fact, which fits any screen
        blocks = [aligned([(name, _cell(row[name])) for name in found.columns]) for row in found]
        write("\n\n".join("\n".join(lines) for lines in blocks) + "\n")
    else:
        _print(args, found, found.columns, "", f"{len(found)} models")
    return 0


def _prune(args: argparse.Namespace, gallery: Gallery) -> int:
    done = gallery.prune(others=args.others)
    if not args.quiet:
        say(f"{done}, {len(gallery)} images in {args.folder}")
    return 0


def _print(args: argparse.Namespace, found: Records, shown: Sequence[str], note: str, counts: str) -> None:
    """Print a table, or write it in the format that is given or that --output ends in, and say so."""
    ending = Path(args.output).suffix.lstrip(".") if args.output else ""
    form = args.format or (ending if ending in ("json", "jsonl", "csv") else "table")
    if form == "table":
        cells = [[_cell(row[name]) for name in shown] for row in found]
        text = "\n".join([*aligned([shown, *cells]), note]) + "\n"
    else:
        text = getattr(found, f"to_{form}")()
    write(text, args.output)
    if args.output and not args.quiet:
        say(f"wrote {args.output}: {counts}")


def _cell(value: Any) -> str:
    if value is None:
        return ""
    if isinstance(value, bool):
        return "yes" if value else ""
    return four(value) if isinstance(value, float) else str(value)
