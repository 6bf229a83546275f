"""What the columns of evaluations are: the table of docs/reference/columns.md, made of the protocols' own.

python docs/scripts/columns.py      writes it between the marks of the page
"""

from __future__ import annotations

from pathlib import Path

from idmetric.evaluate.protocols.common.protocol import find, modules
from idmetric.evaluate.protocols.common.table_columns import SHARED, Column

PAGE = Path(__file__).resolve().parents[2] / "docs" / "reference" / "columns.md"
BEGIN, END = "<!-- columns, made by docs/scripts/columns.py -->\n", "<!-- end of columns -->\n"


def columns() -> dict[str, Column]:
    """Name -> column: those of several protocols, then each protocol's own, with the protocols that have them."""
    protocols_with: dict[tuple[str, Column], list[str]] = {}
    for protocol in modules():
        for name, column in find(protocol).columns.items():
            protocols_with.setdefault((name, column), []).append(protocol)
    own = {f"{name} ({', '.join(protocols)})": column for (name, column), protocols in protocols_with.items()}
    return SHARED | own


def page() -> str:
    """The page with its table made again."""
    lines = ["| column | what it is | better | source |", "|---|---|---|---|"]
    for name, column in columns().items():
        better = {1: "higher", -1: "lower", 0: ""}[column.better]
        lines.append(f"| {name} | {column.says} | {better} | {column.source} |")
    before, rest = PAGE.read_text(encoding="utf-8").split(BEGIN)
    return "\n".join([f"{before}{BEGIN}", *lines, "", f"{END}{rest.split(END)[1]}"])


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
