"""What the stream reads, takes and yields."""

from __future__ import annotations

import pytest

from idmetric.stream import PlainModel, embedded


def test_sizes_are_checked() -> None:
    with pytest.raises(ValueError, match="batch_size must be at least 1"):
        next(embedded([], PlainModel(), batch_size=0))
