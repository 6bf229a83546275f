"""Runs tests on changed source: python -m tests.mutation_runner < changes.json > results.json

Both are lists: of [file, old, new, [tests]] and of {"outcome", "seconds", "output"}. The source on the disk stays as it
is. This process imports the libraries once and forks a child for each change; the child serves the changed text when
its module is imported, and runs the tests. Outcomes:

- "caught": a test failed;
- "survived": all tests passed;
- "error": nothing was shown, because the old text does not occur exactly once, or tests could not be collected or ran
  for too long.
"""

from __future__ import annotations

import gc
import importlib
import importlib.abc
import importlib.machinery
import json
import os
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from types import CodeType
from typing import Any, NamedTuple

ROOT = Path(__file__).parents[1]
SECONDS = 120  # of one change
OUTPUT = "output.txt"
WORKERS = 4  # at most: each has some 300 MB of its own
# A child has only the thread that forked it, so libraries must not have started others.
ONE_THREAD = {
    "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "MKL_NUM_THREADS": "1",
    "JE_ARROW_MALLOC_CONF": "background_thread:false",
}  # fmt: skip
LIBRARIES = (
    "torch", "timm", "peft", "geomloss", "pytest", "torchvision.transforms", "sklearn.metrics", "hypothesis",
    "pytorch_metric_learning.losses", "transformers", "transformers.models.qwen2_vl.image_processing_qwen2_vl",
)  # fmt: skip
CLASSES = (
    "SiglipVisionModel", "Qwen2_5_VLForConditionalGeneration", "Qwen2Tokenizer", "Qwen2VLImageProcessor",
    "AutoTokenizer",
)  # fmt: skip


class Changed(importlib.machinery.SourceFileLoader):
    """Loads a module from text in memory, past the cache of compiled files."""

    text = ""

    def get_code(self, fullname: str) -> CodeType | None:
        return compile(self.text, self.path, "exec", dont_inherit=True)


class Finder(importlib.abc.MetaPathFinder):
    """Finds one module, with changed text."""

    def __init__(self, name: str, path: Path, text: str) -> None:
        self.name, self.path, self.text = name, path, text

    def find_spec(self, fullname: str, path: Any, target: Any = None) -> importlib.machinery.ModuleSpec | None:
        if fullname != self.name:
            return None
        loader = Changed(fullname, str(self.path))
        loader.text = self.text
        return importlib.util.spec_from_file_location(fullname, self.path, loader=loader)


class Running(NamedTuple):
    """A child at work on the change of that number."""

    number: int
    place: Path
    start: float


def run(changes: Sequence[Sequence[Any]], workers: int) -> list[dict[str, Any]]:
    """The outcome of each change, in order."""
    results: list[dict[str, Any]] = [{} for _ in changes]
    waiting = list(reversed(range(len(changes))))
    running: dict[int, Running] = {}
    with tempfile.TemporaryDirectory() as folder:
        while waiting or running:
            while waiting and len(running) < workers:
                number = waiting.pop()
                place = Path(folder, str(number))
                place.mkdir()
                running[fork(changes[number], place)] = Running(number, place, time.monotonic())
            child, status = os.wait()
            done = running.pop(child)
            results[done.number] = {
                "outcome": outcome(os.waitstatus_to_exitcode(status)),
                "seconds": round(time.monotonic() - done.start, 1),
                "output": (done.place / OUTPUT).read_text(errors="replace")[-4000:],
            }
            shutil.rmtree(done.place)
    return results


def outcome(code: int) -> str:
    """What pytest's exit status says; negative ones are signals."""
    return {0: "survived", 1: "caught"}.get(code, "error")


def fork(change: Sequence[Any], place: Path) -> int:
    """Start a child on a change, with a folder of its own, and return its process number."""
    child = os.fork()
    if child:
        return child
    code = 3
    try:
        signal.alarm(SECONDS)  # ends the child
        with (place / OUTPUT).open("wb") as file:
            os.dup2(file.fileno(), 1)
            os.dup2(file.fileno(), 2)
        code = test(*change, place)
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def test(file: str, old: str, new: str, tests: Sequence[str], place: Path) -> int:
    """Run tests in this process with a change, to pytest's exit status."""
    import pytest

    path = ROOT / file
    text = path.read_text(encoding="utf-8")
    if text.count(old) != 1:
        print(f"{file} holds {old!r} {text.count(old)} times, not once")
        return 3
    name = ".".join(path.relative_to(ROOT).with_suffix("").parts)
    sys.meta_path.insert(0, Finder(name, path, text.replace(old, new)))
    options = ["-x", "-q", "-p", "no:cacheprovider", "--tb=short", "--basetemp", str(place / "files")]
    code = pytest.main([*options, *tests])
    if name not in sys.modules:
        print(f"the tests do not import {name}")
        return 3
    return int(code)


def prepare() -> None:
    """Import the libraries, but nothing of the package."""
    os.environ.update(ONE_THREAD)
    for name in ("CI", "BUILD_NUMBER"):  # under which pytest draws differences of long lists in full: minutes
        os.environ.pop(name, None)
    import torch

    torch.set_num_threads(1)
    for name in LIBRARIES:
        importlib.import_module(name)
    transformers = sys.modules["transformers"]
    for name in CLASSES:
        getattr(transformers, name)
    assert not [name for name in sys.modules if name.partition(".")[0] == "idmetric"]
    threads = Path("/proc/self/task")
    assert not threads.is_dir() or len(list(threads.iterdir())) == 1, "children would lack the other threads"
    gc.collect()
    gc.freeze()  # so that children share this memory


def main() -> None:
    changes = json.load(sys.stdin)
    os.chdir(ROOT)
    prepare()
    json.dump(run(changes, min(WORKERS, os.cpu_count() or 1)), sys.stdout)


if __name__ == "__main__":
    main()
