"""A cache gives `match` the numbers that it had without one, and gives others theirs."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from PIL import Image

import idmetric
from idmetric import IDSim
from idmetric.data.manifest import read
from idmetric.evaluate.protocols.common.pairwise import prepare
from idmetric.metric.fingerprint import weights_digest
from idmetric.store import counts
from idmetric.stream import Item, embedded, open_store
from tests.evaluate.protocols.parts import Near

REFERENCE = "examples/images/mug_a.png"
SCENE = "examples/images/mug_b.png"
HALVES = [[(0, 0, 128, 256), (128, 0, 256, 256)]]


@pytest.fixture(scope="module")
def tiny() -> IDSim:
    return IDSim("tiny", device="cpu")


def distances(found: idmetric.Match) -> list[float]:
    values: list[float] = found.table.values.flatten().tolist()
    return values


def distance_by_score(metric: IDSim, image: Path, cache: Path | None = None) -> float:
    [row] = idmetric.score(metric, REFERENCE, [str(image)], cache=cache, copies=False).rows
    return float(row["distance"])


def flip_last_bits(folder: Path) -> None:
    for path in folder.rglob("*.safetensors"):
        data = bytearray(path.read_bytes())
        data[-1] ^= 1
        path.write_bytes(data)


@pytest.mark.parametrize("distance", ["cls", "patch"])
def test_regions_are_read_from_the_cache(distance: str, tiny: IDSim, tmp_path: Path) -> None:
    options = {"regions": HALVES, "distance": distance, "threshold": 0.5}
    expected = distances(idmetric.match(tiny, {"mug": REFERENCE}, [SCENE], **options))
    for made in (3, 0):
        counts.clear()
        found = idmetric.match(tiny, {"mug": REFERENCE}, [SCENE], cache=tmp_path, **options)
        assert (counts["asked"], counts["made"]) == (3, made)
        assert distances(found) == pytest.approx(expected, abs=1e-5)


def test_a_stopped_run_keeps_what_it_embedded(tiny: IDSim, tmp_path: Path) -> None:
    def stop(done: int, count: int) -> None:
        if done == count:
            raise KeyboardInterrupt

    options = {"threshold": 0.5, "cache": tmp_path, "batch_size": 1}
    with pytest.raises(KeyboardInterrupt):
        idmetric.match(tiny, {"mug": REFERENCE}, [SCENE, "examples/images/box_a.png"], progress=stop, **options)
    counts.clear()
    idmetric.match(tiny, {"mug": REFERENCE}, [SCENE], **options)
    assert (counts["asked"], counts["made"]) == (2, 0)


def test_patches_are_embedded_after_a_score_of_global_features(tiny: IDSim, tmp_path: Path) -> None:
    idmetric.score(tiny, REFERENCE, [SCENE], cache=tmp_path)
    found = idmetric.match(tiny, {"mug": REFERENCE}, [SCENE], distance="patch", threshold=0.5, cache=tmp_path)
    without = idmetric.match(tiny, {"mug": REFERENCE}, [SCENE], distance="patch", threshold=0.5)
    assert distances(found) == pytest.approx(distances(without), abs=1e-5)


def test_a_damaged_row_is_embedded_again_with_one_warning(tiny: IDSim, tmp_path: Path) -> None:
    options = {"regions": HALVES, "threshold": 0.5, "cache": tmp_path}
    expected = distances(idmetric.match(tiny, {"mug": REFERENCE}, [SCENE], **options))
    flip_last_bits(tmp_path)
    counts.clear()
    with pytest.warns(UserWarning, match="is damaged") as heard:
        assert distances(idmetric.match(tiny, {"mug": REFERENCE}, [SCENE], **options)) == pytest.approx(expected)
    assert len(heard) == counts["made"] == 2  # in the parts of the reference and of the regions
    assert distances(idmetric.match(tiny, {"mug": REFERENCE}, [SCENE], **options)) == pytest.approx(expected)
    assert counts["made"] == 2


def test_encoders_that_decode_differently_keep_nothing_of_each_others_pictures(tiny: IDSim, tmp_path: Path) -> None:
    pixels = np.array(Image.open(SCENE).convert("RGBA"))
    pixels[:128, :, 3] = 0
    image = tmp_path / "transparent.png"
    Image.fromarray(pixels).save(image)
    black = IDSim("tiny", device="cpu", background=(0, 0, 0))
    expected = distance_by_score(black, image)
    subjects = {"a": REFERENCE, "b": REFERENCE}
    idmetric.match(tiny, subjects, [image], encoders={"b": black}, threshold=0.5, cache=tmp_path / "kept")
    assert distance_by_score(black, image, tmp_path / "kept") == pytest.approx(expected, abs=1e-6)


@pytest.mark.parametrize("batch_size", [1, 32])
def test_a_region_that_a_model_refuses_skips_its_image_whatever_its_batch(
    batch_size: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    metric = IDSim("tiny", device="cpu")
    size = metric.image_size

    def sizes(height: int, width: int) -> tuple[int, int]:
        if width > 100 * height:
            raise ValueError("too flat")
        return size

    monkeypatch.setattr(metric, "size_for", sizes)
    regions = [[(0, 0, 128, 256), (0, 0, 256, 1)], []]
    options = {"regions": regions, "threshold": 0.5, "batch_size": batch_size}
    found = idmetric.match(metric, {"mug": REFERENCE}, [SCENE, REFERENCE], on_error="skip", **options)
    assert found.skipped == {SCENE: "too flat"}
    assert found.table.times == (REFERENCE,)
    with pytest.raises(idmetric.ImageReadError, match=r"mug_b.*too flat"):
        idmetric.match(metric, {"mug": REFERENCE}, [SCENE, REFERENCE], **options)


# The stream


@pytest.fixture
def repeated(tmp_path: Path) -> list[str]:
    """Each of six pictures as two files."""
    paths = []
    for number in range(6):
        noise = np.random.default_rng(number).integers(0, 256, (300, 300, 3), dtype=np.uint8)
        for copy in range(2):
            path = tmp_path / f"{number}-{copy}.png"
            Image.fromarray(noise).save(path)
            paths.append(str(path))
    return paths


def test_equal_contents_are_embedded_once(repeated: list[str], tiny: IDSim, tmp_path: Path) -> None:
    store = open_store(tmp_path / "kept", tiny)
    items = [Item(path, path) for path in repeated]
    counts.clear()
    results = list(embedded(items, tiny, store=store, batch_size=3, workers=4))
    assert (counts["asked"], counts["made"]) == (12, 6)
    for one, two in zip(results[::2], results[1::2], strict=True):
        assert one.row.cls.equal(two.row.cls)


def test_metrics_of_pairs_prepare_equal_files_once(repeated: list[str], tmp_path: Path) -> None:
    lines = [f"{path},{Path(path).name[0]}\n" for path in repeated]
    (tmp_path / "m.csv").write_text("path,identity\n" + "".join(lines))
    metric = Near()
    for _ in range(3):
        prepared, problems = prepare(read(tmp_path / "m.csv"), {"one": metric, "two": metric}, workers=4)
        assert problems == {}
        assert {name: len(pixels) for name, (pixels, _) in prepared.items()} == {"one": 6, "two": 6}


def test_weights_that_were_narrow_once_are_changed() -> None:
    metric = IDSim("tiny", device="cpu")
    about, digest = metric.about(), weights_digest(metric)
    metric.half().float()
    assert weights_digest(metric) != digest
    assert metric.about() != about
