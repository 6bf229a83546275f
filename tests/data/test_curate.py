from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from idmetric.data.curate import recipes
from idmetric.data.curate.balance import balanced, choose, distinct, keep_images, two_views, unique
from idmetric.data.curate.filters import IDSIM_RULES, Rule, apply_rules, read_rules, rules_json
from idmetric.data.curate.masking import draw_masking, inherit_masks, require_masks
from idmetric.data.manifest import ManifestError, checked, take
from idmetric.data.split import blocks, leaks

# ID-Sim, supplement, Table 1 (MVImgNet2: "20,000+") and Table 2
TABLE_1 = {"MET": 734, "ILIAS": 900, "FORB": 4050, "GLDv2": 4503, "WildlifeReID10k": 9756, "SOP": 11318,
           "MVImgNet2": 20000, "DeepFashion": 30018}  # fmt: skip
BALANCED = {"MET": 663, "ILIAS": 804, "FORB": 1428, "GLDv2": 1419, "WildlifeReID10k": 1418, "SOP": 1435,
            "MVImgNet2": 1411, "DeepFashion": 1422}  # fmt: skip


def made(rows: Sequence[dict[str, Any]]) -> pd.DataFrame:
    """A manifest; paths are relative to /."""
    return checked(pd.DataFrame(rows, columns=None if rows else ["path"], dtype=object), "/")


def photos(sizes: dict[str, int | list[int]], images: int = 2, **columns: object) -> pd.DataFrame:
    """Dataset -> number of its identities of so many images, or the numbers of images of each."""
    rows = []
    for name, size in sizes.items():
        for i, count in enumerate([images] * size if isinstance(size, int) else size):
            for k in range(count):
                row = {"identity": f"{name}/{i}", "path": f"{name}/{i}/{k}.jpg", "dataset": name}
                rows.append(row | columns | {"path": f"{columns.get('split', '')}/{name}/{i}/{k}.jpg"})
    return made(rows)


def ids(table: pd.DataFrame) -> list[str]:
    return table["id"].tolist()


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
    assert (quotas["MET"], quotas["ILIAS"]) == (734, 900)  # small datasets give all
    assert {quota for name, quota in quotas.items() if name not in ("MET", "ILIAS")} == {1561}
    # 10,000 of the 11,000 are drawn to train: the paper's counts scatter about 10/11 of the quotas by 7.5 to 10.5
    for name, quota in quotas.items():
        share = quota / 11_000
        deviation = math.sqrt(10_000 * share * (1 - share) * 1000 / 10_999)  # hypergeometric
        assert abs(BALANCED[name] - quota * 10 / 11) <= 2 * deviation, name


@given(st.dictionaries(st.text(max_size=3), st.integers(0, 60), max_size=8), st.integers(0, 300))
def test_balanced_quotas_are_those_of_the_papers_procedure(sizes: dict[str, int], total: int) -> None:
    quotas, exact = balanced(sizes, total), by_the_paper(sizes, total)
    assert list(quotas) == list(sizes)
    assert sum(quotas.values()) == min(total, sum(sizes.values()))
    assert all(0 <= quotas[name] <= sizes[name] for name in sizes)
    assert all(abs(quotas[name] - exact[name]) < 1 + 1e-9 for name in sizes)
    rest = [quotas[name] for name in sizes if quotas[name] < sizes[name]]
    assert not rest or max(quotas.values()) <= min(rest) + 1  # nobody has more than one that could give more


# Taking rows


def test_two_images_are_drawn_uniformly_from_all_of_an_instance() -> None:
    pairs = two_views(photos({"a": 3000}, images=4))
    counts = pd.crosstab(pairs["slot"], pairs["path"].str[-5])
    assert counts.shape == (2, 4)
    assert (counts.sum(axis=1) == 3000).all()
    assert (counts - 750).abs().to_numpy().max() < 4 * math.sqrt(3000 * 0.25 * 0.75)
    assert (pairs.groupby("group")["slot"].nunique() == 2).all()
    assert pairs["group"].tolist() == pairs["identity"].tolist()
    assert len(two_views(photos({"a": 3}, images=1))) == 0


