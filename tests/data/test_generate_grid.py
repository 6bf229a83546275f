"""Grids of edits of photos, from their plan to the sensitivity protocol (ID-Sim, appendix F.1)."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from idmetric.data.generate.grid import STRENGTHS, grid_context_task, grid_identity_task, grid_sources
from idmetric.data.manifest import read
from idmetric.evaluate.protocols.sensitivity_idsim_fig6 import cells
from idmetric.metric.errors import RequestError
from tests.data.test_generate import (
    WORDS,
    bits_of,
    call,
    engine,
    made_by,
    pictures,
    pixels_of,
    quick,
    quick_engines,
    saved_pictures,
    spied,
)

__all__ = ["quick"]  # a fixture


def grid_of(folder: Path, *words: Any, count: int = 4) -> pd.DataFrame:
    """A grid by quick engines, in its two steps."""
    edits = folder / "edits.parquet"
    assert call(saved_pictures(folder, count=count), "--task", "grid-identity", "-o", edits, *words) == 0
    assert call(edits, "--task", "grid-context", "-o", folder / "grid.parquet") == 0
    return read(folder / "grid.parquet")


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> pd.DataFrame:
    with quick_engines():
        return grid_of(tmp_path_factory.mktemp("grid"))


def test_a_grid_crosses_identity_with_each_context(made: pd.DataFrame) -> None:
    grid = cells(made)
    assert len(made) == len(grid) == 2 * (1 + 7) * (1 + 11 + 8)  # two identities
    for instance in {cell.instance for cell in grid}:
        own = [cell for cell in grid if cell.instance == instance]
        for factor, levels in WORDS.grid.items():
            found = Counter((c.identity_change, c.factor_change) for c in own if c.factor == factor)
            assert found == {(s, v): 1 for s in (0.0, *STRENGTHS) for v in levels.values()}
        assert sorted(c.identity_change for c in own if c.factor == "none") == [0.0, *STRENGTHS]
        assert all(made["path"][c.anchor] == made["path"][own[0].anchor] for c in own)


def test_context_keeps_the_identity_that_it_shows(made: pd.DataFrame) -> None:
    by_id = {row.id: row for row in made.itertuples()}
    for row in made.itertuples():
        if row.slot == "anchor":
            assert row.role == "real"
            continue
        parent = by_id[row.parent]
        changes = json.loads(row.parameters)
        assert row.group == parent.group
        if row.role == "identity-edit":
            assert (row.identity != parent.identity, parent.slot) == (True, "anchor")
        else:
            assert row.identity == parent.identity
            assert changes["identity_change"] == json.loads(parent.parameters)["identity_change"]
            assert changes["words"] in row.text


def test_identity_edits_stay_within_the_mask(made: pd.DataFrame) -> None:
    anchors = {row.group: row.path for row in made.itertuples() if row.slot == "anchor"}
    for row in made.itertuples():
        if row.role == "identity-edit":
            inside = bits_of(row.mask)
            before, after = pixels_of(anchors[row.group]), pixels_of(row.path)
            assert (before[~inside] == after[~inside]).all()
            assert (before[inside] != after[inside]).any()


def test_engines_get_what_the_paper_gives_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A mask and a strength for identities, white around the object for backgrounds, the photo for lights."""
    identity = grid_identity_task(pictures(tmp_path, count=2), engine(), WORDS, seed=5)
    edits = identity.result(made_by(identity, tmp_path / "out"))
    context = grid_context_task(edits, engine(), WORDS, seed=5)
    seen = spied(monkeypatch)

    assert [identity.make(job) and seen[-1].strength for job in identity.jobs] == list(STRENGTHS)
    assert all(r.seed == 5 and np.asarray(r.mask).any() for r in seen)
    assert len({r.prompt for r in seen}) == 1
    for job in context.jobs:
        context.make(job)
        request, source = seen[-1], pixels_of(edits["path"][job.source])
        inside = bits_of(edits["mask"][job.source])
        given = np.asarray(request.image)
        assert (request.mask, request.strength, request.seed) == (None, None, 5)
        assert (given[inside] == source[inside]).all()
        outside = given[~inside]
        expected = 255 if job.settings["factor"] == "background" else source[~inside]
        assert (outside == expected).all()


def test_other_photos_of_an_identity_are_views(quick: None, tmp_path: Path) -> None:
    made = grid_of(tmp_path, "--views", count=6)  # two photos of each of three identities
    views = [cell for cell in cells(made) if cell.factor == "viewpoint"]
    assert Counter((c.factor_change, c.identity_change) for c in views) == dict.fromkeys(
        ((1.0, s) for s in (0.0, *STRENGTHS)), 3
    )
    assert {cell.factor for cell in cells(made)} == {"none", "viewpoint", "background", "light"}
    lone = pictures(tmp_path / "lone", count=1)
    with pytest.raises(RequestError, match="leave --views out"):
        grid_sources(lone, views=True)
    with pytest.raises(RequestError, match="'mask'"):
        grid_sources(lone.assign(mask=None))
    with pytest.raises(RequestError, match="grid-identity"):
        grid_context_task(lone, engine(), WORDS)
