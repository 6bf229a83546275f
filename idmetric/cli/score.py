"""`idmetric-score`: distances of images to a reference, sorted, from the shell.

Exit status: 0 scored; 1 an error (on stderr, nothing on stdout); 2 wrong usage; 3 a distance exceeds --threshold;
4 files were skipped (--on-error skip) and none exceeds it.
"""

from __future__ import annotations

import argparse
import csv
import glob
import io
import json
import os
import sys
import tempfile
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from idmetric._version import __version__

if TYPE_CHECKING:
    from torch import Tensor

    from idmetric.embedder import Embedder
    from idmetric.embedding import Embedding

# literal, so that --help need not import torch; a test compares it with idmetric.distance.DISTANCES
DISTANCES = ("cls", "patch", "joint", "patch_pooled", "joint_pooled", "patch_biased")
DTYPES = ("float32", "float16", "bfloat16", "float64")
EXTENSIONS = (".jpg", ".jpeg", ".png", ".webp", ".bmp", ".gif", ".tif", ".tiff", ".ppm", ".jfif", ".avif", ".heic")

Row = dict[str, Any]


class UsageError(Exception):
    """Something the user asked for cannot be; the message says what and the way out."""


# an image and its mask; of those that could not be read, the reason
File = tuple[str, str | None]
Skipped = dict[File, str]


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
    parser.add_argument("--threshold", type=float, metavar="T", help="exit with status 3 if a distance exceeds T")
    parser.add_argument("--on-error", choices=("fail", "skip"), default="fail",
                        help="stop at an unreadable image (default), or skip and list it")  # fmt: skip
    parser.add_argument("--quiet", action="store_true", help="no progress, no warnings")
    parser.add_argument("--list-models", action="store_true", help="print the models and stop")
    parser.add_argument("--version", action="version", version=f"idmetric {__version__}")
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; returns the exit status."""
    parser = build_parser()
    args = parser.parse_intermixed_args(argv)  # options may stand between the files
    if args.list_models:
        print(list_models(), end="")
        return 0
    if args.batch_size < 1:
        parser.error("--batch-size must be at least 1")
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
    with warnings.catch_warnings():
        warnings.simplefilter("ignore" if args.quiet else "always", UserWarning)
        warnings.showwarning = lambda message, *_, **__: print(f"idmetric-score: {message}", file=sys.stderr)
        try:
            metric = _open_metric(args)
            rows = Scorer(metric, args, skipped).rows(work)
        except (CheckpointError, ImageReadError, ImportError, ValueError, RuntimeError) as error:
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
    _write(FORMATS[args.format](rows, metric.signature(args.distance), skipped), args.output)
    if args.threshold is not None and any(not row["distance"] <= args.threshold for row in rows):
        return 3
    return 4 if skipped else 0


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
    return load(args.model, device=args.device, **options)


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


class Scorer:
    """Embeds files in batches, so that memory does not grow with their number, and compares them."""

    def __init__(self, metric: Embedder, args: argparse.Namespace, skipped: Skipped) -> None:
        from idmetric.distance import needs_patches

        self.metric, self.args, self.skipped = metric, args, skipped
        self.patches = needs_patches(args.distance)
        self.signature = metric.signature(args.distance)
        self.show = not args.quiet and sys.stderr.isatty()

    def rows(self, work: Cross | list[Pair]) -> list[Row]:
        """A row for each candidate or pair that could be read."""
        rows = self._pairs(work) if isinstance(work, list) else self._cross(work)
        if self.show:
            print("\r\033[K", end="", file=sys.stderr, flush=True)
        return rows

    def _cross(self, work: Cross) -> list[Row]:
        from idmetric.embedding import concatenate

        found = dict(self._embed([(path, None) for path in work.references]))
        if not found:
            return []
        names, references = [path for path, _ in found], concatenate(list(found.values()))
        rows = []
        for (path, _), embedding in self._embed([(path, None) for path in work.candidates]):
            distances = self.metric.pairwise(references, embedding, self.args.distance)[:, 0]
            best = int(distances.argmin())
            if self.args.aggregate == "mean":
                rows.append(self._row(";".join(names), path, float(distances.double().mean())))
            else:
                rows.append(self._row(names[best], path, float(distances[best])))
        return rows

    def _pairs(self, pairs: list[Pair]) -> list[Row]:
        rows: list[Row] = []
        for start in range(0, len(pairs), self.args.batch_size):
            # neighbours in the file often share an image: it is embedded once in each batch
            part = pairs[start : start + self.args.batch_size]
            wanted = dict.fromkeys([(p.a, p.mask_a) for p in part] + [(p.b, p.mask_b) for p in part])
            embeddings = dict(self._embed([file for file in wanted if file not in self.skipped]))
            for p in part:
                a, b = embeddings.get((p.a, p.mask_a)), embeddings.get((p.b, p.mask_b))
                if a is not None and b is not None:
                    rows.append(self._row(p.a, p.b, float(self.metric(a, b, self.args.distance)[0])))
            self._progress(min(start + len(part), len(pairs)), len(pairs))
        return rows

    def _embed(self, files: list[File]) -> Iterator[tuple[File, Embedding]]:
        from concurrent.futures import ThreadPoolExecutor

        size = self.args.batch_size
        with ThreadPoolExecutor(min(8, os.cpu_count() or 1)) as pool:
            for start in range(0, len(files), size):
                part = files[start : start + size]
                loaded = [x for x in pool.map(self._read, part) if x is not None]
                if loaded:
                    together = self.metric.embed(
                        [pixels for _, pixels, _ in loaded], batch_size=size, masks=[mask for _, _, mask in loaded],
                        outside="keep", patches=self.patches,  # load_image has painted it
                    )  # fmt: skip
                    yield from zip([file for file, _, _ in loaded], together, strict=True)
                if not self.args.pairs:
                    self._progress(min(start + size, len(files)), len(files))

    def _read(self, file: File) -> tuple[File, Tensor, Tensor | None] | None:
        """The file, its pixels and mask at the model's resolution; None for a file to skip."""
        from idmetric.images import ImageReadError

        path = file[0]
        try:
            mask_path = self._mask_of(*file)
            pixels, mask = self.metric.load_image(path, mask_path, self.args.outside)
        except ImageReadError as error:
            if self.args.on_error == "fail":
                raise
            self.skipped[file] = error.reason if error.source == path else f"its mask {error.source}: {error.reason}"
            return None
        return file, pixels, mask

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

    def _row(self, reference: str, image: str, distance: float) -> Row:
        s = self.signature
        return {"rank": 0, "distance": distance, "image": image, "reference": reference, "model": s["model"],
                "revision": s["revision"], "distance_name": s["distance"], "resolution": s["resolution"],
                "dtype": s["dtype"], "idmetric": s["idmetric"]}  # fmt: skip

    def _progress(self, done: int, total: int) -> None:
        if self.show:
            print(f"\r{done}/{total} images", end="", file=sys.stderr, flush=True)


