"""Painted identities: what is shared between pictures, and what differs."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from idmetric.data.old_manifest.table import Manifest, Row
from idmetric.data.painter import Painter

PAINTER = Painter(3, 64, views=2, strengths=(1.0, 0.25), distractors=True, edits=True, parts=True, contexts=True)


@pytest.fixture(scope="module")
def painted(tmp_path_factory: pytest.TempPathFactory) -> Manifest:
    return PAINTER.paint(tmp_path_factory.mktemp("painted"), 5)


def pixels(data: Manifest, row: Row) -> np.ndarray:
    with Image.open(data.root / row.path) as picture:
        return np.asarray(picture.convert("RGB")).astype(int)


def mask_of(data: Manifest, row: Row, column: str = "mask") -> np.ndarray:
    with Image.open(data.root / getattr(row, column)) as mask:
        return np.asarray(mask)


def test_the_same_seed_paints_the_same_files(painted: Manifest, tmp_path: Path) -> None:
    again = PAINTER.paint(tmp_path, 3)
    assert [row.id for row in again] == [row.id for row in painted][: len(again)]
    for row in again:
        assert (again.root / row.path).read_bytes() == (painted.root / row.path).read_bytes()


def test_edits_share_the_context_of_their_view_and_change_the_badge(painted: Manifest) -> None:
    rows = {row.id: row for row in painted}
    edits = [row for row in painted if row.role in ("distractor", "identity-edit", "part-edit")]
    assert len(edits) == 5 * 2 * (2 + 2 + 1)
    for row in edits:
        view = rows[row.parent]
        changed = (pixels(painted, row) != pixels(painted, view)).any(-1)
        assert changed.any()
        assert not changed[~(mask_of(painted, row) | mask_of(painted, view))].any()
        assert row.identity != view.identity


def test_weaker_distractors_have_nearer_colors(painted: Manifest) -> None:
    rows = {row.id: row for row in painted}
    for row in painted.filter(role="distractor"):
        if row.id.endswith("near-0.25"):
            weak, strong, view = row, rows[row.id.replace("0.25", "1.00")], rows[row.parent]
            center = (slice(30, 34), slice(30, 34))
            changes = [
                np.abs(pixels(painted, r)[center] - pixels(painted, view)[center]).mean() for r in (weak, strong)
            ]
            assert changes[0] <= changes[1]


def test_distractors_are_one_badge_in_all_views_and_identity_edits_one_for_each(painted: Manifest) -> None:
    for role, count in (("distractor", 5 * 2), ("identity-edit", 5 * 2 * 2)):
        rows = painted.filter(role=role)
        assert len(set(rows.column("identity"))) == count


def test_context_edits_keep_the_identity_before_another_background(painted: Manifest) -> None:
    rows = {row.id: row for row in painted}
    for row in painted.filter(role="context-edit"):
        view = rows[row.parent]
        assert row.identity == view.identity
        assert row.background != view.background
        colors = [{tuple(c) for c in pixels(painted, r)[mask_of(painted, r)].tolist()} for r in (row, view)]
        assert colors[0] == colors[1]


def test_part_edits_have_the_mask_and_the_share_that_is_left_unchanged(painted: Manifest) -> None:
    rows = {row.id: row for row in painted}
    edits = list(painted.filter(role="part-edit"))
    assert len(edits) == 5 * 2
    for row in edits:
        part, badge = mask_of(painted, row, "part_mask"), mask_of(painted, row)
        assert not (part & ~badge).any()
        assert row.oracle == pytest.approx(1 - part.sum() / badge.sum())
        changed = (pixels(painted, row) != pixels(painted, rows[row.parent])).any(-1)
        assert changed[part].mean() > 0.5
