"""`idmetric score`: distances of images to a reference, sorted, from the shell.

Exit status: 0 scored; 1 an error (on stderr; nothing on stdout, unless --output or --html failed in the end); 2 wrong
usage; 3 a distance exceeds --threshold; 4 files were skipped (--on-error skip) and none exceeds it. A --cache that
cannot be written is a warning, and does not change the status.
"""

from __future__ import annotations

import argparse
import json
import logging
import math
import os
import sys
import time
import warnings
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing, contextmanager
from dataclasses import dataclass
from functools import partial
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

from idmetric import __version__
from idmetric.cli import embed, gallery, options
from idmetric.cli.exits import codes, ended
from idmetric.cli.pairs import Pair, Pairs
from idmetric.cli.score_cache import Cache, Key, Memory, Prints, Seen
from idmetric.cli.score_format import (
    FORMATS,
    Baseline,
    File,
    LostOutputError,
    Row,
    Scores,
    Skipped,
    UsageError,
    as_object,
    check_not_read,
    check_output,
    check_stdout,
    write,
)
from idmetric.cli.streams import guarded
from idmetric.cli.subcommands import Parser
from idmetric.images import paths as inputs
from idmetric.io.decimals import rounded
from idmetric.io.hints import did_you_mean, need
from idmetric.io.output import file_id
from idmetric.io.prefetch import in_order
from idmetric.io.progress import Progress
from idmetric.io.text_file import MOST

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray
    from PIL import Image
    from torch import Tensor

    from idmetric.evaluate.copies import Copy, Print
    from idmetric.models.embedder import Embedder
    from idmetric.models.embedding import Embedding
    from idmetric.report.album import Album

ALIAS = "idmetric-score"  # name of the stand-alone command
_OF_MODELS = ("config.json", "calibration.json", ".safetensors", ".pth", ".bin")  # files of a model's folder
_AHEAD = 2  # windows of pairs that are read while one is embedded
_LOOK = 60.0  # seconds spent on finding the other unreadable images
_LISTED = 20  # so many of them are named
STORED = "stored"  # as --calibration: the one beside the model's weights


def build_parser(prog: str = ALIAS) -> Parser:
    """The parser of the command."""
    parser = Parser(
        prog=prog,
        usage="%(prog)s REFERENCE IMAGE [IMAGE ...] [options]\n"
        "       %(prog)s --ref PATH [--ref PATH ...] IMAGE [IMAGE ...] [options]\n"
        "       %(prog)s --pairs CSV [options]",
        description="Distance of images to a reference: lower = more likely the same object, animal or person.",
        epilog=codes(0, 1, 2, 3, 4, 130),
    )
    parser.add_argument("paths", nargs="*", metavar="IMAGE", help="files, folders or patterns; the first one names "
                        "the reference (or several), unless --ref is given")  # fmt: skip
    parser.add_argument("--ref", action="append", default=[], metavar="PATH", help="reference image, folder or "
                        "pattern; may be repeated")  # fmt: skip
    parser.add_argument("--pairs", metavar="CSV", help="score the pairs of a CSV file with the columns "
                        "a,b[,mask_a,mask_b] or ref,gen[,mask_ref,mask_gen]")  # fmt: skip
    options.add_model(parser)
    options.add_distance(parser)
    options.add_device(parser)
    options.add_mask_dir(parser)
    parser.add_argument("--threshold", type=float, metavar="T", help="exit with status 3 if a distance exceeds T")
    options.add_format(parser)
    options.add_output(parser)
    parser.add_argument("--html", metavar="FILE", help="also write a page with the images sorted, next to their "
                        "references (pip install 'idmetric[report]')")  # fmt: skip
    options.add_quiet(parser, "no progress, no warnings")
    _add_more(parser)
    return parser


