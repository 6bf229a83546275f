"""The Python blocks of README and docs run, from top to bottom of each page, and print what a `text` block below shows.

Images that a block names are made for it, and the published models are stood in for by `tiny` and by small ones with
random weights, so that nothing is downloaded. A block that needs what a test cannot have is preceded by the line

    <!-- not run: the reason -->

and is only compiled.
"""

from __future__ import annotations

import ast
import builtins
import re
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image, ImageDraw

import idmetric
from idmetric import IDSim
from idmetric.metric.idsim import TINY

ROOT = Path(__file__).resolve().parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
EXAMPLES = sorted((ROOT / "examples" / "images").glob("*.png"))
NOT_RUN = "<!-- not run: "
# names that pages use for what a reader has
GIVEN = {"refs": 2, "gens": 2, "queries": 2, "gallery": 3, "folder_of_paths": 3, "images": 3, "references": 3}


def page_id(page: Path) -> str:
    """README, or the path of a page below docs/, without .md."""
    return page.relative_to(ROOT).as_posix().removeprefix("docs/").removesuffix(".md")


def blocks(text: str) -> Iterator[tuple[str, bool]]:
    """The Python blocks of a page, and whether each is to be run."""
    for found in re.finditer(r"^([^\n]*)\n+^```python[^\n]*\n(.*?)^```", text, flags=re.S | re.M):
        yield found[2], not found[1].startswith(NOT_RUN)


def shown_below(text: str, code: str) -> str:
    """The `text` block that follows a Python block, or ""."""
    rest = text.partition(f"{code}```")[2]
    found = re.match(r"\n\n```text\n(.*?)```", rest, flags=re.S)
    return found[1] if found else ""


def given_on(page: str, patch: pytest.MonkeyPatch) -> dict[str, Any]:
    """What one page alone takes as there."""
    if page == "protocols/index":
        from idmetric.data.manifest import read

        return {"manifest": read("photos.parquet")}
    if page == "use/adapters":
        datasets = pytest.importorskip("datasets")
        patch.setattr(datasets.config, "HF_DATASETS_CACHE", Path("cache").resolve())
        files = list(map(str, EXAMPLES[:2]))
        return {"pairs": datasets.Dataset.from_dict({"generated": files, "reference": files})}
    return {}


def with_code() -> list[Path]:
    return [page for page in PAGES if "```python" in page.read_text(encoding="utf-8")]


def make_images(code: str) -> None:
    """Each image file that the code names as a string and that is not there."""
    for name in re.findall(r"[\"']([\w./ -]+\.(?:png|jpe?g|webp))[\"']", code):
        path = Path(name)
        if path.exists() or path.is_absolute():
            continue
        path.parent.mkdir(parents=True, exist_ok=True)
        if "mask" in path.stem:
            mask = Image.new("L", (128, 128))
            ImageDraw.Draw(mask).ellipse((24, 24, 104, 104), fill=255)
            mask.save(path)
        else:
            Image.open(EXAMPLES[sum(map(ord, path.stem)) % len(EXAMPLES)]).convert("RGB").save(path)


def make_folder() -> None:
    """What commands of the pages leave behind: photos by identity, a manifest, a calibration, scored pairs."""
    from idmetric.data.importers.run import import_dataset
    from idmetric.data.manifest import write

    for path in EXAMPLES:
        folder = Path("photos") / path.stem.replace("_other", "2_").rpartition("_")[0]
        folder.mkdir(parents=True, exist_ok=True)
        shutil.copy(path, folder)
    write(import_dataset("folder", Path("photos"), name="photos"), "photos.parquet")
    Path("results").mkdir()
    shutil.copy(TINY / "calibration.json", "results/tiny.calibration.json")
    pa = pytest.importorskip("pyarrow")
    table = pa.table({"score": [0.9, 0.4, 0.7, 0.2], "same": [True, False, True, False]})
    pytest.importorskip("pyarrow.parquet").write_table(table, "results/folder.tiny.pairs.parquet")
    shutil.copytree(ROOT / "examples", "examples")


