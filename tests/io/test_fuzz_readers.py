"""Samples of what `python -m tests.fuzz` gives to readers, and that it sees crashes, hangs and hunger for memory."""

from __future__ import annotations

import os
import tempfile
import time
from pathlib import Path

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from idmetric.gallery.sources import Source
from idmetric.gallery.trust import trust
from tests.fuzz.readers import Reader, all_readers, outcome
from tests.fuzz.run import counts, run, table

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


def bad_readers() -> dict[str, Reader]:
    """Readers as they must not be, and one as it should."""

    def nothing(*_: object) -> None:
        return None

    def wrong(_: object) -> None:
        raise KeyError("a bare error")

    def eat(_: object) -> None:
        bytearray(2**40)

    def write_state(_: object) -> None:
        trust(Path("gallery"), [Source("/photos")])

    return {
        "state": Reader(nothing, write_state, (), 1),
        "wrong": Reader(nothing, wrong, (), 1),
        "hungry": Reader(nothing, eat, (), 1),
        "good": Reader(nothing, nothing, (), 1),
        "dead": Reader(nothing, lambda _: os.abort(), (), 1),
        "hangs": Reader(nothing, lambda _: time.sleep(600), (), 1),
    }


@pytest.mark.slow
def test_the_fuzzer_sees_bare_errors_deaths_hangs_and_hunger() -> None:
    own = Path(os.environ["XDG_STATE_HOME"])
    before = sorted(own.rglob("*"))
    found = run(counts(dict.fromkeys(bad_readers(), 1), 6), 0, source="tests.io.test_fuzz_readers:bad_readers", limit=1)
    why = {name: next(iter(tally.crashes.values()), "") for name, tally in found.items()}
    assert "KeyError" in why["wrong"]
    assert "MemoryError" in why["hungry"]
    assert "ended with -6" in why["dead"]
    assert "no answer in 1 seconds" in why["hangs"]
    assert not why["good"]
    assert found["good"].accepted == 1
    text = table(found)
    assert [line.split()[-3] for line in text.splitlines()[1:7]] == ["0", "1", "1", "0", "1", "1"]
    assert sorted(own.rglob("*")) == before  # the user's notes on galleries


def test_all_readers_share_the_inputs() -> None:
    shares = {name: reader.share for name, reader in READERS.items()}
    wanted = counts(shares, 10_000)
    assert sum(wanted.values()) >= 10_000
    assert min(wanted.values()) >= 50
