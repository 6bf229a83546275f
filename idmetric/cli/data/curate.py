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
  idmetric data curate all.parquet --recipe idsim --filters mine.json -o train.parquet --dry-run
"""

from __future__ import annotations

import argparse
from collections import Counter
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from idmetric.cli.command import say
from idmetric.cli.data.common import add_dry_run, add_on_error, check_output, progress, refuse_leaks, save, take_out
from idmetric.cli.options import natural, positive
from idmetric.io.tables import aligned

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

    from idmetric.data.curate.balance import Strategy
    from idmetric.data.curate.filters import Rule
    from idmetric.data.curate.recipes import Curated, Existing
    from idmetric.data.manifest.table import Manifest

RECIPES = ("idsim", "nearid", "visme", "ilgen", "ilgen-real")
# option -> the recipes that have it
ONLY = {"images": ("visme", "ilgen"), "strategy": ("idsim",), "variant": ("ilgen", "ilgen-real"),
        "any_category": ("ilgen",), "split": ("nearid",), "no_masks": ("nearid",),
        "keep_splits": ("idsim", "nearid"), "overwrite_splits": ("idsim", "nearid")}  # fmt: skip


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of `idmetric data curate`."""
    parser.add_argument("manifest", type=Path, nargs="?", help="the manifest to read: .parquet, .csv or .jsonl")
    parser.add_argument("-o", "--out", type=Path, help="the manifest to write: .parquet, .csv or .jsonl")
    parser.add_argument("--recipe", choices=RECIPES, required=True)
    rules = parser.add_mutually_exclusive_group()
    rules.add_argument("--filters", type=Path, metavar="FILE", help="rules (.json, .toml) instead of the recipe's")
    rules.add_argument("--no-filters", action="store_true", help="apply no rules")
    rules.add_argument("--print-filters", action="store_true", help="print the recipe's rules as JSON and stop")
    text = "number of identities: in total (idsim: 11000, nearid: all, ilgen*: 20000); visme: of each dataset (7500)"
    parser.add_argument("--count", type=positive, metavar="N", help=text)
    parser.add_argument("--images", type=positive, metavar="N", help="visme, ilgen: images of an identity (default: 4)")
    parser.add_argument("--strategy", choices=("balanced", "proportional"), help="idsim (default: balanced)")
    parser.add_argument("--variant", choices=("all", "generic", "art", "landmark", "product"),
                        help="ilgen, ilgen-real: domains (default: all)")  # fmt: skip
    text = "ilgen: draw instances from all categories alike, as with template prompts (Table 7, S3)"
    parser.add_argument("--any-category", action="store_true", help=text)
    text = "nearid: identities of each split, -1 = all others (default: train=-1,val=100,test=500)"
    parser.add_argument("--split", type=_parts, metavar="NAME=N,...", help=text)
    splits = parser.add_mutually_exclusive_group()
    text = "keep the splits (nearid), or take only images of split train and of no split (idsim)"
    splits.add_argument("--keep-splits", action="store_true", help=text)
    text = "replace the splits; held-out images may become training data (idsim, nearid)"
    splits.add_argument("--overwrite-splits", action="store_true", help=text)
    parser.add_argument("--seed", type=natural, default=0)
    parser.add_argument("--no-masks", action="store_true", help="nearid: rows may lack masks")
    parser.add_argument("--no-check", action="store_true", help="do not decode the chosen images")
    add_on_error(parser)
    add_dry_run(parser)
    parser.set_defaults(wrong_usage=parser.error)


def run(args: argparse.Namespace) -> int:
    """Curate; returns the exit status."""
    from idmetric.data.curate.filters import IDSIM_RULES, NEARID_RULES, read_rules, rules_json

    for option, recipes in ONLY.items():
        if getattr(args, option) not in (None, False) and args.recipe not in recipes:
            args.wrong_usage(f"--{option.replace('_', '-')} is of --recipe {' or '.join(recipes)}, not {args.recipe}")
    if (args.recipe, args.variant) == ("ilgen-real", "generic"):
        args.wrong_usage("--variant generic: real images of everyday objects are in none of the paper's sets")
    if args.keep_splits and args.split:
        args.wrong_usage("--split makes new splits, --keep-splits keeps those there are: choose one")
    rules: Sequence[Rule] = {"idsim": IDSIM_RULES, "nearid": NEARID_RULES}.get(args.recipe, ())
    if args.print_filters:
        print(rules_json(rules), end="")
        return 0
    if args.manifest is None or args.out is None:
        raise ValueError("give the manifest to read and, with -o, the one to write")
    check_output(args.out, args.dry_run)
    if args.no_filters:
        rules = ()
    elif args.filters is not None:
        rules = read_rules(args.filters)
    from idmetric.data.manifest.table import read

    manifest = read(args.manifest)
    _refuse_splits(manifest, args)
    result, skipped = _curate(manifest, rules, args)
    print(_table(manifest, result.manifest))
    for number, applied in enumerate(result.applied, 1):
        why = f" ({applied.rule.why})" if applied.rule.why else ""
        print(f"rule {number} {applied.rule}{why}: -{applied.rows} images, -{applied.identities} identities")
        if applied.warning:
            say(f"rule {number}: {applied.warning}")
    for note in result.notes:
        say(f"{note}")
    refuse_leaks(result.manifest)
    save(result.manifest, args)
    return 4 if skipped else 0


