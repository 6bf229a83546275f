"""Each row of docs/use/coming-from.md that shows code of this package: the code runs."""

from __future__ import annotations

import inspect
import re
from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image

import idmetric
from idmetric import IDSim
from idmetric.metric.checkpoints import released

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs" / "use" / "coming-from.md").read_text(encoding="utf-8")
MUGS = [str(ROOT / "examples" / "images" / name) for name in ("mug_a.png", "mug_b.png")]


def code_of_rows() -> list[str]:
    """The spans of code in the cells of tables, but those in the first one, which are of the other package."""
    spans = []
    for row in re.findall(r"^\|(.+)\|$", PAGE, flags=re.M):
        _, *cells = row.split(" | ")
        spans += re.findall("`([^`]+)`", " | ".join(cells))
    return spans


SPANS = code_of_rows()


@pytest.fixture(scope="module")
def names() -> dict[str, Any]:
    """What the code takes as there."""
    metric = IDSim("tiny", device="cpu")
    refs = list(MUGS)

    def small(source: str = "dinov3_vitl16", **options: Any) -> IDSim:
        """Published models are stood in for by `tiny`."""
        assert released.find(source, released.IDSIM)
        return IDSim("tiny", device="cpu", **options)

    pixels = torch.rand(1, 3, 64, 64, requires_grad=True)
    images = [Image.open(path) for path in MUGS]
    values = {"metric": metric, "IDSim": small, "refs": refs, "images": images}
    return values | {"a": MUGS[0], "b": MUGS[1], "pixels": pixels, "x": pixels.detach()}


def test_the_page_has_rows_with_code() -> None:
    assert len([span for span in SPANS if "(" in span]) >= 12


@pytest.mark.parametrize("span", [span for span in SPANS if re.match(r"[A-Za-z_.]+\(.*\)$", span)])
def test_the_code_of_a_row_runs(span: str, names: dict[str, Any]) -> None:
    assert eval(span, dict(names)) is not None


@pytest.mark.parametrize("span", [span for span in SPANS if span.startswith('"') and span.endswith('"')])
def test_a_distance_of_a_row_is_one_of_the_metric(span: str, names: dict[str, Any]) -> None:
    assert names["metric"](*MUGS, span.strip('"')).shape == (1,)


@pytest.mark.parametrize("span", sorted({span for span in SPANS if re.fullmatch(r"[a-z_]+=\S*", span)}))
def test_an_option_of_a_row_is_one_of_the_package(span: str) -> None:
    name = span.partition("=")[0]
    functions = (IDSim.__init__, idmetric.IdentityLoss.__init__, IDSim.__call__, idmetric.score)
    theirs = {"mode"}  # which the page says does not exist here
    taken = {parameter for function in functions for parameter in inspect.signature(function).parameters}
    assert name in taken | theirs, span
