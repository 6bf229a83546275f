"""`idmetric gallery`: embed a folder once, search in it, find duplicates and identities."""

from __future__ import annotations

import json
import math
import os
import tempfile
from argparse import ArgumentTypeError, Namespace
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, suppress
from functools import partial
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any

from idmetric.cli import options
from idmetric.cli.command import (
    WRONG_USAGE,
    CommandError,
    Parser,
    check_not_read,
    check_output,
    codes,
    counting_embeddings,
    ended,
    fixable,
    form_of,
    say,
    status_of,
    warnings_as_lines,
    write,
)
from idmetric.cli.options import add_shared, check_model, load_options, parse_mask_id
from idmetric.metric.errors import RequestError
from idmetric.metric.files import Progress, need
from idmetric.metric.paths import is_image, listed, matches, walk
from idmetric.scoring.scores import Limit
from idmetric.tables import aligned, four

if TYPE_CHECKING:
    from idmetric.gallery import Gallery
    from idmetric.scoring.scores import Records

IMAGES = "images.jsonl"  # of each model in a gallery; a literal, as a mistyped folder should not import torch
_EXAMPLES = """examples:
  idmetric gallery build photos/ --gallery index/ --model tiny
  idmetric gallery build photos/ --gallery index/          again: embeds what is new or changed
  idmetric gallery query who.jpg --gallery index/ -k 5
  idmetric gallery dedupe photos/ --model tiny --output duplicates.csv
  idmetric gallery cluster --gallery index/ --threshold 0.3 --output identities.csv

Images are never deleted or moved."""
_PACKAGES = {
    "dedupe": {"scipy": "SciPy"},
    "cluster": {"scipy": "SciPy"},
    "report": {"scipy": "SciPy", "jinja2": "jinja2"},
}
_SOURCES = "folders, images or manifests"


# Options


def build_parser(prog: str = "idmetric gallery") -> Parser:
    """The parser of the subcommands and their options."""
    parser = Parser(
        prog=prog,
        description="Embed a folder of images once, then search it, find duplicates and group identities.",
        epilog=f"{_EXAMPLES}\n\n{codes(0, 1, 2, 4, 130, 143)}",
    )
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", title="commands")
    for name, (line, add_options) in _COMMANDS.items():
        command = commands.add_parser(name, help=line, description=f"{line[0].upper()}{line[1:]}.")
        command.set_defaults(**_DEFAULTS)
        add_options(command)
        is_needed = name in ("build", "query", "info")
        command.add_argument("--gallery", "-g", metavar="DIR", required=is_needed, help="folder of the gallery")
        if name in _PRINTED:
            add_shared(command, "--format")
            command.add_argument("--output", "-o", **options.SHARED["--output"])
        add_shared(command, "--quiet", help="no progress, no warnings")
        if name != "info":
            _add_model(command)
    return parser


def _add_build(parser: Parser) -> None:
    add = parser.add_argument
    add("sources", nargs="+", help=_SOURCES)
    add("--quick", action="store_true", help="trust files with unchanged size and times (default: read all)")
    add("--patches", action="store_true", help="keep patch tokens for --rerank: megabytes per image")
    add("--parquet", metavar="FILE", help="also write images and vectors there")


def _add_query(parser: Parser) -> None:
    add = parser.add_argument
    add("images", nargs="+", help="images to search for")
    add("-k", type=int, default=10, help="hits per image (default: %(default)s)")
    text = "distance of the ranking; all but cls rank a shortlist (default: %(default)s)"
    add_shared(parser, "--distance", help=text)
    add("--rerank", type=int, metavar="N", help="rank the N nearest again by --distance")
    add("--query-mask-dir", metavar="DIR", help="folder with the masks of the queries")
    add("--exclude-same", action="store_true", help="leave out images with the query's own bytes")
    add_shared(parser, "--calibration")
    add(
        "--unknown-above",
        type=distance,
        metavar="D",
        help="answer with each hit's identity, or 'unknown' above this distance; 'calibrated': that of the calibration "
        "at 1 %% of pairs, lower than for one pair because an image is compared with many",
    )


def distance(text: str) -> float | str:
    """A distance, or the word `calibrated`, as the type of an option."""
    if text == "calibrated":
        return text
    with suppress(ValueError):
        value = float(text)
        if 0 <= value < math.inf:
            return value
    raise ArgumentTypeError(f"{text!r} is neither a distance, such as 0.3, nor 'calibrated'")


def _add_dedupe(parser: Parser) -> None:
    _add_sources(parser)
    _add_duplicates(parser)


def _add_duplicates(parser: Parser) -> None:
    add = parser.add_argument
    add("--neighbors", type=int, default=10, metavar="N", help="nearest images to compare with (default: %(default)s)")
    add("--max-distance", type=float, metavar="D", help="also group images this near, whatever their pixels")
    add(
        "--keep",
        choices=("largest", "sharpest"),
        default="largest",
        help="image to keep of each group (default: %(default)s)",
    )


