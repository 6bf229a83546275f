from __future__ import annotations

import copy
import io
import json
import pickle
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
import torch.multiprocessing as mp
from PIL import Image
from sklearn.metrics import average_precision_score
from torch import Tensor, nn

from idmetric import Embedding, IDSim, ImageReadError
from idmetric.adapters import EmbedColumn, IdentityRetrieval, IdentitySimilarity, ScoreColumns
from tests.conftest import random_model

torchmetrics = pytest.importorskip("torchmetrics")


def pictures(count: int, seed: int = 0) -> list[Image.Image]:
    coarse = np.random.default_rng(seed).integers(0, 256, (count, 5, 5, 3), dtype=np.uint8)
    return [Image.fromarray(x).resize((40, 30)) for x in coarse]


def pixels(count: int, seed: int = 0) -> Tensor:
    return torch.stack([torch.from_numpy(np.array(p)).permute(2, 0, 1) for p in pictures(count, seed)]).float() / 255


# torchmetrics


@pytest.mark.parametrize("distance", ["cls", "joint"])
def test_similarity_is_the_mean_over_all_updates(metric: IDSim, distance: str) -> None:
    measured = IdentitySimilarity(metric, distance)
    images, references = pictures(7), pictures(7, 1)
    for part in (slice(0, 3), slice(3, 4), slice(4, 7)):
        measured.update(images[part], references[part])
    expected = 1 - metric(images, references, distance)
    assert measured.compute().item() == pytest.approx(expected.mean().item(), abs=1e-6)
    measured.reset()
    with pytest.raises(ValueError, match="no images"), pytest.warns(UserWarning, match="before the ``update``"):
        measured.compute()
    assert (
        measured(images[:2], references[0]).item()
        == pytest.approx(  # forward gives the batch's
            1 - metric(images[:2], references[0], distance).mean().item(), abs=1e-6
        )
    )


@pytest.mark.parametrize("aggregate", ["best", "mean"])
def test_each_image_may_have_references_of_its_own(metric: IDSim, aggregate: Any) -> None:
    images, references = pictures(3), pictures(6, 1)
    own = [references[:3], references[3:4], references[4:]]
    measured = IdentitySimilarity(metric, value="distance", aggregate=aggregate, reduction="none")
    measured.update(images, own)
    far = [metric(image, refs) for image, refs in zip(images, own, strict=True)]
    expected = [(x.min() if aggregate == "best" else x.mean()).item() for x in far]
    assert measured.compute().tolist() == pytest.approx(expected, abs=1e-6)
    assert not measured.higher_is_better
    cube = torch.stack([pixels(2, 3), pixels(2, 4)])  # (B, R, 3, H, W)
    measured.reset()
    measured.update(pixels(2), cube)
    far = [metric(pixels(2)[k], cube[k]) for k in range(2)]
    expected = [(x.min() if aggregate == "best" else x.mean()).item() for x in far]
    assert measured.compute().tolist() == pytest.approx(expected, abs=1e-6)


def test_masks_reach_images_and_references(metric: IDSim) -> None:
    images, references, mask = pictures(2), pictures(2, 1), np.zeros((30, 40), np.uint8)
    mask[5:20, 5:30] = 1
    flat, nested = IdentitySimilarity(metric), IdentitySimilarity(metric)
    flat.update(images, references, masks=[mask, None], target_masks=[mask, mask])
    nested.update(images, [[r] for r in references], masks=[mask, None], target_masks=[mask, mask])
    expected = 1 - metric(images, references, mask_a=[mask, None], mask_b=[mask, mask])
    assert flat.compute().item() == pytest.approx(expected.mean().item(), abs=1e-6)
    assert nested.compute().item() == pytest.approx(expected.mean().item(), abs=1e-6)


