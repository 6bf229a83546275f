"""The papers' curations, which filter, allocate and sample the rows of a manifest.

from idmetric.data.curate import recipes
train_and_val = recipes.idsim(manifest, seed=0).manifest
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Literal

import numpy as np

from idmetric.data.curate.balance import (
    balanced,
    choose,
    distinct,
    identities_by,
    keep_identities,
    keep_images,
    lowest,
    own_rows,
    shares,
    two_views,
    unique,
)
from idmetric.data.curate.filters import IDSIM_RULES, NEARID_RULES, Applied, Rule, apply_rules
from idmetric.data.curate.masking import inherit_masks
from idmetric.data.old_manifest.split import split
from idmetric.data.old_manifest.table import Manifest

Existing = Literal["refuse", "keep", "overwrite"]  # treatment of existing splits
_REAL = Rule(keep={"role": "real"}, why="real images alone")


@dataclass(frozen=True)
class Curated:
    """A recipe's result: the rows, the effect of each filter, and notes for the user."""

    manifest: Manifest
    applied: list[Applied]
    notes: list[str]


def causes(applied: Sequence[Applied], notes: Sequence[str]) -> list[str]:
    """Texts that explain missing identities: the effects of rules, and notes."""
    dropped = [f"rule {effect.rule} dropped {effect.identities} identities" for effect in applied if effect.identities]
    return [*dropped, *notes]