@pytest.mark.parametrize(
    "choose_rows",
    [
        two_views,
        unique,
        lambda table: keep_images(table, 2),
        lambda table: apply_rules(table, [Rule(drop="text == 'red'")])[0],
    ],
)
def test_tables_that_pandas_sorted_or_joined_are_curated_as_if_numbered(choose_rows: Any) -> None:
    table = photos({"a": [2, 3, 4], "b": [1, 5]}).assign(text="red")
    others = photos({"c": [3, 2]}, text="blue")
    for odd in (table[::-1], table[table["dataset"] == "b"], pd.concat([table, others])):
        pd.testing.assert_frame_equal(choose_rows(odd), choose_rows(odd.reset_index(drop=True)))


def test_choices_do_not_depend_on_order_and_survive_the_loss_of_other_images() -> None:
    def drawn(table: pd.DataFrame, seed: int = 1) -> set[tuple[str, str]]:
        pairs = two_views(choose(table, {"a": 10, "b": 7}, seed), seed)
        return set(zip(pairs["id"], pairs["slot"], strict=True))

    table = photos({"a": 40, "b": 40}, images=5)
    first = drawn(table)
    assert len(first) == 34
    assert first == drawn(take(table, np.random.default_rng(0).permutation(len(table))))
    assert first != drawn(table, 2)
    lost = min(first)[0]
    changed = first ^ drawn(take(table, table["id"] != lost))
    assert {name.rsplit("/", 1)[0] for name, _ in changed} == {lost.rsplit("/", 1)[0]}


def test_repeated_images_count_once() -> None:
    out = distinct(made([
        {"identity": "x", "path": "1.jpg"}, {"identity": "x", "path": "./1.jpg", "id": "again"},
        {"identity": "y", "path": "1.jpg", "id": "other name"}, {"identity": None, "path": "1.jpg", "id": "unknown"},
        {"identity": "z", "path": "2.jpg", "parent": "again", "role": "identity-edit"},
    ]))  # fmt: skip
    assert ids(out) == ["1.jpg", "other name", "unknown", "2.jpg"]
    assert out["parent"].tolist() == [None, None, None, "1.jpg"]  # the row that stayed
    assert len(set(blocks(out, groups=False))) == 1


# Who follows whom


def edits() -> pd.DataFrame:
    """x: two photos and a context-edit; y made from x's first photo, z from y; w: a photo of its own."""
    rows = [("x", "x0", "real", None), ("x", "x1", "real", None), ("x", "xc", "context-edit", "x0.jpg"),
            ("y", "y", "identity-edit", "x0.jpg"), ("z", "z", "distractor", "y.jpg"), ("w", "w", "real", None),
            ("w", "w1", "real", None)]  # fmt: skip
    return made([
        {"identity": identity, "path": f"{name}.jpg", "role": role, "parent": parent}
        for identity, name, role, parent in rows
    ])  # fmt: skip


def test_what_was_made_from_an_image_goes_with_it() -> None:
    table = edits()
    assert set(choose(table, {"": 2})["identity"]) == {"x", "y", "z", "w"}
    kept, notes = apply_rules(table, [Rule(drop="id == 'x0.jpg'")])
    assert ids(kept) == ["x1.jpg", "xc.jpg", "w.jpg", "w1.jpg"]
    assert notes == ["""rule {"drop": "id == 'x0.jpg'"}: -3 images, -2 identities"""]
    # followers show an identity once, and are not judged by it
    kept, _ = apply_rules(table, [Rule(min_images=3)])
    assert ids(kept) == ["x0.jpg", "x1.jpg", "xc.jpg", "y.jpg", "z.jpg"]
    kept, _ = apply_rules(table, [Rule(keep="role == 'real'")])
    assert ids(kept) == ["x0.jpg", "x1.jpg", "w.jpg", "w1.jpg"]
    assert {"y.jpg", "z.jpg"} <= {*ids(keep_images(table, 3))}
    assert Counter(keep_images(table, 1)["identity"])["x"] == 1


# Filters


