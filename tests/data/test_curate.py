from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from idmetric.data.curate import recipes
from idmetric.data.curate.balance import balanced, choose, distinct, two_views
from idmetric.data.curate.filters import IDSIM_RULES, Rule, apply_rules, read_rules, rules_json
from idmetric.data.curate.masking import draw_masking, inherit_masks, missing_masks, require_masks
from idmetric.data.old_manifest.lineage import followers, lineages
from idmetric.data.old_manifest.split import leaks, split
from idmetric.data.old_manifest.table import Manifest, ManifestError, Row

# ID-Sim, supplement, Table 1 (MVImgNet2: "20,000+") and Table 2
TABLE_1 = {"MET": 734, "ILIAS": 900, "FORB": 4050, "GLDv2": 4503, "WildlifeReID10k": 9756, "SOP": 11318,
           "MVImgNet2": 20000, "DeepFashion": 30018}  # fmt: skip
BALANCED = {"MET": 663, "ILIAS": 804, "FORB": 1428, "GLDv2": 1419, "WildlifeReID10k": 1418, "SOP": 1435,
            "MVImgNet2": 1411, "DeepFashion": 1422}  # fmt: skip

sizes_of_datasets = st.dictionaries(st.text(max_size=3), st.integers(0, 60), max_size=8)


def deviation(drawn: int, size: int, everything: int) -> float:
    """Standard deviation of how many of a dataset's `size` are among `drawn` of `everything` (hypergeometric)."""
    share = size / everything
    return math.sqrt(drawn * share * (1 - share) * (everything - drawn) / (everything - 1))


def photos(sizes: dict[str, int], images: int = 2, **columns: object) -> Manifest:
    return Manifest.from_rows(
        Row(f"{name}/{i}", f"{name}/{i}/{k}.jpg", dataset=name, **columns)  # type: ignore[arg-type]
        for name, size in sizes.items()
        for i in range(size)
        for k in range(images)
    )


def by_the_paper(sizes: dict[str, int], total: int) -> dict[str, float]:
    """The procedure of A.1 word for word, in fractions: equal shares, small datasets give all and leave, again."""
    quota: dict[str, float] = {}
    open_ = set(sizes)
    left = float(min(total, sum(sizes.values())))
    while open_:
        share = left / len(open_)
        small = {name for name in open_ if sizes[name] < share}
        if not small:
            return quota | dict.fromkeys(open_, share)
        for name in small:
            quota[name] = sizes[name]
            left -= sizes[name]
        open_ -= small
    return quota


# Allocation


def test_the_balanced_column_of_the_paper_follows_from_its_dataset_sizes() -> None:
    quotas = balanced(TABLE_1, 11_000)
    assert sum(quotas.values()) == 11_000
    assert quotas["MET"] == 734  # small datasets give all
    assert quotas["ILIAS"] == 900
    assert {q for name, q in quotas.items() if name not in ("MET", "ILIAS")} == {1561}
    assert sum(BALANCED.values()) == 10_000
    # 10,000 of the 11,000 are drawn to train: the paper's counts scatter about 10/11 of the quotas by 7.5 to 10.5
    for name, quota in quotas.items():
        assert abs(BALANCED[name] - quota * 10 / 11) <= 2 * deviation(10_000, quota, 11_000), name


@given(sizes_of_datasets, st.integers(0, 300))
def test_balanced_quotas_are_those_of_the_papers_procedure(sizes: dict[str, int], total: int) -> None:
    quotas, exact = balanced(sizes, total), by_the_paper(sizes, total)
    assert list(quotas) == list(sizes)
    assert sum(quotas.values()) == min(total, sum(sizes.values()))
    assert all(0 <= quotas[n] <= sizes[n] for n in sizes)
    assert all(abs(quotas[n] - exact[n]) < 1 + 1e-9 for n in sizes)
    rest = [quotas[n] for n in sizes if quotas[n] < sizes[n]]
    assert not rest or max(rest) - min(rest) <= 1
    assert not rest or max(quotas.values()) <= max(rest) + 1  # nobody has more than one that could give more


# Taking rows


def test_two_images_are_drawn_uniformly_from_all_of_an_instance() -> None:
    pairs = two_views(photos({"a": 3000}, images=4))
    slots = [(slot, name[-5]) for slot, name in zip(pairs.column("slot"), pairs.column("path"), strict=True)]
    for slot in ("anchor", "positive"):
        counts = [slots.count((slot, str(k))) for k in range(4)]
        assert sum(counts) == 3000
        assert max(abs(c - 750) for c in counts) < 4 * math.sqrt(3000 * 0.25 * 0.75)
    groups = Counter(pairs.column("group"))
    assert set(groups.values()) == {2}
    assert pairs.column("group") == pairs.column("identity")
    assert len(two_views(photos({"a": 3}, images=1))) == 0