def _add_cluster(parser: Parser) -> None:
    _add_sources(parser)
    _add_identities(parser)


def _add_identities(parser: Parser) -> None:
    add = parser.add_argument
    add(
        "--threshold",
        type=float,
        metavar="D",
        help="largest distance within an identity (default: that of the calibration at 1 %% of pairs)",
    )
    add("--linkage", choices=("average", "complete", "single"), default="average", help="default: %(default)s")
    add("--calibration", metavar="FILE", help="default: the one saved with the model")


def _add_report(parser: Parser) -> None:
    _add_sources(parser)
    _add_duplicates(parser)
    _add_identities(parser)
    parser.add_argument("--output", "-o", metavar="FILE", required=True, help="write the page there")


def _add_sources(parser: Parser) -> None:
    text = (
        f"{_SOURCES}, embedded first (default: the images of the last build); without --gallery, embeddings are not "
        "kept"
    )
    parser.add_argument("sources", nargs="*", help=text)


def _add_model(parser: Parser) -> None:
    model = parser.add_argument_group("model and speed")
    text = f"{options.MODELS} (default: the gallery's, or {options.DEFAULT_MODEL})"
    add_shared(model, "--model", default=None, help=text)
    add_shared(model, "--revision", "--device")
    add_shared(model, "--dtype", help="default: that of the gallery, or float32")
    add_shared(model, "--batch-size", "--workers")

    reading = parser.add_argument_group("reading images")
    add_shared(reading, "--mask-dir")
    reading.add_argument("--masked", action="store_true", help="compare subjects alone, by the masks of the manifest")
    add_shared(reading, "--outside", default=None)
    add_shared(reading, "--mask-id")


# subcommand -> the line that describes it, and the function that adds its options
_COMMANDS: dict[str, tuple[str, Callable[[Parser], None]]] = {
    "build": ("embed new and changed images", _add_build),
    "query": ("find the nearest images", _add_query),
    "dedupe": ("find near-duplicates, and which of them to keep", _add_dedupe),
    "cluster": ("group images by identity", _add_cluster),
    "report": ("make a page of duplicates, identities and neighbors", _add_report),
    "info": ("describe a gallery without opening its model", lambda parser: None),
}
_PRINTED = ("query", "dedupe", "cluster", "info")  # have a result for stdout
# values of options that only some subcommands have
_DEFAULTS: dict[str, Any] = {
    "sources": [],
    "images": [],
    "output": None,
    "parquet": None,
    "calibration": None,
    "query_mask_dir": None,
    "patches": False,
    "mask_dir": None,
    "model": None,
    "threshold": None,
}


# Running


def main(argv: Sequence[str] | None = None, prog: str = "idmetric gallery") -> int:
    """Run the command; returns the exit status."""
    parser = build_parser(prog)
    args = parser.parse_args(argv)
    if not args.sources and not args.gallery:
        parser.error("give a folder, or --gallery")
    return ended(partial(_run, args), parser)


def _run(args: Namespace) -> int:
    _check(args)
    with warnings_as_lines(args.quiet), fixable(RuntimeError, in_one_line=True), ExitStack() as stack:
        if args.command == "info":
            return _info(args)
        args.folder = args.gallery or stack.enter_context(
            tempfile.TemporaryDirectory(prefix="idmetric-", ignore_cleanup_errors=True)
        )
        gallery = _open(args)
        status = 0
        if args.sources:
            status = _update(args, gallery)
        if args.command == "build":
            return status

        check_not_read({"--output": args.output}, chain.from_iterable(item.files for item in gallery.items))
        answer = {"query": _query, "dedupe": _dedupe, "cluster": _cluster, "report": _report}
        answer[args.command](args, gallery)
        return status or status_of(gallery.stale)


def _check(args: Namespace) -> None:
    """Check packages, paths and outputs before the model is opened.

    Raises:
        MissingExtraError, CommandError: naming the first fault.
    """
    packages = _PACKAGES.get(args.command, {})
    if args.parquet:
        packages = {"pyarrow": "pyarrow"}
    need("eval", f"gallery {args.command}", **packages)
    try:
        args.sources = [path for source in args.sources for path in matches(source) or [source]]
        args.images = [path for image in args.images for path in listed(image)]
    except RequestError as error:
        raise CommandError(str(error), WRONG_USAGE) from error
    for path in [*args.sources, *args.images]:
        if not os.path.exists(path):
            raise CommandError(f"there is no {path!r}", WRONG_USAGE)
    if args.model:
        check_model(args.model)
    if args.gallery and not args.sources and not _holds_gallery(args.gallery):
        raise CommandError(
            f"{args.gallery!r} is not a gallery: make one with idmetric gallery build FOLDER --gallery {args.gallery}"
        )

    outputs = {"--output": args.output, "--parquet": args.parquet}
    check_not_read(outputs, _inputs(args))
    for output in filter(None, outputs.values()):
        check_output(output)
    if args.command in _PRINTED and not args.output:
        check_output(None)


