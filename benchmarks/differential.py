"""Compare the package with a checkout of an earlier version: the same calls must give the same numbers.

    python -m benchmarks.differential --old FOLDER [--old-python PYTHON] [NAME ...]

FOLDER is the repository of the earlier version. NAME is a room ("core") or a part of a case's name ("core/masks");
default: all. The cases (`differential_cases`, which says what a case is) run with each version in a process of its
own. A line for each: the largest difference, what is allowed, the CPU seconds of both, and ok, gone or FAIL. The exit
status is 1 if one fails. PYTHON runs the earlier version where it needs other dependencies.

`--record` also writes the earlier version's results to tests/frozen/ROOM.json, which tests/test_differential.py
compares with this version on every run of the tests; cases that were not named keep theirs.
"""

from __future__ import annotations

import argparse
import importlib
import json
import math
import os
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Iterator
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent
FROZEN = ROOT / "tests" / "frozen"
ROOMS = sorted(path.stem for path in (HERE / "differential_cases").glob("[!_]*.py"))


def cases_of(room: str) -> list[Any]:
    """Return the cases of a room; their names must differ."""
    cases: list[Any] = importlib.import_module(f"differential_cases.{room}").CASES
    names = [case.name for case in cases]
    if len(set(names)) < len(names):
        raise ValueError(f"two cases of {room} have one name")
    return cases


def selected(names: list[str]) -> Iterator[tuple[str, Any]]:
    """Yield (room, case) of all cases that one of the names selects."""
    for room in ROOMS:
        for case in cases_of(room):
            label = f"{room}/{case.name}"
            if not names or any(name == room or ("/" in name and label.startswith(name)) for name in names):
                yield room, case


# Differences


def difference(old: Any, new: Any, relative: bool = False) -> float:
    """Return the largest difference of two results (see `differential_cases.plain`): infinity where they do not match.

    Args:
        relative: divide the differences of a list by the largest number in the old one.
    """
    if isinstance(old, list) and isinstance(new, list):
        if len(old) != len(new):
            return math.inf
        largest = max((difference(a, b) for a, b in zip(old, new, strict=True)), default=0.0)
        return largest / (_scale(old) if relative else 1.0)
    if isinstance(old, float) or isinstance(new, float):
        if not isinstance(old, float | int) or not isinstance(new, float | int):
            return math.inf
        if math.isnan(old) or math.isnan(new) or old == new:
            return 0.0 if old == new or (math.isnan(old) and math.isnan(new)) else math.inf
        return abs(old - new) / (_scale(old) if relative else 1.0)
    return 0.0 if old == new else math.inf


def _scale(values: Any) -> float:
    """Return the largest absolute number in nested lists, 1 where there is none but 0."""
    if isinstance(values, list):
        return max((_scale(value) for value in values), default=1.0)
    is_number = isinstance(values, float | int) and math.isfinite(values) and values != 0
    return abs(float(values)) if is_number else 1e-300


def differences(old: dict[str, Any], new: dict[str, Any], relative: bool = False) -> dict[str, float]:
    """Return the difference of each result by its name; infinity where only one version has it."""
    found = {}
    for name in [*old, *(name for name in new if name not in old)]:
        in_both = name in old and name in new
        found[name] = difference(old[name], new[name], relative) if in_both else math.inf
    return found


# Runs


def run_side(side: str, names: list[str]) -> dict[str, Any]:
    """Run one version's functions in this process; returns results or an error, and CPU seconds, by "room/case"."""
    from differential_cases import plain

    runs: dict[str, Any] = {}
    for room, case in selected(names):
        function = getattr(case, side)
        if function is None:
            continue
        start = time.process_time()
        try:
            run: dict[str, Any] = {"results": {name: plain(value) for name, value in function().items()}}
        except Exception:
            run = {"error": traceback.format_exc()}
        run["seconds"] = time.process_time() - start
        runs[f"{room}/{case.name}"] = run
    return runs


