"""A gallery that is built on a local Ray cluster of several nodes, of which one is killed."""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from idmetric import IDSim, load
from idmetric.cli.main import main
from idmetric.gallery import Gallery, GalleryError
from idmetric.gallery.scale import Cluster, Worker
from idmetric.stream.store import Store
from tests.embed_parts import pictures

ray = pytest.importorskip("ray", reason="a cluster needs Ray: pip install 'idmetric[scale]'")

# the head only coordinates; a node that is gone is noticed after about a second; workers are no nicer than this
# process, or they would stand still while others use the machine
HEAD = {
    "num_cpus": 0,
    "include_dashboard": False,
    "object_store_memory": 80 * 2**20,
    "_system_config": {
        "health_check_initial_delay_ms": 0,
        "health_check_period_ms": 300,
        "health_check_failure_threshold": 5,
        "worker_niceness": 0,
    },
}
NODE = {"num_cpus": 1, "object_store_memory": 80 * 2**20}
VARIABLES = {
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_ENABLE_UV_RUN_RUNTIME_ENV": "0",
    "OMP_NUM_THREADS": "1",
}


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory, metric: IDSim) -> Path:
    folder = tmp_path_factory.mktemp("model")
    metric.save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def cluster() -> Iterator[Any]:
    """A head and two nodes of one CPU each."""
    from ray.cluster_utils import Cluster as Nodes

    before = dict(os.environ)
    os.environ.update(VARIABLES)
    nodes = Nodes(initialize_head=True, head_node_args=HEAD)
    try:
        nodes.add_node(**NODE)
        nodes.add_node(**NODE)
        ray.init(address=nodes.address, log_to_driver=False, logging_level="ERROR")
        nodes.wait_for_nodes()
        yield nodes
    finally:
        ray.shutdown()
        nodes.shutdown()
        os.environ.clear()
        os.environ.update(before)


def slow_model(saved: Path, marks: Path) -> Callable[[], IDSim]:
    """Opens a model that leaves a mark for each batch, and from its node's second on waits until a node was killed."""

    def open_model() -> IDSim:
        class Slow(IDSim):
            def embed_prepared(self, *args: Any, **options: Any) -> Any:
                embedding = super().embed_prepared(*args, **options)
                node = ray.get_runtime_context().get_node_id()
                (marks / f"{node}.{time.monotonic_ns()}").touch()
                while len(list(marks.glob(f"{node}.*"))) > 1 and not (marks / "killed").exists():
                    time.sleep(0.02)
                return embedding

        Slow.__name__ = "IDSim"  # embeddings carry the name of the class that made them
        return Slow(saved, device="cpu")

    return open_model


def kill_a_node(cluster: Any, marks: Path, batches: list[int]) -> None:
    """Once both nodes have embedded a batch and work on another, kill one; its batches are appended."""
    until = time.monotonic() + 400  # far more than it takes
    nodes = list(cluster.worker_nodes)
    while not all(len(list(marks.glob(f"{node.node_id}.*"))) == 2 for node in nodes):
        if time.monotonic() > until:
            break
        time.sleep(0.02)
    else:
        victim = nodes[-1]
        cluster.remove_node(victim, allow_graceful=False)
        batches.append(len(list(marks.glob(f"{victim.node_id}.*"))))
    (marks / "killed").touch()


def masks_of(paths: list[Path], folder: Path) -> Path:
    """Masks that show the left half of each picture."""
    folder.mkdir()
    mask = np.zeros((30, 40), dtype=np.uint8)
    mask[:, :20] = 255
    for path in paths:
        Image.fromarray(mask).save(folder / path.name)
    return folder


