"""Files opened, functions called and modules loaded by each command.

    python -m benchmarks.opens
    python -m benchmarks.opens --only score --only "gallery build" --files

Each command runs in a new process, on generated photos, with the packaged model and one reading thread.

- opened: for each image file of the input, the events "open" of Python's audit hook (`sys.addaudithook`).
- looked at: for each image file, the calls of `os.stat`, `os.lstat` and what builds on them, such as `Path.is_file`.
- modules, lines, nodes: the modules of `idmetric` in `sys.modules` in the end, their lines, and the nodes of their
  syntax trees (`ast.walk`).
- calls: for one candidate of `idmetric.score`, the calls of functions of `idmetric` that `sys.setprofile` reports,
  with workers=0: those with 64 candidates less those with 32, over 32. Candidates are JPEG files; there is one
  reference, and copies are looked for. Comprehensions and generator expressions are left out, as Python 3.12 does not
  call them; other generators count each time that they resume.
"""

from __future__ import annotations

import argparse
import ast
import json
import os
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any

import numpy as np
from PIL import Image

ROOT = Path(__file__).resolve().parents[1]
CANDIDATES = 64  # of the longer run in which calls are counted; the other one has half as many
_COMPREHENSIONS = ("<listcomp>", "<setcomp>", "<dictcomp>", "<genexpr>")
_SIZE = (160, 120)

# name -> arguments; {in}: the folder of photos, {out}: an empty one
COMMANDS = {
    "score": "score {in}/photos/mug/0.jpg {in}/photos/box",
    "score --html": "score {in}/photos/mug/0.jpg {in}/photos/box --html {out}/page.html",
    "eval generator --html": (
        "eval generator --data {in}/outputs --pattern {{method}}/{{subject}}/{{prompt}}_{{seed}}.jpg "
        "--references {in}/photos --out {out} --html {out}/page.html --bootstrap 20"
    ),
    "eval folder": "eval folder --data {in}/photos --out {out} --bootstrap 20",
    "gallery build": "gallery build {in}/photos --gallery {out}/index",
    "gallery dedupe": "gallery dedupe {in}/photos --output {out}/duplicates.csv",
    "match": (
        "match {in}/photos/box --subject mug={in}/photos/mug/0.jpg --subject can={in}/photos/can "
        "--output {out}/rows.csv --format csv"
    ),
}


@dataclass(frozen=True)
class Counts:
    """What a command did.

    Attributes:
        opened, looked_at: image file, below the folder of photos -> times.
        modules: names of the package's modules that the process has loaded.
    """

    opened: dict[str, int]
    looked_at: dict[str, int]
    modules: list[str]


# Photos


def write_photos(folder: Path) -> None:
    """Write photos of three objects, and images of two generators of these objects."""
    rng = np.random.default_rng(0)
    for subject in ("mug", "box", "can"):
        for number in range(4):
            _write_photo(folder / "photos" / subject / f"{number}.jpg", rng)
    for method in ("lora", "adapter"):
        for subject in ("mug", "box"):
            for seed in range(2):
                _write_photo(folder / "outputs" / method / subject / f"beach_{seed}.jpg", rng)


def _write_photo(path: Path, rng: np.random.Generator) -> None:
    """A photo of colored clouds, of which no two are alike."""
    clouds = rng.integers(0, 256, (12, 16, 3), dtype=np.uint8)
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(clouds).resize(_SIZE, Image.Resampling.BICUBIC).save(path, quality=90)


# Commands