def test_the_papers_filter_rules() -> None:
    rows = [("FORB", "Logo", None), ("FORB", "book_cover", None), ("GLDv2", "tower", None), ("GLDv2", "mountain", None),
            ("GLDv2", None, None), ("SOP", "chair", None), ("WildlifeReID10k", None, "DogFaceNet"),
            ("WildlifeReID10k", None, "BelugaID"), ("WildlifeReID10k", None, "CatIndividualImages"),
            ("MVImgNet2", "cup", None), ("MET", None, None), ("DeepFashion2", "skirt", None)]  # fmt: skip
    table = made([
        {"identity": f"{k}", "path": f"{k}", "dataset": dataset, "category": category, "x_subset": subset}
        for k, (dataset, category, subset) in enumerate(rows)
    ])  # fmt: skip
    kept, notes = apply_rules(table, IDSIM_RULES)
    assert kept["identity"].tolist() == ["1", "2", "6", "8", "10", "11"]
    assert [note.split(": -")[-1].split()[0] for note in notes] == ["1", "2", "1", "1", "1"]


def test_a_rule_without_its_column_is_an_error_where_it_matters_and_only_there() -> None:
    with pytest.raises(ValueError, match="x_subset"):
        apply_rules(photos({"WildlifeReID10k": 2}), IDSIM_RULES)
    kept, _ = apply_rules(photos({"MET": 2}), IDSIM_RULES)
    assert len(kept) == 4


def test_queries_select_what_pandas_does_with_empty_values_as_empty_text() -> None:
    table = made([
        {"identity": "001", "path": "1", "category": "dog", "own": 3}, {"identity": "1", "path": "2", "label": 1.0},
        {"identity": "a", "path": "3", "category": "cat", "label": 0.5, "own": 7},
    ])  # fmt: skip

    def left(query: str) -> list[str]:
        return ids(apply_rules(table, [Rule(keep=query)])[0])

    assert left("category == 'dog'") == ["1"]
    assert left("category == ''") == ["2"]
    assert left("category not in ['dog', '']") == ["3"]
    assert left("label == 1 or own > 3") == left("not (label != 1 and own <= 3)") == ["2", "3"]
    assert left("identity == '1'") == ["2"]
    for query in ("category < 3", "label is 3", "own in 3"):
        with pytest.raises(ValueError, match=f"rule .*{query}"):
            left(query)


@pytest.mark.parametrize(
    "query",
    ["__import__('os').getcwd() == ''", "path.str.len() > 0", "@pd.options == 1", "path.to_csv('x') == 1", "1 == 1",
     "path", "path[0] == 'a'", "path = 'a'"],
)  # fmt: skip
def test_a_query_holds_comparisons_alone(query: str) -> None:
    with pytest.raises(ValueError, match="query"):
        Rule(drop=query)


def test_filter_files_read_back_and_name_what_is_wrong(tmp_path: Path) -> None:
    file = tmp_path / "rules.json"
    file.write_text(rules_json(IDSIM_RULES), encoding="utf-8")
    assert read_rules(file) == IDSIM_RULES
    wrong = {
        """[{"drop": "a == 'b'"}, {"dorp": ""}]""": "rule 2: .*dorp",
        """[{"of": "dataset == 'a'"}]""": "rule 1: .*min_images",
        """[{"drop": "a b"}]""": "rule 1: .*a b",
        """[{"min_images": "2"}]""": "rule 1: '2'",
        """{"drop": "a == 'b'"}""": "list",
        "[": "JSON",
    }
    for text, message in wrong.items():
        file.write_text(text, encoding="utf-8")
        with pytest.raises(ValueError, match=f"rules.json: .*{message}"):
            read_rules(file)


# Recipes


@pytest.mark.filterwarnings("ignore:split val is empty")
def test_idsim_takes_real_images_of_instances_with_two() -> None:
    more = made([{"identity": "v", "path": "v.jpg"}, {"path": "background.jpg"}])
    out, _ = recipes.idsim(pd.concat([edits(), more], ignore_index=True), 10)
    assert Counter(out["identity"]) == {"x": 2, "w": 2}
    assert set(out["role"]) == {"real"}


