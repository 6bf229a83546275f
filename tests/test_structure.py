"""What importing the package loads, and which way its modules import each other."""

from __future__ import annotations

import ast
import subprocess
import sys
import time
from pathlib import Path

import idmetric

PACKAGE = Path(idmetric.__file__).parent
HEAVY = ("torch", "timm", "peft", "transformers", "datasets", "numpy", "PIL", "huggingface_hub", "idmetric.train",
         "pyarrow", "ray")  # fmt: skip

# a module may import modules of its own rank or lower
RANK = {
    "config": 0, "json_file": 0, "output": 0, "endings": 0, "inputs": 0, "decimals": 0, "text_file": 0, "toml_file": 0,
    "_version": 0, "curves": 0, "images": 1, "sinkhorn": 1, "checkpoint": 1, "calibration": 2, "embedding": 2,
    "shards": 3, "distance": 3, "embedder": 4, "patchmap": 5, "backbone": 5, "released": 6, "idsim": 7, "nearid": 7,
    "visid": 7, "loading": 8, "losses": 9, "evaluate": 9, "protocols": 10, "data": 10, "train": 11, "report": 11,
    "records": 1, "nearest": 1, "gallery": 11, "clusters": 11, "adapters": 11, "bench": 11, "cli": 12,
    "subject": 2, "masks": 2, "identity_loss": 6, "ahead": 0, "scale": 11, "lock": 0, "hints": 0, "name_pattern": 0,
    "pth_file": 0, "dinov3": 2, "csv_text": 0, "finite": 0, "fingerprint": 1, "progress": 0, "connection": 0,
    "compiled_resize": 0,
}  # fmt: skip


def loaded_after(code: str) -> set[str]:
    program = f"import sys\n{code}\nprint(' '.join(sys.modules))"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    return set(done.stdout.splitlines()[-1].split())


def test_importing_the_package_loads_nothing_heavy() -> None:
    assert loaded_after("import idmetric").isdisjoint(HEAVY)


def test_help_loads_nothing_heavy() -> None:
    code = "from idmetric.cli.score import main\ntry: main(['--help'])\nexcept SystemExit: pass"
    assert loaded_after(code).isdisjoint(HEAVY)


def test_the_core_loads_neither_training_nor_optional_packages() -> None:
    loaded = loaded_after("from idmetric import IDSim, Backbone, load")
    assert "torch" in loaded
    assert loaded.isdisjoint({"peft", "transformers", "datasets", "geomloss", "idmetric.train", "idmetric.evaluate"})


def test_import_and_help_are_quick() -> None:
    for command in (["-c", "import idmetric"], ["-m", "idmetric.cli.score", "--help"]):
        times = []
        for _ in range(5):  # the quickest of a few: other programs may disturb one
            start = time.perf_counter()
            subprocess.run([sys.executable, *command], check=True, capture_output=True)
            times.append(time.perf_counter() - start)
        assert min(times) < 0.5


def imports_of(path: Path) -> set[str]:
    """First names below `idmetric` that a module imports."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path} imports relatively"
            if node.module == "idmetric":
                found |= {alias.name for alias in node.names}
            elif node.module and node.module.startswith("idmetric."):
                found.add(node.module.split(".")[1])
        elif isinstance(node, ast.Import):
            found |= {alias.name.split(".")[1] for alias in node.names if alias.name.startswith("idmetric.")}
    return found


def test_imports_point_one_way() -> None:
    modules = [p for p in PACKAGE.rglob("*.py") if p != PACKAGE / "__init__.py"]
    assert len(modules) > 10
    for path in modules:
        own = path.relative_to(PACKAGE).with_suffix("").parts[0]
        assert own in RANK, f"{own} has no rank: place it in the order of modules"
        for other in imports_of(path):
            assert other in RANK, f"{path} imports {other}"
            assert RANK[other] <= RANK[own], f"{path} imports {other}, which stands above it"
            if own in ("losses", "evaluate"):
                assert other in (own, "curves", "hints"), f"{path} imports {other}: {own} works on arrays alone"


def test_lazy_names_exist() -> None:
    for name in idmetric.__all__:
        assert getattr(idmetric, name) is not None
    assert set(idmetric.__all__) <= set(dir(idmetric))
