"""`idmetric gallery`: embed a folder once, search in it, find duplicates and identities."""

from __future__ import annotations

import argparse
import json
import os
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from functools import partial
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any

from idmetric.cli import options
from idmetric.cli.command import (
    CommandError,
    UsageError,
    check_not_read,
    check_output,
    ended,
    fixable,
    say,
    warnings_as_lines,
    write,
)
from idmetric.cli.gallery_options import build_parser
from idmetric.cli.options import check_model, load_options
from idmetric.images.paths import InputError, is_image, listed, matches, walk
from idmetric.io.hints import need
from idmetric.io.progress import Progress
from idmetric.io.tables import aligned, four

if TYPE_CHECKING:
    from idmetric.gallery import Gallery, Update
    from idmetric.scoring.records import Records

COMMANDS = ("build", "query", "dedupe", "cluster", "report", "info", "prune")
IMAGES = "images.jsonl"  # of each model in a gallery; a literal, as a mistyped folder should not import torch


def main(argv: Sequence[str] | None = None, prog: str = "idmetric gallery") -> int:
    """Run the command; returns the exit status."""
    parser = build_parser(prog)
    args = parser.parse_args(argv)
    if args.command in ("build", "query", "info", "prune") and not args.gallery:
        parser.error("--gallery is needed: the folder to keep it in")
    if args.command in ("dedupe", "cluster", "report") and not args.gallery and not args.sources:
        parser.error("give a folder, or --gallery")
    kept = "nothing was kept: with --gallery DIR the same command would resume"
    if args.gallery:
        kept = f"embeddings in {args.gallery} are kept, and the same command resumes"
    return ended(partial(_run, args), parser, kept)


def _run(args: argparse.Namespace) -> int:
    _check(args)
    command = {"build": _build, "query": _query, "dedupe": _dedupe, "cluster": _cluster, "report": _report,
               "prune": _prune}.get(args.command)  # fmt: skip
    with warnings_as_lines(args.quiet), fixable(RuntimeError, in_one_line=True), ExitStack() as stack:
        args.folder = args.gallery or stack.enter_context(_temporary())
        try:
            return _info(args) if command is None else command(args, _open(args))
        except MemoryError as error:
            raise CommandError("out of memory: use fewer --workers or a smaller --batch-size") from error


def _check(args: argparse.Namespace) -> None:
    """Check packages, paths and outputs before the model is opened.

    Raises:
        MissingExtraError, UsageError, CommandError: naming the first fault.
    """
    packages = {"scipy": "SciPy"} if args.command in ("cluster", "report") else {}
    packages |= {"jinja2": "jinja2"} if args.command == "report" else {}
    packages |= {"pyarrow": "pyarrow"} if args.parquet else {}
    need("gallery", f"gallery {args.command}", **packages)

    try:
        args.sources = [path for source in args.sources for path in matches(source) or [source]]
        args.images = [path for image in args.images for path in listed(image)]
    except InputError as error:
        raise UsageError(str(error)) from error
    for path in [*args.sources, *args.images]:
        if not os.path.exists(path):
            raise UsageError(f"there is no {path!r}")
    if getattr(args, "model", None):  # `info` opens none
        check_model(args.model)
    if args.gallery and not args.sources and not any(Path(args.gallery).glob(f"*/{IMAGES}")):
        raise CommandError(
            f"{args.gallery!r} is not a gallery: make one with idmetric gallery build FOLDER --gallery {args.gallery}"
        )

    _keep_inputs(args)
    if args.command in ("query", "dedupe", "cluster", "info", "report"):
        check_output(args.output)
    if args.parquet:
        check_output(args.parquet)


