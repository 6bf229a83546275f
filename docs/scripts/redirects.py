"""Pages at the addresses of 0.1, which had most pages in one folder: each sends a browser to where the page is now."""

from __future__ import annotations

import os
from pathlib import Path

# address in 0.1, address now, and the names that {} stands for
MOVED = (
    ("protocols-{}.html", "protocols/{}.html", "agreement checkpoints dreambench folder generator idsim mmeb mveb"),
    ("protocols-{}.html", "protocols/{}.html", "nearid openset outputs photos retrieval sensitivity"),
    ("evaluate-{}.html", "protocols/{}.html", "patches"),
    ("{}.html", "protocols/{}.html", "baselines judge"),
    ("{}.html", "protocols/index.html", "evaluation"),
    ("train-{}.html", "train/{}.html", "idsim ilgen nearid visme"),
    ("data-{}.html", "data/{}.html", "idsim ilgen nearid visme"),
    ("{}.html", "data/{}.html", "manifest"),
    ("{}.html", "{}/index.html", "models train"),
    ("{}.html", "models/{}.html", "backbone choosing idsim named-scores nearid tiny visid"),
    ("{}.html", "tutorials/{}.html", "add-identity-loss find-duplicates re-identify score-personalized stories video"),
    ("{}.html", "tutorials/{}.html", "several-subjects"),
    ("{}.html", "use/{}.html", "adapters coming-from detect export field gallery loss masks match reading report"),
    ("{}.html", "use/{}.html", "reward scale"),
    ("{}.html", "reference/{}.html", "columns reproducibility"),
    ("api/{}.html", "reference/api/{}.html", "adapters calibration checkpoints data distances evaluate gallery images"),
    ("api/{}.html", "reference/api/{}.html", "loss losses match models protocols scoring"),
    ("cli/{}.html", "reference/cli/{}.html", "idmetric-data idmetric-eval idmetric-export idmetric-gallery"),
    ("cli/{}.html", "reference/cli/{}.html", "idmetric-match idmetric-score idmetric-train"),
)
PAGE = """<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<title>This page has moved</title>
<script>location.replace("{target}" + location.search + location.hash)</script>
<noscript><meta http-equiv="refresh" content="0; url={target}"></noscript>
</head>
<body><p>This page is now <a href="{target}">{target}</a>.</p></body>
</html>
"""


def moved_pages() -> dict[str, str]:
    """Address in 0.1 -> address now, both relative to the site."""
    moved = {}
    for old, new, names in MOVED:
        for name in names.split():
            moved[old.format(name)] = new.format(name)
    return moved


def main(site: Path) -> None:
    """Write a page at each old address."""
    for old, new in moved_pages().items():
        path = site / old
        path.parent.mkdir(exist_ok=True)
        target = Path(os.path.relpath(site / new, path.parent)).as_posix()
        path.write_text(PAGE.format(target=target), encoding="utf-8")