def test_choices_do_not_depend_on_order_and_survive_the_loss_of_other_images() -> None:
    manifest = photos({"a": 40, "b": 40}, images=5)
    shuffled = manifest.take(np.random.default_rng(0).permutation(len(manifest)))
    first = two_views(choose(manifest, {"a": 10, "b": 7}, 1), 1)
    again = two_views(choose(shuffled, {"b": 7, "a": 10}, 1), 1)
    as_set = {(r.id, r.slot) for r in first}
    assert as_set == {(r.id, r.slot) for r in again}
    assert as_set != {(r.id, r.slot) for r in two_views(choose(manifest, {"a": 10, "b": 7}, 2), 2)}
    lost = first[0].id
    smaller = two_views(choose(manifest.filter(lambda r: r.id != lost), {"a": 10, "b": 7}, 1), 1)
    changed = as_set ^ {(r.id, r.slot) for r in smaller}
    assert {name.rsplit("/", 1)[0] for name, _ in changed} == {lost.rsplit("/", 1)[0]}


def test_repeated_images_count_once() -> None:
    rows = [Row("x", "1.jpg"), Row("x", "1.jpg", id="again"), Row("x", image_bytes=b"p"),
            Row("x", image_bytes=b"p", id="copy"), Row("y", "1.jpg", id="other name"),
            Row("z", "2.jpg", parent="again", role="identity-edit")]  # fmt: skip
    out = distinct(Manifest.from_rows(rows))
    assert [r.path for r in out] == ["1.jpg", None, "1.jpg", "2.jpg"]
    assert out.column("parent")[-1] == "1.jpg"  # the row that stayed
    assert lineages(out)[-1] == lineages(out)[0]


# Who follows whom


def edits() -> Manifest:
    """x: two photos and a context-edit; y made from x's first photo, z from y; w: a photo of its own."""
    return Manifest.from_rows([
        Row("x", "x0.jpg"), Row("x", "x1.jpg"), Row("x", "xc.jpg", role="context-edit", parent="x0.jpg"),
        Row("y", "y.jpg", role="identity-edit", parent="x0.jpg"),
        Row("z", "z.jpg", role="distractor", parent="y.jpg"), Row("w", "w.jpg"), Row("w", "w1.jpg"),
    ])  # fmt: skip


def test_what_was_made_from_an_image_goes_with_it() -> None:
    manifest = edits()
    assert followers(manifest).tolist() == [False, False, False, True, True, False, False]
    assert lineages(manifest).tolist() == [0, 0, 0, 0, 0, 1, 1]
    assert set(choose(manifest, {"": 2}).column("identity")) == {"x", "y", "z", "w"}
    kept, done = apply_rules(manifest, [Rule(drop={"path": "x0.jpg"})])
    assert kept.column("path") == ["x1.jpg", "xc.jpg", "w.jpg", "w1.jpg"]
    assert (done[0].rows, done[0].identities) == (3, 2)
    # followers show an identity once, and are not judged by it
    kept, _ = apply_rules(manifest, [Rule(min_images=3)])
    assert kept.column("path") == ["x0.jpg", "x1.jpg", "xc.jpg", "y.jpg", "z.jpg"]
    kept, _ = apply_rules(manifest, [Rule(keep={"role": "real"})])
    assert kept.column("path") == ["x0.jpg", "x1.jpg", "w.jpg", "w1.jpg"]


# Filters


def test_the_papers_three_filter_rules() -> None:
    rows = [("FORB", "Logo", None), ("FORB", "book_cover", None), ("GLDv2", "tower", None), ("GLDv2", "mountain", None),
            ("SOP", "chair", None), ("WildlifeReID10k", None, "DogFaceNet"), ("WildlifeReID10k", None, "BelugaID"),
            ("WildlifeReID10k", None, "CatIndividualImages"), ("MVImgNet2", "cup", None), ("MET", None, None),
            ("DeepFashion2", "skirt", None)]  # fmt: skip
    manifest = Manifest.from_rows(
        Row(f"{k}", f"{k}.jpg", dataset=d, category=c) for k, (d, c, _) in enumerate(rows)
    ).replace(x_subset=[s for *_, s in rows])
    kept, done = apply_rules(manifest, IDSIM_RULES)
    assert kept.column("path") == [f"{k}.jpg" for k in (1, 2, 5, 7, 9, 10)]
    assert [d.rows for d in done] == [1, 1, 1, 1, 1]


