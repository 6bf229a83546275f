from __future__ import annotations

from pathlib import Path

import pytest

from idmetric import IDSim


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory, metric: IDSim) -> Path:
    folder = tmp_path_factory.mktemp("model")
    metric.save_pretrained(folder)
    return folder