def nearid_source() -> pd.DataFrame:
    """Twelve objects, of which o1 repeats the object of o0, and o6 the texts of o4; o11 is deformable."""
    rows = []
    for k in range(12):
        for view in range(2 + k % 2):
            name, number = f"o{k}/{view}", 4 if k == 6 else k
            row = {"x_partition": "deformable" if k == 11 else "rigid", "objaverse_id": f"obj-{max(k, 1)}"}
            text = f"Thing {number}  VIEW {view}" if k == 6 else f"thing {number} view {view}"
            row |= {"identity": f"o{k}", "path": f"{name}.png", "id": name, "mask": f"{name}m.png", "text": text}
            near = {"identity": f"o{k}-d{view}", "path": f"{name}d.png", "role": "distractor", "parent": name}
            rows += [row, near | {"text": text}]
    return made([*rows, {"identity": "alone", "path": "alone.png", "mask": "m.png"}])


def test_nearid_keeps_rigid_unique_identities_of_two_views_with_their_distractors() -> None:
    out, notes = recipes.nearid(nearid_source(), parts={"train": -1, "val": 2, "test": 3})
    views, distractors = take(out, out["role"] == "real"), take(out, out["role"] == "distractor")
    assert set(views["identity"]) == {f"o{k}" for k in (0, 2, 3, 4, 5, 7, 8, 9, 10)}
    assert notes[1].startswith("2 identities repeat")
    assert distractors["parent"].tolist() == ids(views)
    assert views.groupby("split")["identity"].nunique().to_dict() == {"train": 4, "val": 2, "test": 3}
    assert not leaks(out)
    require_masks(out)  # distractors have their parent's
    assert distractors["mask"].tolist() == views["mask"].tolist()
    with pytest.raises(ValueError, match="600 identities; there are 9"):
        recipes.nearid(nearid_source())