def test_states_are_detached_and_the_model_is_not_in_them(metric: IDSim) -> None:
    measured = IdentitySimilarity(metric)
    measured.update(pixels(2).requires_grad_(), pixels(2, 1))
    assert not measured.compute().requires_grad
    holder = nn.ModuleDict({"measured": measured})
    assert not list(holder.parameters())
    assert not holder.state_dict()
    assert measured.clone().metric is metric
    assert copy.deepcopy(holder)["measured"].metric is metric
    again = pickle.loads(pickle.dumps(measured))
    assert again.compute() == measured.compute()


@pytest.mark.parametrize("other", [lambda: random_model("dinov2"), lambda: nudged()], ids=["another", "trained on"])
def test_a_collection_keeps_models_apart(metric: IDSim, other: Callable[[], IDSim]) -> None:
    """Images that are their own references are at distance 0 for any model: after such a batch states are equal."""
    second = other()
    group = torchmetrics.MetricCollection({"one": IdentitySimilarity(metric), "two": IdentitySimilarity(second)})
    group.update(pictures(2), pictures(2))
    group.update(pictures(2, 2), pictures(2, 3))
    found = group.compute()
    for name, model in (("one", metric), ("two", second)):
        far = [*model(pictures(2), pictures(2)), *model(pictures(2, 2), pictures(2, 3))]
        assert found[name].item() == pytest.approx(1 - torch.stack(far).mean().item(), abs=1e-6)
    assert found["one"] != found["two"]


def test_retrieval_is_that_of_a_slow_loop(metric: IDSim) -> None:
    images, names = pictures(12), ["a", "b", "c", "a", "b", "c", "a", "b", "alone", "a", "c", "b"]
    measured = IdentityRetrieval(metric, ks=(1, 3))
    for start in (0, 5, 9):
        stop = {0: 5, 5: 9, 9: 12}[start]
        measured.update(images[start:stop], names[start:stop])
    found = {name: value.item() for name, value in measured.compute().items()}
    scores = 1 - metric.pairwise(images).numpy()
    precisions, first, third = [], [], []
    for k in range(12):
        others = [j for j in range(12) if j != k]
        relevant = np.array([names[j] == names[k] for j in others])
        if relevant.any():
            precisions.append(average_precision_score(relevant, scores[k][others]))
            order = np.argsort(-scores[k][others])
            first.append(relevant[order[0]])
            third.append(relevant[order[:3]].any())
    assert len(precisions) == 11
    assert found == pytest.approx({"mAP": np.mean(precisions), "hit@1": np.mean(first), "hit@3": np.mean(third)})
    numbers = IdentityRetrieval(metric, ks=(1, 3))
    numbers.update(images, torch.tensor([ord(name[0]) + 10 * len(name) for name in names]))
    assert {name: value.item() for name, value in numbers.compute().items()} == pytest.approx(found)


@pytest.mark.parametrize("in_a_collection", [False, True])
def test_a_batch_without_a_pair_is_nan_and_keeps_the_earlier_ones(metric: IDSim, in_a_collection: bool) -> None:
    images, names = pictures(6), ["a", "b", "a", "c", "b", "c"]
    whole = IdentityRetrieval(metric, ks=(1,))
    whole.update(images, names)

    measured: Any = IdentityRetrieval(metric, ks=(1,))
    if in_a_collection:
        measured = torchmetrics.MetricCollection([measured])
    for batch in (slice(0, 3), slice(3, 6)):  # a b a, c b c: a pair each
        assert measured(images[batch], names[batch])["mAP"].isfinite()
    without = measured(pictures(2, 7), ["x", "y"])
    assert without.keys() == {"mAP", "hit@1"}
    assert all(value.isnan() for value in without.values())

    whole.update(pictures(2, 7), ["x", "y"])
    assert measured.compute() == whole.compute()
    assert whole.compute()["mAP"].isfinite()


