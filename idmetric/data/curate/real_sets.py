"""ILGen's training sets of real images, Real-S and Real-ALL (section 4.1, "Training set variants"; Tables 4 and S4).

The paper follows the splits of UnED (Ypsilantis et al., ICCV 2023), which the importer `uned` reads.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence

from idmetric.data.curate.balance import balanced, datasets_of, distinct, keep_identities, keep_images, lowest
from idmetric.data.curate.filters import Rule, apply_rules
from idmetric.data.curate.recipes import ILGEN, ILGEN_IMAGES, Curated, short_of, trainable, whole_groups
from idmetric.data.manifest.table import Manifest

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
        manifest: with the dataset's name in column dataset, whatever its case and hyphens. Rows of other splits than
            train are not used; rows without a split are.
        count: number of instances in total.

    Raises:
        ValueError: for an unknown variant, if a dataset is missing, or if the three whole sets exceed `count`.
    """
    if variant != "all" and variant not in REAL_S:
        raise ValueError(f"unknown variant {variant!r}: all, {', '.join(REAL_S)}")
    needed = (*WHOLE, *SHARED) if variant == "all" else (REAL_S[variant],)
    train, notes = trainable(manifest, "keep")
    enough = Rule(min_images=ILGEN_IMAGES, why=f"{ILGEN_IMAGES} images of each instance")
    kept, applied = apply_rules(distinct(train), (*rules, Rule(keep={"role": "real"}, why="real images alone"), enough))

    groups: dict[str, list[str]] = defaultdict(list)
    for identity, dataset in datasets_of(kept).items():
        groups[_plain(dataset)].append(identity)
    pools = {name: groups[_plain(name)] for name in needed}
    if missing := [name for name, pool in pools.items() if not pool]:
        there = ", ".join(sorted(set(filter(None, train.column("dataset"))))) or "no name"
        raise ValueError(
            f"no class of {ILGEN_IMAGES} training images is of dataset {', '.join(missing)}; column dataset has "
            f"{there}: idmetric data import uned makes it"
        )

    quotas, wanted = _quotas({name: len(pool) for name, pool in pools.items()}, variant, count)
    chosen = [identity for name, pool in pools.items() for identity in lowest(pool, quotas[name], (seed, "identity"))]
    notes += short_of(len(chosen), wanted)
    out = keep_images(keep_identities(kept, chosen), ILGEN_IMAGES, seed)
    return Curated(whole_groups(manifest, out), applied, notes)


def _quotas(sizes: Mapping[str, int], variant: str, count: int | None) -> tuple[dict[str, int], int]:
    """Number of instances of each dataset, and the total that is wanted."""
    if variant != "all":
        wanted = ILGEN[variant].instances if count is None else count
        return {name: min(size, wanted) for name, size in sizes.items()}, wanted
    wanted = REAL_ALL if count is None else count
    whole = {name: sizes[name] for name in WHOLE}
    rest = wanted - sum(whole.values())
    if rest < 0:
        listed = " + ".join(f"{name} {size}" for name, size in whole.items())
        raise ValueError(f"the whole sets have {wanted - rest} classes ({listed}), more than {wanted}: raise --count")
    return {**whole, **balanced({name: sizes[name] for name in SHARED}, rest)}, wanted


def _plain(name: str) -> str:
    return "".join(letter for letter in name.casefold() if letter.isalnum())
