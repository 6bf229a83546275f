"""`idmetric-score gallery`: embed a folder once, search in it, find duplicates and identities.

Exit status: 0 done; 1 an error (on stderr); 2 wrong usage; 4 done, but images were left out (they are listed).
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from functools import partial
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any

from idmetric.cli.exits import ended
from idmetric.cli.score_format import UsageError, check_not_read, check_output, check_stdout, write
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
DISTANCES = ("cls", "patch", "joint", "patch_pooled", "joint_pooled", "patch_biased")  # see cli.score
DTYPES = ("float32", "float16", "bfloat16", "float64")
IMAGES = "images.jsonl"  # of each model in a gallery; literal, so that a mistyped folder needs no torch
DEFAULT_MODEL = "dinov3_vitl16"
_EXAMPLES = """examples:
  idmetric-score gallery build photos/ --gallery index/ --model tiny
  idmetric-score gallery build --gallery index/                  again: embeds what is new or changed
  idmetric-score gallery query who.jpg --gallery index/ -k 5
  idmetric-score gallery query who.jpg --gallery index/ --distance joint --rerank 50
  idmetric-score gallery dedupe photos/ --model tiny --output duplicates.csv
  idmetric-score gallery cluster --gallery index/ --threshold 0.3 --output identities.csv
  idmetric-score gallery prune --gallery index/                  forget embeddings of images that are gone

