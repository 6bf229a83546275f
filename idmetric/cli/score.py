"""`idmetric-score`: distances of images to a reference, sorted, from the shell.

Exit status: 0 scored; 1 an error (on stderr, nothing on stdout); 2 wrong usage; 3 a distance exceeds --threshold;
4 files were skipped (--on-error skip) and none exceeds it.
"""

from __future__ import annotations

import argparse
import csv
import glob
import os
import sys
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from idmetric._version import __version__
from idmetric.cli import gallery
from idmetric.cli.score_format import (
    FORMATS,
    Baseline,
    File,
    Row,
    Scores,
    Skipped,
    UsageError,
    as_object,
    write,
)

if TYPE_CHECKING:
    from PIL import Image
    from torch import Tensor

    from idmetric.embedder import Embedder
    from idmetric.embedding import Embedding
    from idmetric.evaluate.copies import Copy, Print
    from idmetric.report.album import Album
    from idmetric.report.matches import Tokens

# literal, so that --help need not import torch; a test compares it with idmetric.distance.DISTANCES
DISTANCES = ("cls", "patch", "joint", "patch_pooled", "joint_pooled", "patch_biased")
DTYPES = ("float32", "float16", "bfloat16", "float64")
EXTENSIONS = (".jpg", ".jpeg", ".png", ".webp", ".bmp", ".gif", ".tif", ".tiff", ".ppm", ".jfif", ".avif", ".heic")
STORED = "stored"  # as --calibration: the one beside the model's weights


