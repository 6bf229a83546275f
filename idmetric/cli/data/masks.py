"""Give the images of a manifest masks: of a folder that another program made, or of a model here.

examples:
  idmetric data masks objects.parquet --from rmbg_masks/ -o masked.parquet
  idmetric data masks photos.parquet --from labels/ --mask-id 2 -o masked.parquet
  idmetric data masks photos.parquet --remover grounded_sam -o masked.parquet
  idmetric data masks photos.parquet --from alpha/ --threshold 0.5 --on-error skip -o masked.parquet

--from attaches masks by name: the mask of photos/mug/1.jpg is the first of DIR/photos/mug/1.png, DIR/mug/1.png and
DIR/1.png that exists. A mask of its image's shape and another size is scaled, and the copy goes to --images; a mask of
another shape, an empty one, and an image without a mask are errors, or left out with --on-error skip. Values between
black and white stay soft. White on black, alpha (cut-outs), palettes and labels are read as docs/masks.md says.

--remover makes masks: clean (an object on a near-uniform background, without a model) and grounded_sam (the object that
column category names, on any background).
"""

from __future__ import annotations

import argparse
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from idmetric.cli import options
from idmetric.cli.command import say
from idmetric.cli.data import common
from idmetric.io.tables import first_few

if TYPE_CHECKING:
    from idmetric.data.manifest.table import Manifest

REMOVERS = ("clean", "grounded_sam")
_SHOWN = 5  # files that a note names


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of `idmetric data masks`."""
    common.add_input(parser)
    source = parser.add_mutually_exclusive_group(required=True)
    source.add_argument(
        "--from", dest="folder", type=Path, metavar="DIR", help="folder of masks with the images' names"
    )
    source.add_argument("--remover", choices=REMOVERS, help="make the masks by this method")
    text = "folder for masks that are made, scaled or cut (default: OUT's name + _masks)"
    parser.add_argument("--images", type=Path, metavar="DIR", help=text)
    text = "--from: cut soft masks: the subject is where the mask's value reaches this share, such as 0.5"
    parser.add_argument("--threshold", type=float, metavar="SHARE", help=text)
    options.add_mask_id(parser)
    text = "--remover: column with the object's name: category (default) or text"
    parser.add_argument("--class-from", choices=("category", "text"), help=text)
    text = "--remover: another value of one of its settings, such as threshold=0.4"
    parser.add_argument("--set", action="append", default=[], metavar="SETTING=VALUE", help=text)
    text = "--remover: other weights, a folder or owner/name[@revision]; parts are detector, segmenter"
    parser.add_argument("--weights", action="append", default=[], metavar="PART=PLACE", help=text)
    parser.add_argument("--device", help="--remover: cuda, cuda:1, mps or cpu (default: the best available)")
    common.add_on_error(parser)
    common.add_output(parser)
    parser.set_defaults(wrong_usage=parser.error)


def run(args: argparse.Namespace) -> int:
    """Attach or make the masks and write the manifest; returns 4 if images were left out."""
    from idmetric.data.manifest.check import without
    from idmetric.data.manifest.table import read

    _refuse_idle(args)
    common.check_output(args.out, args.dry_run)
    manifest = read(args.manifest)
    masked, problems = _attach(manifest, args) if args.folder is not None else _make(manifest, args)
    if problems:
        common.take_out(problems, args.on_error)
        ids = masked.column("id")
        masked = without(masked, {k for k in range(len(masked)) if ids[k] in problems})
        if not len(masked):
            raise ValueError("no image is left: none has a mask that can be used")
    common.save(masked, args)
    return 4 if problems else 0


def _refuse_idle(args: argparse.Namespace) -> None:
    made = {"class_from": args.class_from, "set": args.set, "weights": args.weights, "device": args.device}
    given = {"threshold": args.threshold, "mask_id": args.mask_id}
    idle, other = (made, "--remover") if args.folder is not None else (given, "--from")
    for name, value in idle.items():
        if value not in (None, []):
            args.wrong_usage(f"--{name.replace('_', '-')} is used with {other} alone")


def _folder(args: argparse.Namespace) -> Path:
    return Path(args.images or args.out.with_name(f"{args.out.stem}_masks"))


def _attach(manifest: Manifest, args: argparse.Namespace) -> tuple[Manifest, dict[str, str]]:
    from idmetric.data.curate.external_masks import attach_masks

    done = attach_masks(
        manifest, args.folder, _folder(args), args.threshold, args.mask_id,
        partial(common.progress, quiet=args.quiet), args.dry_run,
    )  # fmt: skip
    kept = f", {done.kept} images keep the mask they had" if done.kept else ""
    print(f"{done.attached} masks attached ({done.scaled} scaled to their images, {done.soft} soft){kept}")
    if done.unused:
        say(f"{len(done.unused)} masks belong to no image: {', '.join(first_few(list(map(str, done.unused)), _SHOWN))}")
    return done.manifest, done.problems


def _make(manifest: Manifest, args: argparse.Namespace) -> tuple[Manifest, dict[str, str]]:
    from idmetric.data.generate import Place, open_remover
    from idmetric.data.generate.masks import make_masks

    place = Place(args.device)
    remover = open_remover(
        args.remover, place, common.pairs(args.weights, "--weights"), **common.pairs(args.set, "--set"),
    )  # fmt: skip
    for weights, license in remover.licenses.items():
        say(f"{args.remover}: weights {weights}, license {license}")
    if args.dry_run:
        print(f"would make masks of {len(manifest)} images in {_folder(args)}")
        return manifest, {}
    show = partial(common.progress, quiet=args.quiet)
    return make_masks(manifest, remover, _folder(args), args.class_from or "category", show)
