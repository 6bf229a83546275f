"""What importing the package loads, and which way its modules import each other."""

from __future__ import annotations

import ast
import builtins
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest
from torch import nn

import idmetric
from benchmarks.modules_loaded import LoadedModule, loaded_by
from idmetric import Backbone, Embedder, IDSim, NearID, VisIDEmbed
from tests.conftest import CORE

PACKAGE = Path(idmetric.__file__).parent
HEAVY = ("torch", "timm", "peft", "transformers", "datasets", "numpy", "PIL", "huggingface_hub", "idmetric.train",
         "pyarrow")  # fmt: skip
HELP = "from idmetric.cli.score import main\ntry: main(['--help'])\nexcept SystemExit: pass"

# a room may import itself and the rooms before it
ROOMS = ("metric", "tables", "page", "store", "stream", "scoring", "matching", "data", "gallery", "evaluate", "train",
         "adapters", "cli")  # fmt: skip
ARRAYS_ALONE = ("evaluate.statistics", "train.losses")  # packages of pure functions
# packages that these may import
HELPERS = ("evaluate.statistics", "train.losses", "metric.files", "metric.ties", "metric.distance", "metric.cosine",
           "metric.sinkhorn", "metric.embedding", "scoring.calibration")  # fmt: skip
# private attributes of torch and filelock that some modules have to read
OF_LIBRARIES = {"_C", "_functorch", "_version", "_context"}

# the parts of the room metric: a part may import itself and the parts before it
PARTS = (
    "lazy",
    "files",
    "errors",
    "paths",
    "images",
    "ties",
    "masks",
    "embedding",
    "cosine",
    "sinkhorn",
    "distance",
    "checkpoints",
    "fingerprint",
    "named",
    "embedder",
    "tiny.trunk",
    "tiny.efficientnet_lite",
    "idsim_config",
    "timm_models",
    "tiny",
    "custom",
    "load",
    "idsim_release",
    "idsim",
    "nearid",
    "backbone",
    "visid",
    "loss",
    "heatmap",
)
# what `IDSim("tiny")(a, b)` may load of the package
PAIR = {"modules": 24, "lines": 4350, "nodes": 25_800}

# what the modules of a pair import late, inside functions, and why
LATE = {
    "metric.cosine": "torch",
    "metric.idsim_release": "a received format: released checkpoints",
    "metric.load": "the names of released checkpoints, beside which a folder's is told apart",
    "metric.sinkhorn": "torch",
    "metric.timm_models": "timm",
}

# the twenty-minute path, from the vectors of an image to the command: read in this order
PATH = {
    "metric/images.py": 725,
    "metric/embedding.py": 305,
    "metric/distance.py": 135,
    "metric/embedder.py": 720,
    "metric/idsim.py": 205,
    "stream.py": 515,
    "scoring/score.py": 460,
    "cli/score.py": 245,
}
PATH_LINES = 3300  # together


@pytest.fixture(scope="module", autouse=True)
def _forgets_the_trees() -> Iterator[None]:
    yield
    nodes_of.cache_clear()


def loaded_after(code: str) -> set[str]:
    program = f"import sys\n{code}\nprint(' '.join(sys.modules))"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    return set(done.stdout.splitlines()[-1].split())


def test_core_tests_are_files_that_exist() -> None:
    """A folder that was renamed would otherwise leave `pytest -m core` without a word."""
    assert [path.name for path in CORE if not path.exists()] == []


def test_importing_the_package_loads_nothing_heavy() -> None:
    assert loaded_after("import idmetric").isdisjoint(HEAVY)


def test_help_loads_nothing_heavy() -> None:
    assert loaded_after(HELP).isdisjoint(HEAVY)


def test_the_help_of_a_protocol_loads_neither_torch_nor_tables() -> None:
    """`idmetric eval NAME --help` imports the protocol's file."""
    code = "from idmetric.evaluate.protocols.common.protocol import find, modules\nfor name in modules(): find(name)"
    assert loaded_after(code).isdisjoint({"torch", "timm", "transformers", "pyarrow", "scipy", "sklearn"})


