"""Protocols are found by their files, and say everything about themselves."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import fields

import pytest

from idmetric.evaluate.protocols.common.protocol import find, has_verdict, modules
from idmetric.evaluate.protocols.common.table_columns import SHARED


def test_names_and_lines_are_found_without_importing_a_protocol() -> None:
    code = (
        "import sys\n"
        "from idmetric.evaluate.protocols.common.protocol import modules\n"
        "found = modules()\n"
        "assert not sys.modules.keys() & {module for module, _ in found.values()}\n"
        "assert not {'numpy', 'torch'} & sys.modules.keys()\n"
        "print(*found)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == list(modules())
    assert {"folder", "idsim", "nearid", "mveb", "retrieval", "dreambench"} <= modules().keys()
    for module, line in modules().values():
        assert line[0].isupper(), module
        assert not line.endswith((".", '"')), module


@pytest.mark.parametrize("name", modules())
def test_a_protocol_names_options_that_it_has(name: str) -> None:
    protocol = find(name)
    assert protocol.name == name
    options = {field.name for field in fields(protocol.options)}
    assert set(protocol.data_options) <= options
    assert protocol.packages.keys() <= options
    protocol.options()  # all have defaults
    assert protocol.options.__module__ == modules()[name][0]


@pytest.mark.parametrize("name", modules())
def test_a_protocols_own_columns_are_no_shared_ones(name: str) -> None:
    assert not find(name).columns.keys() & SHARED.keys()


def test_one_page_has_a_verdict() -> None:
    assert [name for name in modules() if has_verdict(name)] == ["generator"]
    assert not has_verdict("a protocol of somebody else")