def _inputs(args: Namespace) -> Iterator[str]:
    """The files that the command will read."""
    paths = [*args.images, *args.sources, args.calibration, args.mask_dir, args.query_mask_dir]
    for path in filter(None, paths):
        yield path
        if os.path.isdir(path):
            yield from filter(is_image, map(str, walk(Path(path))))


def _open(args: Namespace) -> Gallery:
    """Open the gallery and its model; options that are not given are as at its last build."""
    from idmetric.gallery import Gallery
    from idmetric.metric.load import check_name, load

    # what the images are, as at the last build
    built = {} if args.model else _built(args)
    masked = bool(args.masked or args.mask_dir)
    outside = args.outside
    mask_id = args.mask_id
    if built.get("outside", "all") != "all":
        masked = True
        outside = outside or built["outside"]
    if mask_id is None and "mask_id" in built:
        mask_id = parse_mask_id(built["mask_id"])
    if mask_id is not None and not masked:
        raise CommandError("--mask-id needs masks: --mask-dir or --masked", WRONG_USAGE)

    # the model
    source = args.model or built.get("opened", options.DEFAULT_MODEL)
    if not args.model and check_name(source) == "class":  # a gallery may come from somebody else
        raise CommandError(
            f"the gallery was made with the class {source}: name it with --model if you trust that module", WRONG_USAGE
        )
    if args.model and check_name(args.model) == "folder":
        source = os.path.abspath(args.model)  # it opens from another folder too
    revision = args.revision or built.get("opened_revision", "")
    model_options = load_options(
        args,
        revision=revision,
        dtype=args.dtype or built.get("dtype"),
        preprocessing=json.loads(built.get("settings", "{}")).get("preprocessing"),
    )
    args.open_model = partial(load, source, **model_options)
    metric = args.open_model()
    return Gallery(
        args.folder,
        metric,
        masked=masked,
        outside=outside or "black",
        mask_id=mask_id,
        patches=args.patches,
        opened=source,
        opened_revision=revision,
        calibration=args.calibration,
    )


def _built(args: Namespace) -> dict[str, str]:
    """Settings of the gallery's only model that fits the options; empty if there is none."""
    from idmetric.gallery import models_of

    models: list[dict[str, str]] = []
    for model in models_of(args.folder):
        opened = {"opened": model["opened"], "opened_revision": model["opened_revision"]}
        models.append({**model["about"], **opened})
    if args.masked or args.mask_dir:
        models = [model for model in models if model["outside"] != "all"]
    if len(models) > 1:
        names = ", ".join(sorted(map("{opened} ({dtype}, looking at {outside})".format_map, models)))
        raise CommandError(
            f"{args.folder!r} holds galleries of {names}: say which, by --model and the other options of its build",
            WRONG_USAGE,
        )
    return models[0] if models else {}


def _update(args: Namespace, gallery: Gallery) -> int:
    """Bring the gallery up to date with the sources; returns the exit status."""
    quiet = args.quiet or args.command != "build"
    with counting_embeddings(quiet), Progress("images", not args.quiet, verb="embedded") as progress:
        update = gallery.update(
            *args.sources,
            mask_dir=args.mask_dir,
            quick=args.command != "build" or args.quick,
            batch_size=args.batch_size,
            workers=args.workers,
            progress=progress,
            looks=args.command in ("dedupe", "report"),
        )
    for image, reason in update.unreadable.items():
        say(f"left out {image}: {reason}")
    if args.parquet:
        gallery.to_parquet(args.parquet)
        if not args.quiet:
            say(f"wrote {args.parquet}")
    if args.command == "build" and not args.quiet:
        say(f"{update} in {args.folder} by {gallery.metric.model_id}")
    return status_of(update.unreadable)


def _query(args: Namespace, gallery: Gallery) -> None:
    from idmetric.gallery.sources import mask_of

    masks = None
    if args.query_mask_dir:
        masks = [mask_of(args.query_mask_dir, image) for image in args.images]
    unknown_above = args.unknown_above
    if isinstance(unknown_above, float):
        unknown_above = Limit(unknown_above, "option --unknown-above")
    hits = gallery.query(
        args.images,
        args.k,
        masks=masks,
        distance=args.distance,
        rerank=args.rerank,
        exclude_same=args.exclude_same,
        probability=bool(args.calibration),
        unknown_above=unknown_above,
        batch_size=args.batch_size,
    )

    columns = ["query", "rank", "distance"]
    notes = []
    if args.calibration:
        columns.append("probability")
        notes.append(gallery.calibration_for(args.distance).basis)
    if unknown_above is not None:
        columns.append("answer")
        if hits:
            notes.append(f"unknown above {_threshold(hits)}")
    columns.append("image")
    if any(row["identity"] is not None for row in hits):  # from a manifest
        columns.append("identity")
    notes.append("  ".join(f"{key}={value}" for key, value in gallery.metric.signature(args.distance).items()))
    _print(args, hits, columns, "\n".join(notes), f"{len(hits)} hits")