def test_the_core_loads_neither_training_nor_optional_packages() -> None:
    loaded = loaded_after("from idmetric import IDSim, Backbone, load")
    assert "torch" in loaded
    assert loaded.isdisjoint({"peft", "transformers", "datasets", "geomloss", "idmetric.train", "idmetric.evaluate"})


def test_import_and_help_are_quick() -> None:
    """Few modules are loaded beyond Python's own: a tenth of a second, which other programs cannot change."""
    before = loaded_after("pass")
    for code, ours, all_modules in (("import idmetric", 8, 35), (HELP, 35, 150)):
        loaded = loaded_after(code) - before
        assert len([name for name in loaded if name.startswith("idmetric")]) <= ours
        assert len(loaded) <= all_modules


@cache
def modules() -> dict[str, Path]:
    """Every module of the package by its name, without "idmetric."; a package has the name of its folder."""
    files = {path.relative_to(PACKAGE).with_suffix("").parts: path for path in PACKAGE.rglob("*.py")}
    names = {".".join(parts[:-1] if parts[-1] == "__init__" else parts): path for parts, path in files.items()}
    return {name: path for name, path in names.items() if name}


@cache
def nodes_of(path: Path) -> list[ast.AST]:
    return list(ast.walk(ast.parse(path.read_text(encoding="utf-8"))))


@cache
def imports_of(path: Path) -> frozenset[str]:
    """The modules of the package that a module imports, anywhere in its text: late, and for type checkers, too."""
    known = modules()
    names = set()
    for node in nodes_of(path):
        if isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path} imports relatively"
            names |= {f"{node.module}.{alias.name}" for alias in node.names}
        elif isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}

    found = set()
    for name in names:
        inner = name.partition("idmetric.")[2] if name.startswith("idmetric.") else ""
        while inner and inner not in known:
            inner = inner.rpartition(".")[0]
        if inner:
            found.add(inner)
    return frozenset(found)


def test_the_package_has_its_rooms() -> None:
    entries = {path.name for path in PACKAGE.iterdir() if path.name != "__pycache__"}
    rooms = {f"{room}.py" if room in ("page", "store", "stream", "tables") else room for room in ROOMS}
    assert entries == {*rooms, "sheet.html", "__init__.py", "__main__.py", "py.typed", "version.py", "NOTICE"}


def test_imports_point_one_way() -> None:
    modules_of_rooms = {name: path for name, path in modules().items() if name not in ("__main__", "version")}
    assert len(modules_of_rooms) > 100
    for name, path in modules_of_rooms.items():
        room = ROOMS.index(name.split(".")[0])
        for imported in imports_of(path) - {"version"}:
            assert ROOMS.index(imported.split(".")[0]) <= room, f"{name} imports {imported}, from a later room"
            if name.startswith(ARRAYS_ALONE):
                assert imported.startswith(HELPERS), f"{name} imports {imported}: it works on arrays alone"


def test_the_page_loads_no_torch() -> None:
    assert "torch" not in loaded_after("import idmetric.page")


def test_every_module_is_imported_before_public_functions_are_called() -> None:
    """A package or a module of a function's name would stand in its place as soon as it is imported."""
    code = (
        "import importlib, inspect, idmetric\n"
        f"for name in {sorted(modules())!r}:\n"
        "    importlib.import_module(f'idmetric.{name}')\n"
        "for name in idmetric.__all__:\n"
        "    assert not inspect.ismodule(getattr(idmetric, name)), name\n"
        "for package in [value for value in vars(idmetric).values() if inspect.ismodule(value)]:\n"
        "    for name in getattr(package, '__all__', ()):\n"
        "        assert not inspect.ismodule(getattr(package, name)), (package, name)\n"
        "metric = idmetric.IDSim('tiny', device='cpu')\n"
        "mug = 'examples/images/mug_a.png'\n"
        "idmetric.score(metric, mug, 'examples/images/mug_b.png'), idmetric.score_pairs(metric, [(mug, mug)])\n"
        "idmetric.match(metric, {'mug': mug}, mug), idmetric.consistency(metric, [mug, 'examples/images/mug_b.png'])\n"
        "idmetric.load('tiny', device='cpu')"
    )
    loaded_after(code)


