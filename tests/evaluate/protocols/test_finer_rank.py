"""Finer-Personalization Rank against a loop over places."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from idmetric.data.manifest.table import Manifest, Row
from idmetric.evaluate.protocols import finer_rank
from idmetric.evaluate.protocols.common import ranked
from idmetric.evaluate.protocols.common.scorers import EvalSettings
from idmetric.evaluate.statistics.bootstrap import bootstrap
from tests.evaluate.protocols.parts import PLAIN, Drawn, Images, values

SPECIES = ("wren", "tern")


def data(draw: Images, root: Path) -> Manifest:
    """Two species of four identities; two methods, one of which has results of one species only.

    The gallery lacks an identity of the terns.
    """
    rows = []
    for who in range(8):
        species = SPECIES[who // 4]
        name = f"{species}/{who}"
        rows += [Row(name, draw(who, 10 * who, n), id=f"{name}/g{n}", split="gallery", category=species)
                 for n in range(3 if who != 6 else 0)]  # fmt: skip
        rows += [Row(name, draw(who, n, 100), id=f"{name}/t{n}", split="train", category=species) for n in range(2)]
        for k, method in enumerate(("near", "far")):
            if method == "far" and species == "tern":
                continue
            seen = who if method == "near" else 20 + who
            rows += [Row(name, draw(seen, n, 101 + k), id=f"{method}/{name}/{n}", split="query", category=species,
                         engine=method, role="context-edit") for n in range(3)]  # fmt: skip
    return Manifest.from_rows(rows, root)


def published(similarity: np.ndarray, relevant: np.ndarray) -> float:
    """AP of a ranking as the paper defines it: sum over k of P(k) rel(k), over the positives."""
    if not relevant.any():
        return 0.0
    total, found = 0.0, 0
    for place, item in enumerate(np.argsort(-similarity), 1):
        if relevant[item]:
            found += 1
            total += found / place
    return total / relevant.sum()


def slow(found: Manifest, x: np.ndarray, method: str, species: str) -> tuple[list[float], list]:
    """AP of each query of a method and species, and its identity."""
    split, names, kinds = (found.column(column) for column in ("split", "identity", "category"))
    engines = ["real photos" if s == "train" else e for s, e in zip(split, found.column("engine"), strict=True)]
    gallery = [r for r in range(len(found)) if split[r] == "gallery" and kinds[r] == species]
    own = [r for r in range(len(found)) if split[r] != "gallery" and engines[r] == method and kinds[r] == species]
    ap = [published(np.array([x[q] @ x[g] for g in gallery]), np.array([names[g] == names[q] for g in gallery]))
          for q in own]  # fmt: skip
    return ap, [names[q] for q in own]


@pytest.mark.parametrize("cells", [2**24, 10])
def test_map_of_each_method_and_species(
    draw: Images, tmp_path: Path, cells: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ranked, "_CELLS", cells)
    monkeypatch.setattr(ranked, "_FEWEST", 1)
    found, model = data(draw, tmp_path), Drawn(spread=0.7)
    [result] = finer_rank.run(found, {"m": model}, EvalSettings(bootstrap=40))
    x = model.of(found)
    labels = [(row["method"], row["species"]) for row in result.rows]
    assert labels == [
        ("near", "wren"), ("near", "tern"), ("near", "mean"), ("far", "wren"),
        ("real photos", "wren"), ("real photos", "tern"), ("real photos", "mean"),
    ]  # fmt: skip
    for method, species in labels:
        row = values(result, method=str(method), species=str(species))
        if species == "mean":
            both = [np.mean(slow(found, x, str(method), s)[0]) for s in SPECIES]
            assert row["mAP"].value == pytest.approx(np.mean(both))
            continue
        ap, owner = slow(found, x, str(method), str(species))
        expected = bootstrap(lambda rows, ap=ap: np.array(ap)[rows].mean(), np.array(owner), samples=40)
        assert (row["mAP"].value, row["mAP"].count) == (pytest.approx(np.mean(ap)), len(ap))
        ends = np.clip([expected.low, expected.high], 0, 1).tolist()
        assert [row["mAP"].low, row["mAP"].high] == pytest.approx(ends)
    near, far = (values(result, method=m, species="wren")["mAP"].value for m in ("near", "far"))
    assert near > far


def test_a_query_without_a_positive_counts_as_0(draw: Images, tmp_path: Path) -> None:
    [result] = finer_rank.run(data(draw, tmp_path), {"m": Drawn()}, PLAIN)
    assert result.notes == ["5 queries have no image of their identity in the gallery and count as 0: tern/6"]
    queries = result.items["queries"]
    lone = [k for k, name in enumerate(queries["identity"]) if name == "tern/6"]
    assert len(lone) == 5
    assert all(queries["mAP"][k] == queries["P@1"][k] == 0 and queries["right"][k] is None for k in lone)
    others = [k for k in range(len(queries["id"])) if k not in lone]
    assert all(queries["mAP"][k] > 0 and queries["right"][k].startswith(queries["identity"][k]) for k in others)


def test_unfit_manifests_are_named(draw: Images, tmp_path: Path) -> None:
    found = data(draw, tmp_path)

    def refused(rows: Manifest, message: str) -> None:
        with pytest.raises(ValueError, match=message):
            finer_rank.run(rows, {"m": Drawn()}, PLAIN)

    refused(found.filter(split="gallery"), "'query' .*and split 'gallery' are needed; there are the splits 'gallery'")
    refused(found.filter(lambda row: row.split != "gallery" or row.category == "wren"),
            "no gallery image has the category 'tern' of 12 queries of near")  # fmt: skip
    refused(found.replace(category=None), "queries without identity or category: wren/0/t0")
