"""What models need, as `idmetric models` says: counted again."""

from __future__ import annotations

import pytest
import torch

from benchmarks.sizes import size_of, size_of_qwen
from idmetric import IDSim, NearID
from idmetric.cli.list_models import facts
from idmetric.metric.checkpoints.released import MODELS
from idmetric.metric.idsim import IDSimConfig
from idmetric.metric.nearid import NearIDConfig


@pytest.mark.parametrize("name", ["dinov3_vitb16", "dinov2_vitl14", "nearid"])
def test_numbers_are_counted_again(name: str) -> None:
    """On torch's device "meta", where a model's weights take no memory."""
    with torch.device("meta"):
        metric = NearID(NearIDConfig()) if name == "nearid" else IDSim(IDSimConfig(MODELS[name].backbone))
    size = size_of(metric)
    assert MODELS[name].parameters == size.parameters
    assert MODELS[name].memory == pytest.approx(size.memory(32), rel=0.02)


def test_the_row_of_tiny() -> None:
    size = size_of(IDSim("tiny", device="cpu"))
    [row] = [row for row in facts() if row[0] == "tiny"]
    assert row[2] == f"{size.parameters / 1e6:.0f} M"
    assert row[3] == f"{size.memory(32):.2f} GB"


@pytest.mark.parametrize(("name", "head"), [("visid_3b", 0), ("visid_7b", 152_064 * 3584)])
def test_parameters_of_visme_fit_the_size_of_its_download(name: str, head: int) -> None:
    """The download of the 7B has a language head, which is not opened; the 3B's is tied to the embedding of words."""
    pytest.importorskip("transformers")
    size = size_of_qwen(name)
    assert size.parameters == MODELS[name].parameters
    assert MODELS[name].memory == pytest.approx(size.memory(32), rel=0.01)
    assert 2 * (size.parameters + head) / 1e9 == pytest.approx(MODELS[name].download, abs=0.06)