def test_a_rule_without_its_column_is_an_error_where_it_matters_and_only_there() -> None:
    with pytest.raises(ValueError, match="x_subset"):
        apply_rules(photos({"WildlifeReID10k": 2}), IDSIM_RULES)
    kept, _ = apply_rules(photos({"MET": 2}), IDSIM_RULES)
    assert len(kept) == 4


def test_values_match_by_case_number_and_emptiness_but_not_by_leading_zeros() -> None:
    rows = [Row("001", "1.jpg", category=" Dog "), Row("1", "2.jpg", label=1.0), Row("a", "3.jpg", category="cat")]
    manifest = Manifest.from_rows(rows)

    def left(**keep: object) -> list[str]:
        return apply_rules(manifest, [Rule(keep=keep)])[0].column("path")

    assert left(category="dog") == ["1.jpg"]
    assert left(category=None) == ["2.jpg"]
    assert left(category=["DOG", None]) == ["1.jpg", "2.jpg"]
    assert left(label=1) == ["2.jpg"]
    assert left(label="1") == ["2.jpg"]
    assert left(identity="1") == ["2.jpg"]


def test_filter_files_read_back_and_name_what_is_wrong(tmp_path: Path) -> None:
    file = tmp_path / "rules.json"
    file.write_text(rules_json(IDSIM_RULES), encoding="utf-8")
    assert rules_json(read_rules(file)) == rules_json(IDSIM_RULES)
    manifest = photos({"FORB": 1, "MET": 1}, category="logo")
    assert len(apply_rules(manifest, read_rules(file))[0]) == 2
    wrong = {
        '[{"drop": {"datset": "a"}}]': r"rule 1: unknown column 'datset'",
        '[{"drop": {"dataset": "a"}}, {"dorp": {}}]': r"rule 2: .*'dorp'",
        '[{"of": {"dataset": "a"}}]': r"rule 1: a rule has one of",
        '[{"min_images": "2"}]': r"'2' is not a number of images",
        '{"drop": {}}': r"list of rules",
        "[": r"not readable as JSON",
    }
    for text, message in wrong.items():
        file.write_text(text, encoding="utf-8")
        with pytest.raises(ValueError, match=message) as error:
            read_rules(file)
        assert "rules.json" in str(error.value)


# Recipes


@pytest.mark.filterwarnings("ignore:split val is empty")
def test_idsim_takes_real_images_of_instances_with_two() -> None:
    one = Manifest.from_rows([*edits(), Row("v", "v.jpg"), Row(None, "background.jpg")])
    out = recipes.idsim(one, 10).manifest
    assert Counter(out.column("identity")) == {"x": 2, "w": 2}
    assert set(out.column("role")) == {"real"}


def nearid_source() -> Manifest:
    rows = []
    for k in range(12):
        for view in range(2 + k % 2):
            name = f"o{k}/{view}"
            rows.append(Row(f"o{k}", f"{name}.png", id=name, mask=f"{name}m.png", text=f"thing {k} view {view}"))
            rows.append(Row(f"o{k}-d{view}", f"{name}d.png", role="distractor", parent=name, engine="Flux"))
    rows.append(Row("alone", "alone.png", mask="m.png"))
    source = Manifest.from_rows(rows)
    partition = ["deformable" if (i or "").startswith("o11") else "rigid" for i in source.column("identity")]
    objaverse = [f"obj-{i.split('-')[0]}" for i in source.column("identity")]
    return source.replace(
        x_partition=partition,
        # o1 repeats the object of o0; o3 repeats the texts of o2 and one more
        x_objaverse_id=["obj-o0" if o == "obj-o1" else o for o in objaverse],
        text=["Thing 4  VIEW 0" if t == "thing 6 view 0" else "thing 4 view 1" if t == "thing 6 view 1" else t
              for t in source.column("text")],
    )  # fmt: skip


