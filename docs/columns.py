"""What the columns of evaluations are: the table of docs/columns.md, made of `protocols.common.measures`.

python docs/columns.py      writes it between the marks of the page
"""

from __future__ import annotations

from pathlib import Path

from idmetric.evaluate.protocols.common.measures import MEASURES

PAGE = Path(__file__).parent / "columns.md"
BEGIN, END = "<!-- columns, made by docs/columns.py -->\n", "<!-- end of columns -->\n"


def page() -> str:
    """The page with its table made again."""
    lines = ["| column | what it is | better | source |", "|---|---|---|---|"]
    for name, about in MEASURES.items():
        of, _, column = name.rpartition("/")
        better = {1: "higher", -1: "lower", 0: ""}[about.better]
        lines.append(f"| {column}{f' ({of})' if of else ''} | {about.says} | {better} | {about.source} |")
    before, rest = PAGE.read_text(encoding="utf-8").split(BEGIN)
    return "\n".join([f"{before}{BEGIN}", *lines, "", f"{END}{rest.split(END)[1]}"])


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
