"""Images are read ahead in order, and stored ones change no batch of the others."""

from __future__ import annotations

import pytest

from idmetric.stream import Item, PlainModel, Seen, batches, embedded


@pytest.mark.parametrize("stored", [4, 8, 12])
def test_a_resumed_run_has_the_batches_of_an_uninterrupted_one(stored: int) -> None:
    def run(known: int) -> list[list[int]]:
        stream = [Seen(Item(str(k)), pixels=None if k < known else k) for k in range(30)]
        names, fresh = [], []
        for batch in batches(iter(stream), 4):
            names += [seen.item.name for seen in batch]
            fresh.append([seen.pixels for seen in batch if seen.pixels is not None])
        assert names == [str(k) for k in range(30)]
        return [pixels for pixels in fresh if pixels]

    assert run(stored) == run(0)[stored // 4 :]


def test_sizes_are_checked() -> None:
    with pytest.raises(ValueError, match="batch_size must be at least 1"):
        next(embedded([], PlainModel(), batch_size=0))
