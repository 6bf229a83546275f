"""The papers' curations, each a chain of filters, allocation and sampling: manifest in, manifest out.

from idmetric.data import recipes
train_and_val = recipes.idsim(manifest, seed=0).manifest
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from idmetric.data.curate import (
    Strategy,
    balanced,
    cap,
    choose,
    datasets_of,
    distinct,
    keep_identities,
    keep_images,
    lowest,
    proportional,
    two_views,
    unique,
)
from idmetric.data.filters import IDSIM_RULES, NEARID_RULES, Applied, Rule, apply_rules
from idmetric.data.kin import followers
from idmetric.data.manifest import Manifest
from idmetric.data.masking import inherit_masks
from idmetric.data.split import split


@dataclass(frozen=True)
class Curated:
    """A recipe's result: the rows, what each filter did, and what the user should know."""

    manifest: Manifest
    applied: list[Applied]
    notes: list[str]


def idsim(
    manifest: Manifest,
    count: int = 11_000,
    seed: int = 0,
    rules: Sequence[Rule] = IDSIM_RULES,
    strategy: Strategy = "balanced",
) -> Curated:
    """ID-Sim's subset of real images (A.1): filtered, balanced, two images per identity, split 10:1 at random.

    Args:
        count: identities; of 11,000, 10,000 train and 1,000 validate.
        strategy: "balanced", or "proportional" as in Table 2's unbalanced column.
    """
    needed = (Rule(keep={"role": "real"}, why="real images alone"), Rule(min_images=2, why="an anchor and a positive"))
    kept, applied = apply_rules(distinct(manifest), (*rules, *needed))
    sizes = dict(Counter(datasets_of(kept).values()))
    quotas = balanced(sizes, count) if strategy == "balanced" else proportional(sizes, count, seed)
    pairs = two_views(choose(kept, quotas, seed), seed)
    out = split(pairs, {"train": 10 / 11, "val": 1 / 11}, seed, by_dataset=False)
    return Curated(out, applied, _short(sum(quotas.values()), count))


def nearid(
    manifest: Manifest,
    count: int | None = None,
    seed: int = 0,
    rules: Sequence[Rule] = NEARID_RULES,
    parts: Mapping[str, float] | None = None,
) -> Curated:
    """NearID's identities (section 3.3): rigid, unique, of two views or more; their distractors follow, with masks.

    Masks are inherited (`idmetric.data.masking.inherit_masks`); `require_masks` says which are missing.

    Args:
        count: at most so many identities; default all.
        parts: the splits, by default the paper's: 100 identities validate, 500 test, all others (18,786) train.
    """
    kept, applied = apply_rules(distinct(manifest), rules)
    several = len(datasets_of(kept))
    kept = unique(kept)
    notes = [f"{several - len(datasets_of(kept))} identities repeat another's text or ObjaverseID, and are left out"]
    kept, last = apply_rules(kept, [Rule(min_images=2, why="two views or more")])
    if count is not None:
        chosen = lowest(list(datasets_of(kept)), count, (seed, "identity"))
        kept = keep_identities(kept, chosen)
        notes += _short(len(chosen), count)
    out = split(kept, parts or {"train": -1, "val": 100, "test": 500}, seed, by_dataset=False)
    return Curated(inherit_masks(_whole_groups(manifest, out)), applied + last, notes)


def visme(
    manifest: Manifest, identities: int = 7500, images: int = 4, seed: int = 0, rules: Sequence[Rule] = ()
) -> Curated:
    """VisME's re-sampling (section 4.1): at most 7,500 identities of each dataset, at most four images of each.

    Identities with one image, which have no positive, are left out. Splits stay as they are.
    """
    kept, applied = apply_rules(distinct(manifest), (*rules, Rule(min_images=2, why="a query and a positive")))
    return Curated(_whole_groups(manifest, cap(kept, identities, images, seed)), applied, [])


@dataclass(frozen=True)
class Counts:
    """A domain of ILGen: object categories, instances of each, and instances in all."""

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
    """domain -> instances. "all": half the generic ones and all specific ones, 10K + 10K (Table 1); or one domain.

    Args:
        count: instances in all, shared out in the same proportions (Table 3 trains on 5K, 10K and 20K generic ones).
    """
    if variant != "all" and variant not in ILGEN:
        raise ValueError(f"unknown variant {variant!r}: all, {', '.join(ILGEN)}")
    full = {d: c.instances // 2 if (variant, d) == ("all", "generic") else c.instances for d, c in ILGEN.items()}
    full = full if variant == "all" else {variant: full[variant]}
    count = sum(full.values()) if count is None else count
    ends = np.floor(np.cumsum(list(full.values())) * count / sum(full.values()) + 0.5).astype(int)
    return dict(zip(full, map(int, np.diff(np.r_[0, ends])), strict=True))


def ilgen(
    manifest: Manifest, variant: str = "all", count: int | None = None, seed: int = 0, rules: Sequence[Rule] = ()
) -> Curated:
    """ILGen's counts (Table 1): categories, instances per category and four images of each, by column domain.

    Instances are shared out equally over a domain's categories. Of the generic domain the paper takes "50% of objects",
    without saying which: here that is half of each category. Splits stay as they are.
    """
    enough = Rule(min_images=ILGEN_IMAGES, why=f"{ILGEN_IMAGES} images of each instance")
    kept, applied = apply_rules(distinct(manifest), (*rules, enough))
    chosen: list[str] = []
    notes = []
    for domain, quota in ilgen_quotas(variant, count).items():
        groups = _categories(kept, domain)
        used = lowest(list(groups), ILGEN[domain].categories, (seed, "category", domain))
        most = ILGEN[domain].per_category
        shares = balanced({c: min(len(groups[c]), most) for c in used}, quota)
        for category, share in shares.items():
            chosen += lowest(groups[category], share, (seed, "identity"))
        notes += _short(sum(shares.values()), quota, f" of domain {domain}")
    out = keep_images(keep_identities(kept, chosen), ILGEN_IMAGES, seed)
    return Curated(_whole_groups(manifest, out), applied, notes)


def _categories(manifest: Manifest, domain: str) -> dict[str, list[str]]:
    """category -> identities, of a domain; where an identity's rows differ, its first counts."""
    groups: dict[str, list[str]] = defaultdict(list)
    seen = set()
    columns = *map(manifest.column, ("identity", "domain", "category")), followers(manifest)
    for identity, place, category, follows in zip(*columns, strict=True):
        if identity is not None and not follows and identity not in seen:
            seen.add(identity)
            if (place or "").casefold() == domain:
                groups[category or ""].append(identity)
    return groups


def _whole_groups(before: Manifest, after: Manifest) -> Manifest:
    """Groups that lost a row are undone: their rows stay, as images on their own."""
    whole, left = Counter(before.column("group")), Counter(after.column("group"))
    rows = list(zip(after.column("group"), after.column("slot"), strict=True))
    group = [g if left[g] == whole[g] else None for g, _ in rows]
    slot = [s if left[g] == whole[g] else None for g, s in rows]
    return after.replace(group=group, slot=slot)


def _short(found: int, wanted: int, of: str = "") -> list[str]:
    return [f"{found} identities{of} where {wanted} are wanted: there are no more"] if found < wanted else []