def build_parser() -> argparse.ArgumentParser:
    """The options."""
    parser = argparse.ArgumentParser(
        prog="idmetric-score",
        description="Distance of images to a reference: lower = more surely the same object, animal or person.",
        epilog="Exit status: 0 scored, 1 error, 2 wrong usage, 3 a distance exceeds --threshold, 4 files were skipped.",
    )
    parser.add_argument("paths", nargs="*", help="reference and candidates: files, folders, patterns; "
                        "with --ref all are candidates")  # fmt: skip
    parser.add_argument("--ref", action="append", default=[], metavar="FILE", help="a reference; may be repeated")
    parser.add_argument("--aggregate", choices=("best", "mean"), default="best",
                        help="distance to several references: to the nearest (default) or the mean")  # fmt: skip
    parser.add_argument("--pairs", metavar="CSV", help="score the pairs of a CSV file: columns a,b[,mask_a,mask_b]")
    parser.add_argument("--model", default="dinov3_vitl16",
                        help="published model, 'tiny' (in the package, no download), 'timm:NAME', folder or Hub "
                        "repository (default: %(default)s)")  # fmt: skip
    parser.add_argument("--revision", metavar="COMMIT", help="commit of the model's Hub repository")
    parser.add_argument("--distance", choices=DISTANCES, default="cls", help="default: %(default)s")
    parser.add_argument("--device", help="cuda, mps, cpu, ... (default: the best there is)")
    parser.add_argument("--dtype", choices=DTYPES, help="default: float32; for visid_* that of the weights")
    parser.add_argument("--batch-size", type=int, default=32, metavar="N", help="images per pass (default: 32)")
    parser.add_argument("--mask-dir", metavar="DIR", help="folder with the subject mask of each image, same file stem")
    parser.add_argument("--outside", choices=("black", "white", "crop", "keep"), default="black",
                        help="what becomes of pixels outside a mask (default: black)")  # fmt: skip
    parser.add_argument("--format", choices=("table", "json", "jsonl", "csv"), default="table", help="default: table")
    parser.add_argument("--output", metavar="FILE", help="write there instead of stdout")
    parser.add_argument("--html", metavar="FILE", help="also write a page with the images sorted, side by side with "
                        "their reference, a threshold to move (pip install 'idmetric[report]')")  # fmt: skip
    parser.add_argument("--html-details", type=int, default=500, metavar="N", help="with --html: matched patches of "
                        "the N nearest images; 0 = none (default: %(default)s)")  # fmt: skip
    parser.add_argument("--calibration", metavar="FILE", help="add the probability of the same identity, by a "
                        "calibration of `idmetric-eval calibrate`; 'stored': the one beside the model")  # fmt: skip
    parser.add_argument("--prior", type=float, metavar="P", help="with --calibration: the share of images that show "
                        "the same identity, before looking (default: that of its pairs)")  # fmt: skip
    parser.add_argument("--no-copies", action="store_true",
                        help="do not look for images that repeat a reference's pixels")  # fmt: skip
    parser.add_argument("--threshold", type=float, metavar="T", help="exit with status 3 if a distance exceeds T")
    parser.add_argument("--on-error", choices=("fail", "skip"), default="fail",
                        help="stop at an unreadable image (default), or skip and list it")  # fmt: skip
    parser.add_argument("--quiet", action="store_true", help="no progress, no warnings")
    parser.add_argument("--list-models", action="store_true", help="print the models and stop")
    parser.add_argument("--version", action="version", version=f"idmetric {__version__}")
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; returns the exit status."""
    words = list(sys.argv[1:] if argv is None else argv)
    if gallery.is_meant(words):
        return gallery.main(words[1:])
    parser = build_parser()
    args = parser.parse_intermixed_args(words)  # options may stand between the files
    if args.list_models:
        print(list_models(), end="")
        return 0
    if args.batch_size < 1:
        parser.error("--batch-size must be at least 1")
    if args.prior is not None and (not args.calibration or not 0 < args.prior < 1):
        parser.error("--prior lies between 0 and 1, and needs --calibration")
    if args.html_details < 0:
        parser.error("--html-details must be at least 0")
    if args.html and args.output and os.path.abspath(args.html) == os.path.abspath(args.output):
        parser.error("--html and --output name one file: give each its own")
    if args.pairs and (args.paths or args.ref):
        parser.error("--pairs takes no other images")
    if not args.pairs and len(args.paths) + len(args.ref) < 2:
        parser.error("give a reference and at least one candidate (or --ref, or --pairs)")
    try:
        return _run(args)
    except UsageError as error:
        parser.error(str(error))
    except BrokenPipeError:  # the reader, e.g. `head`, has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except KeyboardInterrupt:
        return 130


def _run(args: argparse.Namespace) -> int:
    # paths first: a mistyped name should not wait for the model
    work = _read_pairs(Path(args.pairs)) if args.pairs else _cross(args)
    from idmetric.checkpoint import CheckpointError
    from idmetric.images import ImageReadError

    skipped: Skipped = {}
    messages: list[str] = []
    with warnings.catch_warnings():
        warnings.simplefilter("always", UserWarning)
        warnings.showwarning = lambda message, *_, **__: _warn(str(message), messages, args.quiet)
        try:
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
    rows.sort(key=lambda row: row["distance"])
    for rank, row in enumerate(rows, 1):
        row["rank"] = rank
    references = len(work.references) if isinstance(work, Cross) else 0
    scores = Scores(rows, scorer.signature, skipped, scorer.baseline, references)
    write(FORMATS[args.format](scores), args.output)
    if scorer.album is not None:
        _write_page(args, scores, scorer, messages)
    if args.threshold is not None and any(not row["distance"] <= args.threshold for row in rows):
        return 3
    return 4 if skipped else 0


def _warn(message: str, messages: list[str], quiet: bool) -> None:
    messages.append(message)
    if not quiet:
        print(f"idmetric-score: {message}", file=sys.stderr)


def _album(metric: Embedder, args: argparse.Namespace, work: Cross | list[Pair]) -> Album:
    """What the page's pictures are collected in."""
    from idmetric.report.album import Album

    if isinstance(work, Cross):
        count = len(work.references) + len(work.candidates)
    else:
        count = len({(p.a, p.mask_a) for p in work}) + len(work)
    return Album(metric, count, args.html_details)


def _write_page(args: argparse.Namespace, scores: Scores, scorer: Scorer, messages: list[str]) -> None:
    from idmetric.report.html import score_page
    from idmetric.report.page import write_page

    assert scorer.album is not None
    offered = [] if args.threshold is None else [("given", args.threshold)]
    if scores.baseline is not None:
        offered.append(("farthest real photo", scores.baseline.max))
    for one in scorer.calibration.thresholds if scorer.calibration is not None else ():
        offered.append((f"false accepts {100 * one['false_accept_rate']:g} %", float(one["distance"])))
    entries = scorer.album.finish(scores.rows)
    page = score_page(as_object(scores), entries, scorer.album, thresholds=offered, messages=messages)
    try:
        write_page(page, args.html)
    except OSError as error:
        raise UsageError(f"cannot write {args.html!r}: {error}") from error


