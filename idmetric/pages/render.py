"""The common parts of pages: one HTML file that opens from disk and loads nothing from the network.

Pictures (as data addresses), style, script and numbers are all in the file. Names and reasons come from files and are
untrusted, so each is escaped, and the page's content security policy runs only the page's script and loads nothing.
The same numbers and pictures give the same page.
"""

from __future__ import annotations

import base64
import hashlib
import os
import re
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from idmetric.metric.files import StrPath, check_writable, json_text, need, replacing
from idmetric.version import __version__

if TYPE_CHECKING:
    from markupsafe import Markup


def render(package: str, name: str, scripts: Sequence[str], **values: Any) -> str:
    """Render a template with its scripts, one after the other; a value `|tojson` in it is JSON without NaN.

    Args:
        package: that has the template and its scripts in a folder `templates`; the shared ones lie in `idmetric.pages`.

    Raises:
        ImportError: without jinja2.
    """
    need("eval", "an HTML page", jinja2="jinja2")
    from jinja2 import ChoiceLoader, Environment, PackageLoader, StrictUndefined
    from markupsafe import Markup

    loader = ChoiceLoader([PackageLoader(package), PackageLoader("idmetric.pages")])
    environment = Environment(
        loader=loader,
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {"breaking": _breaking, "number": number}
    environment.policies |= {
        "json.dumps_function": json_text,
        "json.dumps_kwargs": {"separators": (",", ":")},
    }
    style, _, _ = loader.get_source(environment, "style.css")
    script = "\n".join(loader.get_source(environment, file)[0] for file in scripts)
    digest = base64.b64encode(hashlib.sha256(script.encode("utf-8")).digest()).decode("ascii")
    return environment.get_template(f"{name}.html").render(
        version=__version__,
        style=Markup(style),  # the package's files need no escape
        script=Markup(script),
        script_hash=f"sha256-{digest}",
        **values,
    )


def number(value: float) -> str:
    """Three decimals, with a minus sign; none for a number that rounds to 0."""
    return f"{round(value, 3) + 0.0:.3f}".replace("-", "−")


def _breaking(name: str) -> Markup:
    """Escape a file's name, and let lines break after each folder and word."""
    from markupsafe import Markup, escape

    return Markup(re.sub("([/_])", r"\1<wbr>", str(escape(name))))


def short(paths: Sequence[str]) -> list[str]:
    """Remove the folders that all paths share."""
    try:
        shared = os.path.commonpath([os.path.dirname(path) for path in paths])
    except ValueError:  # absolute and relative paths, several drives, or no paths
        shared = ""
    if not shared:
        return list(paths)
    return [os.path.relpath(path, shared) for path in paths]


def write_page(page: str, path: StrPath) -> None:
    """Write a page atomically; bytes of file names that are not text become question marks."""
    with replacing(Path(path), parents=True) as temporary:
        temporary.write_bytes(page.encode("utf-8", "replace"))


def check_page(path: StrPath) -> None:
    """Check, before the work, that a page can be written there.

    Raises:
        ImportError: without jinja2.
        OutputError: if the path is a folder, or its folder is absent or cannot be written to.
    """
    need("eval", "an HTML page", jinja2="jinja2")
    check_writable(path)
