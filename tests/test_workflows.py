"""The workflows of the repository: pinned actions, least permissions, the Pythons that the package names."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest

from idmetric.version import __version__

yaml = pytest.importorskip("yaml", reason="workflows are YAML: pip install pyyaml")

ROOT = Path(__file__).parents[1]
FILES = sorted((ROOT / ".github" / "workflows").glob("*.yml"))
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]


def workflow(name: str) -> Any:
    return yaml.safe_load((ROOT / ".github" / "workflows" / f"{name}.yml").read_text(encoding="utf-8"))


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_actions_are_pinned_by_commit_with_their_version(file: Path) -> None:
    lines = re.findall(r"uses: (.*)", file.read_text(encoding="utf-8"))
    assert lines
    for line in lines:
        pinned = re.fullmatch(r"[\w-]+/[\w-]+@[0-9a-f]{40} # v\d+\.\d+\.\d+", line)
        assert pinned or line.startswith("./.github/workflows/"), line


def test_an_action_has_one_commit_in_all_workflows() -> None:
    lines = {line for file in FILES for line in re.findall(r"uses: (\S+@\S+)", file.read_text(encoding="utf-8"))}
    assert len({line.split("@")[0] for line in lines}) == len(lines)


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_jobs_may_read_unless_they_publish(file: Path) -> None:
    document = workflow(file.stem)
    assert document["permissions"] in ({}, {"contents": "read"})
    for name, job in document["jobs"].items():
        allowed = job.get("permissions", {})
        if (file.stem, name) not in {("docs", "publish"), ("publish", "index"), ("publish", "release")}:
            assert allowed in ({}, {"contents": "read"}), name
        for step in job.get("steps", []):
            assert "secrets." not in str(step), name
            if step.get("uses", "").startswith("actions/checkout@"):
                assert step["with"]["persist-credentials"] is False, name


def test_a_release_is_built_once_tested_and_published_without_a_password() -> None:
    jobs = workflow("publish")["jobs"]
    assert set(jobs["index"]["needs"]) == {"test", "build"}
    assert jobs["index"]["permissions"] == {"id-token": "write"}
    assert jobs["test"]["uses"] == "./.github/workflows/test.yml"
    commands = [step.get("run", "") for job in jobs.values() for step in job.get("steps", [])]
    assert sum("release-check" in command or "-m build" in command for command in commands) == 1
    upload = jobs["index"]["steps"][-1]
    assert upload["with"] == {"attestations": True}
    assert any(step.get("with", {}).get("sbom-path") for step in jobs["release"]["steps"])


def test_the_pythons_of_the_tests_are_those_of_the_package() -> None:
    jobs = workflow("test")["jobs"]
    versions = jobs["core"]["strategy"]["matrix"]["python-version"]
    prefix = "Programming Language :: Python :: 3."
    classified = [line.removeprefix(prefix) for line in PROJECT["classifiers"] if line.startswith(prefix)]
    assert [f"3.{minor}" for minor in classified] == versions == ["3.11", "3.12", "3.13", "3.14"]
    assert PROJECT["requires-python"] == f">={versions[0]}"
    assert jobs["core"]["strategy"]["matrix"]["os"] == ["ubuntu-latest", "windows-latest", "macos-latest"]
    assert any("--resolution lowest-direct" in step.get("run", "") for step in jobs["oldest"]["steps"])


def test_the_citation_names_the_version() -> None:
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text(encoding="utf-8"))
    assert citation["version"] == __version__


def test_zizmor_finds_nothing() -> None:
    program = shutil.which("zizmor", path=str(Path(sys.executable).parent)) or shutil.which("zizmor")
    if program is None:
        pytest.skip("workflows are audited by zizmor: pip install --group lint")
    done = subprocess.run(
        [program, "--offline", "--no-progress", ".github"], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