def _open_metric(args: argparse.Namespace) -> Embedder:
    import torch

    from idmetric.loading import load

    if args.quiet:
        from huggingface_hub.utils import disable_progress_bars

        disable_progress_bars()
        os.environ["TRANSFORMERS_VERBOSITY"] = "error"  # read when it is imported, by visid_* alone
    options: dict[str, Any] = {"dtype": getattr(torch, args.dtype)} if args.dtype else {}
    if args.revision:
        options["revision"] = args.revision
    metric = load(args.model, device=args.device, **options)
    if args.calibration == STORED and metric.calibration is None:
        raise UsageError(f"{args.model} has no calibration beside its weights: make one, `idmetric-eval calibrate`")
    if args.calibration and args.calibration != STORED:
        metric.calibrate_with(args.calibration)
    if args.calibration and metric.calibration is not None:
        metric.calibration.check_distance(args.distance)
    return metric


def list_models() -> str:
    """The table of --list-models."""
    from idmetric import released
    from idmetric.checkpoint import WEIGHTS
    from idmetric.idsim import TINY

    size = (TINY / WEIGHTS).stat().st_size / 1e9
    lines = [["tiny", f"{size:.3f} GB", "apache-2.0", "144x144", "cls", "in the package", ""]]
    for name, release in released.models().items():
        state = "cached" if released.is_cached(release) else "not fetched"
        lines.append([name, f"{release.gigabytes} GB", release.licence, release.resolution, "cls", state, release.repo])
    lines.insert(0, ["model", "download", "licence", "resolution", "distance", "state", "repository"])
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    rows = ["  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip() for line in lines]
    return "\n".join(rows) + "\n"


# What to compare


@dataclass(frozen=True)
class Pair:
    """Two images to compare, with their masks' files."""

    a: str
    b: str
    mask_a: str | None = None
    mask_b: str | None = None


@dataclass(frozen=True)
class Cross:
    """Every candidate against all references."""

    references: list[str]
    candidates: list[str]


def _cross(args: argparse.Namespace) -> Cross:
    references = list(args.ref) if args.ref else args.paths[:1]
    candidates = list(dict.fromkeys(_expand(args.paths if args.ref else args.paths[1:])))
    for path in references:
        if not os.path.isfile(path):
            raise UsageError(f"the reference {path!r} is not a file")
    if not candidates:
        raise UsageError("no candidate images found")
    return Cross(references, candidates)


def _expand(paths: Sequence[str]) -> Iterator[str]:
    for path in paths:
        if os.path.isdir(path):
            found = [str(p) for p in sorted(Path(path).rglob("*")) if p.suffix.lower() in EXTENSIONS and p.is_file()]
            if not found:
                raise UsageError(f"the folder {path!r} holds no images")
            yield from found
        elif not os.path.exists(path) and glob.has_magic(path):
            found = sorted(p for p in glob.glob(path, recursive=True) if os.path.isfile(p))
            if not found:
                raise UsageError(f"nothing matches {path!r}")
            yield from found
        else:
            yield path  # a missing file is reported when it is read, under --on-error


def _read_pairs(path: Path) -> list[Pair]:
    try:
        with path.open(newline="", encoding="utf-8-sig") as file:
            lines = [line for line in csv.reader(file) if any(cell.strip() for cell in line)]
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise UsageError(f"cannot read {str(path)!r}: {error}") from error
    aliases = {"image_a": "a", "ref": "a", "reference": "a", "image_b": "b", "gen": "b", "image": "b"}
    names = [aliases.get(cell.strip().lower(), cell.strip().lower()) for cell in lines[0]] if lines else []
    if {"a", "b"} <= set(names):
        lines = lines[1:]
    else:
        names = ["a", "b", "mask_a", "mask_b"]
    pairs = []
    for number, line in enumerate(lines, 1):
        cells = {name: cell.strip() for name, cell in zip(names, line, strict=False) if cell.strip()}
        if not {"a", "b"} <= cells.keys():
            raise UsageError(f"{str(path)!r}, pair {number}: two image paths are needed, found {line}")
        found = {name: str(path.parent / cell) for name, cell in cells.items()}  # an absolute path stays as it is
        pairs.append(Pair(found["a"], found["b"], found.get("mask_a"), found.get("mask_b")))
    if not pairs:
        raise UsageError(f"{str(path)!r} holds no pairs")
    return pairs


# Scoring


class CopyWarning(UserWarning):
    """An image repeats another's pixels."""


@dataclass(frozen=True)
class Loaded:
    """An image as the model sees it, its mask, and what copies are found by."""

    file: File
    pixels: Tensor
    mask: Tensor | None
    print: Print | None


@dataclass(frozen=True)
class Seen:
    """What is kept of an image. `tokens`: for the page's matched patches."""

    embedding: Embedding
    print: Print | None
    tokens: Tokens | None = None


def _print_of(picture: Image.Image) -> Print:
    import numpy as np

    from idmetric.evaluate.copies import SIZE, take_print

    return take_print(np.asarray(picture.resize((SIZE, SIZE), 1)))  # 1: Lanczos, antialiased


def _is_same_file(a: str, b: str) -> bool:
    try:
        return os.path.samefile(a, b)
    except OSError:
        return False


class Scorer:
    """Embeds files in batches, so that memory does not grow with their number, and compares them."""

    def __init__(
        self, metric: Embedder, args: argparse.Namespace, skipped: Skipped, album: Album | None = None
    ) -> None:
        from idmetric.distance import needs_patches

        self.metric, self.args, self.skipped, self.album = metric, args, skipped, album
        self.patches = needs_patches(args.distance)
        self.signature = metric.signature(args.distance)
        self.calibration = metric.calibration if args.calibration else None
        self.baseline: Baseline | None = None  # with several references
        self.show = not args.quiet and sys.stderr.isatty()

    def rows(self, work: Cross | list[Pair]) -> list[Row]:
        """A row for each candidate or pair that could be read."""
        if self.calibration is not None:
            pairs = work if isinstance(work, list) else []
            for masked in {bool(self.args.mask_dir or mask) for p in pairs for mask in (p.mask_a, p.mask_b)} or {
                bool(self.args.mask_dir)
            }:
                self.calibration.check_outside(self.args.outside if masked else "all")
        rows = self._pairs(work) if isinstance(work, list) else self._cross(work)
        if self.show:
            print("\r\033[K", end="", file=sys.stderr, flush=True)
        return rows

    def _cross(self, work: Cross) -> list[Row]:
        from idmetric.embedding import concatenate
        from idmetric.evaluate.references import percentile

        found = {path: seen for (path, _), seen in self._embed([(path, None) for path in work.references])}
        if not found:
            return []
        names, references = list(found), concatenate([seen.embedding for seen in found.values()])
        prints = {name: seen.print for name, seen in zip(names, found.values(), strict=True)}
        self.baseline = self._baseline(names, references, prints)
        if self.album is not None:
            self.album.references |= {(name, None): None for name in names}
        rows = []
        for (path, _), seen in self._embed([(path, None) for path in work.candidates]):
            distances = self.metric.pairwise(references, seen.embedding, self.args.distance)[:, 0].double()
            best = int(distances.argmin())
            if self.args.aggregate == "mean":
                row = self._row(";".join(names), path, distances.tolist())
            else:
                row = self._row(names[best], path, [float(distances[best])])
            if self.baseline is not None:
                row["real_percentile"] = percentile(row["distance"], list(self.baseline.distances.values()))
            rows.append(self._looked_at(row, path, seen.print, prints))
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
        return Baseline(dict(zip(names, values.tolist(), strict=True)), self.args.aggregate)

    def _pairs(self, pairs: list[Pair]) -> list[Row]:
        rows: list[Row] = []
        for start in range(0, len(pairs), self.args.batch_size):
            # neighbours in the file often share an image: it is embedded once in each batch
            part = pairs[start : start + self.args.batch_size]
            wanted = dict.fromkeys([(p.a, p.mask_a) for p in part] + [(p.b, p.mask_b) for p in part])
            found = dict(self._embed([file for file in wanted if file not in self.skipped]))
            for p in part:
                a, b = found.get((p.a, p.mask_a)), found.get((p.b, p.mask_b))
                if a is not None and b is not None:
                    distance = float(self.metric(a.embedding, b.embedding, self.args.distance)[0])
                    rows.append(self._looked_at(self._row(p.a, p.b, [distance]), p.b, b.print, {p.a: a.print}))
                    if self.album is not None:
                        self.album.add(rows[-1], (p.b, p.mask_b), (p.a, p.mask_a), b.tokens, a.tokens)
            self._progress(min(start + len(part), len(pairs)), len(pairs))
        return rows

    def _looked_at(self, row: Row, path: str, own: Print | None, references: dict[str, Print | None]) -> Row:
        """The row, and whether its image is a copy of a reference; a warning if it is."""
        found = self._copy_of(path, own, references)
        if found is None:
            return row
        name, copy = found
        if copy.found and not _is_same_file(path, name):  # a reference among the candidates is no news
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
        from concurrent.futures import ThreadPoolExecutor

        size = self.args.batch_size
        details = self.album is not None and self.album.details > 0  # they need patches
        with ThreadPoolExecutor(min(8, os.cpu_count() or 1)) as pool:
            for start in range(0, len(files), size):
                part = files[start : start + size]
                loaded = [x for x in pool.map(self._read, part) if x is not None]
                if loaded:
                    together = self.metric.embed(
                        [x.pixels for x in loaded], batch_size=size, masks=[x.mask for x in loaded],
                        outside="keep", patches=self.patches or details,  # load_image has painted it
                    )  # fmt: skip
                    for x, embedding in zip(loaded, together, strict=True):
                        yield x.file, self._seen(x, embedding)
                if not self.args.pairs:
                    self._progress(min(start + size, len(files)), len(files))

    def _seen(self, x: Loaded, embedding: Embedding) -> Seen:
        from idmetric.embedding import Embedding

        tokens = None if self.album is None else self.album.tokens(x.file, x.mask is not None, embedding)
        if not self.patches:  # kept no longer than the page needs them
            embedding = Embedding(embedding.cls.clone(), model=embedding.model)
        return Seen(embedding, x.print, tokens)

    def _read(self, file: File) -> Loaded | None:
        """The file, its pixels and mask at the model's resolution; None for a file to skip."""
        from idmetric.images import ImageReadError, describe, read_image

        path = file[0]
        try:
            mask_path = self._mask_of(*file)
            picture = read_image(path, background=self.metric.background)
            try:
                pixels, mask = self.metric.load_image(picture, mask_path, self.args.outside)
                if self.album is not None:
                    self.album.add_picture(file, picture, mask_path, self.args.outside)
            except ImageReadError as error:
                named = path if error.source == describe(picture) else error.source  # the picture has no name
                raise ImageReadError(named, error.reason) from error
        except ImageReadError as error:
            if self.args.on_error == "fail":
                raise
            self.skipped[file] = error.reason if error.source == path else f"its mask {error.source}: {error.reason}"
            return None
        return Loaded(file, pixels, mask, None if self.args.no_copies else _print_of(picture))

    def _mask_of(self, path: str, mask: str | None) -> str | None:
        from idmetric.images import ImageReadError

        if mask is not None or self.args.mask_dir is None:
            return mask
        folder = Path(self.args.mask_dir)
        for extension in (".png", *EXTENSIONS):
            candidate = folder / (Path(path).stem + extension)
            if candidate.is_file():
                return str(candidate)
        raise ImageReadError(str(folder / f"{Path(path).stem}.png"), f"there is no such file, the mask of {path}")

    def _row(self, reference: str, image: str, distances: list[float]) -> Row:
        s = self.signature
        row = {"rank": 0, "distance": sum(distances) / len(distances), "image": image, "reference": reference,
               "model": s["model"], "revision": s["revision"], "distance_name": s["distance"],
               "resolution": s["resolution"], "dtype": s["dtype"], "idmetric": s["idmetric"]}  # fmt: skip
        if self.calibration is not None:
            row["probability"] = float(self.calibration.probability(distances, self.args.prior).mean())
        return row

    def _progress(self, done: int, total: int) -> None:
        if self.show:
            print(f"\r{done}/{total} images", end="", file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
