"""The tests notice errors: each of many single changes of the source makes one of them fail.

    pytest -m mutation

A change that survives shows that a test is missing. Write one for the behaviour, not for the change.
"""

from __future__ import annotations

import ast
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.mutations import MUTATIONS, Mutation

ROOT = Path(__file__).parents[1]
QUICK = "tests/losses/test_triplet.py::test_hinge_is_its_equation"
TRIPLET = "idmetric/losses/triplet.py"
Result = dict[str, Any]


def names(changes: list[Mutation]) -> list[str]:
    return [f"{Path(change.file).stem}-{number}" for number, change in enumerate(changes)]


def unchanged() -> list[Mutation]:
    """For each file of tests, a change without effect and all of its tests that are used."""
    files: dict[str, Mutation] = {}
    for change in MUTATIONS:
        for test in change.tests:
            file = test.partition("::")[0]
            known = files.get(file, Mutation(change.file, change.old, change.old, ()))
            files[file] = known._replace(tests=tuple(dict.fromkeys((*known.tests, test))))
    return list(files.values())


@pytest.fixture(scope="module")
def results(request: pytest.FixtureRequest) -> dict[Mutation, Result]:
    """What became of each change that the selected tests ask for."""
    parameters = [getattr(item, "callspec", None) for item in request.session.items if item.fspath == request.fspath]
    changes = [found.params["change"] for found in parameters if found is not None and "change" in found.params]
    return dict(zip(changes, run(changes), strict=True))


def run(changes: list[Mutation]) -> list[Result]:
    command = [sys.executable, "-m", "tests.mutation_runner"]
    done = subprocess.run(command, input=json.dumps(changes), stdout=subprocess.PIPE, text=True, cwd=ROOT, check=True)
    found: list[Result] = json.loads(done.stdout)
    return found


def test_every_change_fits_the_source_once_and_names_tests_that_exist() -> None:
    assert len(set(MUTATIONS)) == len(MUTATIONS) >= 100
    for change in MUTATIONS:
        text = (ROOT / change.file).read_text(encoding="utf-8")
        assert text.count(change.old) == 1, f"{change.file}: {change.old!r}"
        assert change.new != change.old
        ast.parse(text.replace(change.old, change.new))
        for test in change.tests:
            file, _, name = test.partition("::")
            assert f"def {name.partition('[')[0]}" in (ROOT / file).read_text(encoding="utf-8"), test


@pytest.mark.slow
@pytest.mark.mutation
@pytest.mark.parametrize("change", MUTATIONS, ids=names(MUTATIONS))
def test_a_change_of_the_source_is_noticed(change: Mutation, results: dict[Mutation, Result]) -> None:
    found = results[change]
    assert found["outcome"] == "caught", f"{change}\n{found['output']}"


@pytest.mark.slow
@pytest.mark.mutation
@pytest.mark.parametrize("change", unchanged(), ids=names(unchanged()))
def test_without_a_change_the_same_tests_pass(change: Mutation, results: dict[Mutation, Result]) -> None:
    found = results[change]
    assert found["outcome"] == "survived", f"{change}\n{found['output']}"


@pytest.mark.slow
@pytest.mark.mutation
def test_a_change_without_a_result_does_not_count_as_noticed() -> None:
    hinge = "F.relu(margin - positive[:, None] + negative)"
    changes = [
        Mutation(TRIPLET, hinge, f"{hinge}.neg()", (QUICK,)),
        Mutation(TRIPLET, hinge, f"({hinge})", (QUICK,)),
        Mutation(TRIPLET, "no such text", "other text", (QUICK,)),
        Mutation(TRIPLET, hinge, "F.relu(", (QUICK,)),
        Mutation(TRIPLET, hinge, f"{hinge}.neg()", (f"{QUICK}_of_old",)),
        Mutation("idmetric/losses/recall_at_k.py", "KS = (1, 2, 4, 8)", "KS = (1,)", (QUICK,)),
    ]
    found = run(changes)
    assert [one["outcome"] for one in found] == ["caught", "survived", "error", "error", "error", "error"]
    for one, reason in zip(found[2:], ("0 times, not once", "SyntaxError", "not found", "do not import"), strict=True):
        assert reason in one["output"]
