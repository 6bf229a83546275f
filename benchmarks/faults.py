"""Named faults that the tests must find: each is a small patch of the package, listed in faults.toml.

    python -m benchmarks.faults                                # all of them, about 40 minutes on a core
    python -m benchmarks.faults exif-not-applied debias-off    # some
    python -m benchmarks.faults --tree ../first --old          # in a checkout of 3c64b693, the first version

Each patch is applied alone, in a copy of the tree, and its tests run until one fails: the fault is found, if that test
passes without it. A fault whose tests pass is missed. A patch is stale if its text is no longer in its file exactly
once: write the same fault into the code as it is now. The status is 1 if a patch is stale, or if a fault is missed that
the first version's tests find.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import re
import shutil
import sys
import tempfile
import time
import tomllib
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from queue import SimpleQueue

TABLE = Path(__file__).with_name("faults.toml")
COPIED = ("idmetric", "tests", "benchmarks", "examples", "docs", "pyproject.toml", "README.md")
PRELOADED = ("numpy", "pandas", "PIL.Image", "pyarrow", "pytest", "scipy.stats", "sklearn.metrics", "timm", "torch")
PATIENCE = 900  # seconds for the tests of one fault
FOUND, MISSED, STALE, BROKEN = "found", "MISSED", "STALE", "BROKEN"


@dataclass(frozen=True)
class Patch:
    """A change of a file that makes it wrong.

    Attributes:
        file: relative to the repository. before: text that it holds once. after: what stands there instead.
        tests: files of tests, or tests in them, of which one should fail.
    """

    file: str
    before: str
    after: str
    tests: tuple[str, ...]

    def applied(self, tree: Path) -> str:
        """The patched text of the file; ValueError if the patch or one of its tests does not fit the tree."""
        path = tree / self.file
        if not path.is_file():
            raise ValueError(f"there is no {self.file}")
        text = path.read_text(encoding="utf-8")
        count = text.count(self.before)
        if count != 1:
            raise ValueError(f"{self.file} holds the text {count} times")
        for name in self.tests:
            if not (tree / name.partition("::")[0]).exists():
                raise ValueError(f"there is no {name}")
        return text.replace(self.before, self.after)


@dataclass(frozen=True)
class Fault:
    """A fault of the package.

    Attributes:
        name: short, for the command line. breaks: what goes wrong.
        patch: of today's code. old: of the first version, where it differs.
        missed_at_first: whether the first version's tests miss it.
    """

    name: str
    breaks: str
    patch: Patch
    old: Patch | None = None
    missed_at_first: bool = False


@dataclass(frozen=True)
class Outcome:
    """What the tests say to a fault: one of `FOUND`, `MISSED`, `STALE`, `BROKEN`, and a test's name or a reason."""

    fault: Fault
    verdict: str
    detail: str
    seconds: float = 0.0

    @property
    def is_good(self) -> bool:
        return self.verdict == FOUND or (self.verdict == MISSED and self.fault.missed_at_first)

    def line(self) -> str:
        """A row of a table in Markdown."""
        return f"| {self.fault.name} | {self.fault.breaks} | {self.verdict} | {self.detail} | {self.seconds:.0f} |"


def read_table(path: Path = TABLE) -> list[Fault]:
    """The faults of the table, in order."""
    entries = tomllib.loads(path.read_text(encoding="utf-8"))["fault"]
    faults = []
    for entry in entries:
        old = entry.get("old")
        faults.append(
            Fault(
                name=entry["name"],
                breaks=entry["breaks"],
                patch=_patch_of(entry),
                old=None if old is None else _patch_of(entry | old),
                missed_at_first=entry.get("missed_at_first", False),
            )
        )
    return faults


def _patch_of(entry: dict[str, object]) -> Patch:
    tests = entry["tests"]
    assert isinstance(tests, list)
    return Patch(str(entry["file"]), str(entry["before"]), str(entry["after"]), tuple(tests))


