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

from argparse import ArgumentParser, Namespace
from functools import partial
from inspect import signature
from pathlib import Path
from typing import TYPE_CHECKING

from idmetric.cli.command import say, status_of
from idmetric.cli.data.common import (
    add_on_error,
    check_output,
    leave_out_rows,
    progress,
    refuse_leaks,
    save,
)
from idmetric.cli.data.split import read_parts
from idmetric.cli.options import add_shared, natural, positive

if TYPE_CHECKING:
    import pandas as pd

RECIPES = ("idsim", "nearid", "visme", "ilgen", "ilgen-real")
OPTIONS = {  # parameter of some of the recipes -> its option
    "count": "--count",
    "images": "--images",
    "variant": "--variant",
    "any_category": "--any-category",
    "parts": "--split",
    "existing": "--keep-splits or --overwrite-splits",
}


def add_arguments(parser: ArgumentParser) -> None:
    """Add the options of `idmetric data curate`."""
    add = parser.add_argument
    add("manifest", type=Path, nargs="?", help="the manifest to read: .parquet, .csv or .jsonl")
    add("-o", "--out", type=Path, help="the manifest to write: .parquet, .csv or .jsonl")
    add("--recipe", choices=RECIPES, required=True)
    rules = parser.add_mutually_exclusive_group()
    rules.add_argument("--filters", type=Path, metavar="FILE", help="rules (.json) instead of the recipe's")
    rules.add_argument("--print-filters", action="store_true", help="print the recipe's rules as JSON and stop")
    add(
        "--count",
        type=positive,
        metavar="N",
        help="number of identities: in total (idsim: 11000, nearid: all, ilgen*: 20000); visme: of each dataset (7500)",
    )
    add("--images", type=positive, metavar="N", help="visme, ilgen: images of an identity (default: 4)")
    add(
        "--variant",
        choices=("all", "generic", "art", "landmark", "product"),
        help="ilgen, ilgen-real: domains (default: all)",
    )
    add(
        "--any-category",
        action="store_true",
        default=None,
        help="ilgen: draw instances from all categories alike, as with template prompts (Table 7, S3)",
    )
    add(
        "--split",
        dest="parts",
        metavar="NAME=N,...",
        help="nearid: identities of each split (default: train=rest,val=100,test=500)",
    )
    splits = parser.add_mutually_exclusive_group()
    splits.add_argument(
        "--keep-splits",
        dest="existing",
        action="store_const",
        const="keep",
        help="keep the splits (nearid), or take only images of split train and of no split (idsim)",
    )
    splits.add_argument(
        "--overwrite-splits",
        dest="existing",
        action="store_const",
        const="overwrite",
        help="replace the splits; held-out images may become training data (idsim, nearid)",
    )
    add("--seed", type=natural, default=0)
    add("--no-check", action="store_true", help="do not decode the chosen images")
    add_on_error(parser)
    add_shared(parser, "--quiet")
    parser.set_defaults(wrong_usage=parser.error)


def run(args: Namespace) -> int:
    """Curate; returns the exit status."""
    from idmetric.data.check import without
    from idmetric.data.curate import recipes
    from idmetric.data.curate.filters import read_rules, rules_json
    from idmetric.data.manifest import read

    # the recipe and its options
    recipe = getattr(recipes, args.recipe.replace("-", "_"))
    parameters = signature(recipe).parameters
    options = {name: getattr(args, name) for name in OPTIONS if getattr(args, name) is not None}
    for name in options:
        if name not in parameters:
            args.wrong_usage(f"--recipe {args.recipe} has no {OPTIONS[name]}")
    rules = parameters["rules"].default
    if args.print_filters:
        print(rules_json(rules), end="")
        return 0
    if args.manifest is None or args.out is None:
        raise ValueError("give the manifest to read and, with -o, the one to write")
    check_output(args.out)
    if args.filters is not None:
        rules = read_rules(args.filters)
    if args.parts is not None:
        options["parts"] = read_parts(args.parts.split(","), "--split")

    # the images that it chooses, without those that cannot be used
    table = read(args.manifest)
    chosen, notes = recipe(table, seed=args.seed, rules=rules, **options)
    for note in notes:
        say(note)
    if not len(chosen):
        raise ValueError(
            f"nothing is left of {len(table)} images: check the rules (--print-filters), the roles and the number of "
            "images per identity"
        )
    problems = _problems(args, chosen)
    if problems:
        leave_out_rows(chosen, problems, args.on_error)
        chosen = without(chosen, problems)
    refuse_leaks(chosen)
    print(_sizes(table, chosen))
    save(chosen, args.out)
    return status_of(problems)


def _problems(args: Namespace, chosen: pd.DataFrame) -> dict[int, str]:
    """Row -> why its image or mask cannot be used; only NearID trains with masks."""
    from idmetric.data.check import faults

    problems: dict[int, str] = {}
    has_masks = args.recipe == "nearid"
    if not args.no_check:
        checked = chosen if has_masks else chosen.assign(mask=None, part_mask=None)
        for fault in faults(checked, progress=partial(progress, quiet=args.quiet)):
            problems[fault.row] = fault.reason
    if has_masks:
        problems |= dict.fromkeys(chosen.index[chosen["mask"].isna()], "it has no mask: fill column 'mask'")
    return problems


def _sizes(before: pd.DataFrame, after: pd.DataFrame) -> str:
    """Identities and images of each dataset, before and after, and identities of each split, as text."""
    import pandas as pd

    columns = {}
    for when, table in (("before", before), ("after", after)):
        named = table.assign(dataset=table["dataset"].fillna("(none)"))
        named = pd.concat([named, named.assign(dataset="all")])
        identities = named.groupby("dataset")["identity"]
        columns[when] = identities.agg(identities="nunique", images="size")
    by_split = named.groupby(["dataset", "split"])["identity"]
    columns["split"] = by_split.nunique().unstack()

    sizes = pd.concat(columns, axis=1).fillna(0).astype(int)
    order = [*sizes.index.drop("all").sort_values(), "all"]
    return str(sizes.loc[order].to_string(index_names=False))
