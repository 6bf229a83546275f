"""`idmetric.gallery.scale.embed_on_ray` on a local cluster of several nodes, of which one is killed."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from idmetric import IDSim, load
from idmetric.gallery.scale import ScaleError, embed_dataset, embed_on_ray
from tests.embed_parts import pictures, rows_of, same_rows

pa = pytest.importorskip("pyarrow", reason="Parquet files need pyarrow: pip install 'idmetric[data]'")
pq = pytest.importorskip("pyarrow.parquet")
ray = pytest.importorskip("ray", reason="a cluster needs Ray: pip install 'idmetric[scale]'")

# the head only coordinates; a node that is gone is noticed after about a second; workers are no nicer than this
# process, or they would stand still while others use the machine
HEAD = {"num_cpus": 0, "include_dashboard": False, "object_store_memory": 80 * 2**20, "_system_config": {
    "health_check_initial_delay_ms": 0, "health_check_period_ms": 300, "health_check_failure_threshold": 5,
    "worker_niceness": 0,
}}  # fmt: skip
NODE = {"num_cpus": 1, "object_store_memory": 80 * 2**20}


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory, metric: IDSim) -> Path:
    folder = tmp_path_factory.mktemp("model")
    metric.save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def cluster() -> Iterator[Any]:
    """A head and two nodes of one CPU each."""
    from ray.cluster_utils import Cluster

    before = dict(os.environ)
    os.environ.update(RAY_USAGE_STATS_ENABLED="0", RAY_DATA_DISABLE_PROGRESS_BARS="1", OMP_NUM_THREADS="1",
                      RAY_ENABLE_UV_RUN_RUNTIME_ENV="0")  # fmt: skip
    made = Cluster(initialize_head=True, head_node_args=HEAD)
    try:
        made.add_node(**NODE)
        made.add_node(**NODE)
        ray.init(address=made.address, log_to_driver=False, logging_level="ERROR")
        made.wait_for_nodes()
        ray.data.DataContext.get_current().enable_progress_bars = False
        yield made
    finally:
        ray.shutdown()
        made.shutdown()
        os.environ.clear()
        os.environ.update(before)


def slow_model(saved: Path, marks: Path) -> Callable[[], IDSim]:
    """Opens a model that leaves a mark for each batch, and from its node's second on waits until a node was killed."""

    def opened() -> IDSim:
        class Slow(IDSim):
            def embed(self, *args: Any, **options: Any) -> Any:
                found = super().embed(*args, **options)
                if len(found) > 1:  # not the one image that the layout is found by
                    node = ray.get_runtime_context().get_node_id()
                    (marks / f"{node}.{time.monotonic_ns()}").touch()
                    while len(list(marks.glob(f"{node}.*"))) > 1 and not (marks / "killed").exists():
                        time.sleep(0.02)
                return found

        Slow.__name__ = "IDSim"  # embeddings carry the name of the class that made them
        return Slow(saved, device="cpu")

    return opened


def kill_a_node(cluster: Any, marks: Path, found: dict[str, int]) -> None:
    """Once both nodes have embedded a batch and work on another, kill one; `found`: its batches."""
    until = time.monotonic() + 400  # far more than it takes
    nodes = list(cluster.worker_nodes)
    while not all(len(list(marks.glob(f"{node.node_id}.*"))) == 2 for node in nodes):
        if time.monotonic() > until:
            return
        time.sleep(0.02)
    victim = nodes[-1]
    cluster.remove_node(victim, allow_graceful=False)
    found[victim.node_id] = len(list(marks.glob(f"{victim.node_id}.*")))
    (marks / "killed").touch()


@pytest.mark.slow
def test_with_a_node_killed_the_output_is_complete_and_that_of_a_single_process(
    cluster: Any, saved: Path, tmp_path: Path
) -> None:
    paths = pictures(tmp_path / "photos", 60)
    paths[7].write_bytes(b"no image")
    paths[8].write_bytes(paths[9].read_bytes())  # the same content twice
    marks = tmp_path / "marks"
    marks.mkdir()
    killed: dict[str, int] = {}
    killer = threading.Thread(target=kill_a_node, args=(cluster, marks, killed))
    killer.start()
    try:
        done = embed_on_ray(tmp_path / "photos", tmp_path / "out", model=slow_model(saved, marks), batch_size=8, rows=4)
    finally:
        (marks / "killed").touch()
        killer.join()
    assert list(killed.values()) == [2]  # one batch went through on it, it died in another
    assert len([node for node in ray.nodes() if node["Alive"]]) == 2  # the head and one
    single = embed_dataset(tmp_path / "photos", tmp_path / "single", model=str(saved), batch_size=8, rows=4)
    assert (done.images, done.unreadable) == (60, single.unreadable)
    assert list(done.unreadable) == [str(paths[7])]
    found = rows_of(tmp_path / "out")
    assert found.keys() == {str(path) for path in paths}
    same_rows(found, rows_of(tmp_path / "single"), atol=1e-5)
    expected = load(saved, device="cpu").embed([p for k, p in enumerate(paths) if k != 7], patches=False).cls
    vectors = [found[str(path)]["embedding"] for k, path in enumerate(paths) if k != 7]
    np.testing.assert_allclose(vectors, expected, atol=1e-5)

    again = embed_dataset(tmp_path / "photos", tmp_path / "out", model=str(saved))
    assert (again.images, again.embedded, again.removed) == (60, 0, 0)  # one process resumes the cluster's work


@pytest.mark.slow
def test_tables_are_read_by_ray_data_and_what_the_cluster_cannot_do_is_said(
    cluster: Any, saved: Path, tmp_path: Path
) -> None:
    paths = pictures(tmp_path / "photos", 14)
    cluster.add_node(**NODE)  # for the one that was killed
    table = pa.table({"id": [p.stem for p in paths], "image": [p.read_bytes() for p in paths]})
    pq.write_table(table, tmp_path / "a.parquet", row_group_size=6)
    source, out = tmp_path / "a.parquet", tmp_path / "out"
    done = embed_on_ray(source, out, model=str(saved), column="image", stored="float16", rows=5)
    assert (done.images, done.embedded, done.unreadable) == (14, 14, {})
    found = rows_of(out)
    assert found.keys() == {f"{source}#{path.stem}" for path in paths}
    expected = load(saved, device="cpu").embed(paths, patches=False).cls
    vectors = [found[f"{source}#{path.stem}"]["embedding"] for path in paths]
    np.testing.assert_allclose(vectors, expected, atol=4e-3)
    part = min(out.glob("part_*"))
    damaged = bytearray(part.read_bytes())
    first = pq.read_table(part)["embedding"][0].as_py()
    damaged[damaged.index(np.array(first[:4], np.float16).tobytes())] ^= 0x10
    part.write_bytes(damaged)
    lost = embed_on_ray(source, out, model=str(saved), column="image", stored="float16", rows=5)
    assert (lost.images, lost.removed) == (14, 1)
    assert lost.embedded > 0
    same_rows(rows_of(out), found, atol=4e-3)

    with pytest.raises(ScaleError, match="no room for a process of 99 CPUs"):
        embed_on_ray(source, out, model=str(saved), column="image", stored="float16", cpus=99)
    driver = os.getpid()

    def other() -> Any:
        model = load(saved, device="cpu")
        if os.getpid() != driver:
            with torch.no_grad():
                next(model.parameters()).mul_(1.5)
        return model

    with pytest.raises(ScaleError, match="differs from that of the driver"):
        embed_on_ray(tmp_path / "photos", tmp_path / "new", model=other)
    assert rows_of(tmp_path / "new") == {}
