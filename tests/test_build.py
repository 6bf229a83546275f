"""The wheel and the sdist, as the build backend makes them, and an editable install."""

from __future__ import annotations

import email
import re
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest

pytest.importorskip("hatchling", reason="builds the package: pip install --group dev")
pytest.importorskip("hatch_fancy_pypi_readme", reason="builds the package: pip install --group dev")

ROOT = Path(__file__).parents[1]
LINK = re.compile(r"\]\(([^)]+)\)")


def build(kind: str, folder: Path) -> Path:
    """What hatchling makes of the repository, as pip calls it; `kind` is "wheel", "sdist" or "editable"."""
    program = f"import sys, hatchling.build as backend; print(backend.build_{kind}(sys.argv[1]))"
    done = subprocess.run(
        [sys.executable, "-c", program, str(folder)], cwd=ROOT, capture_output=True, text=True, check=True
    )
    return folder / done.stdout.split()[-1]


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> zipfile.ZipFile:
    return zipfile.ZipFile(build("wheel", tmp_path_factory.mktemp("wheel")))


@pytest.fixture(scope="module")
def description(wheel: zipfile.ZipFile) -> str:
    """The README as the index shows it."""
    [path] = [name for name in wheel.namelist() if name.endswith(".dist-info/METADATA")]
    message = email.message_from_bytes(wheel.read(path))
    assert message["Description-Content-Type"] == "text/markdown"
    text = message.get_payload(decode=True)
    assert isinstance(text, bytes)
    return text.decode()


def package_files() -> set[str]:
    """Each file of the package, tracked or not, but compiled ones."""
    paths = (path for path in (ROOT / "idmetric").rglob("*") if path.is_file() and "__pycache__" not in path.parts)
    return {path.relative_to(ROOT).as_posix() for path in paths}


def test_the_wheel_holds_the_package_alone_with_its_licenses(wheel: zipfile.ZipFile) -> None:
    names = set(wheel.namelist())
    metadata = {name.split("/", 1)[1] for name in names if ".dist-info/" in name}
    assert {name for name in names if ".dist-info/" not in name} == package_files()
    licenses = {"licenses/LICENSE", "licenses/idmetric/NOTICE"}
    assert metadata == {"METADATA", "RECORD", "WHEEL", "entry_points.txt"} | licenses


def test_the_sdist_holds_what_builds_the_package(tmp_path: Path) -> None:
    with tarfile.open(build("sdist", tmp_path)) as archive:
        names = {name.split("/", 1)[1] for name in archive.getnames()}
    assert {name for name in names if name.startswith("idmetric/")} == package_files()
    assert {name for name in names if not name.startswith("idmetric/")} == {
        "LICENSE", "README.md", "PKG-INFO", "pyproject.toml", ".gitignore",  # hatchling adds the last
    }  # fmt: skip


def test_links_and_pictures_of_the_index_page_are_those_of_the_tag(wheel: zipfile.ZipFile, description: str) -> None:
    """Each address of the README, relative ones completed by the release's tag, is a file of the repository."""
    [path] = [name for name in wheel.namelist() if name.endswith(".dist-info/METADATA")]
    version = email.message_from_bytes(wheel.read(path))["Version"]
    pages = f"https://github.com/idmetric/idmetric/blob/v{version}/"
    pictures = f"https://raw.githubusercontent.com/idmetric/idmetric/v{version}/"

    relative = [link for link in LINK.findall((ROOT / "README.md").read_text()) if not link.startswith("http")]
    completed = [link for link in LINK.findall(description) if link.startswith((pages, pictures))]
    assert len(completed) == len(relative) > 0
    for link in LINK.findall(description):
        assert link.startswith("https://"), link
        file = link.removeprefix(pages).removeprefix(pictures).split("#")[0]
        if file.startswith("https://"):
            continue
        assert (ROOT / file).exists(), link
        assert link.startswith(pictures) == file.endswith((".webp", ".png", ".svg", ".gif", ".jpg")), link


def test_the_index_page_names_no_address_of_the_readers_own_machine(description: str) -> None:
    assert not re.search(r"localhost|127\.0\.0\.1|0\.0\.0\.0", description)


def test_an_editable_install_is_imported_from_the_folder_above_the_clone(tmp_path: Path) -> None:
    """There the clone's folder, named as the package, is not taken for a namespace package."""
    (tmp_path / "idmetric").symlink_to(ROOT, target_is_directory=True)
    installed = tmp_path / "site-packages"
    zipfile.ZipFile(build("editable", tmp_path)).extractall(installed)

    program = f"import site; site.addsitedir({str(installed)!r}); import idmetric; print(idmetric.__file__)"
    command = [sys.executable, "-E", "-S", "-c", program]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=True)
    assert Path(done.stdout.strip()) == ROOT / "idmetric" / "__init__.py"


def test_an_installed_torch_of_2024_is_not_replaced(wheel: zipfile.ZipFile) -> None:
    """The job "oldest" runs the tests with these versions."""
    [path] = [name for name in wheel.namelist() if name.endswith(".dist-info/METADATA")]
    lines = email.message_from_bytes(wheel.read(path)).get_all("Requires-Dist") or []
    assert {line for line in lines if "extra ==" not in line} == {
        "filelock>=4.2", "huggingface-hub>=0.26", "numpy>=1.26", "pillow>=10.3", "safetensors>=0.4.5", "timm>=1.0.20",
        "torch>=2.4", "tqdm>=4.66",
    }  # fmt: skip