def test_nearid_keeps_rigid_unique_identities_of_two_views_with_their_distractors() -> None:
    result = recipes.nearid(nearid_source(), parts={"train": -1, "val": 2, "test": 3})
    out = result.manifest
    positives = out.filter(role="real")
    assert set(positives.column("identity")) == {f"o{k}" for k in (0, 2, 3, 4, 5, 7, 8, 9, 10)}
    assert result.notes == ["2 identities repeat another's text or ObjaverseID and are left out"]
    assert {r.identity for r in out.filter(role="distractor")} == {f"{r.identity}-d{r.id[-1]}" for r in positives}
    parts = Counter(s for s, _ in set(zip(positives.column("split"), positives.column("identity"), strict=True)))
    assert parts == {"train": 4, "val": 2, "test": 3}
    assert not leaks(out)
    require_masks(out)  # distractors have their parent's
    assert all(r.mask == f"{r.parent}m.png" for r in out.filter(role="distractor"))
    with pytest.raises(ValueError, match="splits ask for 600 identities; there are 9"):
        recipes.nearid(nearid_source())


def published(counts: dict[str | None, int]) -> Manifest:
    """So many identities of two images in each split."""
    splits = [s for s, count in counts.items() for _ in range(2 * count)]
    return photos({"a": len(splits) // 2}).replace(split=splits)


def test_idsim_can_leave_held_out_images_alone() -> None:
    manifest = published({"Train": 22, "val": 5, "test": 9, None: 11})
    both = Manifest.from_rows([*manifest, Row("a/0", "a/0/held out.jpg", dataset="a", split="test")])
    result = recipes.idsim(both, 33, existing="keep")
    assert {r.id for r in result.manifest} == {r.id for r in manifest if r.split in ("train", None)}
    assert Counter(result.manifest.column("split")) == {"train": 60, "val": 6}
    assert result.notes[0].startswith("29 images of splits other than train are not used")
    with pytest.raises(ValueError, match="no images are of split train"):
        recipes.idsim(published({"test": 3}), 2, existing="keep")


def test_identities_are_unique_by_parameters_and_filtered_by_them() -> None:
    rows = [Row(f"o{k}", f"{k}.png", parameters={"objaverse_id": f"m{k % 3}", "partition": "rigid"}) for k in range(5)]
    rows.append(Row("soft", "s.png", parameters={"objaverse_id": "m9", "partition": "deformable"}))
    result = recipes.nearid(Manifest.from_rows([*rows, *(Row(r.identity, f"2-{r.path}") for r in rows)]),
                            parts={"train": 1.0})  # fmt: skip
    assert set(result.manifest.column("identity")) == {"o0", "o1", "o2"}


def test_visme_caps_identities_and_images_and_leaves_singles_out() -> None:
    rows = [Row(f"g{i}", f"{i}-{k}.jpg", dataset="GLDv2") for i in range(20) for k in range(1 + i % 7)]
    out = recipes.visme(Manifest.from_rows(rows), count=9).manifest
    counts = Counter(out.column("identity"))
    assert len(counts) == 9
    assert all(2 <= c <= 4 for c in counts.values())
    assert all(c == min(4, 1 + int(i[1:]) % 7) for i, c in counts.items())


def test_ilgens_table_sums_to_twenty_thousand_instances() -> None:
    for counts in recipes.ILGEN.values():
        assert counts.categories * counts.per_category == counts.instances
    assert recipes.ilgen_quotas() == {"generic": 10_000, "art": 3_000, "landmark": 4_000, "product": 3_000}
    assert recipes.ilgen_quotas("generic", 5_000) == {"generic": 5_000}
    assert sum(recipes.ilgen_quotas("all", 777).values()) == 777


def test_ilgen_shares_instances_out_over_categories_with_four_images_each() -> None:
    rows = [Row(f"{d}/{c}/{i}", f"{d}/{c}/{i}/{k}.jpg", domain=d, category=f"c{c}")
            for d in ("generic", "art", "landmark", "Product") for c in range(4) for i in range(12)
            for k in range(5 if i else 3)]  # fmt: skip
    result = recipes.ilgen(Manifest.from_rows(rows), count=40)
    out = result.manifest
    assert set(Counter(out.column("identity")).values()) == {4}
    instances = {(r.domain, r.category, r.identity) for r in out}
    assert Counter(d for d, _, _ in instances) == {"generic": 20, "art": 6, "landmark": 8, "Product": 6}
    assert Counter(c for d, c, _ in instances if d == "generic") == {"c0": 5, "c1": 5, "c2": 5, "c3": 5}
    short = recipes.ilgen(Manifest.from_rows(rows), "generic")
    assert len({r.identity for r in short.manifest}) == 40  # ten of each category at most
    assert short.notes == ["only 40 of 20000 identities of domain generic are available"]


def test_ilgen_without_backgrounds_has_one_image_of_each_instance() -> None:
    """Table 3, ID6: the recipe then repeats the image, with other augmentation."""
    from idmetric.train.ilgen.data import classes_of

    rows = [Row(f"art/{c}/{i}", f"{c}/{i}.jpg", domain="art", category=f"c{c}") for c in range(4) for i in range(5)]
    done = recipes.ilgen(Manifest.from_rows(rows), "art", 8, images=1)
    assert Counter(row.category for row in done.manifest) == {"c0": 2, "c1": 2, "c2": 2, "c3": 2}
    classes = classes_of(done.manifest, 4, "repeat")
    assert len(classes) == 8
    assert (classes.rows == classes.rows[:, :1]).all()


def test_with_any_category_ilgen_draws_instances_alike() -> None:
    """Table 7, S3: a large category gives more instances than a small one, in proportion."""
    sizes = {"large": 600, "small": 200}
    rows = [Row(f"art/{c}/{i}", f"{c}/{i}/{k}.jpg", domain="art", category=c)
            for c, size in sizes.items() for i in range(size) for k in range(4)]  # fmt: skip
    manifest = Manifest.from_rows(rows)
    drawn = recipes.ilgen(manifest, "art", 400, any_category=True)
    found = Counter(category for _, category in {(r.identity, r.category) for r in drawn.manifest})
    assert found.total() == 400
    assert 270 < found["large"] < 330  # hypergeometric, standard deviation 6.1
    assert recipes.ilgen(manifest, "art", 400, seed=1, any_category=True).manifest.column(
        "id"
    ) != drawn.manifest.column("id")
    fixed = recipes.ilgen(manifest, "art", 400)  # at most 15 of each category
    assert fixed.notes == ["only 30 of 400 identities of domain art are available"]
    more = recipes.ilgen(manifest, "art", any_category=True)
    assert more.notes == ["only 800 of 3000 identities of domain art are available"]


# Masks


def test_masking_is_drawn_with_the_papers_probabilities_for_each_role() -> None:
    slots = ["anchor", "positive", "positive", "negative", "negative", "negative"]
    draws = np.array([draw_masking(slots, (7, sample)) for sample in range(4000)])
    expected = [0.5, 0.2, 0.2, 0.6, 0.6, 0.6]
    for column, p in zip(draws.T, expected, strict=True):
        assert abs(column.mean() - p) < 4 * math.sqrt(p * (1 - p) / 4000)
    assert abs(np.corrcoef(draws.T)[0, 3]) < 0.07  # slots are drawn on their own
    assert draw_masking(slots, (7, 3)) == draw_masking(slots, (7, 3))


def test_missing_masks_are_named_by_row() -> None:
    manifest = edits().replace(mask=["m.png", None, None, None, None, None, None])
    assert missing_masks(manifest) == [1, 2, 3, 4, 5, 6]
    inherited = inherit_masks(manifest)
    # z through y through x's first photo; a context-edit may have moved the object
    assert inherited.column("mask") == ["m.png", None, None, "m.png", "m.png", None, None]
    with pytest.raises(ManifestError, match=r"4 of 7 rows lack a mask: row 2 \(x1.jpg\), row 3 \(xc.jpg\)"):
        require_masks(inherited)


@pytest.mark.filterwarnings("ignore:split val is empty")
@settings(max_examples=40, deadline=None)
@given(st.lists(st.tuples(st.sampled_from("ab"), st.integers(0, 9), st.integers(1, 4)), max_size=12),
       st.integers(1, 12), st.integers(0, 3))  # fmt: skip
def test_no_identity_crosses_the_split_and_none_comes_twice(
    pools: Sequence[tuple[str, int, int]], count: int, seed: int
) -> None:
    rows = {f"{d}{i}": (d, n) for d, i, n in pools}
    manifest = Manifest.from_rows(
        Row(name, f"{name}-{k}.jpg", dataset=d) for name, (d, n) in rows.items() for k in range(n)
    )
    out = recipes.idsim(manifest, count, seed).manifest
    assert not leaks(out)
    eligible = Counter(d for d, n in rows.values() if n >= 2)
    assert set(Counter(out.column("identity")).values()) <= {2}
    assert len(out) == 2 * min(count, eligible.total())
    assert Counter(out.filter(slot="anchor").column("dataset")) == Counter(balanced(eligible, count))
    assert split(out, {"all": 1.0}).column("split") == ["all"] * len(out)