def _keep_inputs(args: argparse.Namespace) -> None:
    """Refuse outputs that are inputs, including files in the gallery's sources that may be read."""
    from idmetric.gallery import GalleryError, models_of
    from idmetric.gallery.sources import recorded
    from idmetric.gallery.trust import named_sources

    outputs = {"--output": args.output, "--parquet": args.parquet}
    sources, folders = list(args.sources), [args.mask_dir, args.query_mask_dir]
    with suppress(GalleryError):  # reported when the gallery is opened
        known = models_of(args.gallery) if args.gallery else []
        there = [source for model in known for source in recorded(model["sources"])]
        readable = there if args.trust_sources else named_sources(Path(args.gallery)) if args.gallery else []
        for source in there:
            if source in readable:
                sources.append(source.path)
                folders.append(source.mask_dir)
    given: list[str] = [*args.images, *filter(None, (args.calibration, *sources))]
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
    from idmetric.gallery import Gallery
    from idmetric.images.mask_id import parse_mask_id
    from idmetric.models.load import imports_module, load_embedder

    masked = bool(args.masked or args.mask_dir)
    known = _built(args, masked)
    known_masked = known.get("outside", "all") != "all"
    outside: Any = args.outside or (known["outside"] if known_masked else "black")
    masked = masked or known_masked
    mask_id = args.mask_id or (parse_mask_id(known["mask_id"]) if "mask_id" in known else None)
    if mask_id is not None and not masked:
        raise UsageError("--mask-id needs masks: --mask-dir or --masked")

    source = args.model or known.get("opened", options.DEFAULT_MODEL)
    if not args.model and imports_module(source):  # a gallery may come from somebody else
        raise UsageError(f"the gallery was made with the class {source}: name it with --model if you trust that module")
    if args.model and os.path.isdir(args.model):
        source = os.path.abspath(args.model)  # it opens from another folder too
    revision = args.revision or known.get("opened_revision", "")
    preprocessing = json.loads(known["settings"]).get("preprocessing") if known else None
    chosen = load_options(args.dtype or known.get("dtype"), revision, preprocessing, args.decode or known.get("decode"))
    metric = load_embedder(source, device=args.device, **chosen)
    if args.calibration and args.calibration != "stored":
        metric.calibrate_with(args.calibration)
    return Gallery(
        args.folder, metric, masked=masked, outside=outside, mask_id=mask_id,
        patches=args.patches, opened=source, opened_revision=revision,
    )  # fmt: skip


def _built(args: argparse.Namespace, masked: bool) -> dict[str, str]:
    """Settings of the gallery's only model that fits the options; empty if --model chooses another, or none fits."""
    from idmetric.gallery import models_of

    if args.model:
        return {}
    found = [{**m["about"], **{k: m[k] for k in ("opened", "opened_revision")}} for m in models_of(args.folder)]
    if masked:
        found = [m for m in found if m["outside"] != "all"]
    if args.mask_id:
        found = [m for m in found if m.get("mask_id") == str(args.mask_id)]
    if args.decode:
        found = [m for m in found if m.get("decode", "exact") == args.decode] or found
    different = {
        (m["opened"], args.revision or m["opened_revision"], m["outside"] + " of " * bool(m.get("mask_id"))
        + m.get("mask_id", ""), m["dtype"] + ", fast decoding" * ("decode" in m)): m for m in found
    }  # fmt: skip
    if len(different) > 1:
        names = ", ".join(
            f"{opened}{f' at {revision}' * bool(revision)} (looking at {outside}, {dtype})"
            for opened, revision, outside, dtype in sorted(different)
        )
        raise UsageError(
            f"{args.folder!r} holds galleries of {names}: say which, by --model, --revision, --decode and --mask-dir "
            "or --masked"
        )
    return next(iter(different.values()), {})


def _update(args: argparse.Namespace, gallery: Gallery, quick: bool, wait: bool = True) -> Update:
    with Progress("images", not args.quiet, verb="embedded") as progress:
        done = gallery.update(
            *args.sources, mask_dir=args.mask_dir, add=args.add, quick=quick,
            batch_size=args.batch_size, workers=args.workers, progress=progress, wait=wait,
            trust_sources=args.trust_sources,
        )  # fmt: skip
    for place, reason in done.unreadable.items():
        say(f"left out {place}: {reason}")
    for line in done.damaged:
        say(line)
    return done