@pytest.mark.parametrize("in_a_collection", [False, True])
def test_an_error_in_forward_leaves_the_earlier_batches(metric: IDSim, in_a_collection: bool) -> None:
    single: Any = IdentitySimilarity(metric, reduction="none")
    measured = torchmetrics.MetricCollection({"one": single}) if in_a_collection else single
    measured(pictures(2), pictures(2, 2))
    before = single.compute()
    settings = {name: value for name, value in vars(single).items() if not name.startswith("values")}
    with pytest.raises(ImageReadError):
        measured(["absent.png"], pictures(1))
    assert torch.equal(single.compute(), before)
    assert {name: vars(single)[name] for name in settings} == settings
    measured(pictures(1), pictures(1, 3))
    assert len(single.compute()) == 3


def retrieve(metric: IDSim, vectors: Any, identities: Any, monkeypatch: pytest.MonkeyPatch) -> dict[str, float]:
    """mAP, hit@1 and hit@3 of images that have these global features."""
    monkeypatch.setattr(metric, "embed", lambda images, **_: Embedding(images))
    measured = IdentityRetrieval(metric, ks=(1, 3))
    measured.update(torch.from_numpy(vectors), torch.from_numpy(identities))
    return {name: value.item() for name, value in measured.compute().items()}


def test_retrieval_is_that_of_torchmetrics(metric: IDSim, monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(0)
    identities = rng.permutation(300) // 3
    vectors = (rng.normal(size=(100, 32))[identities] + rng.normal(size=(300, 32))).astype(np.float32)
    found = retrieve(metric, vectors, identities, monkeypatch)

    units = torch.nn.functional.normalize(torch.from_numpy(vectors).double(), dim=1)
    others = ~torch.eye(300, dtype=torch.bool)
    scores = (units @ units.T + 1)[others]  # torchmetrics leaves out what scores below 0
    relevant = torch.from_numpy(identities[:, None] == identities)[others]
    queries = torch.arange(300).repeat_interleave(299)
    expected = {
        "mAP": torchmetrics.retrieval.RetrievalMAP()(scores, relevant, queries).item(),
        "hit@1": torchmetrics.retrieval.RetrievalHitRate(top_k=1)(scores, relevant, queries).item(),
        "hit@3": torchmetrics.retrieval.RetrievalHitRate(top_k=3)(scores, relevant, queries).item(),
    }
    assert 0.3 < expected["mAP"] < 0.9
    assert found == pytest.approx(expected, abs=1e-6)


def test_retrieval_among_copies_is_that_of_a_slow_loop(metric: IDSim, monkeypatch: pytest.MonkeyPatch) -> None:
    """Images that occur again, also under the name of another identity, are equally near."""
    rng = np.random.default_rng(0)
    identities = rng.permutation(600) // 4  # more than a block of queries
    vectors = (rng.normal(size=(150, 16))[identities] + rng.normal(size=(600, 16))).astype(np.float32)
    vectors[300:] = vectors[:300]
    found = retrieve(metric, vectors, identities, monkeypatch)

    units = vectors.astype(np.float64) / np.linalg.norm(vectors, axis=1, keepdims=True)
    precisions, first, third = [], [], []
    for query in range(600):
        others = np.arange(600) != query
        scores = (units[others] @ units[query]).round(6)
        relevant = identities[others] == identities[query]
        precisions.append(average_precision_score(relevant, scores))
        rank = 1 + (scores[~relevant] >= scores[relevant].max()).sum()  # a tie loses
        first.append(rank <= 1)
        third.append(rank <= 3)
    expected = {"mAP": np.mean(precisions), "hit@1": np.mean(first), "hit@3": np.mean(third)}
    assert found == pytest.approx(expected, abs=1e-6)


def test_arguments_of_the_metrics_that_do_not_fit_say_so(metric: IDSim) -> None:
    with pytest.raises(ValueError, match="aggregate must be best or mean"):
        IdentitySimilarity(metric, aggregate="median")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="unknown distance"):
        IdentitySimilarity(metric, "l2")
    with pytest.raises(ValueError, match="3 images and 2 references"):
        IdentitySimilarity(metric).update(pictures(3), pictures(2))
    with pytest.raises(ValueError, match="3 images and 2 references"):
        IdentitySimilarity(metric).update(pictures(3), [pictures(2), pictures(1)])
    retrieval = IdentityRetrieval(metric)
    with pytest.raises(ValueError, match="3 images and 2 identities"):
        retrieval.update(pictures(3), [1, 2])
    retrieval.update(pictures(3), [1, 2, 3])
    with pytest.raises(ValueError, match="nothing to find"):
        retrieval.compute()


