"""What a score of two images loads of the package.

    python -m benchmarks.modules_loaded

Runs `IDSim("tiny")(a, b)` of two PNG files on the CPU in a fresh process, and counts the modules of the package that
are in `sys.modules` then, their lines, and the nodes of their syntax trees (`ast.walk`).
"""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[1]
IMAGES = ROOT / "examples" / "images"
PAIR = f"""
from idmetric import IDSim
IDSim("tiny", device="cpu")({str(IMAGES / "mug_a.png")!r}, {str(IMAGES / "mug_b.png")!r})
"""
_LISTING = """
import sys
for name, module in sorted(sys.modules.items()):
    if name.partition(".")[0] == "idmetric":
        print(name, module.__file__, sep="\\t")
"""


class LoadedModule(NamedTuple):
    """A module of the package, and its size."""

    name: str
    lines: int
    nodes: int


def loaded_by(code: str = PAIR) -> list[LoadedModule]:
    """The modules of the package that Python code loads in a fresh process."""
    done = subprocess.run([sys.executable, "-c", code + _LISTING], cwd=ROOT, capture_output=True, text=True, check=True)
    modules = []
    for line in done.stdout.splitlines():
        name, tab, path = line.partition("\t")
        if not tab:  # printed by the code
            continue
        text = Path(path).read_text(encoding="utf-8")
        nodes = sum(1 for _ in ast.walk(ast.parse(text)))
        modules.append(LoadedModule(name, len(text.splitlines()), nodes))
    return modules


def main() -> None:
    """Print the modules of a pair, and their sums."""
    modules = loaded_by()
    for module in modules:
        print(f"{module.lines:6} {module.nodes:6}  {module.name}")
    lines = sum(module.lines for module in modules)
    nodes = sum(module.nodes for module in modules)
    print(f"{lines:6} {nodes:6}  {len(modules)} modules")


if __name__ == "__main__":
    main()