def published(counts: dict[str | None, int]) -> pd.DataFrame:
    """So many identities of two images in each split."""
    splits = [split for split, count in counts.items() for _ in range(2 * count)]
    return checked(photos({"a": len(splits) // 2}).assign(split=splits))


def test_idsim_can_leave_held_out_images_alone() -> None:
    table = published({"Train": 22, "val": 5, "test": 9, None: 11})
    held_out = made([{"identity": "a/0", "path": "a/0/held out.jpg", "dataset": "a", "split": "test"}])
    out, notes = recipes.idsim(pd.concat([table, held_out], ignore_index=True), 33, existing="keep")
    assert {*ids(out)} == {*table["id"][table["split"].isna() | (table["split"] == "train")]}
    assert Counter(out["split"]) == {"train": 60, "val": 6}
    assert notes[0].startswith("29 images")
    with pytest.raises(ValueError, match="test: 6 images"):
        recipes.idsim(published({"test": 3}), 2, existing="keep")
    with pytest.raises(ValueError, match="existing='keep'"):
        recipes.nearid(published({"test": 3}), 2)


def test_identities_are_unique_by_their_object_among_the_parameters() -> None:
    rows = [{"identity": f"o{k}", "path": f"{k}-{view}.png", "parameters": {"objaverse_id": f"m{k % 3}"}}
            for k in range(5) for view in range(2)]  # fmt: skip
    out, _ = recipes.nearid(made(rows), parts={"train": 1.0})
    assert set(out["identity"]) == {"o0", "o1", "o2"}


def test_visme_caps_identities_and_images_and_leaves_singles_out() -> None:
    table = photos({"GLDv2": [1 + i % 7 for i in range(20)]})
    counts = Counter(recipes.visme(table, count=9)[0]["identity"])
    assert len(counts) == 9
    assert all(count == min(4, 1 + int(name.split("/")[1]) % 7) > 1 for name, count in counts.items())


def test_groups_that_lose_an_image_become_single_images() -> None:
    rows = [{"identity": f"g{i}", "path": f"{i}-{k}.jpg", "group": f"g{i}-{k // 2}", "slot": slot}
            for i in range(4) for k, slot in enumerate(("anchor", "positive") * 2)]  # fmt: skip
    out, _ = recipes.visme(made(rows), images=3)
    assert Counter(out["group"].notna().groupby(out["identity"]).sum()) == {2: 4}
    assert out["group"].isna().equals(out["slot"].isna())


def test_ilgens_table_sums_to_twenty_thousand_instances() -> None:
    for counts in recipes.ILGEN.values():
        assert counts.categories * counts.per_category == counts.instances
    assert recipes.ilgen_quotas() == {"generic": 10_000, "art": 3_000, "landmark": 4_000, "product": 3_000}
    assert recipes.ilgen_quotas("generic", 5_000) == {"generic": 5_000}
    assert sum(recipes.ilgen_quotas("all", 777).values()) == 777


def test_ilgen_shares_instances_out_over_categories_with_four_images_each() -> None:
    table = made([
        {"identity": f"{d}/{c}/{i}", "path": f"{d}/{c}/{i}/{k}.jpg", "domain": d, "category": f"c{c}"}
        for d in ("generic", "art", "landmark", "Product") for c in range(4) for i in range(12)
        for k in range(5 if i else 3)
    ])  # fmt: skip
    out, _ = recipes.ilgen(table, count=40)
    assert set(Counter(out["identity"]).values()) == {4}
    instances = out.drop_duplicates("identity")
    assert Counter(instances["domain"]) == {"generic": 20, "art": 6, "landmark": 8, "Product": 6}
    generic = instances[instances["domain"] == "generic"]
    assert Counter(generic["category"]) == dict.fromkeys(("c0", "c1", "c2", "c3"), 5)
    out, notes = recipes.ilgen(table, "generic")
    assert out["identity"].nunique() == 40  # ten of each category at most
    assert notes[-1].startswith("only 40 of 20000 ")


def test_ilgen_draws_from_all_categories_alike_where_it_is_asked_to() -> None:
    table = made([
        {"identity": f"{category}{i}", "path": f"{category}{i}-{k}.jpg", "domain": "art", "category": category}
        for category, size in (("large", 600), ("small", 200)) for i in range(size) for k in range(4)
    ])  # fmt: skip
    drawn, _ = recipes.ilgen(table, "art", 400, any_category=True)
    counts = Counter(drawn.drop_duplicates("identity")["category"])
    assert counts.total() == 400
    assert 270 < counts["large"] < 330  # hypergeometric, standard deviation 6.1
    assert ids(recipes.ilgen(table, "art", 400, seed=1, any_category=True)[0]) != ids(drawn)
    assert recipes.ilgen(table, "art", 400)[0]["identity"].nunique() == 30  # at most 15 of each category


# images of each class; a class needs four
SIZES = {"MET": [1] * 3 + [3] * 2 + [4] * 5 + [7] * 5, "GLDv2": [2] * 4 + [5] * 12 + [9] * 8, "SOP": [3] * 2 + [5] * 6,
         "InShop": [4] * 4, "RP2k": [20] * 3}  # fmt: skip


def per_dataset(table: pd.DataFrame) -> Counter[str]:
    return Counter(table.drop_duplicates("identity")["dataset"])


def test_real_all_takes_small_sets_whole_and_the_rest_equally() -> None:
    """Section 4.1: classes of four images of SOP, InShop and RP2k, complemented from GLDv2 and MET."""
    table = photos(SIZES, split="train")
    out, _ = recipes.ilgen_real(table, "all", 25)
    assert per_dataset(out) == {"SOP": 6, "InShop": 4, "RP2k": 3, "GLDv2": 6, "MET": 6}
    assert set(Counter(out["identity"]).values()) == {4}
    out, _ = recipes.ilgen_real(table, "all", 39)  # MET has 10 classes, GLDv2 gives more
    assert per_dataset(out) == {"SOP": 6, "InShop": 4, "RP2k": 3, "GLDv2": 16, "MET": 10}
    assert recipes.ilgen_real(table)[1][-1].startswith("only 43 of 20000 ")
    with pytest.raises(ValueError, match=r"13 classes .* more than 12"):
        recipes.ilgen_real(table, "all", 12)


@pytest.mark.parametrize(("variant", "dataset", "count"), [("art", "MET", 3000), ("landmark", "GLDv2", 4000),
                                                           ("product", "SOP", 3000)])  # fmt: skip
def test_real_s_has_as_many_instances_as_the_generated_part(variant: str, dataset: str, count: int) -> None:
    table = photos({dataset: count + 5, "other": 9}, 4, split="train")
    out, _ = recipes.ilgen_real(table, variant)
    assert per_dataset(out) == {dataset: count}
    small, other = (recipes.ilgen_real(table, variant, 30, seed)[0] for seed in (0, 1))
    assert per_dataset(small) == {dataset: 30}
    assert set(small["identity"]) < set(out["identity"])
    assert ids(small) != ids(other)


def test_real_sets_are_of_training_images_and_missing_datasets_are_named() -> None:
    held_out = photos({"SOP": 3}, 6, split="test")
    table = pd.concat([photos({"SOP": [3, 5]}, split="train"), held_out], ignore_index=True)
    out, notes = recipes.ilgen_real(table, "product")
    assert set(out["identity"]) == {"SOP/1"}  # SOP/0 has three training images
    assert set(out["split"]) == {"train"}
    assert notes[0].startswith("18 images")
    table = photos({"GLDv2": 3, "SOP": 1}, 4)
    assert len(recipes.ilgen_real(table, "landmark")[0]) == 12
    for variant, message in (("art", "MET; .* GLDv2, SOP"), ("all", "InShop, RP2k, MET;"), ("generic", "'generic'")):
        with pytest.raises(ValueError, match=message):
            recipes.ilgen_real(table, variant)


# Masks


def test_masking_is_drawn_with_the_papers_probabilities_for_each_role() -> None:
    slots = ["anchor", "positive", "positive", "negative", "negative", "negative"]
    draws = np.array([draw_masking(slots, (7, sample)) for sample in range(4000)])
    for column, p in zip(draws.T, [0.5, 0.2, 0.2, 0.6, 0.6, 0.6], strict=True):
        assert abs(column.mean() - p) < 4 * math.sqrt(p * (1 - p) / 4000)
    assert abs(np.corrcoef(draws.T)[0, 3]) < 0.07  # slots are drawn on their own
    assert draw_masking(slots, (7, 3)) == draw_masking(slots, (7, 3))


def test_masks_are_inherited_in_place_and_missing_ones_are_named_by_row() -> None:
    table = edits().assign(mask=pd.Series(["m.png", *[None] * 6], dtype=object))
    inherited = inherit_masks(table)
    # z through y through x's first photo; a context-edit may have moved the object
    assert inherited["mask"].tolist() == ["m.png", None, None, "m.png", "m.png", None, None]
    with pytest.raises(ManifestError, match=r"4 of 7 .*row 2 \(x1.jpg\), row 3 \(xc.jpg\)"):
        require_masks(inherited)
    circle = table.assign(parent=pd.Series(["x0.jpg", None, None, "z.jpg", "y.jpg", None, None], dtype=object))
    assert inherit_masks(circle)["mask"].notna().sum() == 1


@pytest.mark.filterwarnings("ignore:split val is empty")
@settings(max_examples=40, deadline=None)
@given(st.lists(st.tuples(st.sampled_from("ab"), st.integers(0, 9), st.integers(1, 4)), max_size=12),
       st.integers(1, 12), st.integers(0, 3))  # fmt: skip
def test_no_identity_crosses_the_split_and_none_comes_twice(
    pools: Sequence[tuple[str, int, int]], count: int, seed: int
) -> None:
    sizes = {f"{dataset}{i}": (dataset, size) for dataset, i, size in pools}
    rows = [{"identity": name, "path": f"{name}-{k}.jpg", "dataset": dataset}
            for name, (dataset, size) in sizes.items() for k in range(size)]  # fmt: skip
    out, _ = recipes.idsim(made(rows), count, seed)
    assert not leaks(out)
    eligible = Counter(dataset for dataset, size in sizes.values() if size >= 2)
    assert set(Counter(out["identity"]).values()) <= {2}
    assert Counter(out["dataset"][out["slot"] == "anchor"]) == Counter(balanced(eligible, count))
