"""The public names and signatures are those of tests/public_api.txt.

python -m tests.test_public_api      rewrites that file after an intended change
"""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Iterator
from pathlib import Path
from typing import get_origin

import idmetric

RECORD = Path(__file__).with_name("public_api.txt")
PACKAGES = (
    "",
    ".adapters",
    ".data.manifest",
    ".gallery",
)


def public_api() -> Iterator[str]:
    """One line for each public name, with its signature; classes are followed by their methods and properties."""
    for suffix in PACKAGES:
        package = f"idmetric{suffix}"
        module = importlib.import_module(package)
        for name in sorted(module.__all__):
            yield from described(f"{package}.{name}", getattr(module, name))


def described(name: str, value: object) -> Iterator[str]:
    if not callable(value) or get_origin(value) is not None:  # a union of types is callable in some versions of Python
        yield name
        return
    yield name + signature(value)
    for member in sorted(members(value)) if inspect.isclass(value) else ():
        attribute = inspect.getattr_static(value, member)
        if isinstance(attribute, staticmethod | classmethod):
            attribute = attribute.__func__
        yield f"{name}.{member}" + (signature(attribute) if callable(attribute) else "")


def members(kind: type) -> set[str]:
    """Public attributes that a class defines itself or inherits from a base which is not listed under its own name."""
    own = [base for base in kind.__mro__ if base.__module__.startswith("idmetric")]
    listed = [base for base in own[1:] if getattr(idmetric, base.__name__, None) is base]
    names = {name for base in own for name in vars(base) if not name.startswith("_") or name == "__call__"}
    inherited = {name: inspect.getattr_static(base, name) for base in listed for name in names if hasattr(base, name)}
    return {name for name in names if inspect.getattr_static(kind, name) is not inherited.get(name)}


def signature(value: object) -> str:
    """Names, order and defaults of the parameters; annotations are left to mypy."""
    try:
        found = inspect.signature(value)  # type: ignore[arg-type]
    except ValueError:
        return ""
    parameters = [p.replace(annotation=inspect.Parameter.empty) for p in found.parameters.values()]
    return str(found.replace(parameters=parameters, return_annotation=inspect.Signature.empty))


def test_the_public_api_is_the_recorded_one() -> None:
    assert list(public_api()) == RECORD.read_text(encoding="utf-8").splitlines(), (
        "the public API changed; if this is intended: python -m tests.test_public_api"
    )


if __name__ == "__main__":
    RECORD.write_text("\n".join(public_api()) + "\n", encoding="utf-8")
