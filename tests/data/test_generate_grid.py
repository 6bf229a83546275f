"""Grids of edits of photos, from their plan to the sensitivity protocol (ID-Sim, appendix F.1)."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from idmetric.data.generate.grid import STRENGTHS, grid_context_task, grid_identity_task, grid_sources, plain
from idmetric.data.old_manifest.table import Manifest, merge, read
from idmetric.evaluate.protocols.sensitivity_idsim_fig6 import cells
from idmetric.metric.errors import RequestError
from tests.data.test_generate import (
    WORDS,
    call,
    engine,
    made_by,
    pictures,
    quick,
    quick_engines,
    saved_pictures,
    spied,
)

__all__ = ["quick"]  # a fixture


def grid_of(folder: Path, *words: Any, count: int = 4) -> Manifest:
    """A grid by quick engines."""
    assert call(saved_pictures(folder, count=count), "--task", "grid", "-o", folder / "grid.parquet", *words) == 0
    return read(folder / "grid.parquet")


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Manifest:
    with quick_engines():
        return grid_of(tmp_path_factory.mktemp("grid"))


def test_a_grid_crosses_identity_with_each_context(made: Manifest) -> None:
    grid = cells(made)
    assert len(made) == len(grid) == 2 * (1 + 7) * (1 + 11 + 8)  # two identities
    for instance in {cell.instance for cell in grid}:
        own = [cell for cell in grid if cell.instance == instance]
        for factor, levels in WORDS.grid.items():
            found = Counter((c.identity_change, c.factor_change) for c in own if c.factor == factor)
            assert found == {(s, v): 1 for s in (0.0, *STRENGTHS) for v in levels.values()}
        assert sorted(c.identity_change for c in own if c.factor == "none") == [0.0, *STRENGTHS]
        assert all(made[c.anchor].path == made[own[0].anchor].path for c in own)


def test_context_keeps_the_identity_that_it_shows(made: Manifest) -> None:
    by_id = {row.id: row for row in made}
    for row in made:
        if row.slot == "anchor":
            assert row.role == "real"
            continue
        parent = by_id[row.parent or ""]
        changes = row.parameters or {}
        assert row.group == parent.group
        if row.role == "identity-edit":
            assert (row.identity != parent.identity, parent.slot) == (True, "anchor")
        else:
            assert row.identity == parent.identity
            assert changes["identity_change"] == (parent.parameters or {})["identity_change"]
            assert changes["words"] in row.text


def test_identity_edits_stay_within_the_mask(made: Manifest) -> None:
    anchors = {row.group: k for k, row in enumerate(made) if row.slot == "anchor"}
    for k, row in enumerate(made):
        if row.role != "identity-edit":
            continue
        mask = made.mask(k)
        assert mask is not None
        inside = mask.numpy() > 0
        before, after = np.asarray(made.image(anchors[row.group])), np.asarray(made.image(k))
        assert (before[~inside] == after[~inside]).all()
        assert (before[inside] != after[inside]).any()


def test_engines_get_what_the_paper_gives_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A mask and a strength for identities, white around the object for backgrounds, the photo for lights."""
    sources = grid_sources(pictures(tmp_path, count=2))
    identity = grid_identity_task(sources, engine(), WORDS, seed=5)
    planned = merge([plain(sources), plain(made_by(identity, tmp_path / "out"))], shared=True)
    context = grid_context_task(planned, engine(), WORDS, seed=5)
    seen = spied(monkeypatch)

    assert [identity.make(job) and seen[-1].strength for job in identity.jobs] == list(STRENGTHS)
    assert all(r.seed == 5 and np.asarray(r.mask).any() for r in seen)
    assert len({r.prompt for r in seen}) == 1
    for job in context.jobs:
        context.make(job)
        request, source = seen[-1], np.asarray(planned.image(job.source or 0))
        bits = planned.mask(job.source or 0)
        assert bits is not None
        inside = bits.numpy() > 0
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
    with pytest.raises(RequestError, match="column 'mask' is empty"):
        grid_sources(lone.replace(mask=None))
