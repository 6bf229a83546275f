"""Choose a training set from a manifest as a paper does, and print the size of each dataset before and after.

  idsim   filter, balance datasets, two images per identity, 10,000 + 1,000 identities (ID-Sim, A.1)
  nearid  rigid and unique identities of two views or more, masks, 18,786/100/500 split (NearID, 3.3)
  visme   at most 7,500 identities of each dataset, four images of each (VisME, 4.1)
  ilgen   categories, instances and four images of each, by domain (ILGen, Table 1)
  ilgen-real  real images instead of generated ones: Real-S of one domain, or Real-ALL (ILGen, section 4.1, Table 4)

examples:
  idmetric data curate all.parquet --recipe idsim -o train.parquet
  idmetric data curate nearid.parquet --recipe nearid --keep-splits -o train.parquet
  idmetric data curate --recipe idsim --print-filters > mine.json
  idmetric data curate all.parquet --recipe idsim --filters mine.json -o train.parquet
"""

from __future__ import annotations

import argparse
from functools import partial
from inspect import signature
from pathlib import Path
from typing import TYPE_CHECKING

from idmetric.cli.command import say
from idmetric.cli.data.common import add_on_error, check_output, identities, leave_out, progress, refuse_leaks, save
from idmetric.cli.data.split import read_parts
from idmetric.cli.options import add_quiet, natural, positive
from idmetric.metric.files.tables import aligned

if TYPE_CHECKING:
    from idmetric.data.manifest.table import Manifest

MASKS = ("mask", "mask_bytes", "part_mask", "part_mask_bytes")
RECIPES = ("idsim", "nearid", "visme", "ilgen", "ilgen-real")
OPTIONS = {  # parameter of some of the recipes -> its option
    "count": "--count", "images": "--images", "variant": "--variant", "any_category": "--any-category",
    "parts": "--split", "existing": "--keep-splits or --overwrite-splits",
}  # fmt: skip


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of `idmetric data curate`."""
    parser.add_argument("manifest", type=Path, nargs="?", help="the manifest to read: .parquet, .csv or .jsonl")
    parser.add_argument("-o", "--out", type=Path, help="the manifest to write: .parquet, .csv or .jsonl")
    parser.add_argument("--recipe", choices=RECIPES, required=True)
    rules = parser.add_mutually_exclusive_group()
    rules.add_argument("--filters", type=Path, metavar="FILE", help="rules (.json) instead of the recipe's")
    rules.add_argument("--print-filters", action="store_true", help="print the recipe's rules as JSON and stop")
    text = "number of identities: in total (idsim: 11000, nearid: all, ilgen*: 20000); visme: of each dataset (7500)"
    parser.add_argument("--count", type=positive, metavar="N", help=text)
    parser.add_argument("--images", type=positive, metavar="N", help="visme, ilgen: images of an identity (default: 4)")
    text = "ilgen, ilgen-real: domains (default: all)"
    parser.add_argument("--variant", choices=("all", "generic", "art", "landmark", "product"), help=text)
    text = "ilgen: draw instances from all categories alike, as with template prompts (Table 7, S3)"
    parser.add_argument("--any-category", action="store_true", default=None, help=text)
    text = "nearid: identities of each split (default: train=rest,val=100,test=500)"
    parser.add_argument("--split", dest="parts", metavar="NAME=N,...", help=text)
    splits = parser.add_mutually_exclusive_group()
    text = "keep the splits (nearid), or take only images of split train and of no split (idsim)"
    splits.add_argument("--keep-splits", dest="existing", action="store_const", const="keep", help=text)
    text = "replace the splits; held-out images may become training data (idsim, nearid)"
    splits.add_argument("--overwrite-splits", dest="existing", action="store_const", const="overwrite", help=text)
    parser.add_argument("--seed", type=natural, default=0)
    parser.add_argument("--no-check", action="store_true", help="do not decode the chosen images")
    add_on_error(parser)
    add_quiet(parser)
    parser.set_defaults(wrong_usage=parser.error)


def run(args: argparse.Namespace) -> int:
    """Curate; returns the exit status."""
    from idmetric.data.curate import recipes
    from idmetric.data.curate.filters import read_rules, rules_json
    from idmetric.data.curate.masking import missing_masks
    from idmetric.data.manifest.check import faults, without
    from idmetric.data.manifest.table import read

    recipe = getattr(recipes, args.recipe.replace("-", "_"))
    known = signature(recipe).parameters
    given = {name: getattr(args, name) for name in OPTIONS if getattr(args, name) is not None}
    for name in given:
        if name not in known:
            args.wrong_usage(f"--recipe {args.recipe} has no {OPTIONS[name]}")
    rules = known["rules"].default
    if args.print_filters:
        print(rules_json(rules), end="")
        return 0
    if args.manifest is None or args.out is None:
        raise ValueError("give the manifest to read and, with -o, the one to write")
    check_output(args.out)
    rules = rules if args.filters is None else read_rules(args.filters)
    if args.parts is not None:
        given["parts"] = read_parts(args.parts.split(","), "--split")

    manifest = read(args.manifest)
    result = recipe(manifest, seed=args.seed, rules=rules, **given)
    kept = result.manifest
    if not len(kept):
        why = "".join(f"\n  {cause}" for cause in recipes.causes(result.applied, result.notes))
        raise ValueError(f"nothing is left of {len(manifest)} images: check the rules (--print-filters), the roles and "
                         f"the number of images per identity{why}")  # fmt: skip
    problems: dict[int, str] = {}
    if not args.no_check:
        looked = kept if args.recipe == "nearid" else kept.replace(**dict.fromkeys(MASKS))
        problems = {f.row: f.reason for f in faults(looked, progress=partial(progress, quiet=args.quiet))}
    if args.recipe == "nearid":
        problems |= dict.fromkeys(missing_masks(kept), "it has no mask: fill column 'mask'")
    if problems:
        names = kept.column("id")
        leave_out({names[row]: reason for row, reason in problems.items()}, args.on_error)
        kept = without(kept, problems)
    print(_table(manifest, kept))
    for number, applied in enumerate(result.applied, 1):
        why = f" ({applied.rule.why})" if applied.rule.why else ""
        print(f"rule {number} {applied.rule}{why}: -{applied.rows} images, -{applied.identities} identities")
    for note in result.notes:
        say(note)
    refuse_leaks(kept)
    save(kept, args.out)
    return 4 if problems else 0


def _table(before: Manifest, after: Manifest) -> str:
    """Identities and images of each dataset, before and after, and identities of each split."""
    splits = [s for s in dict.fromkeys(after.column("split")) if s is not None]
    rows = [["dataset", "identities", "images", "->", "identities", "images", *splits]]
    for name in [*sorted({d or "" for d in before.column("dataset")}), None]:
        first, last = (m if name is None else m.filter(dataset=name or None) for m in (before, after))
        parts = (last.filter(split=split) for split in splits)
        counts = [identities(first), len(first)], [identities(last), len(last), *map(identities, parts)]
        old, new = ([f"{n:,}" for n in part] for part in counts)
        rows.append(["all" if name is None else name or "(none)", *old, "->", *new])
    return "\n".join(aligned(rows, right=range(1, len(rows[0]))))