def _curate(manifest: Manifest, rules: Sequence[Rule], args: argparse.Namespace) -> tuple[Curated, bool]:
    """Apply the recipe; unreadable images are removed, and others take their place.

    Choices depend on names, so removing an image changes only the images of its identity.

    Returns:
        The recipe's result, and whether images were skipped.
    """
    from idmetric.data.curate.recipes import causes

    checked: set[str] = set()
    skipped = False
    while True:
        result = _recipe(manifest, rules, args)
        if not len(result.manifest):
            had = len(manifest)
            why = "".join(f"\n  {cause}" for cause in causes(result.applied, result.notes))
            raise ValueError(f"nothing is left of {had} images: check the rules (--print-filters), the roles and the "
                             f"number of images per identity{why}")  # fmt: skip
        problems = _problems(result.manifest, checked, args)
        if not problems:
            return result, skipped
        take_out(problems, args.on_error)
        skipped = True
        manifest = _without(manifest, problems)


def _recipe(manifest: Manifest, rules: Sequence[Rule], args: argparse.Namespace) -> Curated:
    from idmetric.data.curate import recipes

    existing: Existing = "keep" if args.keep_splits else "overwrite" if args.overwrite_splits else "refuse"
    if args.recipe == "idsim":
        strategy: Strategy = args.strategy or "balanced"
        return recipes.idsim(manifest, args.count or 11_000, args.seed, rules, strategy, existing)
    if args.recipe == "nearid":
        return recipes.nearid(manifest, args.count, args.seed, rules, args.split, existing)
    if args.recipe == "visme":
        return recipes.visme(manifest, args.count or 7500, args.images or 4, args.seed, rules)
    if args.recipe == "ilgen-real":
        from idmetric.data.curate.recipes import ilgen_real

        return ilgen_real(manifest, args.variant or "all", args.count, args.seed, rules)
    variant, images = args.variant or "all", args.images or recipes.ILGEN_IMAGES
    return recipes.ilgen(manifest, variant, args.count, args.seed, rules, args.any_category, images)


def _problems(manifest: Manifest, checked: set[str], args: argparse.Namespace) -> dict[str, str]:
    """Check rows that were not checked before; returns id -> why a row cannot be used."""
    from idmetric.data.curate.masking import missing_masks
    from idmetric.data.manifest.check import faults

    names = manifest.column("id")
    problems: dict[str, str] = {}
    needs_masks = args.recipe == "nearid" and not args.no_masks
    if not args.no_check and not args.dry_run:
        new = _without(manifest, checked)
        ids = new.column("id")
        if not needs_masks:
            new = new.replace(mask=None, mask_bytes=None, part_mask=None, part_mask_bytes=None)
        shown = faults(new, progress=partial(progress, quiet=args.quiet))
        problems = {ids[f.row]: f.reason for f in shown}
    if needs_masks:
        problems |= {names[k]: "it has no mask (--no-masks does without)" for k in missing_masks(manifest)}
    checked.update(names)
    return problems


def _without(manifest: Manifest, ids: Collection[str]) -> Manifest:
    import numpy as np

    return manifest.take(np.array([name not in ids for name in manifest.column("id")], dtype=bool))


def _refuse_splits(manifest: Manifest, args: argparse.Namespace) -> None:
    from idmetric.data.curate.recipes import splits_of

    chosen = args.keep_splits or args.overwrite_splits or args.recipe not in ONLY["keep_splits"]
    if not chosen and set(manifest.column("split")) - {None}:
        raise ValueError(
            f"{args.manifest}: has splits already ({splits_of(manifest)}). --keep-splits keeps them (idsim then takes "
            "images of split train alone); --overwrite-splits makes new ones"
        )


def _table(before: Manifest, after: Manifest) -> str:
    """Identities and images of each dataset, before and after, and identities of each split."""
    splits = [s for s in dict.fromkeys(after.column("split")) if s is not None]
    rows = [["dataset", "identities", "images", "->", "identities", "images", *splits]]
    old, new = _counts(before), _counts(after)
    for name in [*sorted(k for k in old if k is not None), None]:
        first, last = old[name], new.get(name, {})
        cells = [first["identities"], first["images"], "->", last.get("identities", 0), last.get("images", 0)]
        label = "all" if name is None else name or "(none)"
        rows.append([label, *(c if c == "->" else f"{c:,}" for c in cells),
                     *(f"{last.get(f'split {s}', 0):,}" for s in splits)])  # fmt: skip
    return "\n".join(aligned(rows, right=range(1, len(rows[0]))))


def _counts(manifest: Manifest) -> dict[str | None, Mapping[str, int]]:
    """dataset (None: all) -> numbers of identities, images, and identities in each split."""
    images: Counter[str | None] = Counter()
    identities: dict[str | None, dict[str, set[str]]] = {None: {"identities": set()}}
    for dataset, identity, part in zip(*map(manifest.column, ("dataset", "identity", "split")), strict=True):
        for name in (dataset or "", None):
            images[name] += 1
            sets = identities.setdefault(name, {"identities": set()})
            if identity is not None:
                sets["identities"].add(identity)
                if part is not None:
                    sets.setdefault(f"split {part}", set()).add(identity)
    return {n: {"images": images[n], **{k: len(v) for k, v in sets.items()}} for n, sets in identities.items()}


def _parts(text: str) -> dict[str, float]:
    parts: dict[str, float] = {}
    for item in text.split(","):
        name, _, number = item.partition("=")
        try:
            parts[name.strip()] = int(number) if "." not in number else float(number)
        except ValueError as error:
            raise argparse.ArgumentTypeError(f"{item!r} is not NAME=NUMBER, such as val=100 or val=0.1") from error
    return parts