def _add_more(parser: Parser) -> None:
    """Add the less common options, in groups."""
    references = parser.add_argument_group("references")
    references.add_argument("--aggregate", choices=("best", "mean"), default="best", help="distance to several "
                            "references: the smallest (default) or the mean")  # fmt: skip
    references.add_argument("--include-refs", action="store_true", help="also score references that are among the "
                            "images (default: left out)")  # fmt: skip
    references.add_argument("--no-copies", action="store_true", help="do not look for copies of a reference's pixels")

    reading = parser.add_argument_group("reading images")
    options.add_outside(reading)
    reading.add_argument("--preprocessing", choices=("standard", "release"), help="release: as the ID-Sim and NearID "
                         "releases, which ignore EXIF orientation, transparency and masks")  # fmt: skip
    options.add_on_error(reading, fail="stop", skip="skip and list them")

    running = parser.add_argument_group("model and speed")
    options.add_dtype(running)
    options.add_batch_size(running)
    options.add_workers(running)
    running.add_argument("--cache", metavar="DIR", help="keep embeddings there, by image content: the same command "
                         "resumes, and another embeds only new images")  # fmt: skip
    running.add_argument("--memory", type=float, default=1.0, metavar="GIB", help="with --pairs: memory for images "
                         "that recur (default: 1 GiB, plus three decoded batches)")  # fmt: skip

    probability = parser.add_argument_group("probability")
    probability.add_argument("--calibration", metavar="FILE", help="add the probability of the same identity, from "
                             "`idmetric eval calibrate`; 'stored': saved with the model")  # fmt: skip
    probability.add_argument("--prior", type=float, metavar="P", help="with --calibration: expected share of images "
                             "with the same identity (default: as in its pairs)")  # fmt: skip

    other = parser.add_argument_group("other")
    other.add_argument("--html-details", type=int, default=500, metavar="N", help="with --html: show matched patches "
                       "of the N nearest images, 0 = none (default: %(default)s)")  # fmt: skip
    other.add_argument("--list-models", action="store_true", help="print the models and exit")
    other.add_argument("--version", action="version", version=f"idmetric {__version__}")


@guarded
def main(argv: Sequence[str] | None = None, prog: str = ALIAS) -> int:
    """Run the command; returns the exit status."""
    words = list(sys.argv[1:] if argv is None else argv)
    if prog == ALIAS:
        if gallery.is_meant(words):
            return gallery.main(words[1:], prog=f"{ALIAS} gallery")
        if embed.is_meant(words):
            return embed.main(words[1:], prog=f"{ALIAS} embed")
        if words and not os.path.exists(words[0]) and (hint := did_you_mean(words[0], ("gallery", "embed"))):
            build_parser().error(f"there is no file {words[0]!r}{hint}")

    parser = build_parser(prog)
    args = parser.parse_intermixed_args(words)  # options may stand between the files
    if args.list_models:
        print(list_models(), end="")
        return 0
    if reason := _misuse(args):
        parser.error(reason)
    kept = "nothing was kept: with --cache DIR the same command would resume"
    if args.cache:
        kept = f"embeddings in {args.cache} are kept, and the same command resumes"
    return ended(partial(_run, args), parser, kept)


def _misuse(args: argparse.Namespace) -> str | None:
    """The reason why the options do not go together; None if they do."""
    if not args.memory >= 0:
        return "--memory must be at least 0"
    if args.prior is not None and (not args.calibration or not 0 < args.prior < 1):
        return "--prior lies between 0 and 1, and needs --calibration"
    if args.threshold is not None and math.isnan(args.threshold):
        return "--threshold must be a number"
    if args.html_details < 0:
        return "--html-details must be at least 0"
    if args.html and args.output and _is_same_file(args.html, args.output):
        return "--html and --output name one file: give each its own"
    if args.pairs and (args.paths or args.ref):
        return "--pairs takes no other images"
    if not args.pairs and len(args.paths) + len(args.ref) < 2:
        return "give a reference and at least one candidate (or --ref, or --pairs)"
    return None


