"""The common parts of pages: one HTML file that opens from disk and loads nothing from the network.

Pictures (as data addresses), style, script and numbers are all in the file. Names and reasons come from files and are
untrusted, so each is escaped, and the page's content security policy runs only the page's script and loads nothing.
The same numbers and pictures give the same page.
"""

from __future__ import annotations

import base64
import hashlib
import re
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from idmetric.metric.files import json_text, need
from idmetric.version import __version__

if TYPE_CHECKING:
    from markupsafe import Markup


def render(name: str, scripts: Sequence[str], **values: Any) -> str:
    """Render a template with its scripts, one after the other; a value `|tojson` in it is JSON without NaN.

    Raises:
        ImportError: without jinja2.
    """
    need("eval", "an HTML page", jinja2="jinja2")
    from jinja2 import Environment, FileSystemLoader, StrictUndefined
    from markupsafe import Markup

    loader = FileSystemLoader(Path(__file__).with_name("templates"))
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
