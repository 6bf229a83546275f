"""Samples of what `python -m tests.fuzz` gives to readers, and that it sees crashes, hangs and hunger for memory."""

from __future__ import annotations

import tempfile
from pathlib import Path

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.fuzz.readers import all_readers, outcome

READERS = all_readers()
PROFILE = settings(
    derandomize=True, database=None, deadline=None, suppress_health_check=list(HealthCheck), print_blob=False
)  # fmt: skip


@pytest.mark.parametrize("name", sorted(READERS))
def test_a_malformed_input_is_refused_by_a_typed_error_or_accepted(name: str) -> None:
    reader = READERS[name]

    @settings(PROFILE, max_examples=4 + reader.share)
    @given(st.integers(0, 2**32 - 1))
    def check(seed: int) -> None:
        with tempfile.TemporaryDirectory() as folder:
            assert outcome(reader, f"test:{name}:{seed}", Path(folder)) in ("typed", "accepted")

    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        check()
    finally:
        torch.set_num_threads(threads)
