"""`idmetric.scale.embed_on_ray` on a local cluster of several nodes, of which one is killed."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from idmetric import IDSim, load
from idmetric.cli.main import main
from idmetric.scale import ScaleError, embed_dataset, embed_on_ray
from tests.embed_parts import pictures, rows_of, same_rows

pa = pytest.importorskip("pyarrow", reason="Parquet files need pyarrow: pip install 'idmetric[data]'")
fs = pytest.importorskip("pyarrow.fs")
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
        done = embed_on_ray(
            tmp_path / "photos", tmp_path / "out", model=slow_model(saved, marks), batch_size=8, rows=4, actors=2
        )
    finally:
        (marks / "killed").touch()
        killer.join()
    assert list(killed.values()) == [2]  # one batch went through on it, it died in another
    assert len([node for node in ray.nodes() if node["Alive"]]) == 2  # the head and one
    single = embed_dataset(tmp_path / "photos", tmp_path / "single", model=str(saved), batch_size=8, rows=4)
    assert (done.images, done.parts, done.unreadable) == (60, single.parts, single.unreadable)
    assert list(done.unreadable) == [str(paths[7])]
    found = rows_of(tmp_path / "out")
    assert found.keys() == {str(path) for path in paths}
    same_rows(found, rows_of(tmp_path / "single"), atol=1e-5)
    expected = load(saved, device="cpu").embed([p for k, p in enumerate(paths) if k != 7], patches=False).cls
    vectors = [found[str(path)]["embedding"] for k, path in enumerate(paths) if k != 7]
    np.testing.assert_allclose(vectors, expected, atol=1e-5)


@pytest.mark.slow
def test_tables_and_object_stores_are_read_and_written_by_the_nodes(cluster: Any, saved: Path, tmp_path: Path) -> None:
    paths = pictures(tmp_path / "photos", 14)
    table = pa.table({"id": [p.stem for p in paths], "image": [p.read_bytes() for p in paths]})
    (tmp_path / "store" / "tables").mkdir(parents=True)
    pq.write_table(table, tmp_path / "store" / "tables" / "a.parquet", row_group_size=6)
    store = fs.SubTreeFileSystem(str(tmp_path / "store"), fs.LocalFileSystem())
    done = embed_on_ray("tables", "out", model=str(saved), rows=5, filesystem=store, out_filesystem=store)
    assert (done.images, done.embedded, done.parts) == (14, 14, 3)
    single = embed_dataset(tmp_path / "store" / "tables", tmp_path / "single", model=str(saved))
    assert single.images == 14
    expected = {row["name"]: row["embedding"] for row in rows_of(tmp_path / "single").values()}
    found = rows_of(tmp_path / "store" / "out")
    assert set(found) == {f"tables/a.parquet#{k}" for k in range(14)}
    for row in found.values():
        np.testing.assert_allclose(row["embedding"], expected[row["name"]], atol=1e-5)


DRIVER = """
import sys, time
from pathlib import Path
from idmetric import IDSim
from idmetric.scale import embed_on_ray

address, model, photos, out, mark = sys.argv[1:]

def opened():
    class Slow(IDSim):
        batches = 0
        def embed(self, *args, **options):
            found = super().embed(*args, **options)
            Slow.batches += 1
            # The first finds the layout. A part has at most four times `rows` images, two batches: one part is written.
            if Slow.batches > 4:
                Path(mark).touch()
                time.sleep(600)
            return found
    Slow.__name__ = "IDSim"
    return Slow(model, device="cpu")

embed_on_ray(photos, out, model=opened, address=address, actors=1, rows=2, batch_size=4)
"""


@pytest.mark.slow
def test_a_killed_driver_leaves_what_the_next_goes_on_from(
    cluster: Any, saved: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    photos, out, mark = tmp_path / "photos", tmp_path / "out", tmp_path / "mark"
    paths = pictures(photos, 40)
    words = [cluster.address, str(saved), str(photos), str(out), str(mark)]
    driver = subprocess.Popen([sys.executable, "-c", DRIVER, *words], stderr=subprocess.PIPE)
    try:
        until = time.monotonic() + 400
        while not mark.exists() and driver.poll() is None and time.monotonic() < until:
            time.sleep(0.02)
        with pytest.raises(ScaleError, match="another run is writing"):
            embed_on_ray(photos, out, model=str(saved), rows=2)
    finally:
        driver.send_signal(signal.SIGKILL)
        said = driver.communicate()[1]
    assert mark.exists(), said.decode()
    before, kept = rows_of(out), {p.name: p.stat().st_mtime_ns for p in out.glob("part-*")}
    assert 0 < len(before) < 40
    command = ["embed", str(photos), "--out", str(out), "--rows", "2", "--batch-size", "4"]
    command += ["--model", str(saved), "--device", "cpu"]
    assert (
        main([*command, "--ray"]) == main(command) == 0
    )  # waits for the killed one's actor to go; then nothing is left
    told, parts = capsys.readouterr().err, len(list(out.glob("part-*")))
    assert [line.split(": ")[1] for line in told.splitlines() if "embedded" in line] == [
        f"40 images in {parts} files, {count} embedded in {out}" for count in (40 - len(before), 0)
    ]
    assert kept.items() <= {p.name: p.stat().st_mtime_ns for p in out.glob("part-*")}.items()
    found = rows_of(out)
    assert found.keys() == {str(path) for path in paths}
    assert not [p.name for p in out.iterdir() if p.name.startswith(".part")]
    embed_dataset(photos, tmp_path / "single", model=str(saved), rows=2, batch_size=4)
    same_rows(found, rows_of(tmp_path / "single"), atol=1e-5)


@pytest.mark.slow
def test_what_the_cluster_cannot_do_is_said(cluster: Any, saved: Path, tmp_path: Path) -> None:
    pictures(tmp_path / "photos", 2)
    with pytest.raises(ScaleError, match="no room for an actor of 99 CPUs"):
        embed_on_ray(tmp_path / "photos", tmp_path / "out", model=str(saved), cpus=99)
    driver = os.getpid()

    def other() -> Any:
        model = load(saved, device="cpu")
        if os.getpid() != driver:
            next(model.parameters()).data.mul_(1.5)
        return model

    with pytest.raises(ScaleError, match=r"^[^\n]*: its model differs from that of the driver in revision, weights$"):
        embed_on_ray(tmp_path / "photos", tmp_path / "out", model=other)
    assert rows_of(tmp_path / "out") == {}
