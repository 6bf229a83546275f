"""Painted identities: what is shared between pictures, and what differs."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from PIL import Image

from idmetric.data.painter import Painter

PAINTER = Painter(3, 64, views=2, distractors=True, edits=True, parts=True, contexts=True)


@pytest.fixture(scope="module")
def painted(tmp_path_factory: pytest.TempPathFactory) -> pd.DataFrame:
    return PAINTER.paint(tmp_path_factory.mktemp("painted"), 5).set_index("id", drop=False)


def pixels(row: Any, column: str = "path") -> np.ndarray:
    with Image.open(row[column]) as picture:
        return np.asarray(picture.convert("RGB")).astype(int) if column == "path" else np.asarray(picture)


def with_parents(painted: pd.DataFrame, *roles: str) -> list[tuple[Any, Any]]:
    rows = [row for _, row in painted[painted["role"].isin(roles)].iterrows()]
    return [(row, painted.loc[row["parent"]]) for row in rows]


def test_the_same_seed_paints_the_same_files(painted: pd.DataFrame, tmp_path: Path) -> None:
    again = PAINTER.paint(tmp_path, 3)
    assert again["id"].tolist() == painted["id"].tolist()[: len(again)]
    for path, first in zip(again["path"], painted["path"], strict=False):
        assert Path(path).read_bytes() == Path(first).read_bytes()


def test_edits_share_the_context_of_their_view_and_change_the_badge(painted: pd.DataFrame) -> None:
    edits = with_parents(painted, "distractor", "identity-edit", "part-edit")
    assert len(edits) == 5 * 2 * 3
    for row, view in edits:
        changed = (pixels(row) != pixels(view)).any(-1)
        assert changed.any()
        assert not changed[~(pixels(row, "mask") | pixels(view, "mask"))].any()
        assert row["identity"] != view["identity"]
    counts = painted.groupby("role")["identity"].nunique()  # one distractor for all views, one edit for each
    assert (counts["distractor"], counts["identity-edit"]) == (5, 5 * 2)


def test_weaker_distractors_have_nearer_colors(painted: pd.DataFrame, tmp_path: Path) -> None:
    weaker = replace(PAINTER, strength=0.25).paint(tmp_path, 5).set_index("id", drop=False)
    weak, strong = (with_parents(table, "distractor") for table in (weaker, painted))
    assert len(weak) == len(strong) == 10
    changes = [
        [np.abs(pixels(row) - pixels(view))[30:34, 30:34].mean() for row, view in pairs] for pairs in (weak, strong)
    ]
    assert (np.array(changes[0]) <= changes[1]).all()


def test_context_edits_keep_the_identity_before_another_background(painted: pd.DataFrame) -> None:
    for row, view in with_parents(painted, "context-edit"):
        assert row["identity"] == view["identity"]
        assert row["background"] != view["background"]
        colors = [{tuple(color) for color in pixels(shown)[pixels(shown, "mask")].tolist()} for shown in (row, view)]
        assert colors[0] == colors[1]


def test_part_edits_have_the_mask_and_the_share_that_is_left_unchanged(painted: pd.DataFrame) -> None:
    edits = with_parents(painted, "part-edit")
    assert len(edits) == 5 * 2
    for row, view in edits:
        part, badge = pixels(row, "part_mask"), pixels(row, "mask")
        assert not (part & ~badge).any()
        assert row["oracle"] == pytest.approx(1 - part.sum() / badge.sum())
        assert (pixels(row) != pixels(view)).any(-1)[part].mean() > 0.5
