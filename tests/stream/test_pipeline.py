"""Images are read ahead in order, and stored ones change no batch of the others."""

from __future__ import annotations

import pytest

from idmetric.stream import Input, batches


def read(stored: int = 0) -> object:
    return lambda k: Input(k, pixels=None if k < stored else k)


@pytest.mark.parametrize("stored", [4, 8, 12])
def test_a_resumed_run_has_the_batches_of_an_uninterrupted_one(stored: int) -> None:
    def run(known: int) -> list[list[int]]:
        made = batches(range(30), read(known), batch_size=4, workers=2)  # type: ignore[arg-type]
        found = [([one.item for one in batch], [one.item for one in batch if one.pixels is not None]) for batch in made]
        assert [item for every, _ in found for item in every] == list(range(30))
        return [fresh for _, fresh in found if fresh]

    assert run(stored) == run(0)[stored // 4 :]


def test_sizes_are_checked() -> None:
    with pytest.raises(ValueError, match="batch_size must be at least 1"):
        next(batches([1], read(), batch_size=0))  # type: ignore[arg-type]