def test_the_metric_loads_nothing_of_the_other_rooms() -> None:
    code = (
        "from idmetric import IDSim, IdentityLoss\n"
        "metric = IDSim('tiny', device='cpu')\n"
        "metric('examples/images/mug_a.png', 'examples/images/mug_b.png')"
    )
    loaded = {name for name in loaded_after(code) if name.startswith("idmetric.")}
    assert {name for name in loaded if name.split(".")[1] not in ("metric", "version")} == set()


def test_the_metric_is_closed_inside() -> None:
    """Checkpoints know no model, models no loss and no subject: no exception."""
    checked = 0
    for name, path in modules().items():
        room, _, inside = name.partition(".")
        if room != "metric" or not inside:
            continue
        for imported in imports_of(path):
            if imported.startswith("metric."):
                checked += 1
                assert part_of(imported) <= part_of(name), f"{name} imports {imported}, from a later part"
    assert checked > 100


def part_of(name: str) -> int:
    """The place in `PARTS` of a module of the room metric: that of the longest part it lies in."""
    inside = name.removeprefix("metric.") + "."
    parts = [part for part in PARTS if inside.startswith(f"{part}.")]
    return PARTS.index(max(parts, key=len))


@cache
def pair() -> tuple[LoadedModule, ...]:
    """What `IDSim("tiny")(a, b)` loads of the package."""
    return tuple(loaded_by())


def test_a_pair_loads_few_modules_lines_and_nodes() -> None:
    """No more than `PAIR` says."""
    loaded = pair()
    assert len(loaded) > 20
    sizes = {
        "modules": len(loaded),
        "lines": sum(module.lines for module in loaded),
        "nodes": sum(module.nodes for module in loaded),
    }
    assert {name: size for name, size in sizes.items() if size > PAIR[name]} == {}


def test_a_pair_loads_neither_tables_nor_keys_nor_published_scores() -> None:
    names = {module.name.removeprefix("idmetric.metric.") for module in pair()}
    later = {"tables", "checkpoints.released", "named"}
    assert names.isdisjoint(later)


def test_a_pair_puts_off_only_heavy_packages_received_formats() -> None:
    known = modules()
    late = set()
    for module in pair():
        path = known.get(module.name.removeprefix("idmetric."))
        if path is None:  # idmetric itself
            continue
        for function in nodes_of(path):
            if isinstance(function, ast.FunctionDef):
                imports = [node for node in ast.walk(function) if isinstance(node, ast.ImportFrom)]
                late |= {str(node.module).removeprefix("idmetric.") for node in imports if is_ours(node)}
    assert late == set(LATE)


def is_ours(node: ast.ImportFrom) -> bool:
    return str(node.module).startswith("idmetric.")


@pytest.mark.parametrize("kind", [IDSim, NearID, VisIDEmbed, Backbone])
def test_a_model_inherits_from_embedder_and_torch_alone(kind: type) -> None:
    assert kind.__mro__ == (kind, Embedder, nn.Module, object)


def test_the_path_that_a_newcomer_reads_first_stays_short_and_documented() -> None:
    lines = {name: len((PACKAGE / name).read_text(encoding="utf-8").splitlines()) for name in PATH}
    assert {name: count for name, count in lines.items() if count > PATH[name]} == {}
    assert sum(lines.values()) <= PATH_LINES

    page = (PACKAGE.parent / "docs" / "contributing.md").read_text(encoding="utf-8")
    places = [page.find(f"`{name}`") for name in PATH]
    assert -1 not in places, "docs/contributing.md names each file of the path"
    first = [page.find(f". `{name}`") for name in PATH]
    assert first == sorted(first), "docs/contributing.md names them in the order of reading"


def test_no_modules_import_each_other_in_a_circle() -> None:
    try:
        tuple(TopologicalSorter({name: imports_of(path) - {name} for name, path in modules().items()}).static_order())
    except CycleError as error:
        raise AssertionError(f"a circle of imports: {' -> '.join(error.args[1])}") from None