No image is ever deleted or moved.
Exit status: 0 done, 1 error, 2 wrong usage, 4 done, but images were left out."""


def is_meant(words: Sequence[str]) -> bool:
    """Whether a command line of idmetric-score means this command, and not an image that is called `gallery`."""
    if words[:1] != ["gallery"] or os.path.isfile("gallery"):
        return False
    if not words[1:] or not words[1].startswith("-"):
        return (words[1:2] != [] and words[1] in COMMANDS) or not os.path.exists("gallery")
    return words[1] in ("-h", "--help")


def build_parser() -> argparse.ArgumentParser:
    """The commands and their options."""
    parser = Parser(
        prog="idmetric-score gallery", description="A folder of images, embedded once and searched often.",
        epilog=_EXAMPLES, formatter_class=argparse.RawDescriptionHelpFormatter,
    )  # fmt: skip
    commands = parser.add_subparsers(dest="command", metavar="|".join(COMMANDS), required=True)
    build = commands.add_parser("build", help="embed what is new or changed")
    build.add_argument("sources", nargs="*", help="folders, images or manifests (default: those it was built from)")
    build.add_argument("--add", action="store_true", help="in addition to the sources that it has, not instead of them")
    build.add_argument("--quick", action="store_true", help="trust files whose size and times did not change; default: "
                       "read all")  # fmt: skip
    build.add_argument("--patches", action="store_true", help="keep patch tokens too, for --rerank: megabytes an image")
    build.add_argument("--parquet", metavar="FILE", help="also write images and vectors there")

    query = commands.add_parser("query", help="the nearest images")
    query.add_argument("images", nargs="+", help="images to search for")
    query.add_argument("-k", type=int, default=10, help="hits for each (default: 10)")
    query.add_argument(
        "--distance", choices=DISTANCES, default="cls", help="what ranks; other than cls: of a shortlist"
    )
    query.add_argument("--rerank", type=int, metavar="N", help="rank the N nearest again by --distance")
    query.add_argument("--index", choices=("auto", "exact", "faiss"), default="auto", help="the answer is the same")
    query.add_argument("--query-mask-dir", metavar="DIR", help="masks of the queries, see idmetric-score --mask-dir")
    query.add_argument("--exclude-same", action="store_true", help="leave out images with the query's own bytes")
    query.add_argument("--calibration", metavar="FILE", help="add the probability of the same identity; 'stored': by "
                       "the calibration beside the model")  # fmt: skip

    dedupe = commands.add_parser("dedupe", help="groups of near-duplicates, and which to keep")
    dedupe.add_argument(
        "--neighbours", type=int, default=10, metavar="N", help="nearest images looked at (default: 10)"
    )
    dedupe.add_argument("--max-distance", type=float, metavar="D", help="also images this near, whatever their pixels")
    dedupe.add_argument("--keep", choices=("largest", "sharpest"), default="largest", help="default: largest")

    cluster = commands.add_parser("cluster", help="groups of one identity")
    cluster.add_argument("--threshold", type=float, metavar="D", help="distance up to which it is one identity "
                         "(default: by the calibration)")  # fmt: skip
    cluster.add_argument("--false-accept-rate", type=float, default=0.01, metavar="R",
                         help="which threshold of the calibration (default: 0.01)")  # fmt: skip
    cluster.add_argument("--linkage", choices=("average", "complete", "single"), default="average",
                         help="default: average")  # fmt: skip
    cluster.add_argument("--calibration", metavar="FILE", help="default: the one beside the model")
    for part in (dedupe, cluster):
        part.add_argument("sources", nargs="*", help="folders, images or manifests; without --gallery, embeddings are "
                          "not kept")  # fmt: skip

    prune = commands.add_parser("prune", help="remove embeddings of images that are gone")
    prune.add_argument("--others", action="store_true", help="also remove all that other models, weights and versions "
                       "of this package left in the folder")  # fmt: skip
    for part in (build, query, dedupe, cluster, prune):
        _shared(part, output=part not in (build, prune))
    return parser


def _shared(parser: argparse.ArgumentParser, output: bool) -> None:
    parser.add_argument("--gallery", "-g", metavar="DIR", help="where the gallery is kept")
    parser.add_argument("--model", help=f"as for idmetric-score (default: the gallery's, else {DEFAULT_MODEL})")
    parser.add_argument("--revision", metavar="COMMIT", help="commit of the model's Hub repository (default: the "
                        "gallery's)")  # fmt: skip
    parser.add_argument("--device", help="cuda, mps, cpu, ... (default: the best there is)")
    parser.add_argument("--dtype", choices=DTYPES, help="default: that of the gallery, else float32")
    parser.add_argument("--batch-size", type=int, default=32, metavar="N", help="images per pass (default: 32)")
    parser.add_argument("--workers", type=int, metavar="N", help="threads that read images ahead of the model "
                        "(default: one for each core, at most 8)")  # fmt: skip
    parser.add_argument("--mask-dir", metavar="DIR", help="look at subjects alone, by these masks; see idmetric-score "
                        "--mask-dir")  # fmt: skip
    parser.add_argument("--masked", action="store_true", help="look at subjects alone: the manifest's masks")
    parser.add_argument("--outside", choices=("black", "white", "crop", "keep"), help="what becomes of pixels outside "
                        "a mask (default: black)")  # fmt: skip
    parser.add_argument("--mask-id", metavar="LABEL", help="label of the subject in masks that hold several: a "
                        "number, or a colour such as #ff0000")  # fmt: skip
    parser.add_argument("--trust-sources", action="store_true", help="read the source folders that are listed in a "
                        "gallery made elsewhere; needed once")  # fmt: skip
    parser.add_argument("--quiet", action="store_true", help="no progress, no warnings")
    if output:
        parser.add_argument("--no-update", action="store_true", help="do not look for new and changed files first; "
                            "changed ones are left out of answers all the same")  # fmt: skip
        parser.add_argument("--format", choices=("table", "json", "jsonl", "csv"), help="default: by --output, else a "
                            "table")  # fmt: skip
        parser.add_argument("--output", "-o", metavar="FILE", help="write there instead of stdout")


@guarded
def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; returns the exit status."""
    parser = build_parser()
    args = parser.parse_args(argv)
    if args.batch_size < 1:
        parser.error("--batch-size must be at least 1")
    if args.workers is not None and args.workers < 1:
        parser.error("--workers must be at least 1")
    if args.command in ("build", "query", "prune") and not args.gallery:
        parser.error("--gallery is needed: the folder to keep it in")
    if args.command in ("dedupe", "cluster") and not args.gallery and not args.sources:
        parser.error("give a folder, or --gallery")
    kept = f"embeddings in {args.gallery} are kept, and the same command resumes" if args.gallery else (
        "nothing was kept: with --gallery DIR the same command would resume"
    )  # fmt: skip
    return ended(partial(_run, args), parser, kept)


