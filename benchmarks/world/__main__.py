"""Render the procedural identity world: images, masks and a manifest, from a seed, without downloads.

Run it in `benchmarks/`, with VTK (pip install vtk).

examples:
  python -m world --out world/ --identities 1000
      three views of each object, and a distractor of each view at strengths 1.0 and 0.5
  python -m world --out parts/ --identities 200 --views 2 --distractors 0 --parts 1
      part edits with masks and oracle scores, as in MTG
  python -m world --out triplets/ --identities 500 --context-edits 1 --identity-edits 1
      positives before other backgrounds and hard negatives, as ID-Sim's subsets 2a and 2b
  python -m world --out grid/ --identities 100 --views 1 --distractors 0 --grid background --grid light
      identity changes crossed with context changes, for the sensitivity analysis
  python -m world --out world/ --identities 1000 --workers 8 --assets meshes_and_photos/
      the same on eight processes, with your own meshes and photos (folders meshes, shapes, backgrounds, textures,
      produce)

The same command resumes a stopped run, and with more --identities adds to it. The files depend on the seed, the
settings and the assets alone. A folder holds one world and serves one run at a time. For several machines, give each
another folder and --seed, and join the manifests with idmetric data merge.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

from idmetric.cli.options import add_shared, natural, positive
from idmetric.metric.files.progress import Progress
from world.write import WorldPlan, write_world


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options."""
    parser.add_argument("--out", "-o", type=Path, required=True, help="folder for images, masks and manifest.parquet")
    parser.add_argument("--identities", "-n", type=positive, default=100, help="number of objects (default: 100)")
    parser.add_argument("--seed", type=natural, default=0, help="seed of the world (default: 0)")
    parser.add_argument("--size", type=positive, default=224, help="side of the images in pixels (default: 224)")
    parser.add_argument("--views", type=positive, default=3, help="images of each object, each in another context (3)")
    text = "distractors of each view at each strength: another object in the same context (default: 1)"
    parser.add_argument("--distractors", type=natural, default=1, help=text)
    text = "how much edited objects differ, 0..1; 1 = another object of its kind (default: 1.0 0.5)"
    parser.add_argument("--strengths", type=float, nargs="+", default=[1.0, 0.5], help=text)
    text = "draw one of the strengths for each object instead of using all"
    parser.add_argument("--mixed", action="store_true", help=text)
    parser.add_argument("--parts", type=natural, default=0, help="part edits of each object (default: 0)")
    parser.add_argument(
        "--context-edits", type=natural, default=0, help="edits of each view: same object, other background"
    )
    parser.add_argument(
        "--identity-edits", type=natural, default=0, help="edits of each view: changed object, same background"
    )
    text = "identity changes crossed with this factor; may be repeated"
    factors = ("background", "viewpoint", "light")
    parser.add_argument("--grid", action="append", default=[], choices=factors, help=text)
    parser.add_argument("--quality", type=positive, default=95, help="of JPEG files; 100 writes PNG (default: 95)")
    parser.add_argument("--assets", type=Path, help="folder with meshes/, shapes/, backgrounds/, textures/, produce/")
    parser.add_argument("--workers", type=natural, default=1, help="processes; 0 = one for each core (default: 1)")
    add_shared(parser, "--quiet")


def run(args: argparse.Namespace) -> None:
    """Render the world and write its manifest."""
    plan = WorldPlan(
        seed=args.seed, size=args.size, views=args.views, distractors=args.distractors,
        strengths=tuple(args.strengths), mixed=args.mixed, parts=args.parts, context_edits=args.context_edits,
        identity_edits=args.identity_edits, grids=tuple(args.grid), quality=args.quality,
    )  # fmt: skip
    total = plan.pictures * args.identities
    done = 0

    with Progress("images", not args.quiet, verb="rendered") as progress:

        def update(pictures: int) -> None:
            nonlocal done
            done += pictures
            progress(done, total)

        made = write_world(args.out, plan, args.identities, args.assets, workers=args.workers, done=update)
    identities = len(set(made.column("identity")))
    print(f"wrote {args.out / 'manifest.parquet'}: {len(made)} images of {identities} identities")


def main(argv: Sequence[str] | None = None) -> None:
    """Parse the options and render."""
    parser = argparse.ArgumentParser(
        "python -m world", description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    add_arguments(parser)
    run(parser.parse_args(argv))


if __name__ == "__main__":
    main()
