"""Choose sharp frames that show the subject well from videos, one per stretch of time, and write them with masks.

A clip is a folder of images or a video file. Its masks are images or a video of the same names below --masks, or stand
next to it (a folder `masks`, uCO3D's `mask_video.*`). Finished clips are not read again, so the same command resumes a
stopped run.

examples:
  idmetric data frames JPEGImages/480p --masks Annotations/480p --sampling youtubevis --rate 24 -o frames.parquet
  idmetric data frames LaSOT --sampling lasot --annotation boxes --segment --category-level 1 -o lasot.parquet
  idmetric data frames holiday.mp4 --masks holiday_masks --sampling uco3d -o holiday.csv --dry-run

Samplings (ID-Sim, Table 4): clips of over 6 seconds are cut into equal parts, shorter ones into windows.
               frames per second   stride   frames in a window   parts
  lasot                       30        5                   30       6
  got10k                      10        5                   10       5
  youtubevis                   6        5                   10       5
  uco3d                       30        1                   30       5
"""

from __future__ import annotations

import argparse
import sys
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

from idmetric.cli.data.common import add_on_error, add_output, check_output, progress, save
from idmetric.cli.options import natural, positive

if TYPE_CHECKING:
    from idmetric.data.frames.clips import Clip
    from idmetric.data.frames.extract import Settings
    from idmetric.data.frames.segment import Segmenter

