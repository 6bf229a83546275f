"""Give the images of a manifest the masks of a folder that another program made, such as rembg.

examples:
  idmetric data masks objects.parquet --from rmbg_masks/ -o masked.parquet
  idmetric data masks photos.parquet --from labels/ --mask-id 2 -o masked.parquet
  idmetric data masks photos.parquet --from alpha/ --threshold 0.5 --on-error skip -o masked.parquet

--from attaches masks by name: the mask of photos/mug/1.jpg is the first of DIR/photos/mug/1.png, DIR/mug/1.png and
DIR/1.png that exists. A mask of its image's shape and another size is scaled, and the copy goes to a folder next to
OUT, OUT's name + _masks; a mask of another shape, an empty one, and an image without a mask are errors, or left out
with --on-error skip. Values between black and white stay soft. White on black, alpha (cut-outs), palettes and labels
are read as docs/use/masks.md says.
"""

from __future__ import annotations

from argparse import ArgumentParser, Namespace
from functools import partial
from pathlib import Path

from idmetric.cli import options
from idmetric.cli.command import say, status_of
from idmetric.cli.data import common


def add_arguments(parser: ArgumentParser) -> None:
    """Add the options of `idmetric data masks`."""
    common.add_input(parser)
    text = "folder of masks with the images' names"
    parser.add_argument("--from", dest="folder", metavar="DIR", required=True, help=text)
    parser.add_argument(
        "--threshold",
        type=float,
        metavar="SHARE",
        help="cut soft masks: the subject is where the mask's value reaches this share, such as 0.5",
    )
    options.add_shared(parser, "--mask-id")
    common.add_on_error(parser)
    common.add_output(parser)


def run(args: Namespace) -> int:
    """Attach the masks and write the manifest; returns 4 if images were left out."""
    from idmetric.data.check import without
    from idmetric.data.curate.external_masks import attach_masks
    from idmetric.data.manifest import read

    common.check_output(args.out)
    table = read(args.manifest)
    copies: Path = args.out.with_name(f"{args.out.stem}_masks")
    progress = partial(common.progress, quiet=args.quiet)
    masked, problems, notes = attach_masks(table, args.folder, copies, args.threshold, args.mask_id, progress)
    for note in notes:
        say(note)
    if problems:
        common.leave_out_rows(table, problems, args.on_error)
        masked = without(masked, problems)
        if not len(masked):
            raise ValueError("no image is left: none has a mask that can be used")
    common.save(masked, args.out)
    return status_of(problems)
