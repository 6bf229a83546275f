"""The page "Paper by paper": docs/reports/papers.md, made of docs/scripts/papers.json.

python docs/scripts/papers.py      writes the page
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
TABLE, PAGE = HERE / "papers.json", HERE.parent / "reports" / "papers.md"
STATUSES = {"here": "in the package", "differs": "in the package with a difference", "missing": "not in the package"}
_HEAD = """# Paper by paper

Each part of the four papers, with its code; **differs** and **missing** say how the package departs from the paper.
Settings that the papers leave open have [their own page](recipes.md).
"""


def page(table: dict[str, list[dict[str, Any]]]) -> str:
    """The page of a table: paper -> rows with section, what, status, code and note."""
    parts = [_HEAD]
    for paper, rows in table.items():
        counts = [f"{sum(row['status'] == name for row in rows)} {text}" for name, text in STATUSES.items()]
        parts.append(f"## {paper}\n\nOf {len(rows)} parts: {', '.join(counts)}.\n")
        parts.append("| section | part, code | differences, remarks |\n|---|---|---|")
        for row in rows:
            part = "<br>".join([row["what"], *(f"`{name.replace(':', '.')}`" for name in row["code"])])
            remark = row["note"] if row["status"] == "here" else f"**{row['status']}**: {row['note']}"
            parts.append(f"| {row['section']} | {part} | {remark} |")
        parts.append("")
    return "\n".join(parts)


def main() -> None:
    """Write the page."""
    PAGE.write_text(page(json.loads(TABLE.read_text(encoding="utf-8"))), encoding="utf-8")


if __name__ == "__main__":
    main()
