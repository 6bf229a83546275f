"""The options of `idmetric match` for regions that a detector finds."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace
from collections.abc import Mapping
from typing import TYPE_CHECKING

from idmetric.cli.command import WRONG_USAGE, CommandError
from idmetric.metric.files import need

if TYPE_CHECKING:
    from idmetric.matching.detect import Detector
    from idmetric.matching.detected import DetectedRegions
    from idmetric.metric.embedder import Embedder

REFERENCES = "references"


def add_detection(parser: ArgumentParser) -> None:
    """Add the options."""
    options = parser.add_argument_group("detecting regions (extra eval)")
    options.add_argument(
        "--detect",
        metavar="WORDS",
        help="find regions by words, such as 'dog,person', or by each subject's photos: 'references'",
    )
    options.add_argument(
        "--detector",
        metavar="NAME[=WEIGHTS]",
        help="grounding-dino, owlv2, sam3 (words; default: grounding-dino), patches or owlv2 (references; "
        "default: patches); WEIGHTS: a folder, or owner/name[@revision] on the Hub",
    )
    options.add_argument("--detect-threshold", type=float, metavar="T", help="lowest score (default: the detector's)")
    options.add_argument(
        "--keep-regions", metavar="DIR", help="keep found regions there: another run finds those of new images alone"
    )


def check_detection(args: Namespace) -> None:
    """Refuse options that do not fit, before anything heavy is imported."""
    if args.detect is None:
        if (args.detector, args.detect_threshold, args.keep_regions) != (None, None, None):
            raise CommandError("--detector, --detect-threshold and --keep-regions need --detect", WRONG_USAGE)
        return
    if args.regions is not None:
        raise CommandError("--regions and --detect: give one of them", WRONG_USAGE)
    need("eval", "--detect", transformers="transformers")


def detected_regions(args: Namespace, metric: Embedder, sources: Mapping[str, str]) -> DetectedRegions | None:
    """The regions that --detect asks for; None without it."""
    from idmetric.matching.detected import DetectedRegions
    from idmetric.metric.paths import is_embedding_file

    if args.detect is None:
        return None
    detector = _detector(args, metric)
    if args.detect != REFERENCES:
        return DetectedRegions(detector, args.detect.split(","), keep=args.keep_regions)
    for source in sources.values():
        if is_embedding_file(source):
            raise CommandError(
                f"--detect references: {source} has no photos to look for, give the subject's photos", WRONG_USAGE
            )
    return DetectedRegions(detector, references=sources, keep=args.keep_regions)


def _detector(args: Namespace, metric: Embedder) -> Detector:
    from idmetric.matching.detect_models import detector_named
    from idmetric.matching.detect_patches import PatchDetector

    by_references = args.detect == REFERENCES
    choice = args.detector
    if choice is None:
        choice = "grounding-dino"
        if by_references:
            choice = "patches"
    settings: dict[str, float] = {}
    if args.detect_threshold is not None:
        name = "threshold"
        if by_references and choice.startswith("owlv2"):
            name = "photo_threshold"
        settings[name] = args.detect_threshold
    if choice == "patches":
        return PatchDetector(metric=metric, **settings)
    if choice.startswith("patches="):
        raise CommandError("--detector patches has no weights of its own: it takes those of --model", WRONG_USAGE)
    return detector_named(choice, args.device, **settings)