def part(rank: int) -> slice:
    return slice(0, 5) if rank == 0 else slice(5, 7)


def plain(found: list[Any]) -> list[Any]:
    return [{k: v.item() for k, v in x.items()} if isinstance(x, dict) else x.item() for x in found]


def one_process(rank: int, world: int, folder: str) -> None:
    torch.set_num_threads(1)
    torch.distributed.init_process_group("gloo", f"file://{folder}/meet", rank=rank, world_size=world)
    metric = random_model("dinov3")
    measured = [IdentitySimilarity(metric), IdentityRetrieval(metric), IdentityRetrieval(metric)]
    own = part(rank)
    measured[0].update(pictures(7)[own], pictures(7, 1)[own])
    measured[1].update(pictures(7)[own], [0, 1, 0, 2, 1, 0, 2][own])
    if rank == 1:  # the other has seen nothing
        measured[2].update(pictures(4), [0, 1, 0, 1])
    found = [m.compute() for m in measured]
    measured[0].update(pictures(1, 5), pictures(1, 6))  # goes on after a result
    found.append(measured[0].compute())
    Path(folder, f"{rank}.json").write_text(json.dumps(plain(found)))
    torch.distributed.destroy_process_group()


@pytest.mark.slow
def test_two_processes_with_uneven_batches_are_one(metric: IDSim, tmp_path: Path) -> None:
    mp.spawn(one_process, (2, str(tmp_path)), nprocs=2)  # type: ignore[no-untyped-call]
    similarity, retrieval, late = IdentitySimilarity(metric), IdentityRetrieval(metric), IdentityRetrieval(metric)
    similarity.update(pictures(7), pictures(7, 1))
    retrieval.update(pictures(7), [0, 1, 0, 2, 1, 0, 2])
    late.update(pictures(4), [0, 1, 0, 1])
    expected = [similarity.compute(), retrieval.compute(), late.compute()]
    for _ in range(2):
        similarity.update(pictures(1, 5), pictures(1, 6))
    expected.append(similarity.compute())
    for rank in range(2):
        found = json.loads((tmp_path / f"{rank}.json").read_text())
        for own, wanted in zip(found, plain(expected), strict=True):
            assert own == pytest.approx(wanted, abs=1e-6)


# datasets


def cells(count: int) -> list[dict[str, Any]]:
    found = []
    for picture in pictures(count):
        file = io.BytesIO()
        picture.save(file, "PNG")
        found.append({"bytes": file.getvalue(), "path": None})
    return found


@pytest.mark.parametrize("kind", ["decoded", "bytes", "paths"])
def test_map_adds_embeddings_of_every_kind_of_column(metric: IDSim, tmp_path: Path, kind: str) -> None:
    datasets = pytest.importorskip("datasets")
    for k, picture in enumerate(pictures(5)):
        picture.save(tmp_path / f"{k}.png")
    names = [str(tmp_path / f"{k}.png") for k in range(5)]
    table = datasets.Dataset.from_dict({"image": names})
    if kind != "paths":
        table = table.cast_column("image", datasets.Image(decode=kind == "decoded"))
    done = table.map(EmbedColumn(metric), batched=True, batch_size=2)
    found = np.array(done["embedding"], np.float32)
    np.testing.assert_allclose(found, metric.embed(pictures(5)).cls, atol=1e-6)
    assert done.features["embedding"].feature.dtype == "float32"