def counts_of(names: Sequence[str], folder: Path) -> dict[str, Counts]:
    """What the commands of these names do, one after another in a new process, on photos of `write_photos`."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1"}
    with tempfile.TemporaryDirectory() as out:
        result = Path(out, "counts.json")
        child = [sys.executable, "-m", "benchmarks.opens", "--child", str(result), str(folder), *names]
        ended = subprocess.run(child, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
        if ended.returncode:
            raise RuntimeError(f"{', '.join(names)}: {ended.stderr}")
        return {name: Counts(**counts) for name, counts in json.loads(result.read_text()).items()}


def _write_counts(path: Path, folder: Path, names: Sequence[str]) -> None:
    """Run commands in this process, and write what they do."""
    opened: Counter[str] = Counter()
    looked_at: Counter[str] = Counter()

    def count_path(counter: Counter[str], path: Any) -> None:
        if isinstance(path, str | os.PathLike):
            name = os.path.relpath(os.fspath(path), folder)
            if name.endswith(".jpg") and not name.startswith(os.pardir):
                counter[name] += 1

    def on_event(event: str, event_arguments: tuple[Any, ...]) -> None:
        if event == "open":
            count_path(opened, event_arguments[0])

    def counting(stat: Any) -> Any:
        def counting_stat(path: Any, *options: Any, **named_options: Any) -> os.stat_result:
            count_path(looked_at, path)
            status: os.stat_result = stat(path, *options, **named_options)
            return status

        return counting_stat

    from idmetric.cli.main import main as run

    os.stat = counting(os.stat)
    os.lstat = counting(os.lstat)
    sys.addaudithook(on_event)
    counts: dict[str, Any] = {}
    for name in names:
        opened.clear()
        looked_at.clear()
        with tempfile.TemporaryDirectory() as out:
            arguments = [word.format(**{"in": folder, "out": out}) for word in COMMANDS[name].split()]
            status = run([*arguments, "--model", "tiny", "--quiet"])
        if status != 0:
            raise RuntimeError(f"idmetric {' '.join(arguments)} ended with status {status}")
        modules = [module for module in sys.modules if module.partition(".")[0] == "idmetric"]
        counts[name] = {"opened": dict(opened), "looked_at": dict(looked_at), "modules": sorted(modules)}
    path.write_text(json.dumps(counts))


# Calls


def calls_of_candidate(folder: Path) -> dict[str, float]:
    """The calls of each function for one candidate of `score`, by file and name.

    Args:
        folder: the candidates are written there.
    """
    from idmetric import IDSim, score

    metric = IDSim("tiny", device="cpu")
    rng = np.random.default_rng(1)
    paths = [folder / f"candidate_{number}.jpg" for number in range(CANDIDATES + 1)]
    for path in paths:
        _write_photo(path, rng)
    reference, *candidates = map(str, paths)

    def calls_of(count: int) -> Counter[str]:
        score(metric, reference, candidates[:count], workers=0)  # loads what is loaded late
        with _counting_calls() as calls:
            score(metric, reference, candidates[:count], workers=0)
        return calls

    half = CANDIDATES // 2
    further = calls_of(CANDIDATES)
    further.subtract(calls_of(half))
    return {name: count / half for name, count in further.items() if count}


@contextmanager
def _counting_calls() -> Iterator[Counter[str]]:
    """Count the calls of the package's functions in this thread."""
    package = str(ROOT / "idmetric") + os.sep
    calls: Counter[str] = Counter()

    def on_call(frame: FrameType, event: str, _: Any) -> None:
        code = frame.f_code
        if event == "call" and code.co_filename.startswith(package) and code.co_name not in _COMPREHENSIONS:
            calls[f"{code.co_filename.removeprefix(package)}: {code.co_qualname}"] += 1

    sys.setprofile(on_call)
    try:
        yield calls
    finally:
        sys.setprofile(None)


# Printing


def _times(counter: dict[str, int]) -> str:
    """How often each file was counted, such as "1" or "1 to 3"."""
    times = sorted(counter.values())
    if not times:
        return "0"
    return f"{times[0]}" if times[0] == times[-1] else f"{times[0]} to {times[-1]}"


def _size_of(modules: Sequence[str]) -> tuple[int, int]:
    """Lines and nodes of modules of the package."""
    lines = nodes = 0
    for name in modules:
        path = ROOT.joinpath(*name.split("."))
        text = (path / "__init__.py" if path.is_dir() else path.with_suffix(".py")).read_text(encoding="utf-8")
        lines += text.count("\n")
        nodes += sum(1 for _ in ast.walk(ast.parse(text)))
    return lines, nodes


def _lines(names: Sequence[str], folder: Path, with_files: bool) -> Iterator[str]:
    yield "| command | files | opened | looked at | modules | lines | nodes |"
    yield "|---|---|---|---|---|---|---|"
    for name in names:
        counts = counts_of([name], folder)[name]
        lines, nodes = _size_of(counts.modules)
        cells = [name, len(counts.opened), _times(counts.opened), _times(counts.looked_at)]
        cells += [len(counts.modules), f"{lines:,}", f"{nodes:,}"]
        yield f"| {' | '.join(map(str, cells))} |"
        if with_files:
            for path, times in sorted(counts.opened.items()):
                yield f"    {times} {path}"


def main() -> None:
    """Print the recipe and the counts."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", action="append", choices=[*COMMANDS, "calls"], help="may be repeated")
    parser.add_argument("--files", action="store_true", help="also print each file and each function")
    parser.add_argument("--child", nargs="+", help=argparse.SUPPRESS)  # a file for the result, photos, and commands
    args = parser.parse_args()
    if args.child:
        result, photos, *commands = args.child
        _write_counts(Path(result), Path(photos), commands)
        return

    print(__doc__)
    names = args.only or [*COMMANDS, "calls"]
    with tempfile.TemporaryDirectory(prefix="idmetric-") as name:
        folder = Path(name).resolve()
        write_photos(folder)
        for line in _lines([name for name in names if name in COMMANDS], folder, args.files):
            print(line, flush=True)
        if "calls" in names:
            calls = calls_of_candidate(folder)
            files = {function.partition(":")[0] for function in calls}
            print(f"\nscore: {sum(calls.values()):.1f} calls for each candidate, in {len(files)} files")
            if args.files:
                for function, count in sorted(calls.items()):
                    print(f"{count:8.2f} {function}")


if __name__ == "__main__":
    main()