@pytest.mark.slow
def test_with_a_node_killed_the_gallery_is_that_of_a_single_process(
    cluster: Any, saved: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    photos = tmp_path / "photos"
    paths = pictures(photos, 24)
    masks = masks_of(paths, tmp_path / "masks")
    paths[7].write_bytes(b"no image")
    paths[8].write_bytes(paths[20].read_bytes())  # the same content in both blocks
    marks = tmp_path / "marks"
    marks.mkdir()
    batches: list[int] = []
    killer = threading.Thread(target=kill_a_node, args=(cluster, marks, batches))
    killer.start()
    many = Gallery(tmp_path / "many", load(saved, device="cpu"), masked=True, patches=True)
    progress: list[tuple[int, int]] = []
    try:
        update = many.update(
            photos,
            mask_dir=masks,
            batch_size=4,
            progress=lambda done, total: progress.append((done, total)),
            cluster=Cluster(slow_model(saved, marks)),
        )
    finally:
        (marks / "killed").touch()
        killer.join()
    assert batches == [2]  # one batch went through on it, it died in another
    assert len([node for node in ray.nodes() if node["Alive"]]) == 2  # the head and one
    assert progress[-1] == (24, 24)

    single = Gallery(tmp_path / "single", load(saved, device="cpu"), masked=True, patches=True)
    assert single.update(photos, mask_dir=masks, batch_size=4) == update
    assert (update.images, update.embedded, list(update.unreadable)) == (23, 22, [str(paths[7])])
    assert many.items == single.items
    np.testing.assert_allclose(many.vectors(), single.vectors(), atol=1e-5)
    keys = [item.key for item in many.items]
    patches = [Store(gallery.store, patches=True).embedding(keys).patches for gallery in (many, single)]
    np.testing.assert_allclose(patches[0], patches[1], atol=1e-5)

    # the command resumes the cluster's work
    shards = {path: path.stat().st_mtime_ns for path in many.store.glob("*.safetensors")}
    words = ["--gallery", str(tmp_path / "many"), "--mask-dir", str(masks), "--model", str(saved), "--patches", "--ray"]
    pictures(photos, 1, start=24)
    masks_of([photos / "0024.png"], tmp_path / "mask")
    (tmp_path / "mask" / "0024.png").rename(masks / "0024.png")
    assert main(["gallery", "build", str(photos), *words]) == 4
    errors = capsys.readouterr().err
    assert "0007.png: it is not an image" in errors
    assert "24 images, 1 embedded, 1 new, 1 unreadable" in errors
    assert shards.items() <= {path: path.stat().st_mtime_ns for path in many.store.glob("*.safetensors")}.items()


@pytest.mark.slow
def test_what_a_cluster_cannot_do_is_said(cluster: Any, saved: Path, tmp_path: Path) -> None:
    pictures(tmp_path / "photos", 4)
    gallery = Gallery(tmp_path / "index", load(saved, device="cpu"))

    def open_model() -> IDSim:
        return load(saved, device="cpu")

    with pytest.raises(GalleryError, match="no room for a process of 99 CPUs"):
        gallery.update(tmp_path / "photos", cluster=Cluster(open_model, cpus=99))

    def open_another() -> IDSim:
        model = open_model()
        with torch.no_grad():
            next(model.parameters()).mul_(1.5)
        return model

    with pytest.raises(GalleryError, match="differs from that of the gallery"):
        Worker(open_another, gallery.store, False, gallery.masking, ray.put(([], {})))

    def open_elsewhere() -> IDSim:
        def save(store: Store) -> None:
            store.drop()

        Store.save = save  # type: ignore[method-assign]  # in another process: a folder of that machine alone
        return open_model()

    with pytest.raises(GalleryError, match="do not share"):
        gallery.update(tmp_path / "photos", cluster=Cluster(open_elsewhere))
    with pytest.raises(GalleryError, match="is not a gallery"):
        len(gallery)


def test_without_ray_it_says_how_to_get_it(metric: IDSim, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pictures(tmp_path / "photos", 1)
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(ImportError, match=r"pip install 'idmetric\[scale\]'"):
        Gallery(tmp_path / "index", metric).update(tmp_path / "photos", cluster=Cluster(lambda: metric))