def idsim(
    manifest: Manifest,
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
    manifest, notes = trainable(manifest, existing)
    needed = (_REAL, Rule(min_images=2, why="an anchor and a positive"))
    filtered, applied = apply_rules(distinct(manifest), (*rules, *needed))
    sizes = {name: len(identities) for name, identities in identities_by(filtered, "dataset").items()}
    quotas = balanced(sizes, count)
    pairs = two_views(choose(filtered, quotas, seed), seed)
    notes += short_of(sum(quotas.values()), count)
    return Curated(_split_all(pairs, {"train": 10 / 11, "val": 1 / 11}, seed, applied, notes), applied, notes)


def nearid(
    manifest: Manifest,
    count: int | None = None,
    seed: int = 0,
    rules: Sequence[Rule] = NEARID_RULES,
    parts: Mapping[str, float] | None = None,
    existing: Existing = "refuse",
) -> Curated:
    """NearID's identities (section 3.3): rigid, unique, of two views or more, with their distractors and masks.

    Masks are inherited (`idmetric.data.curate.masking.inherit_masks`); `require_masks` reports missing ones.

    Args:
        count: largest number of identities; default: all.
        parts: the splits, by default the paper's: 100 identities for validation, 500 for test and all others (18,786)
            for training.
        existing: treatment of existing splits: "refuse" raises an error, "keep" keeps them (such as the published
            ones), "overwrite" replaces them.
    """
    if existing == "keep" and parts is not None:
        raise ValueError("parts and existing='keep' exclude each other: parts replace the manifest's splits")
    _refuse_splits(manifest, existing)
    filtered, applied = apply_rules(distinct(manifest), rules)
    curated = unique(filtered)
    repeated = len(own_rows(filtered)) - len(own_rows(curated))
    notes = [f"{repeated} identities repeat another's text or ObjaverseID and are left out"]
    curated, effects = apply_rules(curated, [Rule(min_images=2, why="two views or more")])
    applied += effects
    if count is not None:
        chosen = lowest(list(own_rows(curated)), count, (seed, "identity"))
        curated = keep_identities(curated, chosen)
        notes += short_of(len(chosen), count)
    if existing != "keep":
        curated = _split_all(curated, parts or {"train": -1, "val": 100, "test": 500}, seed, applied, notes)
    return Curated(inherit_masks(whole_groups(manifest, curated)), applied, notes)


def visme(manifest: Manifest, count: int = 7500, images: int = 4, seed: int = 0, rules: Sequence[Rule] = ()) -> Curated:
    """VisME's re-sampling (section 4.1): at most 7,500 identities of each dataset, and four images of each identity.

    Identities with one image are left out, because they have no positive. Splits stay as they are.
    """
    filtered, applied = apply_rules(distinct(manifest), (*rules, Rule(min_images=2, why="a query and a positive")))
    chosen = choose(filtered, dict.fromkeys(identities_by(filtered, "dataset"), count), seed)
    return Curated(whole_groups(manifest, keep_images(chosen, images, seed)), applied, [])


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
    full = {domain: counts.instances for domain, counts in ILGEN.items() if variant in ("all", domain)}
    if variant == "all":
        full["generic"] //= 2
    return dict(zip(full, shares(count or sum(full.values()), list(full.values())), strict=True))


def ilgen(
    manifest: Manifest,
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
    filtered, applied = apply_rules(distinct(manifest), (*rules, enough))
    domain_of = [(domain or "").casefold() for domain in filtered.column("domain")]
    chosen: list[str] = []
    notes = []
    for domain, quota in ilgen_quotas(variant, count).items():
        rows = [row for row, name in enumerate(domain_of) if name == domain]
        instances_of = identities_by(filtered.take(rows), "category")
        if any_category:
            instances = lowest(list(chain.from_iterable(instances_of.values())), quota, (seed, "identity"))
        else:
            categories = lowest(list(instances_of), ILGEN[domain].categories, (seed, "category", domain))
            most = ILGEN[domain].per_category
            quotas = balanced({name: min(len(instances_of[name]), most) for name in categories}, quota)
            instances = _drawn(instances_of, quotas, seed)
        chosen += instances
        notes += short_of(len(instances), quota, f" of domain {domain}")
    curated = keep_images(keep_identities(filtered, chosen), images, seed)
    return Curated(whole_groups(manifest, curated), applied, notes)


def _drawn(identities: Mapping[str, Sequence[str]], quotas: Mapping[str, int], seed: int) -> list[str]:
    """A random selection from each group of identities, by its quota."""
    drawn: list[str] = []
    for name, quota in quotas.items():
        drawn += lowest(identities[name], quota, (seed, "identity"))
    return drawn


# ILGen's sets of real images (section 4.1, "Training set variants"; Tables 4 and S4), in the splits of UnED
REAL_S = {"art": "MET", "landmark": "GLDv2", "product": "SOP"}  # variant -> dataset
WHOLE = ("SOP", "InShop", "RP2k")  # of Real-ALL: every class of four images
SHARED = ("GLDv2", "MET")  # of Real-ALL: they complement the others equally
REAL_ALL = 20_000  # instances


def ilgen_real(
    manifest: Manifest, variant: str = "all", count: int | None = None, seed: int = 0, rules: Sequence[Rule] = ()
) -> Curated:
    """Real-S of a domain, or Real-ALL: instances of four images each, from the training split.

    * Real-S: 3,000 instances of MET ("art"), 4,000 of GLDv2 ("landmark") or 3,000 of SOP ("product"), "the same number
      of instances as the corresponding domain-specific parts of our dataset, ... and 4 images per instance".
    * Real-ALL ("all"): "all classes with at least 4 images" of SOP, InShop and RP2k, complemented "with enough classes
      equally from the other two datasets to reach 20K instances. We sample 4 images per class."

    Instances are drawn at random from the classes with four images or more; the paper does not say how. A dataset with
    fewer classes than its share gives all, and in Real-ALL the other one then gives more.

    Args:
        manifest: with the dataset's name in column dataset. Rows of other splits than train are not used.
        count: number of instances in total.
    """
    if variant != "all" and variant not in REAL_S:
        raise ValueError(f"unknown variant {variant!r}: all, {', '.join(REAL_S)}")
    datasets = (*WHOLE, *SHARED) if variant == "all" else (REAL_S[variant],)
    train, notes = trainable(manifest, "keep")
    enough = Rule(min_images=ILGEN_IMAGES, why=f"{ILGEN_IMAGES} images of each instance")
    filtered, applied = apply_rules(distinct(train), (*rules, _REAL, enough))

    classes_of = identities_by(filtered, "dataset")
    missing = [name for name in datasets if not classes_of.get(name)]
    if missing:
        listed = ", ".join(sorted(set(filter(None, train.column("dataset"))))) or "no name"
        raise ValueError(
            f"no class of {ILGEN_IMAGES} training images is of dataset {', '.join(missing)}; column dataset has "
            f"{listed}: idmetric data import uned makes it"
        )
    sizes = {name: len(classes_of[name]) for name in datasets}
    if variant == "all":
        wanted = count or REAL_ALL
        quotas = _real_all_quotas(sizes, wanted)
    else:
        wanted = count or ILGEN[variant].instances
        quotas = {name: min(size, wanted) for name, size in sizes.items()}
    chosen = _drawn(classes_of, quotas, seed)
    notes += short_of(len(chosen), wanted)
    curated = keep_images(keep_identities(filtered, chosen), ILGEN_IMAGES, seed)
    return Curated(whole_groups(manifest, curated), applied, notes)


def _real_all_quotas(sizes: Mapping[str, int], wanted: int) -> dict[str, int]:
    """Dataset -> number of its classes in Real-ALL."""
    whole = {name: sizes[name] for name in WHOLE}
    remaining = wanted - sum(whole.values())
    if remaining < 0:
        listed = " + ".join(f"{name} {size}" for name, size in whole.items())
        raise ValueError(
            f"the whole sets have {sum(whole.values())} classes ({listed}), more than {wanted}: raise --count"
        )
    return whole | balanced({name: sizes[name] for name in SHARED}, remaining)


def _refuse_splits(manifest: Manifest, existing: Existing) -> None:
    if existing == "refuse" and set(manifest.column("split")) - {None}:
        raise ValueError(
            f"the manifest has splits already ({splits_of(manifest)}): existing='keep' (--keep-splits) keeps them, "
            "'overwrite' (--overwrite-splits) replaces them"
        )


def splits_of(manifest: Manifest) -> str:
    """A text with the splits of a manifest and their sizes."""
    counts = Counter(manifest.column("split"))
    return ", ".join(f"{name or 'none'}: {counts[name]} images" for name in sorted(counts, key=lambda n: n or ""))


def trainable(manifest: Manifest, existing: Existing) -> tuple[Manifest, list[str]]:
    """The images that may be used for training, and notes about the rest."""
    _refuse_splits(manifest, existing)
    is_train = np.isin([name or "train" for name in manifest.column("split")], "train")
    if existing != "keep" or is_train.all():
        return manifest, []
    if not is_train.any():
        raise ValueError(f"no images are of split train ({splits_of(manifest)})")
    note = f"{int((~is_train).sum())} images of splits other than train are not used ({splits_of(manifest)})"
    return manifest.take(is_train), [note]


def _split_all(
    manifest: Manifest, parts: Mapping[str, float], seed: int, applied: Sequence[Applied], notes: Sequence[str]
) -> Manifest:
    """`split` over all datasets together; errors explain missing identities."""
    try:
        return split(manifest, parts, seed, by_dataset=False)
    except ValueError as error:
        raise ValueError("; ".join([f"{error}", *causes(applied, notes), "other splits: --split"])) from error


def whole_groups(before: Manifest, after: Manifest) -> Manifest:
    """`after` without groups that lost a row; their other rows stay as single images."""
    size_before = Counter(before.column("group"))
    size_after = Counter(after.column("group"))
    groups: list[str | None] = []
    slots: list[str | None] = []
    for group, slot in zip(after.column("group"), after.column("slot"), strict=True):
        is_whole = size_after[group] == size_before[group]
        groups.append(group if is_whole else None)
        slots.append(slot if is_whole else None)
    return after.replace(group=groups, slot=slots)


def short_of(found: int, wanted: int, of: str = "") -> list[str]:
    """A note if fewer identities were found than wanted."""
    return [f"only {found} of {wanted} identities{of} are available"] if found < wanted else []