@pytest.fixture(scope="session")
def qwen(tmp_path_factory: pytest.TempPathFactory) -> Callable[[], Path]:
    """A very small Qwen2.5-VL, written when it is asked for."""
    folder = tmp_path_factory.mktemp("qwen")

    def get() -> Path:
        pytest.importorskip("transformers")
        from idmetric.train.visme import small_qwen

        if not any(folder.iterdir()):
            small_qwen.write(folder)
        return folder

    return get


@pytest.fixture
def reader(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, qwen: Callable[[], Path]) -> dict[str, Any]:
    """The names that a page's code starts with, in a folder like a reader's, without a network."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    make_folder()
    real_load, real_visid = idmetric.load, idmetric.VisIDEmbed

    def stand_in(*source: Any, **options: Any) -> IDSim:
        here = source and (source[0] == "tiny" or not isinstance(source[0], str) or Path(source[0]).is_dir())
        return IDSim(*source, **options) if here else IDSim("tiny", device="cpu")

    monkeypatch.setattr(idmetric, "IDSim", stand_in)
    monkeypatch.setattr(idmetric, "NearID", stand_in)
    monkeypatch.setattr(idmetric, "Backbone", stand_in)
    monkeypatch.setattr(idmetric, "VisIDEmbed", lambda *_, **__: real_visid(qwen(), device="cpu", dtype=torch.float32))
    monkeypatch.setattr(idmetric, "load", lambda s, **o: real_load(s if Path(s).is_dir() else "tiny", **o))
    names: dict[str, Any] = {name: list(map(str, EXAMPLES[:count])) for name, count in GIVEN.items()}
    return {**names, "metric": IDSim("tiny", device="cpu"), "__name__": "docs"}


@pytest.mark.parametrize("page", with_code(), ids=page_id)
def test_the_code_of_the_docs_runs(
    page: Path, reader: dict[str, Any], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    found = list(blocks(page.read_text(encoding="utf-8")))
    assert len(found) == page.read_text(encoding="utf-8").count("```python"), "a block that was not recognized"
    reader |= given_on(page_id(page), monkeypatch)
    torch.manual_seed(0)
    for code, run in found:
        shown = shown_below(page.read_text(encoding="utf-8"), code)
        # "single" prints the value of an expression, as a notebook does
        tree = ast.parse(code)
        program = compile(ast.Interactive(tree.body) if shown else tree, page.name, "single" if shown else "exec")
        if run:
            make_images(code)
            capsys.readouterr()
            exec(program, reader)
            assert capsys.readouterr().out == shown or not shown


def test_what_is_not_run_says_why() -> None:
    for page in PAGES:
        for line in re.findall(rf"^{NOT_RUN}.*$", page.read_text(encoding="utf-8"), flags=re.M):
            assert re.fullmatch(r"<!-- not run: \w.{9,} -->", line), f"{page.name}: {line}"


def test_hidden_remarks_stand_before_python_blocks() -> None:
    for page in PAGES:
        text = page.read_text(encoding="utf-8")
        found = re.findall(rf"^{NOT_RUN}", text, flags=re.M)
        assert len(found) == sum(not run for _, run in blocks(text)), page.name


def names_of(program: ast.AST) -> tuple[set[str], set[str]]:
    """The names that code binds anywhere, and those that it reads."""
    nodes = list(ast.walk(program))
    names = [node for node in nodes if isinstance(node, ast.Name)]
    bound = {node.id for node in names if not isinstance(node.ctx, ast.Load)}
    bound |= {node.arg for node in nodes if isinstance(node, ast.arg)}
    bound |= {node.name for node in nodes if isinstance(node, ast.FunctionDef | ast.ClassDef)}
    imports = [alias for node in nodes if isinstance(node, ast.Import | ast.ImportFrom) for alias in node.names]
    bound |= {alias.asname or alias.name.partition(".")[0] for alias in imports}
    return bound, {node.id for node in names if isinstance(node.ctx, ast.Load)}


@pytest.mark.parametrize("page", [page for page in with_code() if page.name != "README.md"], ids=page_id)
def test_the_code_of_a_page_defines_what_it_uses(page: Path) -> None:
    known = set(dir(builtins))
    for code, _ in blocks(page.read_text(encoding="utf-8")):
        bound, read = names_of(ast.parse(code))
        known |= bound
        assert read <= known, f"{page.name} uses {sorted(read - known)} without defining them"