def copy_tree(tree: Path, folder: Path) -> Path:
    """A copy of what the tests need."""
    for name in COPIED:
        source = tree / name
        if source.is_dir():
            shutil.copytree(source, folder / name, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copy(source, folder / name)
    return folder


def run_tests(tree: Path, tests: Iterable[str], *options: str) -> tuple[int, list[str]]:
    """Run tests of a tree; returns pytest's status, and the tests that failed, or else the last line of its output."""
    log = tree / "tests.log"
    context = multiprocessing.get_context("forkserver")  # its processes have the slow packages already
    context.set_forkserver_preload([*PRELOADED])
    process = context.Process(target=_in_process, args=(tree, [*options, *tests], log))
    process.start()
    process.join(PATIENCE)
    if process.exitcode is None:
        process.kill()
        return -1, [f"not done after {PATIENCE} s"]
    output = log.read_text(encoding="utf-8", errors="replace")
    failed = re.findall(r"^(?:FAILED|ERROR) (.+?)(?: - .*)?$", output, re.MULTILINE)
    return process.exitcode, failed or output.strip().splitlines()[-1:]


def _in_process(tree: Path, arguments: list[str], log: Path) -> None:
    """Run pytest in this process, which ends with its status."""
    with log.open("wb") as file:
        for stream in (1, 2):
            os.dup2(file.fileno(), stream)
    os.chdir(tree)
    os.environ |= {"PYTHONPATH": str(tree), "PYTHONDONTWRITEBYTECODE": "1"}
    sys.dont_write_bytecode = True
    sys.path.insert(0, str(tree))
    import pytest

    sys.exit(pytest.main(["-q", "-n", "0", "-p", "no:cacheprovider", *arguments]))


def outcome_of(fault: Fault, patch: Patch, tree: Path) -> Outcome:
    """Apply the patch in a tree, run its tests, and take it back."""
    try:
        patched = patch.applied(tree)
    except ValueError as error:
        return Outcome(fault, STALE, str(error))
    path = tree / patch.file
    whole = path.read_text(encoding="utf-8")
    start = time.monotonic()
    try:
        path.write_text(patched, encoding="utf-8")
        status, lines = run_tests(tree, patch.tests, "-x")
    finally:
        path.write_text(whole, encoding="utf-8")
    verdict = {0: MISSED, 1: FOUND}.get(status, BROKEN)  # from 2 on no test ran, as after an error of an import
    return Outcome(fault, verdict, " ".join(lines), time.monotonic() - start)


def outcomes(faults: Sequence[tuple[Fault, Patch]], tree: Path, jobs: int) -> Iterator[Outcome]:
    """The outcome of each fault, in order; each job works in a copy of its own."""
    with tempfile.TemporaryDirectory(prefix="faults-") as folder, ThreadPoolExecutor(jobs) as pool:
        copies: SimpleQueue[Path] = SimpleQueue()
        for job in range(jobs):
            copies.put(copy_tree(tree, Path(folder, str(job))))

        def in_a_copy(chosen: tuple[Fault, Patch]) -> Outcome:
            copy = copies.get()
            try:
                return outcome_of(*chosen, copy)
            finally:
                copies.put(copy)

        yield from pool.map(in_a_copy, faults)


def main(argv: Sequence[str] | None = None) -> int:
    """Run the faults and print a table of them; returns the exit status."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.faults", description="Do the tests find named faults?")
    parser.add_argument("names", nargs="*", help="faults of faults.toml (default: all)")
    parser.add_argument("--tree", type=Path, default=Path(__file__).parents[1], help="repository (default: this one)")
    parser.add_argument("--old", action="store_true", help="the tree is the first version, 3c64b693")
    parser.add_argument("--jobs", type=int, default=1, help="faults at a time")
    args = parser.parse_args(argv)

    table = {fault.name: fault for fault in read_table()}
    unknown = [name for name in args.names if name not in table]
    if unknown:
        parser.error(f"no faults of these names: {', '.join(unknown)}")
    chosen = []
    for name in args.names or table:
        fault = table[name]
        chosen.append((fault, fault.old if args.old and fault.old is not None else fault.patch))

    print("| fault | breaks | | by | s |\n|---|---|---|---|---|", flush=True)
    tree = args.tree.resolve()
    bad = []
    finders = []
    for outcome in outcomes(chosen, tree, args.jobs):
        print(outcome.line(), flush=True)
        if not outcome.is_good:
            bad.append(outcome.fault.name)
        elif outcome.verdict == FOUND:
            finders.append(outcome.detail)
    if bad:
        print(f"{len(bad)} of {len(chosen)} faults are not found: {', '.join(bad)}", file=sys.stderr)

    # a test that fails without a fault finds none
    status = 0
    if finders:
        with tempfile.TemporaryDirectory(prefix="faults-") as folder:
            status, failed = run_tests(copy_tree(tree, Path(folder, "whole")), dict.fromkeys(finders))
        if status != 0:
            print(f"tests that fail without a fault: {', '.join(failed)}", file=sys.stderr)
    return 1 if bad or status != 0 else 0


if __name__ == "__main__":
    sys.exit(main())
