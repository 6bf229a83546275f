"""Write the pages of the site that are made from code: command line reference, sample reports.

    python docs/scripts/make_pages.py      before `zensical build --strict` or `zensical serve`

Git ignores them. A minute without a GPU.
"""

from __future__ import annotations

from pathlib import Path

import cli_reference
import sample_report

DOCS = Path(__file__).resolve().parents[2] / "docs"


def main() -> None:
    """Write all of them."""
    cli_reference.main(DOCS / "reference" / "cli")
    sample_report.main(DOCS)


if __name__ == "__main__":
    main()
