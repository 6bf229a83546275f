"""The papers' curations, which filter, allocate and sample the rows of a manifest.

from idmetric.data.curate import recipes
train_and_val, notes = recipes.idsim(table, seed=0)
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import pandas as pd

from idmetric.data.curate.balance import (
    balanced,
    choose,
    distinct,
    drawn,
    identities,
    keep_identities,
    keep_images,
    lowest,
    shares,
    two_views,
    unique,
)
from idmetric.data.curate.filters import IDSIM_RULES, NEARID_RULES, Rule, apply_rules
from idmetric.data.curate.masking import inherit_masks
from idmetric.data.manifest import take
from idmetric.data.split import split

PARTS = {"train": -1, "val": 100, "test": 500}  # identities of NearID's splits (section 3.3)
Existing = Literal["refuse", "keep", "overwrite"]  # treatment of existing splits
_REAL = Rule(keep="role == 'real'", why="real images alone")


Curated = tuple[pd.DataFrame, list[str]]  # the chosen rows, and notes for the user


def idsim(
    table: pd.DataFrame,
    count: int = 11_000,
    seed: int = 0,
    rules: Sequence[Rule] = IDSIM_RULES,
    existing: Existing = "refuse",
) -> Curated:
    """ID-Sim's subset of real images (A.1): filtered, balanced, two images per identity, split 10:1 at random.

    Args:
        count: number of identities; of 11,000, 10,000 are for training and 1,000 for validation.
        existing: treatment of existing splits: "refuse" raises an error, "keep" uses only images of split train and
            images without a split, "overwrite" uses all images.
    """
    table, notes = _trainable(table, existing)
    needed = (_REAL, Rule(min_images=2, why="an anchor and a positive"))
    images = distinct(table)
    filtered, dropped = apply_rules(images, (*rules, *needed))
    quotas = balanced(_sizes(filtered), count)
    chosen = choose(filtered, quotas, seed)
    pairs = two_views(chosen, seed)
    curated = split(pairs, {"train": 10 / 11, "val": 1 / 11}, seed, by_dataset=False)
    missing = _short_of(sum(quotas.values()), count)
    return curated, [*notes, *dropped, *missing]


def nearid(
    table: pd.DataFrame,
    count: int | None = None,
    seed: int = 0,
    rules: Sequence[Rule] = NEARID_RULES,
    parts: Mapping[str, float] | None = None,
    existing: Existing = "refuse",
) -> Curated:
    """NearID's identities (section 3.3): rigid, unique, of two views or more, with their distractors and masks.

    Masks are inherited (`idmetric.data.curate.masking.inherit_masks`); `require_masks` reports missing ones. Column
    x_partition is SynCD's; images without it count as rigid.

    Args:
        count: largest number of identities; default: all.
        parts: the splits, by default the paper's: 100 identities for validation, 500 for test and all others (18,786)
            for training.
        existing: treatment of existing splits: "refuse" raises an error, "keep" keeps them (such as the published
            ones), "overwrite" replaces them.
    """
    if existing == "keep" and parts is not None:
        raise ValueError("parts and existing='keep' exclude each other: parts replace the manifest's splits")
    _refuse_splits(table, existing)
    if "x_partition" not in table:
        table = table.assign(x_partition=None)
    different = distinct(table)
    filtered, notes = apply_rules(different, rules)
    curated = unique(filtered)
    count_before = len(identities(filtered))
    repeated = count_before - len(identities(curated))
    enough = Rule(min_images=2, why="two views or more")
    curated, dropped = apply_rules(curated, [enough])
    notes.append(f"{repeated} identities repeat another's text or ObjaverseID and are left out")
    notes += dropped
    if count is not None:
        names = identities(curated)["identity"]
        chosen = lowest(names, count, (seed, "identity"))
        curated = keep_identities(curated, chosen)
        notes += _short_of(len(chosen), count)
    if existing != "keep":
        curated = split(curated, parts or PARTS, seed, by_dataset=False)
    curated = _whole_groups(table, curated)
    return inherit_masks(curated), notes


def visme(
    table: pd.DataFrame, count: int = 7500, images: int = 4, seed: int = 0, rules: Sequence[Rule] = ()
) -> Curated:
    """VisME's re-sampling (section 4.1): at most 7,500 identities of each dataset, and four images of each identity.

    Identities with one image are left out, because they have no positive. Splits stay as they are.
    """
    enough = Rule(min_images=2, why="a query and a positive")
    different = distinct(table)
    filtered, notes = apply_rules(different, (*rules, enough))
    quotas = dict.fromkeys(_sizes(filtered), count)
    chosen = choose(filtered, quotas, seed)
    curated = keep_images(chosen, images, seed)
    return _whole_groups(table, curated), notes


@dataclass(frozen=True)
class Counts:
    """Numbers of a domain of ILGen: object categories, instances per category, and instances in total."""

    categories: int
    per_category: int
    instances: int


# ILGen, Table 1; each instance has N = 4 images (section 4.1)
ILGEN = {
    "generic": Counts(2000, 10, 20_000),
    "art": Counts(200, 15, 3_000),
    "landmark": Counts(50, 80, 4_000),
    "product": Counts(200, 15, 3_000),
}
ILGEN_IMAGES = 4


def ilgen_quotas(variant: str = "all", count: int | None = None) -> dict[str, int]:
    """domain -> number of instances, for one domain or for "all": half of the generic and all specific ones (Table 1).

    Args:
        count: total number of instances, in the same proportions (Table 3 trains on 5K, 10K and 20K generic ones).
    """
    full = {}
    for domain, counts in ILGEN.items():
        if variant in ("all", domain):
            full[domain] = counts.instances
    if variant == "all":
        full["generic"] //= 2
    sizes = list(full.values())
    quotas = shares(count or sum(sizes), sizes)
    return dict(zip(full, quotas, strict=True))


def ilgen(
    table: pd.DataFrame,
    variant: str = "all",
    count: int | None = None,
    seed: int = 0,
    rules: Sequence[Rule] = (),
    any_category: bool = False,
    images: int = ILGEN_IMAGES,
) -> Curated:
    """ILGen's numbers (Table 1) of categories, instances per category and four images of each, by column domain.

    All categories of a domain give the same number of instances. Of the generic domain the paper takes "50% of objects"
    without further detail; here that is half of each category. Splits stay as they are.

    Args:
        any_category: draw the instances of a domain at random from all its categories, as the paper does where a
            template asked for 2,000 categories in every domain (Table 7, S3; appendix A: "We randomly sample images to
            match the number of instances per domain in Table 1").
        images: N, of each instance; 1 for objects without background generation (Table 3, ID6).
    """
    enough = Rule(min_images=images, why=f"{images} images of each instance")
    different = distinct(table)
    filtered, notes = apply_rules(different, (*rules, enough))
    firsts = identities(filtered)
    domain_of = firsts["domain"].str.casefold()
    chosen: list[str] = []
    for domain, quota in ilgen_quotas(variant, count).items():
        instances = firsts[domain_of == domain]
        if any_category:
            names = lowest(instances["identity"], quota, (seed, "identity"))
        else:
            counts = ILGEN[domain]
            sizes = instances["category"].value_counts()
            sizes = sizes.clip(upper=counts.per_category)
            categories = lowest(sizes.index, counts.categories, (seed, "category", domain))
            chosen_sizes = sizes[categories].to_dict()
            quotas = balanced(chosen_sizes, quota)
            names = drawn(instances, "category", quotas, seed)
        chosen += names
        notes += _short_of(len(names), quota, f" of domain {domain}")
    rows = keep_identities(filtered, chosen)
    curated = keep_images(rows, images, seed)
    return _whole_groups(table, curated), notes


# ILGen's sets of real images (section 4.1, "Training set variants"; Tables 4 and S4), in the splits of UnED
REAL_S = {"art": "MET", "landmark": "GLDv2", "product": "SOP"}  # variant -> dataset
WHOLE = ("SOP", "InShop", "RP2k")  # of Real-ALL: every class of four images
SHARED = ("GLDv2", "MET")  # of Real-ALL: they complement the others equally
REAL_ALL = 20_000  # instances


def ilgen_real(
    table: pd.DataFrame, variant: str = "all", count: int | None = None, seed: int = 0, rules: Sequence[Rule] = ()
) -> Curated:
    """Real-S of a domain, or Real-ALL: instances of four images each, from the training split.

    * Real-S: 3,000 instances of MET ("art"), 4,000 of GLDv2 ("landmark") or 3,000 of SOP ("product"), "the same number
      of instances as the corresponding domain-specific parts of our dataset, ... and 4 images per instance".
    * Real-ALL ("all"): "all classes with at least 4 images" of SOP, InShop and RP2k, complemented "with enough classes
      equally from the other two datasets to reach 20K instances. We sample 4 images per class."

    Instances are drawn at random from the classes with four images or more; the paper does not say how. A dataset with
    fewer classes than its share gives all, and in Real-ALL the other one then gives more.

    Args:
        table: with the dataset's name in column dataset. Rows of other splits than train are not used.
        count: number of instances in total.
    """
    if variant != "all" and variant not in REAL_S:
        raise ValueError(f"unknown variant {variant!r}: all, {', '.join(REAL_S)}")
    datasets = [*WHOLE, *SHARED]
    if variant != "all":
        datasets = [REAL_S[variant]]
    train, notes = _trainable(table, "keep")
    enough = Rule(min_images=ILGEN_IMAGES, why=f"{ILGEN_IMAGES} images of each instance")
    different = distinct(train)
    filtered, dropped = apply_rules(different, (*rules, _REAL, enough))

    classes = _sizes(filtered)
    absent = [name for name in datasets if name not in classes]
    if absent:
        names = sorted(train["dataset"].dropna().unique())
        listed = ", ".join(names) or "no name"
        raise ValueError(
            f"no class of {ILGEN_IMAGES} training images is of dataset {', '.join(absent)}; column dataset has "
            f"{listed}: idmetric data import uned makes it"
        )
    if variant == "all":
        wanted = count or REAL_ALL
        quotas = _real_all_quotas(classes, wanted)
    else:
        wanted = count or ILGEN[variant].instances
        quotas = {REAL_S[variant]: wanted}
    firsts = identities(filtered)
    chosen = drawn(firsts, "dataset", quotas, seed)
    rows = keep_identities(filtered, chosen)
    curated = keep_images(rows, ILGEN_IMAGES, seed)
    missing = _short_of(len(chosen), wanted)
    return _whole_groups(table, curated), [*notes, *dropped, *missing]


def _real_all_quotas(sizes: Mapping[str, int], wanted: int) -> dict[str, int]:
    """Dataset -> number of its classes in Real-ALL."""
    whole = {name: sizes[name] for name in WHOLE}
    shared = {name: sizes[name] for name in SHARED}
    count = sum(whole.values())
    remaining = wanted - count
    if remaining < 0:
        listed = " + ".join(f"{name} {size}" for name, size in whole.items())
        raise ValueError(f"the whole sets have {count} classes ({listed}), more than {wanted}: raise --count")
    return whole | balanced(shared, remaining)


def _sizes(table: pd.DataFrame) -> dict[str, int]:
    """Dataset -> number of its identities."""
    datasets = identities(table)["dataset"]
    sizes: dict[str, int] = datasets.value_counts().to_dict()
    return sizes


def _refuse_splits(table: pd.DataFrame, existing: Existing) -> None:
    if existing == "refuse" and table["split"].notna().any():
        raise ValueError(
            f"the manifest has splits already ({splits_of(table)}): existing='keep' (--keep-splits) keeps them, "
            "'overwrite' (--overwrite-splits) replaces them"
        )


def splits_of(table: pd.DataFrame) -> str:
    """A text with the splits of a manifest and their sizes."""
    splits = table["split"].fillna("none")
    counts = splits.value_counts().sort_index()
    return ", ".join(f"{name}: {count} images" for name, count in counts.items())


def _trainable(table: pd.DataFrame, existing: Existing) -> Curated:
    """The images that may be used for training, and notes about the rest."""
    _refuse_splits(table, existing)
    is_train = table["split"].fillna("train") == "train"
    if existing != "keep" or is_train.all():
        return table, []
    if not is_train.any():
        raise ValueError(f"no images are of split train ({splits_of(table)})")
    count = len(table) - is_train.sum()
    note = f"{count} images of splits other than train are not used ({splits_of(table)})"
    return take(table, is_train), [note]


def _whole_groups(before: pd.DataFrame, after: pd.DataFrame) -> pd.DataFrame:
    """`after` without groups that lost a row; their other rows stay as single images."""
    group = after["group"]
    sizes_before = before["group"].value_counts()
    size_before = group.map(sizes_before)
    size_after = group.map(group.value_counts())
    is_whole = size_before == size_after
    groups = group.where(is_whole, None)
    slots = after["slot"].where(is_whole, None)
    return after.assign(group=groups, slot=slots)


def _short_of(count: int, wanted: int, kind: str = "") -> list[str]:
    """A note if there are fewer identities than wanted."""
    if count >= wanted:
        return []
    return [f"only {count} of {wanted} identities{kind} are available"]
