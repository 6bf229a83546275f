"""The time from starting a command to its first score, and the share of importing torch."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

from idmetric.cli.bench.rows import Row, over
from idmetric.cli.bench.setting import Setting

SCORE = "idmetric score --model tiny, two images"
TORCH = "import torch"


def start(setting: Setting) -> Iterator[Row]:
    """Measure whole processes: `idmetric score` with the packaged model on the CPU, `import torch`, and `--help`.

    The first round, which is not counted, brings the files that Python reads into the system's cache.
    """
    with tempfile.TemporaryDirectory() as folder:
        paths = [Path(folder, f"{k}.jpg") for k in range(2)]
        for path, data in zip(paths, setting.files, strict=False):
            path.write_bytes(data)
        score = ["-m", "idmetric.cli.score"]
        runs: dict[str, Callable[[], object]] = {
            TORCH: _process(["-c", "import torch"]),
            SCORE: _process([*score, "--model", "tiny", "--device", "cpu", *map(str, paths)]),
            "idmetric score --help": _process([*score, "--help"]),
        }
        found = setting.clock.alternate(runs)
    for what, timing in found.items():
        yield Row("start", "", what, timing, *over(found, what, TORCH))


def _process(words: list[str]) -> Callable[[], object]:
    environment = {**os.environ, "HF_HUB_OFFLINE": "1"}
    return lambda: subprocess.run([sys.executable, *words], check=True, capture_output=True, env=environment)