@pytest.mark.parametrize("columns", [EmbedColumn, lambda metric: ScoreColumns(metric, "image", "image", "joint")])
def test_map_finds_its_earlier_work_but_never_that_of_other_weights(
    columns: Callable[[IDSim], Any], tmp_path: Path
) -> None:
    """A user runs a script or notebook again, whose state in memory (addresses, what it embedded before) differs."""
    datasets = pytest.importorskip("datasets")
    table = datasets.Dataset.from_dict({"image": cells(3)})

    def fingerprint(model: IDSim) -> str:
        mapped = table.map(columns(model), batched=True)
        return str(mapped._fingerprint)

    random_model("dinov3").save_pretrained(tmp_path)
    for fresh in (lambda: random_model("dinov3"), lambda: IDSim(tmp_path, device="cpu")):
        first = fresh()
        found = fingerprint(first)
        used = fresh()
        used.embed(pictures(2))
        assert (
            fingerprint(first) == fingerprint(fresh()) == fingerprint(used) == fingerprint(copy.deepcopy(used)) == found
        )

        with torch.no_grad():
            used.mlp_cls.fc1.weight[0, 0] += 1e-3
        other_background = fresh()
        other_background.background = (0, 0, 0)
        assert len({found, fingerprint(used), fingerprint(other_background)}) == 3


class InOneThread(EmbedColumn):
    """A class as Ray Data wraps it: a call of an instance waits for a thread that runs one call at a time."""

    def __init__(self, *args: Any) -> None:
        self.thread = ThreadPoolExecutor(max_workers=1)
        super().__init__(*args)

    def __call__(self, *args: Any) -> Any:
        return self.thread.submit(super().__call__, *args).result(timeout=60)


def test_batches_of_ray_and_of_spark_come_back_with_the_new_columns(metric: IDSim, tmp_path: Path) -> None:
    vectors = metric.embed(pictures(3)).cls.numpy()
    names = [str(tmp_path / f"{number}.png") for number in range(3)]
    for picture, name in zip(pictures(3), names, strict=True):
        picture.save(name)

    arrays = np.empty(3, object)
    arrays[:] = [np.asarray(picture) for picture in pictures(3)]
    batch = {"image": arrays, "path": np.array(names, object)}
    found = InOneThread(metric)(batch)  # Ray Data
    assert list(found) == ["image", "path", "embedding", "embedding_model"]
    np.testing.assert_allclose(found["embedding"], vectors, atol=1e-6)
    assert set(found["embedding_model"]) == {metric.model_id}
    lost = EmbedColumn(metric, "path", on_error="none")({"path": np.array([names[0], "gone.png"], object)})
    assert [value is None for value in lost["embedding"]] == [False, True]

    table = pd.DataFrame({"path": names, "camera": list("xyz")}, index=[7, 8, 9])  # Spark's mapInPandas
    found = InOneThread(metric, "path")(table)
    assert list(found) == ["path", "camera", "embedding", "embedding_model"]
    assert list(found.index) == [7, 8, 9]
    np.testing.assert_allclose(np.stack(found["embedding"]), vectors, atol=1e-6)
    series = InOneThread(metric, "path")(table["path"])  # and its pandas_udf
    np.testing.assert_allclose(np.stack(series.tolist()), vectors, atol=1e-6)
    with pytest.raises(KeyError, match="image"):
        EmbedColumn(metric)(table)


def test_a_column_is_embedded_by_the_name_of_a_model() -> None:
    by_name = EmbedColumn("tiny")({"image": cells(1)})
    assert by_name["embedding_model"][0].startswith("IDSim:tiny@")


def nudged() -> IDSim:
    model = random_model("dinov3")
    with torch.no_grad():
        next(model.parameters()).flatten()[0] += 1e-3
    return model


def test_scores_of_two_columns(metric: IDSim) -> None:
    left, right = cells(4), pictures(4, 1)
    found = ScoreColumns(metric, "a", "b", "joint")({"a": left, "b": right})
    expected = metric(pictures(4), right, "joint")
    assert found["distance"] == pytest.approx(expected.tolist(), abs=1e-5)


