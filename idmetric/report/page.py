"""What pages have in common: one HTML file that opens from disk and asks nothing of the network.

Everything is inside: pictures as data addresses, style, script, numbers. Names and reasons come from files and are
untrusted: every one is escaped, and the page's content security policy runs no script but its own and loads nothing.
The same numbers and pictures give the same page.
"""

from __future__ import annotations

import base64
import hashlib
import os
import re
from collections.abc import Mapping, Sequence
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING, Any

from idmetric import __version__
from idmetric.io import json_file
from idmetric.io.hints import need
from idmetric.io.output import check, replacing

if TYPE_CHECKING:
    from jinja2 import Environment
    from markupsafe import Markup


def render(name: str, scripts: Sequence[str], data: Mapping[str, Any], **values: Any) -> str:
    """A page of a template, with its scripts, one after the other, and `data` as JSON for these to read.

    Raises:
        ImportError: without jinja2.
    """
    environment = _environment()
    from markupsafe import Markup

    script = "\n".join(_text(file) for file in scripts)
    digest = base64.b64encode(hashlib.sha256(script.encode("utf-8")).digest()).decode("ascii")
    return environment.get_template(f"{name}.html").render(
        version=__version__,
        style=Markup(_text("style.css")),  # our own files need no escape
        script=Markup(script),
        script_hash=f"sha256-{digest}",
        **{key: Markup(_json(value)) for key, value in data.items()},
        **values,
    )


def _environment() -> Environment:
    need("report", "an HTML page", jinja2="jinja2")
    from jinja2 import Environment, FunctionLoader, StrictUndefined

    made = Environment(
        loader=FunctionLoader(_text), autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    made.filters["breaking"] = _breaking
    return made


def _breaking(name: str) -> Markup:
    """A file's name, escaped, that a line may end in after each folder and word."""
    from markupsafe import Markup, escape

    return Markup(re.sub("([/_])", r"\1<wbr>", str(escape(name))))


def _text(name: str) -> str:
    return (files("idmetric.report") / "templates" / name).read_text(encoding="utf-8")


def _json(value: Any) -> str:
    """JSON that may stand inside a script element, whose end nothing in it can spell."""
    text = json_file.text(value, separators=(",", ":"))
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def write_page(page: str, path: str | os.PathLike[str]) -> None:
    """Write a page atomically; a file name's bytes that are not text become question marks.

    Raises:
        OSError: if it cannot be written.
    """
    with replacing(Path(path)) as temporary:
        temporary.write_bytes(page.encode("utf-8", "replace"))


def check_page(path: str | os.PathLike[str], plots: bool = False) -> None:
    """Whether a page (with plots) could be made there, to be asked before the work.

    Raises:
        ImportError: without jinja2, or matplotlib for plots.
        OutputError: if its folder is absent or not to be written to, or it is a folder itself.
    """
    _environment()
    if plots:
        need("report", "a page with plots", matplotlib="matplotlib")
    check(path)
