"""What the columns of evaluations are: tables of the documentation, made of `idmetric.protocols.common.measures`.

python docs/columns.py      writes them into the pages, between the marks
"""

from __future__ import annotations

from pathlib import Path

from idmetric.protocols.common.measures import MEASURES, measure

HERE = Path(__file__).parent
BEGIN, END = "<!-- columns, made by docs/columns.py -->\n", "<!-- end of columns -->\n"
_SHARED = ("identity", "real", "copies", "leaning", "diversity", "Vendi", "CLIP-T")
PAGES = {
    "protocols-generator.md": ("generator", (
        "identity", "weakest", "worst", "real", "SCR", "real SCR", *_SHARED[2:], "published", "p",
    )),
    "protocols-checkpoints.md": ("checkpoints", (*_SHARED, "drift")),
    "columns.md": ("", tuple(MEASURES)),
}  # fmt: skip


def table(protocol: str, names: tuple[str, ...]) -> str:
    """The table of a protocol's columns."""
    lines = ["| column | what it is | better | source |", "|---|---|---|---|"]
    for name in names:
        about = measure(name, protocol) or MEASURES[name]
        of, _, column = name.rpartition("/")
        better = {1: "higher", -1: "lower", 0: ""}[about.better]
        lines.append(f"| {column}{f' ({of})' if of else ''} | {about.says} | {better} | {about.source} |")
    return "\n".join(lines) + "\n"


def page(name: str) -> str:
    """The page with its table made again."""
    text = (HERE / name).read_text(encoding="utf-8")
    before, rest = text.split(BEGIN)
    return f"{before}{BEGIN}\n{table(*PAGES[name])}\n{END}{rest.split(END)[1]}"


def main() -> None:
    """Write the tables into the pages."""
    for name in PAGES:
        (HERE / name).write_text(page(name), encoding="utf-8")


if __name__ == "__main__":
    main()
