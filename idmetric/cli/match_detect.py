"""The options of `idmetric match` for regions that a detector finds."""

from __future__ import annotations

import os
from argparse import ArgumentParser, Namespace
from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from idmetric.cli.command import UsageError
from idmetric.metric.files.hints import need

if TYPE_CHECKING:
    from idmetric.match.detect import Detector
    from idmetric.match.detected import DetectedRegions
    from idmetric.metric.models.embedder import Embedder
    from idmetric.metric.scoring.subject import Subject

REFERENCES = "references"
BY_WORDS = ("grounding-dino", "owlv2", "sam3")  # literals, as --help imports no torch; the default first
BY_REFERENCES = ("patches", "owlv2")


def add_detection(parser: ArgumentParser) -> None:
    """Add the options."""
    options = parser.add_argument_group("detecting regions (extra detect)")
    options.add_argument(
        "--detect",
        metavar="WORDS",
        help="find regions by words, such as 'dog,person', or by each subject's photos: 'references'",
    )
    options.add_argument(
        "--detector",
        metavar="NAME[=WEIGHTS]",
        help=f"{', '.join(BY_WORDS)} (words; default: {BY_WORDS[0]}), {' or '.join(BY_REFERENCES)} (references; "
        f"default: {BY_REFERENCES[0]}); WEIGHTS: a folder, or owner/name[@revision] on the Hub",
    )
    options.add_argument("--detect-threshold", type=float, metavar="T", help="lowest score (default: the detector's)")
    options.add_argument(
        "--keep-regions", metavar="DIR", help="keep found regions there: another run finds those of new images alone"
    )


def check_detection(args: Namespace) -> None:
    """Refuse options that do not fit, before anything heavy is imported."""
    if args.detect is None:
        for option in ("detector", "detect_threshold", "keep_regions"):
            if getattr(args, option) is not None:
                raise UsageError(f"--{option.replace('_', '-')} needs --detect")
        return
    if args.regions is not None:
        raise UsageError("--regions and --detect: give one of them")
    if args.detect == REFERENCES and not args.subject:
        raise UsageError("--detect references needs the photos of a --subject")
    need("detect", "--detect", transformers="transformers")
    names = BY_REFERENCES if args.detect == REFERENCES else BY_WORDS
    name, _, weights = (args.detector or names[0]).partition("=")
    if name not in names:
        raise UsageError(f"--detector {name}: --detect {args.detect} takes {', '.join(names)}")
    if name == "patches" and weights:
        raise UsageError("--detector patches has no weights but those of --model")
    if not all(word.strip() for word in args.detect.split(",")):
        raise UsageError(f"--detect {args.detect!r}: give words, such as dog,person")


def detected_regions(args: Namespace, metric: Embedder, sources: Mapping[str, str]) -> DetectedRegions | None:
    """The regions that --detect asks for; None without it."""
    from idmetric.match.detected import DetectedRegions
    from idmetric.metric.images.paths import is_subject_file

    if args.detect is None:
        return None
    if args.detect != REFERENCES:
        words = [word.strip() for word in args.detect.split(",")]
        return DetectedRegions(_detector(args, metric), words=words, keep=args.keep_regions)
    for source in sources.values():
        if is_subject_file(source):
            raise UsageError(f"--detect references: {source} has no photos to look for, give the subject's photos")
    return DetectedRegions(_detector(args, metric), references=sources, keep=args.keep_regions)


def _detector(args: Namespace, metric: Embedder) -> Detector:
    from idmetric.match.detect_models import GroundingDino, Owlv2, Sam3
    from idmetric.match.detect_patches import PatchDetector

    is_by_words = args.detect != REFERENCES
    default = BY_WORDS[0] if is_by_words else BY_REFERENCES[0]
    name, _, weights = (args.detector or default).partition("=")
    settings: dict[str, Any] = {}
    if args.detect_threshold is not None:
        settings["threshold" if is_by_words or name == "patches" else "photo_threshold"] = args.detect_threshold
    if name == "patches":
        return PatchDetector(metric=metric, **settings)
    if weights:
        source, _, revision = (weights, "", "") if os.path.isdir(weights) else weights.partition("@")
        settings.update(source=source, revision=revision or None)
    classes: dict[str, type[GroundingDino | Owlv2 | Sam3]] = {
        "grounding-dino": GroundingDino,
        "owlv2": Owlv2,
        "sam3": Sam3,
    }
    return classes[name](device=args.device, **settings)


def with_words(metric: Embedder, sources: Mapping[str, str], distance: str) -> dict[str, str | Subject]:
    """The subjects; those called NAME:WORD with their class word."""
    from idmetric.metric.images.paths import is_subject_file
    from idmetric.metric.scoring.subject import Subject

    subjects: dict[str, str | Subject] = {}
    for entry, source in sources.items():
        name, _, word = entry.partition(":")
        if not word:
            subjects[entry] = source
        elif is_subject_file(source):
            subjects[name] = replace(Subject.load(source), name=name, word=word)
        else:
            subjects[name] = Subject.of(metric, source, name=name, word=word, distance=distance)
    return subjects