def test_private_names_stay_in_their_modules() -> None:
    for name, path in modules().items():
        for node in nodes_of(path):
            if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("idmetric"):
                private = [a.name for a in node.names if a.name.startswith("_") and not a.name.startswith("__")]
                assert not private, f"{name} imports {private} of {node.module}"


def private_names(path: Path) -> set[str]:
    """The names with one leading underscore that a module defines: functions, classes, variables and attributes."""
    found = set()
    for node in nodes_of(path):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            found.add(node.name)
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            found.add(node.id)
        elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
            found.add(node.attr)
    return {name for name in found if name.startswith("_") and not name.startswith("__")}


def test_private_attributes_are_read_where_they_are_defined() -> None:
    own = {name: private_names(path) for name, path in modules().items()}
    ours = set().union(*own.values())
    for name, path in modules().items():
        others = ours - own[name] - OF_LIBRARIES
        for node in nodes_of(path):
            if isinstance(node, ast.Attribute) and node.attr in others:
                inherits = ast.unparse(node.value) in ("self", "cls", "super()")
                assert inherits, f"{name} reads {ast.unparse(node)}, which is private to another module"


def test_there_are_14_errors_and_6_warnings_at_most() -> None:
    bases: dict[str, list[str]] = {}
    for path in modules().values():
        for node in nodes_of(path):
            if isinstance(node, ast.ClassDef):
                bases[node.name] = [ast.unparse(base).rpartition(".")[2] for base in node.bases]

    errors, warnings = set(), set()
    for name in bases:
        builtin = builtin_base(name, bases)
        if issubclass(builtin, Warning):
            warnings.add(name)
        elif issubclass(builtin, BaseException):
            errors.add(name)
    assert len(errors) <= 14, sorted(errors)
    assert len(warnings) <= 6, sorted(warnings)


def builtin_base(name: str, bases: dict[str, list[str]]) -> type:
    """The first builtin class among a class and its bases by name, such as ValueError; `object` if none is."""
    builtin = getattr(builtins, name, None)
    if isinstance(builtin, type):
        return builtin
    for base in bases.get(name, []):
        builtin = builtin_base(base, bases)
        if builtin is not object:
            return builtin
    return object


def test_lazy_names_exist() -> None:
    for name in idmetric.__all__:
        assert getattr(idmetric, name) is not None
    assert set(idmetric.__all__) <= set(dir(idmetric))


def calls_of(attribute: str) -> dict[str, list[str]]:
    """What a method of this name is called on, by module."""
    calls: dict[str, list[str]] = {}
    for name, path in modules().items():
        for node in nodes_of(path):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == attribute:
                calls.setdefault(name, []).append(ast.unparse(node.func.value))
    return calls


def test_one_place_prepares_embeds_and_keeps() -> None:
    """Items become embeddings in the stream; models of other packages have an `embed` of their own."""
    embedding = {name for name in calls_of("embed") if not name.startswith("adapters.")}
    of_other_packages = {"evaluate.protocols.common.baselines", "metric.custom"}
    in_the_metric = {"metric.embedder", "metric.visid.visid"}  # a side of a comparison; that of its base class
    assert embedding == of_other_packages | in_the_metric
    # in VisID that of its base class
    # and the loss, for masked pixels with their graph
    assert set(calls_of("embed_prepared")) - {"metric.visid.visid"} == {"stream", "metric.embedder", "metric.loss"}
    preparing = {name for name, values in calls_of("prepare").items() if "self.metric" in values}
    assert preparing == {"stream", "metric.loss"}
    adding = {name for name, values in calls_of("add").items() if any("store" in value for value in values)}
    assert adding <= {"stream"}


def test_no_two_classes_have_one_name() -> None:
    files_of_name: dict[str, list[str]] = {}
    for name, path in modules().items():
        for node in nodes_of(path):
            if isinstance(node, ast.ClassDef):
                files_of_name.setdefault(node.name, []).append(name)
    assert {name: files for name, files in files_of_name.items() if len(files) > 1} == {}
