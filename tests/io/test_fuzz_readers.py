"""Malformed inputs are refused by typed errors or accepted, in bounded memory.

FUZZ=100 python -m pytest tests/io/test_fuzz_readers.py      a hundred times as many, of other seeds
"""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.fuzz import forget_peak, status
from tests.fuzz.readers import Reader, all_readers, outcome

READERS = all_readers()
TIMES = int(os.environ.get("FUZZ", "1"))
MEMORY = 3 * 2**30  # bytes that one input may add


@pytest.mark.parametrize("name", sorted(READERS))
def test_a_malformed_input_is_refused_by_a_typed_error_or_accepted(name: str) -> None:
    reader = READERS[name]

    @settings(
        derandomize=TIMES == 1, database=None, deadline=None, suppress_health_check=list(HealthCheck), print_blob=False,
        max_examples=TIMES * (4 + reader.share),
    )  # fmt: skip
    @given(st.integers(0, 2**32 - 1))
    def check(seed: int) -> None:
        before = forget_peak()
        with tempfile.TemporaryDirectory() as folder:
            assert outcome(reader, f"test:{name}:{seed}", Path(folder)) in ("typed", "accepted")
        assert status("VmHWM") - before < MEMORY

    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        check()
    finally:
        torch.set_num_threads(threads)


def test_bare_errors_and_errors_without_a_message_count_as_crashes(tmp_path: Path) -> None:
    def fail(error: Exception) -> None:
        raise error

    for error, typed, became in (
        (KeyError("bare"), (), "KeyError: 'bare'"),
        (OSError("known"), (OSError,), "typed"),
        (OSError(), (OSError,), "OSError without a message"),
    ):
        assert outcome(Reader(lambda *_: "a.png", lambda _, error=error: fail(error), typed, 1), "", tmp_path) == became