def _run(args: argparse.Namespace) -> int:
    if args.html:
        need("report", "--html", jinja2="jinja2")
    # paths first: a mistyped name should not wait for the model
    check_stdout(args.output)
    work = Pairs(Path(args.pairs)) if args.pairs else _cross(args)
    check_not_read({"--output": args.output, "--html": args.html}, _read_files(args, work))
    _check_masks(args, work)
    from idmetric.checkpoints.errors import CheckpointError
    from idmetric.images.read import ImageReadError

    skipped: Skipped = {}
    messages: list[str] = []
    with warnings.catch_warnings():
        warnings.simplefilter("always", UserWarning)
        warnings.showwarning = lambda message, *_, **__: _warn(str(message), messages, args.quiet)
        try:
            check_output(args.output)
            if args.html:
                from idmetric.report.page import check_page

                check_page(args.html)
            metric = _open_metric(args)
            scorer = Scorer(metric, args, skipped, _album(metric, args, work) if args.html else None)
            rows = scorer.rows(work)
        except (CheckpointError, ImageReadError, ImportError, ValueError, RuntimeError, OSError, MemoryError) as error:
            print(f"idmetric-score: error: {' '.join(str(error).split())}", file=sys.stderr)
            return 1
    for (path, _), reason in skipped.items():
        print(f"idmetric-score: skipped {path}: {reason}", file=sys.stderr)
    if not rows:
        print("idmetric-score: error: no image could be scored", file=sys.stderr)
        return 1
    scores = _scores(rows, work, scorer, args.threshold)
    try:
        write(FORMATS[args.format](scores), args.output)
    finally:  # even if nobody reads stdout any more
        if scorer.album is not None:
            _write_page(args, scores, scorer, messages)
    over = [row for row in rows if args.threshold is not None and not row["distance"] <= args.threshold]
    if over:
        worst = max(over, key=lambda row: row["distance"])
        if not args.quiet:
            print(
                f"idmetric-score: exit status 3: {len(over)} of {len(rows)} exceed --threshold {args.threshold:g}, "
                f"the farthest is {worst['image']} at {worst['distance']:.4f}", file=sys.stderr,
            )  # fmt: skip
        return 3
    return 4 if skipped else 0


def _scores(rows: list[Row], work: Cross | Pairs, scorer: Scorer, threshold: float | None) -> Scores:
    """The rows ranked and in order: by distance, pairs as in their file."""
    for row in rows:
        row.update(rounded(row))
    ranked = sorted(rows, key=lambda row: row["distance"])
    for rank, row in enumerate(ranked, 1):
        row["rank"] = rank
    if isinstance(work, Pairs):
        return Scores(rows, scorer.signature, scorer.skipped, None, 0, threshold, other=work.other)
    references = len(work.references)
    return Scores(ranked, scorer.signature, scorer.skipped, scorer.baseline, references, threshold, work.left_out)


def _warn(message: str, messages: list[str], quiet: bool) -> None:
    if message in messages:  # a mask is read again for the page
        return
    messages.append(message)
    if not quiet:
        print(f"idmetric-score: {message}", file=sys.stderr)


def _album(metric: Embedder, args: argparse.Namespace, work: Cross | Pairs) -> Album:
    """What the page's pictures are collected in."""
    from idmetric.report.album import Album

    if isinstance(work, Cross):
        count = len(work.references) + len(work.candidates)
    else:
        count = len({pair.files[0] for pair in work}) + len(work)
    return Album(metric, count, args.html_details)


def _write_page(args: argparse.Namespace, scores: Scores, scorer: Scorer, messages: list[str]) -> None:
    from idmetric.evaluate.references import ENOUGH
    from idmetric.report.html import Offer, score_page
    from idmetric.report.page import write_page

    assert scorer.album is not None
    offered = [] if args.threshold is None else [Offer("given", args.threshold)]
    if scores.baseline is not None:
        firm = len(scores.baseline.distances) >= ENOUGH
        offered.append(Offer("farthest real photo", scores.baseline.max, firm))
    if (curve := scorer.calibration) is not None:
        for one in curve.thresholds:
            label = f"false accepts {100 * one['false_accept_rate']:g} %"
            offered.append(Offer(label, float(one["distance"]), curve.rests_on_photos))
    entries = scorer.album.finish(sorted(scores.rows, key=lambda row: row["rank"]))
    page = score_page(as_object(scores), entries, scorer.album, thresholds=offered, messages=messages)
    try:
        write_page(page, args.html)
    except OSError as error:
        raise LostOutputError(f"{error}; the scores are in {args.output or 'what was printed'}") from error


def _open_metric(args: argparse.Namespace) -> Embedder:
    import torch

    from idmetric.models.load import load

    if args.quiet:
        from huggingface_hub.utils import disable_progress_bars

        disable_progress_bars()
        logging.getLogger("idmetric").setLevel(logging.ERROR)
        os.environ["TRANSFORMERS_VERBOSITY"] = "error"  # read when it is imported, by visid_* alone
    options: dict[str, Any] = {"dtype": getattr(torch, args.dtype)} if args.dtype else {}
    if args.revision:
        options["revision"] = args.revision
    if args.preprocessing:
        options["preprocessing"] = args.preprocessing
    metric = load(args.model, device=args.device, **options)
    if args.calibration == STORED and metric.calibration is None:
        raise UsageError(f"{args.model} has no calibration beside its weights: make one, `idmetric eval calibrate`")
    if args.calibration and args.calibration != STORED:
        metric.calibrate_with(args.calibration)
    if args.calibration and metric.calibration is not None:
        metric.calibration.check_distance(args.distance)
    return metric


