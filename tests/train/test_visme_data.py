from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from pandas import DataFrame

from idmetric.data.curate.mine import hard_pairs
from idmetric.data.manifest import ManifestError, checked, merge, take
from idmetric.metric.visid.config import CANDIDATE, TASKS, VisIDConfig
from idmetric.train.visme.data import Prepared, prepare
from idmetric.train.visme.wording import CAPTION, WordedRow
from tests.table_parts import a_table


def rows(*given: dict[str, Any]) -> DataFrame:
    return a_table({"path": f"{n}.png", "id": f"r{n}", **cells} for n, cells in enumerate(given))


def samples(prepared: Prepared, dataset: str = "data") -> set[tuple[int, int]]:
    """Every (query, target) that a dataset can give."""
    (pool,) = [p for p in prepared.data.pools if p.name == dataset]
    rng = np.random.default_rng(0)
    return {(pool.queries[k], pool.draw_target(k, rng)) for _ in range(50) for k in range(len(pool))}


def test_images_of_an_identity_are_each_others_targets() -> None:
    found = prepare(rows(*[{"identity": name} for name in "aabbbc"]))
    assert samples(found) == {(0, 1), (1, 0), (2, 3), (2, 4), (3, 2), (3, 4), (4, 2), (4, 3)}
    assert found.notes == ("1 images whose identity has no other image",)
    assert found.data.shown.tolist() == [0, 0, 1, 1, 1, 2]
    assert found.data.describe() == {"data": {"instances": 5, "identities": 2, "with hard negatives": 0}}
    query, target = found.wording.pair(0, 1)
    assert (query, target) == (WordedRow(0, TASKS["recognition"]), WordedRow(1, CANDIDATE))


def test_targets_stay_in_their_dataset_and_identities_are_known_across() -> None:
    found = prepare(rows(*[{"identity": "a", "dataset": d} for d in "xxyyy"]))
    assert samples(found, "x") == {(0, 1), (1, 0)}
    assert len(samples(found, "y")) == 6
    assert set(found.data.shown.tolist()) == {0}


def test_the_same_image_once_more_is_no_other_view() -> None:
    found = prepare(rows(*[{"identity": "a", "path": p} for p in ("1.png", "1.png", "2.png")]))
    assert samples(found) == {(0, 2), (2, 0)}


def test_an_edit_is_found_by_its_parent_and_its_text() -> None:
    edit = {"identity": "a", "role": "context-edit", "parent": "r0", "text": "make it snow"}
    data = rows({"identity": "a"}, edit, {"identity": "a"})
    found = prepare(data)
    assert {(0, 1), (0, 2), (2, 0), (2, 1)} == samples(found)
    assert found.wording.pair(0, 1) == (WordedRow(0, f"{TASKS['editing']} make it snow"), WordedRow(1, CANDIDATE))
    assert found.wording.pair(2, 1)[0] == WordedRow(2, TASKS["recognition"])


def test_groups_of_queries_keep_their_texts_and_hard_negatives() -> None:
    group = [{"slot": "query", "text": "find this car"}, {"slot": "positive", "text": "a street"}, {"slot": "positive"},
             {"slot": "negative"}]  # fmt: skip
    ranked = [{"slot": "query"}, *({"slot": "candidate", "label": label} for label in (1.0, 0.0, None, -1.0))]
    found = prepare(rows(*[{**g, "group": "g"} for g in group], *[{**g, "group": "h"} for g in ranked]))
    assert samples(found) == {(0, 1), (0, 2), (4, 5)}
    assert found.wording.pair(0, 1) == (WordedRow(0, "find this car"), WordedRow(1, "a street"))
    assert found.wording.pair(4, 5) == (WordedRow(4, TASKS["recognition"]), WordedRow(5, CANDIDATE))
    assert found.data.hard == {0: [3], 4: [6, 8]}
    left = prepare(rows({"slot": "query", "group": "g"}, {"slot": "negative", "group": "g"}, *[{"identity": "a"}] * 2))
    assert left.notes == ("1 queries without a positive",)


