"""The batches of a run, drawn before training and kept in a file (VisME, section 4.2.1).

A batch joins K blocks of M samples, each block from one sub-dataset (Eq. 1). With identity-aware sampling no identity
occurs twice in a batch, even across datasets, and an identity is drawn in proportion to its instances. A step's batch
follows from (seed, step) alone.

    write("run/schedule.parquet", data, Plan(seed=1))
    schedule = Schedule("run/schedule.parquet")
    schedule[0].query                                    # rows of the manifest, shape (1024,)
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from idmetric.io import json_file
from idmetric.io.output import replacing
from idmetric.train.options import current
from idmetric.train.visme.batch_sampler import draw
from idmetric.train.visme.plan import Batch, Data, Plan, ScheduleError, broken, expected_blocks, usable


def write(
    path: str | os.PathLike[str],
    data: Data,
    plan: Plan,
    progress: Callable[[Iterable[int]], Iterable[int]] | None = None,
) -> None:
    """Draw all batches and write them atomically to a Parquet file; one batch is in memory at a time.

    Columns: step, place (of the sample in its batch), dataset, query, target and hard, the last three as row numbers of
    the manifest from 0. The file's metadata hold the plan and the data's fingerprint.

    Args:
        progress: wraps the steps, such as tqdm.

    Raises:
        ScheduleError: see `usable` and `draw`.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    data = usable(data, plan)
    share = expected_blocks(data, plan)
    names = pa.array([p.name for p in data.pools])
    row, note = pa.int64(), json.dumps({"plan": asdict(plan), "data": data.fingerprint}, sort_keys=True)
    schema = pa.schema(
        {"step": pa.int32(), "place": pa.int32(), "dataset": pa.dictionary(pa.int32(), pa.string()),
         "query": row, "target": row, "hard": pa.list_(row)}, {"idmetric.schedule": note},
    )  # fmt: skip
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    steps = range(plan.steps)
    with replacing(path) as part, pq.ParquetWriter(part, schema) as file:
        for step in progress(steps) if progress else steps:
            file.write_table(_table(draw(data, plan, step, share), step, names, schema))


def _table(batch: Batch, step: int, names: Any, schema: Any) -> Any:
    import pyarrow as pa

    count = len(batch.query)
    ends = np.cumsum([0, *(len(h) for h in batch.hard)]).astype(np.int32)
    columns = [
        np.full(count, step, np.int32), np.arange(count, dtype=np.int32),
        pa.DictionaryArray.from_arrays(pa.array(batch.dataset.astype(np.int32)), names),
        batch.query, batch.target, pa.ListArray.from_arrays(ends, np.concatenate([*batch.hard, np.zeros(0, np.int64)])),
    ]  # fmt: skip
    return pa.table(columns, schema=schema)


class Schedule:
    """A schedule's file; `schedule[step]` reads one batch. It can be pickled for other processes.

    Raises:
        ScheduleError: if the file is not a schedule.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        import pyarrow as pa
        import pyarrow.parquet as pq

        self.path = Path(path)
        if not self.path.is_file():
            raise ScheduleError(f"{self.path}: no such file")
        try:
            found = pq.read_metadata(self.path)
        except pa.ArrowException as error:
            raise ScheduleError(f"{self.path}: not readable as Parquet: {error}") from error
        noted = (found.metadata or {}).get(b"idmetric.schedule")
        if noted is None:
            raise ScheduleError(f"{self.path} is not a schedule: it was not written by idmetric train visme")
        try:
            record = json_file.parse(noted)
            self.plan = Plan(**{current(name): value for name, value in record["plan"].items()})
            self.data = str(record["data"])
        except (TypeError, KeyError, ValueError) as error:
            raise ScheduleError(f"{self.path}: written by another version of this package ({error})") from error
        if found.num_row_groups != self.plan.steps:
            raise ScheduleError(f"{self.path}: {found.num_row_groups} batches, where {self.plan.steps} were written")
        self._file: Any = None

    def __len__(self) -> int:
        return self.plan.steps

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_file": None}

    def __getitem__(self, step: int) -> Batch:
        import pyarrow.parquet as pq

        if not 0 <= step < len(self):
            raise IndexError(f"step {step} of a schedule of {len(self)} steps")
        if self._file is None or self._file[0] != os.getpid():  # an open file is not shared with a forked process
            self._file = (os.getpid(), pq.ParquetFile(self.path))
        table = self._file[1].read_row_group(step)
        hard = table["hard"].combine_chunks()
        ends, flat = hard.offsets.to_numpy(), hard.values.to_numpy()
        parts = tuple(flat[a:b] for a, b in zip(ends[:-1].tolist(), ends[1:].tolist(), strict=True))
        dataset = table["dataset"].combine_chunks().indices.to_numpy().astype(np.int64)
        return Batch(dataset, table["query"].to_numpy(), table["target"].to_numpy(), parts)


def check(schedule: Schedule, data: Data) -> None:
    """Check that a schedule belongs to this data, and that its batches follow its plan.

    Raises:
        ScheduleError: naming the step and place of the first fault.
    """
    plan, path, data = schedule.plan, schedule.path, usable(data, schedule.plan)
    if schedule.data != data.fingerprint:
        raise ScheduleError(
            f"{path}: drawn from other data (or from other rows of it): leave --schedule out to draw it again"
        )
    for step in range(len(schedule)):
        if fault := broken(schedule[step], data.shown, plan):
            raise ScheduleError(f"{path}: step {step}, {fault}")


def summary(schedule: Schedule) -> list[dict[str, Any]]:
    """For each dataset the blocks, samples, different queries, and mean number of hard negatives of a sample."""
    import pyarrow as pa
    import pyarrow.compute as pc
    import pyarrow.parquet as pq

    table = pq.read_table(schedule.path, columns=["dataset", "query", "hard"])
    table = pa.table({"dataset": table["dataset"].cast("string"), "query": table["query"],
                      "hard": pc.list_value_length(table["hard"])})  # fmt: skip
    counts = table.group_by("dataset").aggregate(
        [("query", "count"), ("query", "count_distinct"), ("hard", "mean")]
    ).sort_by("dataset")  # fmt: skip
    return [
        {"dataset": r["dataset"], "blocks": r["query_count"] // schedule.plan.samples, "samples": r["query_count"],
         "queries": r["query_count_distinct"], "hard": round(r["hard_mean"], 3)}
        for r in counts.to_pylist()
    ]  # fmt: skip