def _dedupe(args: Namespace, gallery: Gallery) -> None:
    duplicates = _near_duplicates(args, gallery)
    groups = len({row["group"] for row in duplicates})
    spare = sum(not row["keep"] for row in duplicates)
    plural = "" if groups == 1 else "s"
    note = f"{len(gallery)} images, {groups} group{plural} of near-duplicates, {spare} could go"
    limit = _max_distance(args)
    if limit is not None:
        note += f"; near: within {limit}"
    _print(args, duplicates, ("group", "keep", "reason", "width", "height", "image"), note, note)


def _near_duplicates(args: Namespace, gallery: Gallery) -> Records:
    from idmetric.gallery.clusters import near_duplicates

    with Progress("pairs", not args.quiet, verb="compared") as progress:
        return near_duplicates(
            gallery, neighbors=args.neighbors, max_distance=_max_distance(args), keep=args.keep, progress=progress
        )


def _max_distance(args: Namespace) -> Limit | None:
    return None if args.max_distance is None else Limit(args.max_distance, "option --max-distance")


def _cluster(args: Namespace, gallery: Gallery) -> None:
    images = _identities(args, gallery)
    sizes = [row["size"] for row in images if row["center"]]
    single = sizes.count(1)
    note = f"{len(images)} images, {len(sizes)} groups, {single} of them of one image; threshold {_threshold(images)}"
    _print(args, images, ("group", "size", "center", "distance", "image"), note, note)


def _identities(args: Namespace, gallery: Gallery) -> Records:
    from idmetric.gallery.clusters import identities

    threshold = None if args.threshold is None else Limit(args.threshold, "option --threshold")
    return identities(gallery, threshold=threshold, linkage=args.linkage)


def _threshold(rows: Records) -> str:
    """The threshold that all rows share, with its source."""
    return f"{four(rows[0]['threshold'])} ({rows[0]['threshold_source']})"


def _report(args: Namespace, gallery: Gallery) -> None:
    from idmetric.evaluate.report.gallery import gallery_page
    from idmetric.page import check_page, write_page

    check_page(args.output)
    duplicates = _near_duplicates(args, gallery)
    groups, note = None, ""
    try:
        groups = _identities(args, gallery)
    except ValueError as error:  # such as for a missing calibration
        note = str(error)
    signature = gallery.metric.signature("cls")
    page = gallery_page(gallery, duplicates, groups, signature=signature, note=note, faults=gallery.stale)
    write_page(page, args.output)
    if not args.quiet:
        count = len({row["group"] for row in duplicates})
        say(f"wrote {args.output}: {len(gallery)} images, {count} duplicate groups")


def _info(args: Namespace) -> int:
    from idmetric.gallery.info import gallery_info

    models = gallery_info(args.gallery)
    if args.output or args.format not in (None, "table"):
        _print(args, models, models.columns, "", f"{len(models)} models")
        return 0

    # a line per fact, which fits any screen
    tables = []
    for model in models:
        lines = aligned([(name, _cell(model[name])) for name in models.columns])
        tables.append("\n".join(lines) + "\n")
    write("\n".join(tables) or "\n")
    return 0


def _print(args: Namespace, rows: Records, columns: Sequence[str], note: str, counts: str) -> None:
    """Print a table, or write it in the format that is given or that --output ends in, and say so."""
    form = form_of(args)
    if form != "table":
        text = getattr(rows, f"to_{form}")()
    else:
        cells = [[_cell(row[name]) for name in columns] for row in rows]
        text = "\n".join([*aligned([columns, *cells]), note]) + "\n"
    write(text, args.output)
    if args.output and not args.quiet:
        say(f"wrote {args.output}: {counts}")


def _cell(value: Any) -> str:
    if value is None or value is False:
        return ""
    if value is True:
        return "yes"
    return four(value) if isinstance(value, float) else str(value)


def _holds_gallery(folder: str) -> bool:
    """Whether a folder in this one holds a model's images; PermissionError if this folder is closed to the user."""
    names = os.listdir(folder) if os.path.isdir(folder) else []
    return any(os.path.isfile(os.path.join(folder, name, IMAGES)) for name in names)
