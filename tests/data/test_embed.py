"""Embedding a manifest's images for several models, and the faces that protocols compare through."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from PIL import Image

from idmetric import Backbone, IDSim
from idmetric.data.embed import embed, embed_rows
from idmetric.data.manifest import ManifestError, checked, take, with_columns
from idmetric.evaluate.protocols.common import baselines, scorers
from idmetric.evaluate.protocols.common.models import open_model
from idmetric.evaluate.protocols.common.scorers import EvalSettings, bind
from idmetric.metric import embedder as preprocessing
from idmetric.metric.embedding import Embedding
from idmetric.metric.fingerprint import weights_digest
from idmetric.metric.images import read_image
from idmetric.metric.masks import MaskWarning
from idmetric.stream import Look
from tests.conftest import random_model
from tests.evaluate.protocols.parts import Near

TINY_VIT = {"embed_dim": 32, "depth": 2, "num_heads": 2}


@pytest.fixture
def pictures(tmp_path: Path) -> pd.DataFrame:
    """Twelve photos-like pictures of four identities, with masks; two rows show one file."""
    rng = np.random.default_rng(0)
    rows = []
    for identity in range(4):
        color = rng.integers(60, 255, 3)
        for view in range(3):
            array = rng.integers(0, 60, (40, 48, 3)).astype(np.uint8)
            array[8:30, 10 + 4 * view : 30 + 4 * view] = color
            mask = np.zeros((40, 48), dtype=np.uint8)
            mask[8:30, 10 + 4 * view : 30 + 4 * view] = 255
            Image.fromarray(array).save(tmp_path / f"{identity}-{view}.png")
            Image.fromarray(mask).save(tmp_path / f"{identity}-{view}-mask.png")
            name = f"{identity}-{view}"
            rows.append({"identity": f"i{identity}", "path": f"{name}.png", "mask": f"{name}-mask.png"})
    rows.append({**rows[0], "id": "again"})
    return checked(rows, tmp_path)


class Counting:
    """A model that counts what it is shown."""

    def __init__(self, metric: Any) -> None:
        self.metric = metric
        self.prepared, self.embedded = 0, 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self.metric, name)

    def prepare(self, *args: Any) -> Any:
        self.prepared += 1
        return self.metric.prepare(*args)

    def embed_prepared(self, batch: Sequence[Any], patches: bool = True) -> Embedding:
        self.embedded += len(batch)
        return self.metric.embed_prepared(batch, patches)


def vit(seed: int = 0) -> Backbone:
    torch.manual_seed(seed)
    return Backbone(
        "vit_tiny_patch16_224",
        pretrained=False,
        image_size=32,
        backbone_args={**TINY_VIT, "img_size": 32},
        device="cpu",
    )


def test_each_image_is_decoded_once_for_each_model(pictures: pd.DataFrame, monkeypatch: pytest.MonkeyPatch) -> None:
    opened: list[Any] = []

    def counted(source: Any, **options: Any) -> Image.Image:
        opened.append(source)
        return read_image(source, **options)

    monkeypatch.setattr(preprocessing, "read_image", counted)
    one, two = Counting(random_model("dinov3")), Counting(vit())
    embed(pictures, {"one": one, "two": two})
    assert len(opened) == 2 * 12  # of 13 rows, two show one file
    assert one.prepared == two.prepared == 12


def test_vectors_follow_the_rows_of_a_table_that_pandas_sorted(pictures: pd.DataFrame) -> None:
    model = random_model("dinov3")
    vectors, _ = embed_rows(pictures, model)
    backwards, _ = embed_rows(pictures[::-1], model)
    np.testing.assert_allclose(backwards, vectors[::-1], atol=1e-5)
    os.remove(pictures["path"][4])
    _, problems = embed_rows(pictures[::-1], model)
    assert [*problems] == [len(pictures) - 5]


def test_nothing_is_embedded_twice(pictures: pd.DataFrame, tmp_path: Path) -> None:
    first, second = Counting(random_model("dinov3")), Counting(random_model("dinov3"))
    half = embed(pictures, {"m": first}, [0, 1, 2, 3], store=tmp_path / "store")["m"]
    whole = embed(pictures, {"m": second}, store=tmp_path / "store")["m"]
    assert (first.embedded, second.embedded) == (4, 8)
    np.testing.assert_array_equal(half.vectors([1]), whole.vectors([1]))
    (tmp_path / "moved").symlink_to(tmp_path)
    moved = tmp_path / "moved"
    third = Counting(random_model("dinov3"))
    embed(
        with_columns(pictures, path=[f"{moved}/{Path(path).name}" for path in pictures["path"]]),
        {"m": third},
        store=tmp_path / "store",
    )
    assert third.embedded == 0


def test_masked_images_are_kept_apart_from_whole_ones(pictures: pd.DataFrame, tmp_path: Path) -> None:
    metric = random_model("dinov3")
    models = {"m": metric}
    whole = embed(pictures, models, store=tmp_path / "store")["m"]
    look = Look(masked=True, outside="crop")
    alone = embed(pictures, models, store=tmp_path / "store", look=look)["m"]
    expected = metric.embed([pictures["path"][5]], masks=[pictures["mask"][5]], outside="crop").cls
    np.testing.assert_allclose(alone.vectors([5]), expected, atol=1e-6)
    assert np.abs(alone.vectors([5]) - whole.vectors([5])).max() > 1e-3


def test_patches_come_with_their_mask_and_in_the_order_asked_for(pictures: pd.DataFrame, tmp_path: Path) -> None:
    metric = random_model("dinov3")
    models = {"m": metric}
    look = Look(masked=True, outside="keep")
    stored = embed(pictures, models, store=tmp_path / "store", patches=True, look=look, batch_size=4)["m"]
    found = stored.embedding([9, 2])
    chosen = take(pictures, [9, 2])
    expected = metric.embed(chosen["path"].tolist(), masks=chosen["mask"].tolist(), outside="keep")
    assert found.grid == expected.grid
    assert found.patches is not None
    assert found.weights is not None
    np.testing.assert_allclose(found.patches, expected.patches, atol=1e-6)
    np.testing.assert_allclose(found.weights, expected.weights, atol=1e-6)


def test_all_unreadable_images_are_named_and_the_others_are_kept(pictures: pd.DataFrame, tmp_path: Path) -> None:
    (tmp_path / "1-1.png").write_bytes(b"no image")
    (tmp_path / "2-0.png").write_bytes((tmp_path / "2-0.png").read_bytes()[:60])
    with pytest.raises(ManifestError, match="2 images cannot be used") as caught:
        embed(pictures, {"m": random_model("dinov3")}, store=tmp_path / "store")
    assert "1-1.png" in str(caught.value)
    assert "2-0.png" in str(caught.value)
    again = Counting(random_model("dinov3"))
    with pytest.raises(ManifestError):
        embed(pictures, {"m": again}, store=tmp_path / "store")
    assert again.embedded == 0


def test_missing_files_and_masks_are_named_before_anything_is_embedded(pictures: pd.DataFrame, tmp_path: Path) -> None:
    for name in ("1-1.png", "3-2.png"):
        (tmp_path / name).unlink()
    model = Counting(random_model("dinov3"))
    with pytest.raises(ManifestError, match=r"2 images(.|\n)*1-1\.png(.|\n)*3-2\.png"):
        embed(pictures, {"m": model})
    assert model.prepared == 0
    with pytest.raises(ValueError, match="no row has a mask"):
        embed(with_columns(pictures, mask=None), {"m": model}, [0], look=Look(masked=True))


def test_an_empty_cell_of_a_mask_means_the_whole_image_and_is_said_once(pictures: pd.DataFrame) -> None:
    model = random_model("dinov3")
    some = with_columns(pictures, mask=[None if row in (1, 2) else mask for row, mask in enumerate(pictures["mask"])])
    every, look = range(len(pictures)), Look(masked=True, outside="crop")
    with pytest.warns(MaskWarning, match="2 of 13 images have no mask: they are seen whole") as heard:
        found = embed(some, {"m": model}, look=look)["m"]
    assert len(heard) == 1
    whole = embed(pictures, {"m": model})["m"].vectors(every)
    masked = embed(pictures, {"m": model}, look=look)["m"].vectors(every)
    expected = np.where(np.isin(every, [1, 2])[:, None], whole, masked)
    np.testing.assert_allclose(found.vectors(every), expected, atol=1e-5)


# Scorers


def slow_matrix(metric: Any, table: pd.DataFrame, distance: str) -> np.ndarray:
    images = table["path"]
    return np.array([[float(metric.similarity(a, b, distance)) for b in images] for a in images])


@pytest.mark.parametrize("distance", ["cls", "patch", "joint"])
def test_scorers_give_the_metric_s_own_similarities(
    pictures: pd.DataFrame, distance: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(scorers, "_PATCH_BYTES", 5 * 16 * 48 * 4)  # five images at a time
    metric, few = random_model("dinov3"), take(pictures, [0, 1, 3, 4, 6, 7, 9])
    scorer = bind(few, {"m": metric}, EvalSettings(distance=distance)).models["m"]
    expected = slow_matrix(metric, few, distance)
    np.testing.assert_allclose(scorer.matrix(range(7), [2, 0, 6]), expected[:, [2, 0, 6]], atol=2e-5)
    a, b = [0, 5, 2, 2, 4, 1], [1, 5, 0, 6, 3, 3]
    np.testing.assert_allclose(scorer.pairs(a, b), expected[a, b], atol=2e-5)
    assert scorer.signature()["distance"] == distance


def test_dreamsim_is_embedded_through_its_own_transform(pictures: pd.DataFrame) -> None:
    class Ensemble(torch.nn.Linear):
        def embed(self, pixels: torch.Tensor) -> torch.Tensor:
            return self(pixels.flatten(1))

    def transform(image: Image.Image) -> torch.Tensor:
        return torch.from_numpy(np.array(image.resize((4, 4)))).permute(2, 0, 1)[None].float() / 255

    torch.manual_seed(0)
    model = Ensemble(48, 6)
    scorer = bind(pictures, {"d": baselines.DreamSim("cpu", model, transform)}, EvalSettings()).models["d"]
    x, y = (model.embed(transform(read_image(pictures["path"][r]))) for r in (0, 5))
    assert scorer.pairs([0], [5])[0] == pytest.approx(torch.cosine_similarity(x, y).item(), abs=1e-5)


def test_distances_of_patches_refuse_models_without_any(pictures: pd.DataFrame) -> None:
    with pytest.raises(ValueError, match="models without patches: hsv"):
        bind(pictures, {"hsv": open_model("hsv")}, EvalSettings(distance="patch"))
    with pytest.raises(ValueError, match="unknown distance"):
        EvalSettings(distance="cosine")


@pytest.mark.parametrize("opened", [lambda: random_model("dinov3"), Near])
def test_unreadable_images_can_be_left_out_with_what_depends_on_them(
    pictures: pd.DataFrame, tmp_path: Path, opened: Callable[[], Any]
) -> None:
    (tmp_path / "1-1.png").write_bytes(b"no image")
    child = with_columns(pictures, parent=[None] * 12 + [pictures["id"][4]], role=["real"] * 12 + ["context-edit"])
    with pytest.raises(ManifestError, match=r"1-1\.png"):
        bind(child, {"m": opened()}, EvalSettings())
    bound = bind(child, {"m": opened()}, EvalSettings(on_error="skip"))
    assert len(bound.manifest) == 11
    assert bound.notes == ["1 images could not be used: 1-1.png (2 rows that depend on them are left out)"]
    assert bound.models["m"].matrix([0, 10], [1]).shape == (2, 1)
    assert "i1" in set(bound.manifest["identity"])


def test_the_untrained_twin_has_other_weights_and_the_same_shape() -> None:
    twin, tiny = open_model("untrained:tiny", device="cpu"), IDSim("tiny", device="cpu")
    assert [p.shape for p in twin.parameters()] == [p.shape for p in tiny.parameters()]
    assert weights_digest(twin) != weights_digest(tiny)