def _run(args: argparse.Namespace) -> int:
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
            raise UsageError(f"there is no {path!r}")  # before the model is waited for
    if args.gallery and not args.sources and not any(Path(args.gallery).glob(f"*/{IMAGES}")):
        _say(
            f"error: {args.gallery!r} is not a gallery: make one with idmetric-score gallery build FOLDER --gallery "
            f"{args.gallery}"
        )
        return 1
    if hasattr(args, "output"):
        check_stdout(args.output)
    _keep_inputs(args)
    for output in (getattr(args, "output", None), getattr(args, "parquet", None)):
        check_output(output)
    from idmetric.checkpoints.errors import CheckpointError
    from idmetric.gallery import GalleryError
    from idmetric.images.read import ImageReadError

    command: Callable[[argparse.Namespace, Gallery], int] = {
        "build": _build, "query": _query, "dedupe": _dedupe, "cluster": _cluster, "prune": _prune
    }[args.command]  # fmt: skip
    with warnings.catch_warnings(), ExitStack() as stack:
        warnings.simplefilter("ignore" if args.quiet else "always", UserWarning)
        warnings.showwarning = lambda message, *_, **__: _say(str(message))
        try:
            args.folder = args.gallery or stack.enter_context(_temporary())
            return command(args, _open(args))
        except BrokenPipeError:
            raise
        except (CheckpointError, GalleryError, ImageReadError, ImportError, ValueError, RuntimeError, OSError) as error:
            _say(f"error: {' '.join(str(error).split())}")
            return 1
        except MemoryError:
            _say("error: out of memory: use fewer --workers or a smaller --batch-size")
            return 1


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
    """The folder of a gallery that is not kept."""
    from idmetric.gallery.trust import forget

    with tempfile.TemporaryDirectory(prefix="idmetric-") as folder:
        try:
            yield folder
        finally:
            forget(Path(folder))


def _say(line: str) -> None:
    print(f"idmetric-score gallery: {line}", file=sys.stderr)


def _open(args: argparse.Namespace) -> Gallery:
    """The gallery with its model; what is not said is as the gallery was built."""
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
    source = args.model or (known["opened"] if known else DEFAULT_MODEL)
    if args.model and os.path.isdir(args.model):
        source = os.path.abspath(args.model)  # so that it opens from another folder too
    dtype = args.dtype or (known["dtype"] if known and not args.model else None)
    options: dict[str, Any] = {"dtype": getattr(torch, dtype)} if dtype else {}
    revision = args.revision or (known["opened_revision"] if known else "")
    if revision:
        options["revision"] = revision
    if known and not args.model and (reading := json.loads(known["settings"]).get("preprocessing")):
        options["preprocessing"] = reading
    metric = load(source, device=args.device, **options)
    calibration = getattr(args, "calibration", None)
    if calibration and calibration != "stored":
        metric.calibrate_with(calibration)
    patches = bool(getattr(args, "patches", False))
    return Gallery(
        args.folder,
        metric,
        masked=masked,
        outside=outside,
        mask_id=mask_id,
        patches=patches,
        opened=source,
        opened_revision=revision,
    )


def _built(args: argparse.Namespace, masked: bool) -> dict[str, str] | None:
    """How the gallery's one model looks and is opened, unless another is asked for."""
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
        _say(f"left out {place}: {reason}")
    for name in done.damaged:
        _say(f"the shard {name} was damaged: what it held was embedded again")
    return done


def _refresh(args: argparse.Namespace, gallery: Gallery) -> int:
    """Bring it up to date before an answer; returns the exit status that follows."""
    from idmetric.gallery import BusyError, GalleryWriteError

    if args.no_update and not getattr(args, "sources", []):
        return 0
    if not getattr(args, "sources", []):
        len(gallery)  # an answer makes no gallery: an error if there is none
    try:
        return 4 if _update(args, gallery, quick=True, wait=bool(getattr(args, "sources", []))).unreadable else 0
    except (BusyError, GalleryWriteError) as error:
        if getattr(args, "sources", []):
            raise
        _say(f"warning: {error}; the answer is from its last update")
        gallery.reload()
        return 0


def _build(args: argparse.Namespace, gallery: Gallery) -> int:
    done = _update(args, gallery, args.quick)
    if args.parquet:
        gallery.to_parquet(args.parquet)
    if not args.quiet:
        _say(f"{done} in {args.folder} by {gallery.metric.model_id}")
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
        _say(f"{done}, {len(gallery)} images in {args.folder}")
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
