"""`idmetric gallery`: embed folders and tables once, search in them, find duplicates and identities."""

from __future__ import annotations

import json
import os
import tempfile
from argparse import Namespace
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
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
    write_with_page,
)
from idmetric.cli.options import add_shared, check_model, load_options, parse_mask_id
from idmetric.metric.errors import RequestError
from idmetric.metric.files import Progress, need
from idmetric.metric.paths import is_image, listed, mask_of, matches, walk
from idmetric.scoring.scores import Limit
from idmetric.tables import aligned, four

if TYPE_CHECKING:
    from idmetric.gallery import Answer, Gallery

_IMAGES = "images.parquet"  # of each model in a gallery; a literal, as a mistyped folder should not import torch
_EXAMPLES = """examples:
  idmetric gallery build photos/ --gallery index/ --model tiny
  idmetric gallery build photos/ --gallery index/          again: embeds what is new or changed
  idmetric gallery query who.jpg --gallery index/ -k 5
  idmetric gallery dedupe photos/ --model tiny --output duplicates.csv
  idmetric gallery cluster --gallery index/ --threshold 0.3 --html identities.html

Images are never deleted or moved."""
_SOURCES = "folders, images, or tables with a column path (.csv, .parquet, .jsonl)"
# the columns that are printed, if there are such
_PRINTED = {
    "query": ("query", "rank", "distance", "answer", "probability", "path", "identity"),
    "dedupe": ("group", "keep", "reason", "width", "height", "path"),
    "cluster": ("group", "size", "center", "distance", "path"),
}


# Options


def build_parser(prog: str = "idmetric gallery") -> Parser:
    """The parser of the subcommands and their options."""
    parser = Parser(
        prog=prog,
        description="Embed images once, then search them, find duplicates and group identities.",
        epilog=f"{_EXAMPLES}\n\n{codes(0, 1, 2, 4, 130, 143)}",
    )
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", title="commands")
    for name, (line, add_options) in _COMMANDS.items():
        command = commands.add_parser(name, help=line, description=f"{line[0].upper()}{line[1:]}.")
        add_options(command)
        is_needed = name in ("build", "query")
        command.add_argument("--gallery", "-g", metavar="DIR", required=is_needed, help="folder of the gallery")
        if name in _PRINTED:
            add_shared(command, "--format", "--output")
            command.add_argument("--html", metavar="FILE", help="also write a page with the images")
        add_shared(command, "--quiet", help="no progress, no warnings")
        _add_model(command)
    return parser


def _add_build(parser: Parser) -> None:
    parser.add_argument("sources", nargs="+", help=_SOURCES)
    parser.add_argument("--patches", action="store_true", help="keep patch tokens for --rerank: megabytes per image")


def _add_query(parser: Parser) -> None:
    add = parser.add_argument
    add("images", nargs="+", help="images to search for")
    add("-k", type=int, default=10, help="hits per image (default: %(default)s)")
    text = "distance of the ranking; all but cls rank a shortlist (default: %(default)s)"
    add_shared(parser, "--distance", help=text)
    add("--rerank", type=int, metavar="N", help="rank the N nearest again by --distance")
    add("--query-mask-dir", metavar="DIR", help="folder with the masks of the queries")
    add("--exclude-same", action="store_true", help="leave out images with the query's own bytes")
    _add_threshold(parser, "largest distance at which an image is recognized; beyond, the answer is 'unknown'")
    add("--index", choices=["faiss"], help="search approximately (pip install 'idmetric[faiss]')")


def _add_dedupe(parser: Parser) -> None:
    _add_sources(parser)
    add = parser.add_argument
    add("--neighbors", type=int, default=10, metavar="N", help="nearest images to compare with (default: %(default)s)")
    add("--max-distance", type=float, metavar="D", help="also group images this near, whatever their pixels")


def _add_cluster(parser: Parser) -> None:
    _add_sources(parser)
    _add_threshold(parser, "largest distance within an identity")
    linkages = ("average", "complete", "single")
    parser.add_argument("--linkage", choices=linkages, default="average", help="default: %(default)s")


def _add_threshold(parser: Parser, text: str) -> None:
    default = "default: that of the calibration at 1 %% of pairs, lower than for one pair because many are compared"
    parser.add_argument("--threshold", type=float, metavar="D", help=f"{text} ({default})")
    parser.add_argument("--calibration", metavar="FILE", help="default: the one saved with the model")


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
    reading.add_argument("--masked", action="store_true", help="compare subjects alone, by masks of tables and folders")
    add_shared(reading, "--outside", default=None)
    add_shared(reading, "--mask-id")


# subcommand -> the line that describes it, and the function that adds its options
_COMMANDS: dict[str, tuple[str, Callable[[Parser], None]]] = {
    "build": ("embed new and changed images", _add_build),
    "query": ("find the nearest images", _add_query),
    "dedupe": ("find near-duplicates, and which of them to keep", _add_dedupe),
    "cluster": ("group images by identity", _add_cluster),
}


# Running


def main(argv: Sequence[str] | None = None, prog: str = "idmetric gallery") -> int:
    """Run the command; returns the exit status."""
    parser = build_parser(prog)
    args = parser.parse_args(argv)
    args.sources = getattr(args, "sources", [])
    args.images = getattr(args, "images", [])
    if not args.sources and not args.gallery:
        parser.error("give a folder, or --gallery")
    return ended(partial(_run, args), parser)