def test_a_series_keeps_its_index(metric: IDSim) -> None:
    pandas = pytest.importorskip("pandas")
    batch = pandas.Series(cells(2), index=[7, 5])
    assert EmbedColumn(metric)(batch).index.tolist() == [7, 5]


@pytest.mark.parametrize("make", [lambda m, e: EmbedColumn(m, "a", on_error=e), lambda m, e: ScoreColumns(
    m, "a", "b", output="embedding", on_error=e)])  # fmt: skip
def test_cells_that_cannot_be_read_are_named_or_empty(metric: IDSim, make: Callable[..., Any]) -> None:
    batch = {"a": [*cells(1), {"bytes": b"no image", "path": None}, None], "b": pictures(3)}
    with pytest.raises(ImageReadError, match="known format"):
        make(metric, "raise")(batch)
    found = make(metric, "none")(batch)
    assert found["embedding"][0] is not None
    assert found["embedding"][1:] == [None, None]
    assert found["embedding_error"][0] is None
    assert "known format" in found["embedding_error"][1]
    assert found["embedding_error"][2] == "there is no image"
    datasets = pytest.importorskip("datasets")
    table = datasets.Dataset.from_dict({"a": batch["a"], "b": cells(3)})
    assert table.map(make(metric, "none"), batched=True)["embedding"][1] is None
    with pytest.raises(KeyError, match="no column 'c'"):
        EmbedColumn(metric, "c")(batch)


@pytest.mark.parametrize("identity", [None, 1.5, b"cat"])
def test_an_identity_is_a_name_or_a_whole_number(metric: IDSim, identity: Any) -> None:
    images = torch.rand(2, 3, 32, 32)
    with pytest.raises(ValueError, match="identities are names or whole numbers"):
        IdentityRetrieval(metric).update(images, [identity, 1])
    found = IdentityRetrieval(metric)
    found.update(images, [np.int32(1), 1])
    found.update(images, ["cat", "cat"])
    assert found.compute()["hit@5"] == 1


@pytest.mark.parametrize("distance", ["cls", "patch"])
def test_an_embedding_stands_for_its_photos(metric: IDSim, tmp_path: Path, distance: str) -> None:
    images, photos = pictures(3), pictures(2, seed=9)
    rex = metric.embed(photos)
    rex.save(tmp_path / "rex.idm")
    lists = [[photos, photos, photos], [photos, [images[0]], photos]]
    targets = [[rex, str(tmp_path / "rex.idm"), [tmp_path / "rex.idm"]], [[rex, [images[0]], rex]]]
    for by_photos, by_embeddings in zip(lists, targets, strict=True):
        expected = IdentitySimilarity(metric, distance, reduction="none")
        expected.update(images, by_photos)
        for target in by_embeddings:
            similarity = IdentitySimilarity(metric, distance, reduction="none")
            similarity.update(images, target)
            torch.testing.assert_close(similarity.compute(), expected.compute(), atol=1e-6, rtol=0)
    with pytest.raises(ValueError, match="masks"):
        similarity.update(images, rex, target_masks=[torch.ones(8, 8)] * 2)


def test_a_column_is_compared_with_the_nearest_photo_of_an_embedding(metric: IDSim, tmp_path: Path) -> None:
    images, photos = pictures(3), pictures(2, seed=9)
    metric.embed(photos).save(tmp_path / "rex.idm")
    values = ScoreColumns(metric, "image", tmp_path / "rex.idm")({"image": images})["distance"]
    assert values == pytest.approx(metric.pairwise(images, photos).amin(1).tolist(), abs=1e-6)
    both = ScoreColumns(metric, "image", "photo")({"image": images[:2], "photo": photos})["distance"]
    assert both == pytest.approx(metric(images[:2], photos).tolist(), abs=1e-6)