def _refresh(args: argparse.Namespace, gallery: Gallery) -> int:
    """Update the gallery before it answers; returns the exit status."""
    from idmetric.gallery import BusyError, GalleryWriteError

    if args.no_update and not args.sources:
        return 0
    if not args.sources:
        len(gallery)  # an error if there is no gallery, as an answer does not create one
    try:
        return 4 if _update(args, gallery, quick=True, wait=bool(args.sources)).unreadable else 0
    except (BusyError, GalleryWriteError) as error:
        if args.sources:
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
        args.images, args.k, masks=masks, distance=args.distance, rerank=args.rerank,
        exclude_same=args.exclude_same, probability=bool(args.calibration), batch_size=args.batch_size,
    )  # fmt: skip
    known = any(row["identity"] is not None for row in hits)  # from a manifest
    shown = ("query", "rank", "distance", *(["probability"] if args.calibration else []), "image",
             *(["identity"] if known else []))  # fmt: skip
    note = "  ".join(f"{k}={v}" for k, v in gallery.metric.signature(args.distance).items())
    if args.calibration and gallery.metric.calibration is not None:
        note = f"{gallery.metric.calibration.basis}\n{note}"
    _print(args, hits, shown, note)
    _say_written(args, f"{len(hits)} hits")
    return status


def _dedupe(args: argparse.Namespace, gallery: Gallery) -> int:
    from idmetric.gallery.clusters import near_duplicates

    status = _refresh(args, gallery)
    with Progress("pairs", not args.quiet, verb="compared") as progress:
        found = near_duplicates(
            gallery, neighbors=args.neighbors, max_distance=args.max_distance, keep=args.keep, progress=progress
        )
    spare = sum(not row["keep"] for row in found)
    groups = len({row["group"] for row in found})
    note = f"{len(gallery)} images, {groups} groups of near-duplicates, {spare} could go"
    _print(args, found, ("group", "keep", "reason", "width", "height", "image"), note)
    _say_written(args, note)
    return status


def _cluster(args: argparse.Namespace, gallery: Gallery) -> int:
    from idmetric.gallery.clusters import identities

    status = _refresh(args, gallery)
    found = identities(gallery, threshold=args.threshold, false_accept_rate=args.false_accept_rate,
                       linkage=args.linkage)  # fmt: skip
    sizes = [row["size"] for row in found if row["center"]]
    note = f"{len(found)} images, {len(sizes)} groups, {sum(size == 1 for size in sizes)} of them of one image"
    _print(args, found, ("group", "size", "center", "distance", "image"), note)
    _say_written(args, note)
    return status


def _report(args: argparse.Namespace, gallery: Gallery) -> int:
    from idmetric.gallery.clusters import identities, near_duplicates
    from idmetric.gallery.info import faults
    from idmetric.report.gallery import gallery_page
    from idmetric.report.page import check_page, write_page

    check_page(args.output)
    status = _refresh(args, gallery)
    wrong = faults(gallery.items, check=True)
    with Progress("pairs", not args.quiet, verb="compared") as progress:
        copies = near_duplicates(gallery, neighbors=args.neighbors, max_distance=args.max_distance, keep=args.keep,
                                 left_out=wrong, progress=progress)  # fmt: skip
    groups, note = None, ""
    try:
        groups = identities(gallery, threshold=args.threshold, false_accept_rate=args.false_accept_rate,
                            linkage=args.linkage)  # fmt: skip
    except ValueError as error:  # without a calibration, say
        note = str(error)
    write_page(gallery_page(gallery, copies, groups, signature=gallery.metric.signature("cls"), note=note), args.output)
    if not args.quiet:
        count = len({row["group"] for row in copies})
        say(f"wrote {args.output}: {len(gallery)} images, {count} duplicate groups")
    return 4 if wrong else status


def _info(args: argparse.Namespace) -> int:
    from idmetric.gallery.info import gallery_info

    found = gallery_info(args.folder, check=args.check)
    shown = found.columns
    if args.format in (None, "table") and not args.output:  # a line per fact, which fits any screen
        blocks = [aligned([(name, _cell(row[name])) for name in shown]) for row in found]
        write("\n\n".join("\n".join(lines) for lines in blocks) + "\n")
        return 0
    _print(args, found, shown, "")
    return 0


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
    if form == "table":
        cells = [[_cell(row[name]) for name in shown] for row in found]
        text = "\n".join([*aligned([shown, *cells]), note]) + "\n"
    else:
        text = getattr(found, f"to_{form}")()
    write(text, args.output)


def _say_written(args: argparse.Namespace, what: str) -> None:
    if args.output and not args.quiet:
        say(f"wrote {args.output}: {what}")


def _cell(value: Any) -> str:
    if value is None:
        return ""
    if isinstance(value, bool):
        return "yes" if value else ""
    return four(value) if isinstance(value, float) else str(value)