# Printing


def _table(rows: list[Row], signature: dict[str, str], skipped: Skipped) -> str:
    several = len({row["reference"] for row in rows}) > 1
    width = max(len("image"), *(len(row["image"]) for row in rows))
    lines = [f"rank  distance  {'image':<{width}}" + ("  reference" if several else "")]
    for row in rows:
        line = f"{row['rank']:>4}  {row['distance']:8.4f}  {row['image']:<{width}}"
        lines.append(line + (f"  {row['reference']}" if several else ""))
    if not several:
        lines.append(f"reference: {rows[0]['reference']}")
    lines.append("  ".join(f"{key}={value}" for key, value in signature.items()))
    return "\n".join(line.rstrip() for line in lines) + "\n"


def _json(rows: list[Row], signature: dict[str, str], skipped: Skipped) -> str:
    lost = [{"image": path, "reason": reason} for (path, _), reason in skipped.items()]
    return json.dumps({"signature": signature, "rows": rows, "skipped": lost}, indent=2) + "\n"


def _jsonl(rows: list[Row], signature: dict[str, str], skipped: Skipped) -> str:
    return "".join(json.dumps(row) + "\n" for row in rows)


def _csv(rows: list[Row], signature: dict[str, str], skipped: Skipped) -> str:
    text = io.StringIO()
    writer = csv.DictWriter(text, list(rows[0]), lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue()


FORMATS = {"table": _table, "json": _json, "jsonl": _jsonl, "csv": _csv}


def _write(text: str, output: str | None) -> None:
    if output is None:
        sys.stdout.write(text)
        sys.stdout.flush()
        return
    target = Path(output)
    try:
        handle, temporary = tempfile.mkstemp(dir=target.parent, prefix=f".{target.name}.")
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            file.write(text)
        os.chmod(temporary, 0o644)
        os.replace(temporary, target)
    except OSError as error:
        raise UsageError(f"cannot write {output!r}: {error}") from error


if __name__ == "__main__":
    sys.exit(main())