def test_captions_and_answers_are_texts_alone() -> None:
    data = rows({"text": "a red car"}, {"text": "a dog"})
    found = prepare(data)
    assert samples(found) == {(0, 0), (1, 1)}
    assert found.wording.pair(0, 0) == (WordedRow(0, CAPTION), WordedRow(None, "a red car"))
    asked = checked(rows({"text": "what is it?"}).assign(x_target=["a dog"]))
    settings = VisIDConfig(text_instruction="Say", joiner=": ", instruction="Show")
    assert prepare(asked, settings).wording.pair(0, 0) == (WordedRow(0, "what is it?"), WordedRow(None, "Say: a dog"))


def test_distractors_are_hard_for_their_parent() -> None:
    found = prepare(
        rows({"identity": "a"}, {"identity": "a"}, {"identity": "a~", "role": "distractor", "parent": "r0"})
    )
    assert found.data.hard == {0: [2]}


def test_mined_pairs_are_hard_both_ways_for_the_rows_they_are_copies_of() -> None:
    edits = [{"identity": name, "role": "context-edit", "parent": f"r{n - 1}", "text": "in snow"} if n % 2
             else {"identity": name} for n, name in enumerate("aabbcc")]  # fmt: skip
    data = rows(*edits)
    vectors = np.array([[1, 0], [1, 0.1], [0, 1], [1, 0.2], [0, 1], [-1, 0]])
    pairs = hard_pairs(data, vectors)
    whole = merge([data, pairs], shared=True)
    found = prepare(whole)
    assert samples(found) == samples(prepare(data))
    # the edits 1 and 3 are nearest to each other, 5 to 3
    assert found.data.hard == {1: [3], 3: [1, 5], 5: [3]}
    (pool,) = found.data.pools
    by_row = dict(zip(pool.rows, pool.queries, strict=True))
    assert by_row == {0: 0, 1: 0, 2: 2, 3: 2, 4: 4, 5: 4}


def test_triplets_give_samples_and_hard_negatives() -> None:
    slots = ("anchor", "positive", "negative")
    known = prepare(rows(*[{"identity": i, "slot": s, "group": "g"} for i, s in zip("aab", slots, strict=True)]))
    assert samples(known) == {(0, 1), (1, 0)}
    assert known.data.hard == {0: [2]}
    unknown = prepare(rows(*[{"slot": s, "group": "g"} for s in slots]))
    assert samples(unknown) == {(0, 1)}
    assert unknown.data.hard == {0: [2]}


def test_only_rows_of_the_splits_asked_for_are_samples() -> None:
    data = rows(*[{"identity": "a", "split": s} for s in (None, "Train", "train", "val", "test")])
    assert samples(prepare(data)) == {(q, t) for q in range(3) for t in range(3) if q != t}
    with pytest.raises(ManifestError, match=r"no samples in 5 rows .*1 images whose identity has no other"):
        prepare(data, splits=("val",))


def test_an_edit_of_an_image_that_is_held_out_is_no_query_for_it() -> None:
    edit = {"identity": "a", "role": "context-edit", "parent": "r0", "text": "make it snow", "split": "train"}
    data = rows({"identity": "a", "split": "val"}, edit, {"identity": "a", "split": "train"})
    assert samples(prepare(data)) == {(1, 2), (2, 1)}
    assert samples(prepare(take(data, [0, 1]), splits=("train", "val"))) == {(0, 1)}
    with pytest.raises(ManifestError, match="1 images whose identity has no other image"):
        prepare(take(data, [0, 1]))


def test_instructions_of_datasets() -> None:
    data = rows(
        *[{"identity": "a", "dataset": "faces"}] * 2, *[{"identity": "b", "dataset": "cars", "text": "own"}] * 2
    )
    found = prepare(data, instructions=["faces=reidentification", "cars=Find = it"])
    assert found.wording.pair(0, 1)[0].words == TASKS["reidentification"]
    assert found.wording.pair(2, 3)[0].words == "own"
    for bad, message in (("faces", "DATASET=WORDS"), ("birds=x", "there are cars, faces")):
        with pytest.raises(ValueError, match=message):
            prepare(data, instructions=[bad])
