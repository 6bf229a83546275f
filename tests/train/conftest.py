"""Fixtures of the training tests."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """One thread of torch, so that equal runs give equal bits."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(autouse=True)
def no_plots(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    if "plots" not in request.fixturenames:  # they take longer than the training
        monkeypatch.setattr("idmetric.train.loop.curves", lambda out: None)


@pytest.fixture
def plots() -> None:
    """For tests of curves.png."""
