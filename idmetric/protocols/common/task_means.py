"""Means over a benchmark's data sets as VisME's tables have them: by meta-task, in and out of domain, and over all."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence

from idmetric.protocols.common.intervals import average
from idmetric.protocols.common.result import Row, Value

IN_DOMAIN, OUT_OF_DOMAIN = "IND", "OOD"


def task_means(
    values: Mapping[str, Value], metric: str, tasks: Sequence[str], task_of: Mapping[str, str],
    out_of_domain: Collection[str], whole: str, printed: Callable[[str], float | None],
) -> list[Row]:  # fmt: skip
    """Rows of means over the measured sets of each group, without sets that are not the benchmark's.

    Args:
        values: data set -> its number, called `metric`.
        tasks: meta-tasks, in their order. task_of: data set -> its meta-task.
        whole: label of the mean over all sets.
        printed: label -> the paper's number, shown where all sets of the group were measured.
    """
    groups = {task: [name for name, own in task_of.items() if own == task] for task in tasks}
    groups[IN_DOMAIN] = [name for name in task_of if name not in out_of_domain]
    groups[OUT_OF_DOMAIN] = [name for name in task_of if name in out_of_domain]
    groups[whole] = list(task_of)
    rows: list[Row] = []

    for label, names in groups.items():
        found = [values[name] for name in names if name in values]
        if not found:
            continue
        complete = len(found) == len(names)
        value = average(found, printed(label) if complete else None)
        which = f"mean of {len(found)}" + ("" if complete else f" of {len(names)}")
        task, domain = (label, "-") if label in tasks else ("-", label)
        rows.append({"task": task, "domain": domain, "dataset": which, metric: value})

    return rows
