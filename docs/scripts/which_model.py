"""The table of docs/models/which.md: that of `idmetric models`.

python docs/scripts/which_model.py      writes it between the marks of the page
"""

from __future__ import annotations

from pathlib import Path

from idmetric.cli.list_models import NOTE, facts

PAGE = Path(__file__).resolve().parents[2] / "docs" / "models" / "which.md"
BEGIN, END = "<!-- models, made by docs/scripts/which_model.py -->\n", "<!-- end of models -->\n"


def markdown(table: list[list[str]]) -> list[str]:
    """The lines of a Markdown table; the first row is its header."""
    header, *rows = table
    lines = [header, ["---"] * len(header), *rows]
    return [f"| {' | '.join(cells)} |" for cells in lines]


def page() -> str:
    """The page with its table made again."""
    notes = [f"- {line}" for line in NOTE.splitlines()]
    lines = [*markdown(facts()), "", *notes, "", ""]
    before, rest = PAGE.read_text(encoding="utf-8").split(BEGIN)
    return f"{before}{BEGIN}" + "\n".join(lines) + f"{END}{rest.split(END)[1]}"


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
