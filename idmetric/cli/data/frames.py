"""Choose sharp frames that show the subject well from videos, one per stretch of time, and write them with masks.

A clip is a folder of images or a video file. Its masks are images or a video of the same names below --masks, uCO3D's
`mask_video.*` next to it, or drawn of boxes in `groundtruth.txt` (--segment). Finished clips are not read again, so the
same command resumes a stopped run.

examples:
  idmetric data frames train/JPEGImages --masks train/instances.json --sampling youtubevis -o ytvis.parquet
  idmetric data frames LaSOT --sampling lasot --segment --category-level 1 -o lasot.parquet
  idmetric data frames holiday.mp4 --masks holiday_masks --sampling uco3d -o holiday.csv

Samplings (ID-Sim, Table 4): clips of over 6 seconds are cut into equal parts, shorter ones into windows.
               frames per second   stride   frames in a window   parts
  lasot                       30        5                   30       6
  got10k                      10        5                   10       5
  youtubevis                   6        5                   10       5
  uco3d                       30        1                   30       5
"""

from __future__ import annotations

from argparse import ArgumentParser, Namespace
from collections import Counter
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from idmetric.cli.command import say, status_of
from idmetric.cli.data.common import add_on_error, add_output, check_output, progress, save
from idmetric.cli.options import natural, positive

if TYPE_CHECKING:
    from idmetric.data.frames.clips import AnnotatedClip, Categories
    from idmetric.data.frames.extract import Extraction, Record
    from idmetric.data.frames.sam import Sam

SAMPLINGS = ("lasot", "got10k", "youtubevis", "uco3d")
_SAM = "facebook/sam2.1-hiera-large"


def add_arguments(parser: ArgumentParser) -> None:
    """Add the options of `idmetric data frames`."""
    add = parser.add_argument
    add("clips", type=Path, help="a video, or a folder of clips at any depth")
    add("--masks", type=Path, help="folder of masks with the names of the clips, or annotations of YouTube-VIS (.json)")
    add("--sampling", choices=SAMPLINGS, required=True, help="parameters of the paper for a dataset")
    text = (
        f"draw masks of the boxes in groundtruth.txt with SAM 2.1: owner/name[@revision] or a folder (default: {_SAM}; "
        "extra generate)"
    )
    add("--segment", nargs="?", const=_SAM, metavar="WEIGHTS", help=text)
    add("--device", help="of --segment: cuda, cuda:1, mps or cpu (default: the best available)")
    add("--seed", type=natural, default=0, help="seed of the choice among valid frames (0)")
    add("--dataset", help="dataset of the manifest, prefix of identities (default: the sampling's name)")
    add(
        "--category-level",
        type=positive,
        help="part of the clip's path, from 1, that is its category (default: as GOT-10k and YouTube-VIS publish it)",
    )
    add("--workers", type=positive, default=1, help="threads (1); the result does not depend on it")
    add_on_error(parser)
    add_output(parser)


def run(args: Namespace) -> int:
    """Sample all clips; returns 4 if some were skipped."""
    from idmetric.data.frames.choose import SAMPLINGS as FULL
    from idmetric.data.frames.extract import Extraction, to_table
    from idmetric.matching.frames import ClipError

    check_output(args.out)
    folder = args.out.with_name(f"{args.out.stem}_frames")
    extraction = Extraction(FULL[args.sampling], args.seed, _sam(args))
    clips, categories = _clips(args, folder)

    records = []
    problems: list[str] = []
    work = partial(_outcome, folder=folder, extraction=extraction, skip=args.on_error == "skip")
    with ThreadPoolExecutor(args.workers) as pool:
        for outcome in progress(pool.map(work, clips), len(clips), "frames", args.quiet):
            if isinstance(outcome, str):
                problems.append(outcome)
            else:
                records.append(outcome)
                problems += outcome["unreadable"]
    if problems and args.on_error != "skip":
        raise ClipError(
            f"{len(problems)} of {len(clips)} clips cannot be used; the remaining ones are done and are not read again "
            "(--on-error skip leaves unreadable clips out):\n" + "\n".join(problems)
        )
    for line in problems:
        say(f"skipped: {line}")

    table = to_table(records, folder, args.dataset or args.sampling, categories)
    summary = _summary(records, extraction.sampling.least)
    if not len(table):
        raise ClipError(f"no instance has enough valid frames; nothing is written\n{summary}")
    save(table, args.out)
    print(summary)
    unnamed = table["category"].isna().sum()
    if unnamed:
        say(f"{unnamed} images have no category, which prompts need: --category-level takes it from the clip's path")
    return status_of(problems)


def _outcome(clip: AnnotatedClip, folder: Path, extraction: Extraction, skip: bool) -> Record | str:
    """The record of a clip, or the reason why it has none."""
    from idmetric.data.frames.extract import extract
    from idmetric.matching.frames import ClipError

    try:
        return extract(clip, folder, extraction, skip)
    except ClipError as error:
        return str(error)


def _clips(args: Namespace, folder: Path) -> tuple[list[AnnotatedClip], Categories]:
    """The clips but for the frames of a previous run in `folder`, and their categories."""
    from idmetric.data.frames.clips import categories_of, find_clips, with_codes

    is_published = args.masks is not None and args.masks.suffix.lower() == ".json"
    clips = find_clips(args.clips, None if is_published else args.masks)
    clips = [clip for clip in clips if not clip.frames.resolve().is_relative_to(folder.resolve())]
    if is_published:
        clips, categories = with_codes(clips, args.masks)
    else:
        categories = categories_of(clips)
    for clip in clips:
        folders = clip.name.split("/")[:-1]
        if args.category_level and args.category_level <= len(folders):
            categories[clip.name, 0] = folders[args.category_level - 1]
    return clips, categories


def _sam(args: Namespace) -> Sam | None:
    if args.segment is None:
        return None
    if args.masks is not None:
        raise ValueError("--segment draws masks of boxes: leave --masks out")
    if args.workers > 1:
        raise ValueError("--segment runs in one thread: leave --workers out")
    from idmetric.data.frames.sam import SEGMENTER, Sam

    return Sam(SEGMENTER.at(args.segment), args.device)


def _summary(records: Sequence[Mapping[str, Any]], least: int) -> str:
    """Describe the instances and frames that were left out."""
    instances = short = 0
    reasons: Counter[str] = Counter()
    for record in records:
        reasons.update(record["reasons"])
        instances += record["instances"]
        short += record["short"]
    counts = ", ".join(f"{count} {reason}" for reason, count in sorted(reasons.items())) or "none"
    return (
        f"{short} of {instances} instances left out: fewer than {least} valid frames\n"
        f"objects in frames that were not valid: {counts}"
    )
