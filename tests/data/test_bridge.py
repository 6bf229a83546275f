from __future__ import annotations

from pathlib import Path

import pandas as pd

from idmetric.data.manifest import checked
from idmetric.data.old_manifest.bridge import to_frame, to_manifest


def test_rows_cross_both_ways(tmp_path: Path) -> None:
    rows = [
        {"path": "a.jpg", "identity": "007", "seed": 2**53 + 1, "parameters": {"k": 1}, "own": "x", "oracle": 0.5},
        {"path": "b.jpg", "label": 1.0},
    ]
    table = checked(pd.DataFrame(rows, dtype=object), tmp_path)
    manifest = to_manifest(table)
    assert manifest.source(0) == str(tmp_path / "a.jpg")
    assert manifest[0].seed == 2**53 + 1
    assert manifest.column("label") == [None, 1.0]
    pd.testing.assert_frame_equal(to_frame(manifest), table)