def run_process(side: str, tree: Path, python: str, names: list[str]) -> dict[str, Any]:
    """Run one version's functions in a process of its own, without network and without the user's cache."""
    with tempfile.TemporaryDirectory() as folder:
        output = Path(folder) / "runs.json"
        variables = {
            "PYTHONPATH": str(tree),
            "XDG_STATE_HOME": folder,
            "HF_HUB_OFFLINE": "1",
            "PYTHONWARNINGS": "ignore",
        }
        environment = {name: value for name, value in os.environ.items() if name != "IDMETRIC_CACHE"} | variables
        words = [
            python,
            str(Path(__file__).resolve()),
            "--side",
            side,
            "--tree",
            str(tree),
            "--runs",
            str(output),
            *names,
        ]
        subprocess.run(words, check=True, cwd=folder, env=environment)
        runs: dict[str, Any] = json.loads(output.read_text(encoding="utf-8"))
    return runs


def judged(case: Any, old: dict[str, Any], new: dict[str, Any] | None) -> tuple[str, str]:
    """Return the verdict on a case, ok, gone or FAIL, and a text: the largest difference, or what is wrong."""
    if "error" in old:
        return "FAIL", f"the earlier version failed:\n{old['error']}"
    if new is None:
        return ("gone", case.gone) if case.gone else ("FAIL", "no new(), and no reason why it is gone")
    if "error" in new:
        return "FAIL", f"this version failed:\n{new['error']}"
    found = differences(old["results"], new["results"], case.relative)
    worst = max(found, key=lambda name: found[name])
    text = f"{found[worst]:.1e} of {case.tolerance:.0e} in {worst}"
    return ("ok" if found[worst] <= case.tolerance else "FAIL"), text


def record(old_runs: dict[str, Any]) -> None:
    """Write the earlier version's results to the tests' files, where cases that did not run keep theirs."""
    for room in sorted({label.partition("/")[0] for label in old_runs}):
        file = FROZEN / f"{room}.json"
        frozen = json.loads(file.read_text(encoding="utf-8")) if file.is_file() else {}
        for label, run in old_runs.items():
            if label.startswith(f"{room}/") and "results" in run:
                frozen[label.partition("/")[2]] = run["results"]
        kept = {case.name: frozen[case.name] for case in cases_of(room) if case.new and case.name in frozen}
        lines = [f"{json.dumps(name)}: {json.dumps(results)}" for name, results in kept.items()]
        file.write_text("{\n" + ",\n".join(lines) + "\n}\n", encoding="utf-8")


def main() -> int:
    """Run the command."""
    parser = argparse.ArgumentParser(description="Compare the package with an earlier version of it.")
    parser.add_argument("names", nargs="*", metavar="NAME", help="rooms, or room/start of a case's name; default: all")
    parser.add_argument("--old", type=Path, metavar="FOLDER", help="repository of the earlier version")
    parser.add_argument("--old-python", default=sys.executable, metavar="PYTHON", help="runs it; default: this one")
    parser.add_argument("--record", action="store_true", help="write its results to tests/frozen")
    for internal in ("--side", "--tree", "--runs"):  # of the processes that this command starts
        parser.add_argument(internal, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.side:
        return _run_child(args)
    if args.old is None:
        parser.error("--old FOLDER is needed")

    old_runs = run_process("old", args.old.resolve(), args.old_python, args.names)
    new_runs = run_process("new", ROOT, sys.executable, args.names)
    if args.record:
        record(old_runs)
    failures = 0
    for room, case in selected(args.names):
        label = f"{room}/{case.name}"
        old, new = old_runs[label], new_runs.get(label)
        verdict, text = judged(case, old, new)
        failures += verdict == "FAIL"
        seconds = f"{old['seconds']:6.2f} s {new['seconds']:6.2f} s" if new else f"{old['seconds']:6.2f} s"
        print(f"{verdict:4}  {label:55}  {seconds:17}  {text}", flush=True)
    print(f"{len(old_runs)} cases, {failures} failed")
    return 1 if failures else 0


def _run_child(args: argparse.Namespace) -> int:
    """Run one version's functions, after a check that it is the one that is imported."""
    import idmetric

    if Path(args.tree) not in Path(idmetric.__file__).parents:
        raise SystemExit(f"idmetric is imported from {idmetric.__file__}, not from {args.tree}")
    Path(args.runs).write_text(json.dumps(run_side(args.side, args.names)), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.path.insert(0, str(HERE))
    raise SystemExit(main())