SAMPLINGS = ("lasot", "got10k", "youtubevis", "uco3d")
Record = dict[str, Any]
Job = tuple["Clip", Path, "Settings", bool]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of `idmetric data frames`."""
    parser.add_argument("clips", type=Path, help="a video, or a folder of clips at any depth")
    text = "folder of masks with the names of the clips, or annotations of YouTube-VIS (.json)"
    parser.add_argument("--masks", type=Path, help=text)
    parser.add_argument(
        "--frames", type=Path, help="folder to write frames to (default: OUT_frames next to the manifest)"
    )
    parser.add_argument("--sampling", choices=SAMPLINGS, required=True, help="parameters of the paper for a dataset")
    text = "source of coverage: masks (default), boxes of groundtruth.txt (no masks are written), or none"
    parser.add_argument("--annotation", choices=("masks", "boxes", "none"), default="masks", help=text)
    text = "draw masks of the boxes with Segment Anything: owner/name[@revision] or a folder (default: "
    text += "facebook/sam-vit-base; extra generate)"
    parser.add_argument("--segment", nargs="?", const="facebook/sam-vit-base", metavar="WEIGHTS", help=text)
    parser.add_argument("--device", help="of --segment: cuda, cuda:1, mps or cpu (default: the best available)")
    text = "masks show one object, or indexed ones by number; auto (default): indexed if they are palette images"
    parser.add_argument("--objects", choices=("auto", "one", "indexed"), default="auto", help=text)
    parser.add_argument("--rate", type=float, help="frames per second of folders (default: the sampling's)")
    for name, kind, text in (  # instead of the sampling's values
        ("fps", float, "frames per second in which stride and windows are counted"),
        ("stride", int, "frames between the annotated frames that are read"),
        ("annotated", int, "annotated frames in a window"),
        ("parts", int, "parts of a long clip"),
        ("long", float, "seconds from which a clip counts as long (6)"),
        ("blur", float, "smallest variance of the Laplacian (50)"),
        ("least", int, "valid frames that an instance needs (2)"),
    ):
        parser.add_argument(f"--{name}", type=kind, help=text)
    parser.add_argument(
        "--coverage",
        type=float,
        nargs=2,
        metavar=("LEAST", "MOST"),
        help="smallest and largest coverage by the object (0.1 0.9)",
    )
    parser.add_argument("--seed", type=natural, default=0, help="seed of the choice among valid frames (0)")
    parser.add_argument(
        "--form", choices=("png", "jpg"), default="png", help="png: lossless (default); jpg: quality 95"
    )
    parser.add_argument(
        "--dataset", help="dataset of the manifest, prefix of identities (default: the sampling's name)"
    )
    text = "part of the clip's path, from 1, that is its category (default: as GOT-10k and YouTube-VIS publish it)"
    parser.add_argument("--category-level", type=positive, help=text)
    parser.add_argument("--workers", type=positive, default=1, help="processes (1); the result does not depend on it")
    add_on_error(parser)
    add_output(parser)


def run(args: argparse.Namespace) -> int:
    """Sample all clips; returns 4 if some were skipped."""
    check_output(args.out, args.dry_run)
    if not _is_youtubevis(args):
        return _sample(args, args.masks)

    # a dry run needs the masks too, and leaves none behind
    with TemporaryDirectory() if args.dry_run else nullcontext(args.out.with_name(f"{args.out.stem}_masks")) as folder:
        return _sample(args, Path(folder))


def _sample(args: argparse.Namespace, masks: Path | None) -> int:
    """Sample all clips with the masks of a folder; annotations of YouTube-VIS are first written there."""
    from idmetric.data.frames.annotations import of_clips, of_youtubevis, write_masks
    from idmetric.data.frames.clips import ClipError, find_clips
    from idmetric.data.frames.extract import to_manifest

    folder = args.frames or args.out.with_name(f"{args.out.stem}_frames")
    settings = _settings(args)
    categories = None
    if masks is not None and _is_youtubevis(args):
        categories = of_youtubevis(args.masks)
        write_masks(args.masks, masks, partial(progress, quiet=args.quiet))
    clips = [
        clip for clip in find_clips(args.clips, masks) if not clip.frames.resolve().is_relative_to(folder.resolve())
    ]
    skip = args.on_error == "skip"
    _check_level(clips, args.category_level)
    if args.dry_run:
        return _dry_run(clips, folder, settings, args)
    records: list[Record] = []
    problems: list[str] = []
    jobs = [(clip, folder, settings, skip) for clip in clips]
    for outcome in progress(_outcomes(jobs, args.workers), len(jobs), "frames", args.quiet):
        if isinstance(outcome, str):
            problems.append(outcome)
        else:
            records.append(outcome)
            problems += outcome["unreadable"]
    if problems and not skip:
        raise ClipError(
            f"{len(problems)} of {len(clips)} clips cannot be used; the remaining ones are done and are not read again "
            "(--on-error skip leaves unreadable clips out):\n" + "\n".join(problems)
        )
    for line in problems:
        print(f"skipped: {line}", file=sys.stderr)
    categories = of_clips(clips) if categories is None else categories
    manifest = to_manifest(records, folder, args.dataset or args.sampling, args.category_level, categories)
    summary = _summary(records, settings.sampling.least)
    if not len(manifest):
        raise ClipError("no instance has enough valid frames; nothing is written\n" + "\n".join(summary))
    save(manifest, args)
    print("\n".join(summary))
    return 4 if problems else 0


def _is_youtubevis(args: argparse.Namespace) -> bool:
    return args.masks is not None and args.masks.suffix == ".json"


def _settings(args: argparse.Namespace) -> Settings:
    from dataclasses import replace

    from idmetric.data.frames.choose import SAMPLINGS as FULL
    from idmetric.data.frames.extract import Settings

    names = ("fps", "stride", "annotated", "parts", "long", "blur", "least")
    changes = {name: getattr(args, name) for name in names if getattr(args, name) is not None}
    if args.coverage is not None:
        changes["coverage"] = tuple(args.coverage)
    sampling = replace(FULL[args.sampling], **changes)
    return Settings(sampling, args.seed, args.annotation, args.objects, args.rate, args.form, _segmenter(args))


def _segmenter(args: argparse.Namespace) -> Segmenter | None:
    if args.segment is None:
        if args.device is not None:
            raise ValueError("--device is used with --segment alone: leave it out")
        return None
    if args.annotation != "boxes":
        raise ValueError("--segment draws masks of boxes: add --annotation boxes")
    if args.workers > 1:
        raise ValueError("--segment runs in one process: leave --workers out")
    from idmetric.data.frames.segment import SAM, Segmenter
    from idmetric.data.generate.weights import Place

    return Segmenter(Place(args.device, "float32"), SAM.at(args.segment))


def _check_level(clips: Sequence[Clip], level: int | None) -> None:
    """Report clips whose paths have no such part; the last part is the clip itself."""
    from idmetric.data.frames.clips import ClipError

    short = [clip.name for clip in clips if level is not None and level > clip.name.count("/")]
    if short and len(short) == len(clips):
        raise ClipError(f"--category-level {level}: no clip has so many folders above it: {short[0]!r}")
    if short:
        print(f"{len(short)} clips have no category: fewer than {level} folders above {short[0]!r}", file=sys.stderr)


def _outcomes(jobs: Sequence[Job], workers: int) -> Iterator[Record | str]:
    """Yield the record of each clip in order, or the reason why it has none."""
    if workers <= 1:
        yield from map(_outcome, jobs)
        return
    from concurrent.futures import ProcessPoolExecutor
    from multiprocessing import get_context

    with ProcessPoolExecutor(workers, mp_context=get_context("spawn")) as pool:
        yield from pool.map(_outcome, jobs)


def _outcome(job: Job) -> Record | str:
    from idmetric.data.frames.clips import ClipError
    from idmetric.data.frames.extract import extract

    try:
        return extract(*job)
    except ClipError as error:
        return str(error)


def _dry_run(clips: Sequence[Clip], folder: Path, settings: Settings, args: argparse.Namespace) -> int:
    from idmetric.data.frames.choose import candidates, places, plan
    from idmetric.data.frames.clips import ClipError
    from idmetric.data.frames.extract import finished, open_for

    counts: Counter[str] = Counter()
    problems: list[str] = []
    for clip in progress(clips, len(clips), "clips", args.quiet):
        try:
            if finished(clip, folder, settings) is not None:
                counts["done"] += 1
                continue
            footage = open_for(clip, settings)
        except ClipError as error:
            problems.append(str(error))
            counts["unusable"] += 1
            continue
        at, count = places(footage.times, settings.sampling)
        counts["windows"] += len(plan(count, settings.sampling))
        counts["candidates"] += len(candidates(at, footage.annotated, settings.sampling.stride))
        counts["frames"] += len(at)
    for line in problems:
        print(f"cannot be used: {line}", file=sys.stderr)
    new = len(clips) - counts["done"] - counts["unusable"]
    print(
        f"would sample {new} of {len(clips)} clips ({counts['done']} are done): "
        f"{counts['frames']} frames, {counts['candidates']} of them to look at, at most one from each of "
        f"{counts['windows']} windows for each object; into {folder}, manifest {args.out}"
    )
    return 1 if problems and args.on_error == "fail" else 4 if problems else 0


def _summary(records: Sequence[Mapping[str, Any]], least: int) -> list[str]:
    """Describe the instances and windows that were left out, as lines of text."""
    instances = [i for record in records for i in record["instances"]]
    short = sum(len(i["frames"]) < least for i in instances)
    reasons: Counter[str] = Counter()
    for instance in instances:
        reasons.update(instance["rejected"])
    windows = sum(reasons.values()) + sum(len(i["frames"]) for i in instances)
    lines = [f"{short} of {len(instances)} instances left out: fewer than {least} valid frames"]
    listed = ", ".join(f"{count} {reason}" for reason, count in sorted(reasons.items())) or "none"
    lines.append(f"windows without a valid frame: {sum(reasons.values())} of {windows} ({listed})")
    for record in records:
        if not record["seen"] and record["settings"]["annotation"] == "masks":
            advice = "if they hold object numbers, use --objects indexed; if objects are of value 255, --objects one"
            lines.append(f"{record['clip']}: no mask shows an object ({advice})")
    return lines