def list_models() -> str:
    """The table of --list-models."""
    from idmetric.checkpoints import released
    from idmetric.checkpoints.format import CONFIG, WEIGHTS
    from idmetric.models.idsim import TINY

    size = (TINY / WEIGHTS).stat().st_size / 1e9
    side = json.loads((TINY / CONFIG).read_text(encoding="utf-8"))["image_size"]
    lines = [["tiny", f"{size:.3f} GB", "apache-2.0", f"{side}x{side}", "cls", "in the package", ""]]
    for name, release in released.models().items():
        state = "cached" if released.is_cached(release) else "not fetched"
        lines.append([name, f"{release.gigabytes} GB", release.licence, release.resolution, "cls", state, release.repo])
    lines.insert(0, ["model", "download", "licence", "resolution", "distance", "state", "repository"])
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    rows = ["  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip() for line in lines]
    return "\n".join(rows) + "\n"


# What to compare


@dataclass(frozen=True)
class Cross:
    """Every candidate against all references.

    Attributes:
        left_out: references among the candidates, which are not scored.
    """

    references: list[str]
    candidates: list[str]
    left_out: tuple[str, ...] = ()


def _cross(args: argparse.Namespace) -> Cross:
    try:
        references = inputs.all_listed(args.ref or args.paths[:1])
        candidates = inputs.all_listed(args.paths if args.ref else args.paths[1:])
    except inputs.InputError as error:
        raise UsageError(str(error)) from error
    for path in references:
        if not os.path.isfile(path):
            raise UsageError(f"the reference {path!r} is not a file, a folder or a pattern that matches")

    left_out: list[str] = []
    if not args.include_refs:
        own = {file_id(path) for path in references} - {None}
        left_out = [path for path in candidates if file_id(path) in own]
        again = set(left_out)
        candidates = [path for path in candidates if path not in again]
    if not candidates:
        raise UsageError("all candidates are references: name others, or score them too with --include-refs")
    return Cross(references, candidates, tuple(left_out))


def _check_masks(args: argparse.Namespace, work: Cross | Pairs) -> None:
    """Refuse masks that the model does not take, --mask-id without masks, and two images that would share a mask."""
    masked = args.mask_dir is not None or (isinstance(work, Pairs) and True in work.masked)
    if masked and args.preprocessing == "release":
        source = "the mask columns of --pairs" if args.mask_dir is None else "--mask-dir"
        raise UsageError(f"the releases take no masks: leave out {source} or --preprocessing release")
    if args.mask_id is not None:
        if not masked:
            raise UsageError("--mask-id needs masks: --mask-dir, or mask columns in --pairs")
        from idmetric.images.masks import parse_mask_id

        try:
            parse_mask_id(args.mask_id)
        except ValueError as error:
            raise UsageError(f"--mask-id: {error}") from error
    if args.mask_dir is None:
        return

    if not os.path.isdir(args.mask_dir):
        raise UsageError(f"--mask-dir: there is no folder {args.mask_dir!r}")
    if isinstance(work, Cross):
        images: Iterable[str] = [*work.references, *work.candidates]
    else:
        images = (path for pair in work for path, mask in pair.files if mask is None)
    try:
        inputs.check_masks(args.mask_dir, images)
    except inputs.InputError as error:
        raise UsageError(f"--mask-dir: {error}") from error


def _read_files(args: argparse.Namespace, work: Cross | Pairs) -> Iterator[str]:
    """The files that a run reads: options, images and masks."""
    yield from (path for path in (args.pairs, args.calibration) if path)
    if os.path.isdir(args.model):
        yield from (entry.path for entry in os.scandir(args.model) if entry.name.endswith(_OF_MODELS))
    if isinstance(work, Cross):
        images: Iterable[tuple[str, str | None]] = ((path, None) for path in [*work.references, *work.candidates])
    else:
        images = (file for pair in work for file in pair.files)
    for path, mask in images:
        mask = mask or (inputs.mask_of(args.mask_dir, path) if args.mask_dir else None)
        yield from (path, mask) if mask else (path,)


# Scoring


class CopyWarning(UserWarning):
    """An image repeats another's pixels."""


@dataclass(frozen=True)
class Loaded:
    """An image as the model sees it, its mask, what copies are found by, and its key in the cache.

    Without pixels: the cache has it.
    """

    file: File
    pixels: Tensor | None = None
    mask: Tensor | None = None
    small: NDArray[np.uint8] | None = None
    key: Key | None = None


def _small(picture: Image.Image) -> NDArray[np.uint8]:
    import numpy as np

    from idmetric.evaluate.copies import SIZE

    return np.asarray(picture.resize((SIZE, SIZE), 1))  # 1: Lanczos, antialiased


def _is_same_file(a: str, b: str) -> bool:
    return os.path.realpath(a) == os.path.realpath(b) or (file_id(a) is not None and file_id(a) == file_id(b))


class Scorer:
    """Embeds files in batches, so that memory does not grow with their number, and compares them."""

    def __init__(
        self, metric: Embedder, args: argparse.Namespace, skipped: Skipped, album: Album | None = None
    ) -> None:
        from idmetric.distance.matrix import needs_patches
        from idmetric.images.masks import parse_mask_id

        self.metric, self.args, self.skipped, self.album = metric, args, skipped, album
        self.mask_id = None if args.mask_id is None else parse_mask_id(args.mask_id)
        self.patches = needs_patches(args.distance)
        self.signature = metric.signature(args.distance)
        self.calibration = metric.calibration if args.calibration else None
        self.baseline: Baseline | None = None  # with several references
        self.progress = Progress("pairs" if args.pairs else "images", not args.quiet, verb="scored")
        self.details = album is not None and album.details > 0  # they need patches
        self.prints = Prints()
        self.threads = args.workers or min(8, os.cpu_count() or 1)
        self.cache: Cache | None = None
        if args.cache:
            copies, patches = not args.no_copies, self.patches or self.details
            self.cache = Cache(Path(args.cache), metric, args.outside, patches, copies, warnings.warn, self.mask_id)

    def rows(self, work: Cross | Pairs) -> list[Row]:
        """A row for each candidate or pair that could be read."""
        from idmetric.images.read import ImageReadError

        if self.calibration is not None:
            masks = work.masked if isinstance(work, Pairs) else {False}
            for masked in {bool(self.args.mask_dir) or mask for mask in masks}:
                self.calibration.check_outside(self.args.outside if masked else "all")
        try:
            return self._pairs(work) if isinstance(work, Pairs) else self._cross(work)
        except ImageReadError as error:
            raise self._unreadable(work) or error from error
        finally:
            if self.cache is not None:  # also where the run is stopped
                self.cache.save()
            self.progress.clear()
            skipped = sorted(self.skipped.items(), key=lambda one: (one[0][0], one[0][1] or ""))
            self.skipped.clear()
            self.skipped.update(skipped)  # threads found them in any order

    def _unreadable(self, work: Cross | Pairs) -> ValueError | None:
        """The error for all images that cannot be read, each with its reason; None if all can be read now."""
        if isinstance(work, Pairs):
            files = list(dict.fromkeys(file for pair in work for file in pair.files))
        else:
            files = [(path, None) for path in dict.fromkeys((*work.references, *work.candidates))]
        until, found = time.monotonic() + _LOOK, []
        with closing(in_order(self._fault_of, files, threads=self.threads, waiting=2 * self.threads)) as faults:
            for fault in faults:
                found += [] if fault is None else [str(fault)]
                if time.monotonic() > until and found:
                    break
        if len(found) < 2:
            return ValueError(f"{found[0]}; --on-error skip scores the others") if found else None
        listed = "; ".join([*found[:_LISTED], *([f"and {len(found) - _LISTED} more"] if len(found) > _LISTED else [])])
        return ValueError(f"{len(found)} of {len(files)} images: {listed}; --on-error skip scores the others")

    def _fault_of(self, file: File) -> Exception | None:
        from idmetric.images.read import ImageReadError

        try:
            self._read(file)
        except ImageReadError as error:
            return error
        return None

    def _cross(self, work: Cross) -> list[Row]:
        from idmetric.evaluate.references import percentile
        from idmetric.models.embedding import concatenate

        found = {path: seen for (path, _), seen in self._embed([(path, None) for path in work.references])}
        if not found:
            return []
        names, references = list(found), concatenate([seen.embedding for seen in found.values()])
        prints = {name: self.prints.of(name, found[name].small) for name in names}
        self.baseline = self._baseline(names, references, prints)
        if self.album is not None:
            self.album.references |= {(name, None): None for name in names}
        rows = []
        for (path, _), seen in self._embed([(path, None) for path in work.candidates]):
            with _naming(path):
                distances = self.metric.pairwise(references, seen.embedding, self.args.distance)[:, 0].double()
            best = int(distances.argmin())
            if self.args.aggregate == "mean":
                row = self._row(";".join(names), path, distances.tolist())
            else:
                row = self._row(names[best], path, [float(distances[best])])
            if self.baseline is not None:
                row["real_percentile"] = percentile(row["distance"], list(self.baseline.distances.values()))
            rows.append(self._looked_at(row, path, self.prints.of(path, seen.small), prints))
            if self.album is not None:
                nearest = (names[best], None)
                self.album.add(rows[-1], (path, None), nearest, seen.tokens, found[names[best]].tokens)
        return rows

    def _baseline(self, names: list[str], references: Embedding, prints: dict[str, Print | None]) -> Baseline | None:
        """How far apart the references are, where there are several."""
        from idmetric.evaluate.references import leave_one_out

        if len(names) < 2:
            return None
        for k, name in enumerate(names):
            copy = self._copy_of(name, prints[name], {n: prints[n] for n in names[:k]})
            if copy is not None and copy[1].found:
                warnings.warn(
                    f"the references {copy[0]} and {name} are one picture: the distances between real ones are too "
                    "small", CopyWarning, stacklevel=2,
                )  # fmt: skip
        apart = self.metric.pairwise(references, None, self.args.distance).double().cpu().numpy()
        values = leave_one_out(apart, self.args.aggregate)
        return Baseline(dict(zip(names, rounded(values.tolist()), strict=True)), self.args.aggregate)

    def _pairs(self, pairs: Pairs) -> list[Row]:
        rows: list[Row] = []
        done = 0
        for part, found in self._windows(pairs):
            for pair in part:
                a, b = (found.get(file) for file in pair.files)
                if a is not None and b is not None:
                    rows.append(self._compared(pair, a, b))
            done += len(part)
            self.progress(done, len(pairs))
        return rows

    def _compared(self, pair: Pair, a: Seen, b: Seen) -> Row:
        """The row of a pair."""
        from idmetric.distance.finite import check_distances
        from idmetric.distance.matrix import distance

        device = self.metric.device
        # not by the metric itself, which would check for each pair that its weights are still those of the embeddings
        found = distance(a.embedding.to(device), b.embedding.to(device), self.args.distance)
        with _naming(pair.b):
            check_distances(found, self.metric.dtype)
        far = float(found[0])
        own, other = (self.prints.of(name, seen.small) for name, seen in ((pair.b, b), (pair.a, a)))
        row = self._looked_at(self._row(pair.a, pair.b, [far]), pair.b, own, {pair.a: other}) | dict(pair.other)
        if self.album is not None:
            image, reference = pair.files[1], pair.files[0]
            self.album.add(row, image, reference, b.tokens, a.tokens)
        return row

    def _windows(self, pairs: Pairs) -> Iterator[tuple[list[Pair], Mapping[File, Seen]]]:
        """Neighbouring pairs with their images, as many as make a batch; the next two are read meanwhile.

        What was seen is kept in `Memory`, so that an image that comes again soon is read and embedded once. Windows
        depend on the file alone, not on what is kept: so a resumed run passes the same batches to the model.
        """
        memory = Memory(self.args.memory * 2**30)
        ahead: deque[tuple[list[Pair], list[File], list[Future[Loaded | None]]]] = deque()
        with ThreadPoolExecutor(self.threads) as pool:
            try:
                for part in pairs.windows(max(2, self.args.batch_size)):
                    files = list(dict.fromkeys(file for pair in part for file in pair.files))
                    missing = [file for file in memory.reserve(files) if file not in self.skipped]
                    ahead.append((part, files, [pool.submit(self._read, file) for file in missing]))
                    if len(ahead) > _AHEAD:
                        yield self._next(ahead, memory)
                while ahead:
                    yield self._next(ahead, memory)
            finally:
                pool.shutdown(cancel_futures=True)

    def _next(
        self, ahead: deque[tuple[list[Pair], list[File], list[Future[Loaded | None]]]], memory: Memory
    ) -> tuple[list[Pair], Mapping[File, Seen]]:
        part, files, coming = ahead.popleft()
        loaded = [x for x in (future.result() for future in coming) if x is not None]
        for file, seen in self._see(loaded):
            memory.put(file, seen)
        kept = {file: memory.get(file) for file in files}
        memory.release(files)
        return part, {file: seen for file, seen in kept.items() if seen is not None}

    def _looked_at(self, row: Row, path: str, own: Print | None, references: dict[str, Print | None]) -> Row:
        """The row, and whether its image is a copy of a reference; a warning if it is."""
        found = self._copy_of(path, own, references)
        if found is None:
            return row
        name, copy = found
        if copy.found and not _is_same_file(path, name):  # a reference among the candidates is expected
            warnings.warn(
                f"{path} repeats the pixels of {name}{', mirrored' if copy.mirrored else ''} (agreement "
                f"{copy.agreement:.2f}): a copy, not a new picture of the subject", CopyWarning, stacklevel=2,
            )  # fmt: skip
        return {**row, "copy": copy.found, "copy_agreement": copy.agreement}

    def _copy_of(self, path: str, own: Print | None, references: dict[str, Print | None]) -> tuple[str, Copy] | None:
        """The reference that an image is most of all a copy of; None without references or prints."""
        from idmetric.evaluate.copies import compare

        looks = [(name, compare(other, own)) for name, other in references.items() if own is not None and
                 other is not None]  # fmt: skip
        return max(looks, key=lambda look: look[1].agreement, default=None)

    def _embed(self, files: list[File]) -> Iterator[tuple[File, Seen]]:
        """In order, without those that could not be read; at most three batches are decoded at once."""
        size, done = self.args.batch_size, 0
        with closing(in_order(self._read, files, threads=self.threads, waiting=2 * size)) as ahead:
            while part := list(islice(ahead, size)):
                yield from self._see([x for x in part if x is not None])
                done += len(part)
                part.clear()  # its pixels go before the next are waited for
                self.progress(done, len(files))

    def _see(self, loaded: list[Loaded]) -> list[tuple[File, Seen]]:
        """Embed what has pixels, take the rest from the cache."""
        found: dict[File, Seen] = {}
        known = [x for x in loaded if x.pixels is None]
        if known and self.cache is not None:
            kept = self.cache.get([x.key for x in known if x.key is not None])
            for x, one in zip(known, kept, strict=True):
                if one is not None:
                    embedding, small = one
                    here = embedding if self.args.pairs else embedding.to(self.metric.device)
                    found[x.file] = self._seen(x, small, here)
        again = (self._read(x.file) for x in known if x.file not in found)  # what a damaged shard held
        fresh = [x for x in (*loaded, *again) if x is not None and x.pixels is not None]
        for start in range(0, len(fresh), self.args.batch_size):
            found |= self._embed_fresh(fresh[start : start + self.args.batch_size])
        return [(x.file, found[x.file]) for x in loaded if x.file in found]

    def _embed_fresh(self, fresh: list[Loaded]) -> dict[File, Seen]:
        """Embed one batch, and keep it in the cache."""
        together, fresh = self._finite(fresh)
        if self.args.pairs:
            together = together.cpu()  # many of them are kept
        if self.cache is not None:
            at = [k for k, x in enumerate(fresh) if x.key is not None]
            keys = [key for x in fresh if (key := x.key) is not None]
            self.cache.add(keys, together[at].cpu(), [fresh[k].small for k in at])
        return {x.file: self._seen(x, x.small, embedding) for x, embedding in zip(fresh, together, strict=True)}

    def _finite(self, batch: list[Loaded]) -> tuple[Embedding, list[Loaded]]:
        """The embedding of a batch, and its images, without those to skip because their features are not finite."""
        from idmetric.distance.finite import NonFiniteError, reason, shown

        try:
            return self.metric.embed(
                [x.pixels for x in batch if x.pixels is not None], batch_size=self.args.batch_size,
                masks=[x.mask for x in batch], outside="keep",  # load_image has painted it
                patches=self.patches or self.details,
            ), batch  # fmt: skip
        except NonFiniteError as error:
            why, lost = reason(self.metric.dtype), [batch[k].file for k in error.rows]
            if self.args.on_error == "fail" or error.embedding is None:
                raise NonFiniteError(f"{shown([path for path, _ in lost])}: {why}", error.rows) from error
            self.skipped |= dict.fromkeys(lost, why)
            good = [k for k in range(len(batch)) if k not in error.rows]
            return error.embedding[good], [batch[k] for k in good]

    def _seen(self, x: Loaded, small: NDArray[np.uint8] | None, embedding: Embedding) -> Seen:
        from idmetric.models.embedding import Embedding

        masked = x.mask is not None or (x.key is not None and x.key[0])
        tokens = None if self.album is None else self.album.tokens(x.file, masked, embedding)
        if not self.patches:  # kept no longer than the page needs them
            embedding = Embedding(embedding.cls, model=embedding.model)
        return Seen(embedding[[0]], small, tokens)  # a copy: a slice would keep its whole batch

    def _read(self, file: File) -> Loaded | None:
        """The file, its pixels and mask at the model's resolution; None for a file to skip."""
        from idmetric.images.masks import labelled
        from idmetric.images.read import ImageReadError, describe

        path = file[0]
        try:
            mask_path = self._mask_of(*file)
            image, mask_image, key = self._content(path, mask_path)
            cached = self.cache is not None and key is not None and key in self.cache
            if cached and self.album is None:
                return Loaded(file, key=key)
            picture = self.metric.read_image(image)
            pixels = mask = None
            try:
                if not cached:
                    pixels, mask = self.metric.load_image(picture, mask_image, self.args.outside, mask_id=self.mask_id)
                if self.album is not None:
                    self.album.add_picture(file, picture, labelled(mask_path, self.mask_id), self.args.outside)
            except ImageReadError as error:
                named = path if error.source == describe(picture) else error.source  # the picture has no name
                raise ImageReadError(named, error.reason) from error
        except ImageReadError as error:
            if self.args.on_error == "fail":
                raise
            self.skipped[file] = error.reason if error.source == path else f"its mask {error.source}: {error.reason}"
            return None
        return Loaded(file, pixels, mask, None if self.args.no_copies else _small(picture), key)

    def _content(self, path: str, mask: str | None) -> tuple[Any, Any, Key | None]:
        """Image and mask, as `images` takes them, and what they are cached by; with a cache their bytes."""
        if self.cache is None:
            return path, mask, None
        from idmetric.gallery.read import Named
        from idmetric.store.fingerprint import content_key

        files = [Path(path), *([] if mask is None else [Path(mask)])]
        try:
            if not all(file.is_file() and 0 < file.stat().st_size <= MOST for file in files):
                return path, mask, None
            image, *masks = (file.read_bytes() for file in files)
        except OSError:  # it is explained where images are read
            return path, mask, None
        cover = masks[0] if masks else None
        named = None if cover is None or mask is None else Named(cover, mask)
        return Named(image, path), named, (mask is not None, content_key(image, cover))

    def _mask_of(self, path: str, mask: str | None) -> str | None:
        from idmetric.images.read import ImageReadError

        if mask is not None or self.args.mask_dir is None:
            return mask
        found = inputs.mask_of(self.args.mask_dir, path)
        if found is None:
            raise ImageReadError(*inputs.absent_mask(self.args.mask_dir, path))
        return found

    def _row(self, reference: str, image: str, distances: list[float]) -> Row:
        s = self.signature
        row = {"rank": 0, "distance": rounded(sum(distances) / len(distances)), "image": image, "reference": reference,
               "model": s["model"], "revision": s["revision"], "distance_name": s["distance"],
               "resolution": s["resolution"], "dtype": s["dtype"], "idmetric": s["idmetric"]}  # fmt: skip
        if self.calibration is not None:
            row["probability"] = float(self.calibration.probability(distances, self.args.prior).mean())
            row["probability_basis"] = self.calibration.basis
        return row


@contextmanager
def _naming(path: str) -> Iterator[None]:
    """Errors about distances that are not finite name the image."""
    from idmetric.distance.finite import NonFiniteError

    try:
        yield
    except NonFiniteError as error:
        raise NonFiniteError(f"{path}: {error}", error.rows) from error


if __name__ == "__main__":
    sys.exit(main())