def _run(args: Namespace) -> int:
    _check(args)
    with warnings_as_lines(args.quiet), fixable(RuntimeError, in_one_line=True), ExitStack() as stack:
        args.folder = args.gallery or stack.enter_context(
            tempfile.TemporaryDirectory(prefix="idmetric-", ignore_cleanup_errors=True)
        )
        gallery = _open(args)
        status = 0
        if args.sources:
            status = _build(args, gallery)
        if args.command == "build":
            return status

        outputs = {"--output": args.output, "--html": args.html}
        columns = [gallery.images[name].to_pylist() for name in ("_file", "_mask") if not gallery.is_table]
        check_not_read(outputs, filter(None, chain.from_iterable(columns)))
        answer = _answer(args, gallery)
        _print(args, answer)
        return status or status_of(answer.left_out)


def _check(args: Namespace) -> None:
    """Check packages, paths and outputs before the model is opened.

    Raises:
        MissingExtraError, CommandError: naming the first fault.
    """
    packages = {"pandas": "pandas", "pyarrow": "pyarrow"}
    if args.command in ("dedupe", "cluster"):
        packages["scipy"] = "SciPy"
    if getattr(args, "html", None):
        packages["jinja2"] = "jinja2"
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

    outputs = {f"--{name}": getattr(args, name, None) for name in ("output", "html")}
    check_not_read(outputs, _inputs(args))
    for output in filter(None, outputs.values()):
        check_output(output)
    if args.command in _PRINTED and not args.output:
        check_output(None)


def _holds_gallery(folder: str) -> bool:
    """Whether this is a table with vectors, or a folder with a gallery; PermissionError if it is closed to the user."""
    names = os.listdir(folder) if os.path.isdir(folder) else [folder]
    if any(name.lower().endswith(".parquet") for name in names):
        return True
    return any(os.path.isfile(os.path.join(folder, name, _IMAGES)) for name in names)


def _inputs(args: Namespace) -> Iterator[str]:
    """The files that the command will read."""
    paths = [*args.images, *args.sources]
    paths += [getattr(args, name, None) for name in ("calibration", "mask_dir", "query_mask_dir")]
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
    return Gallery(
        args.folder,
        load(source, **model_options),
        masked=masked,
        outside=outside or "black",
        mask_id=mask_id,
        patches=getattr(args, "patches", False),
        calibration=getattr(args, "calibration", None),
        index=getattr(args, "index", None),
        opened=source,
        opened_revision=revision,
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


def _build(args: Namespace, gallery: Gallery) -> int:
    """Bring the gallery up to date with the sources; returns the exit status."""
    quiet = args.quiet or args.command != "build"
    with counting_embeddings(quiet), Progress("images", not args.quiet, verb="embedded") as progress:
        update = gallery.build(
            *args.sources,
            mask_dir=args.mask_dir,
            batch_size=args.batch_size,
            workers=args.workers,
            progress=progress,
            prints=args.command == "dedupe",
        )
    for image, reason in update.unreadable.items():
        say(f"left out {image}: {reason}")
    if args.command == "build" and not args.quiet:
        say(f"{update} in {args.folder} by {gallery.metric.model_id}")
    return status_of(update.unreadable)


def _answer(args: Namespace, gallery: Gallery) -> Answer:
    if args.command == "dedupe":
        limit = None if args.max_distance is None else Limit(args.max_distance, "option --max-distance")
        with Progress("pairs", not args.quiet, verb="compared") as progress:
            return gallery.duplicates(neighbors=args.neighbors, max_distance=limit, progress=progress)

    threshold = None if args.threshold is None else Limit(args.threshold, "option --threshold")
    if args.command == "cluster":
        return gallery.identities(threshold=threshold, linkage=args.linkage)

    masks: Any = None
    if args.query_mask_dir:
        masks = [mask_of(args.query_mask_dir, image) for image in args.images]
    return gallery.query(
        args.images,
        args.k,
        masks=masks,
        distance=args.distance,
        rerank=args.rerank,
        exclude_same=args.exclude_same,
        threshold=threshold,
        batch_size=args.batch_size,
    )


def _print(args: Namespace, answer: Answer) -> None:
    """Print a table, or write it in the format that is given or that --output ends in; write the page."""
    form = form_of(args)
    if form == "table":
        columns = [name for name in _PRINTED[args.command] if name in answer.columns]
        if all(row.get("identity") is None for row in answer):
            columns = [name for name in columns if name != "identity"]
        cells = [[_cell(row[name]) for name in columns] for row in answer]
        facts = [f"{name}={value}" for name, value in answer.signature.items()]
        text = "\n".join([*aligned([columns, *cells]), *answer.notes, "  ".join(facts)]) + "\n"
    else:
        text = getattr(answer, f"to_{form}")()
        for note in answer.notes:
            if not args.quiet:
                say(note)
    write_with_page(text, args.output, partial(answer.write, args.html) if args.html else None)
    for path in (args.output, args.html):
        if path and not args.quiet:
            say(f"wrote {path}: {len(answer)} rows")


def _cell(value: Any) -> str:
    if value is None or value is False:
        return ""
    if value is True:
        return "yes"
    return four(value) if isinstance(value, float) else str(value)
