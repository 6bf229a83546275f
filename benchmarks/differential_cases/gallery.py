"""Galleries: build, query, duplicates, identities."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from differential_cases import Results, command, examples, picture, same, workspace
from differential_cases.evaluate import keep, view

EXTRA = ("pandas", "pyarrow", "scipy")


def photos(identities: int = 5, views: int = 4) -> Path:
    """Paint a folder of identities, each in a folder of its name."""
    for who in range(identities):
        for number in range(views):
            keep(view(f"i{who}", number), f"photos/i{who}/{number}.png")
    return Path("photos")


def run(words: str, *more: object) -> Any:
    """Run a command and return its JSON, or None where it prints nothing."""
    status, out, err = command(words, *more)
    if status:
        raise RuntimeError(err)
    return json.loads(out) if out.strip() else None


def build(*more: object) -> None:
    run("gallery build photos --gallery index --model tiny --device cpu --quiet", *more)


def path_of(row: dict[str, Any]) -> str:
    """The image of a row, which the earlier version called so."""
    return str(row.get("path") or row["image"])


def hits(rows: list[dict[str, Any]]) -> Results:
    """Return distances and file names, in the order of the rows; those at distance 0 are not told from rounding."""
    return {
        "distances": [float(row["distance"]) for row in rows],
        "names": ["/".join(Path(path_of(row)).parts[-2:]) for row in rows],
        "ranks": [row["rank"] for row in rows],
    }


def query() -> Results:
    with workspace():
        photos()
        build()
        return hits(run("gallery query", view("i0", 9), view("i3", 9), "-g", "index", "-k", 6, "--format", "json"))


def query_without_itself() -> Results:
    with workspace():
        photos()
        build()
        return hits(run("gallery query photos/i1/0.png -g index -k 4 --exclude-same --format json"))


def query_by_patches() -> Results:
    with workspace():
        photos(3, 3)
        build("--patches")
        words = "-g index -k 4 --distance joint --rerank 6 --format json"
        return hits(run(f"gallery query {view('i1', 9)} {words}"))


def query_of_masked() -> Results:
    with workspace():
        photos(4, 2)
        mask = np.zeros((64, 72), np.uint8)
        mask[10:50, 12:60] = 255
        for path in Path("photos").rglob("*.png"):
            target = Path("masks", *path.parts[1:])
            target.parent.mkdir(parents=True, exist_ok=True)
            Image.fromarray(mask).save(target)
        build("--mask-dir", "masks", "--outside", "crop")
        query = view("i2", 9)
        Path("query_masks").mkdir()
        Image.fromarray(mask).save(Path("query_masks", Path(query).name))
        return hits(run(f"gallery query {query} -g index -k 4 --query-mask-dir query_masks --format json"))


def rebuilt() -> Results:
    """Changed, new and removed photos: only new content is embedded, and all answers are those of a new gallery."""
    with workspace():
        photos()
        build()
        keep(view("i9", 1), "photos/i0/0.png")
        keep(view("i8", 1), "photos/new/0.png")
        Path("photos/i4/3.png").unlink()
        build()
        return hits(run(f"gallery query {view('i9', 2)} -g index -k 20 --format json"))


def duplicates() -> Results:
    with workspace():
        photos()
        original = Path("photos/i1/2.png")
        keep(str(original), "photos/i3/copy.png")
        with Image.open(original) as image:
            image.resize((144, 128), Image.Resampling.BICUBIC).save("photos/i4/larger.png")
        build()
        rows = run("gallery dedupe -g index --format json")
        found = {"/".join(Path(path_of(row)).parts[-2:]): row for row in rows}
        return {
            "names": sorted(found),
            "groups": [found[name]["group"] for name in sorted(found)],
            "keep": [found[name]["keep"] for name in sorted(found)],
        }


def identities(linkage: str) -> Results:
    with workspace():
        photos(6, 4)
        build()
        rows = run(f"gallery cluster -g index --threshold 0.25 --linkage {linkage} --format json")
        groups: dict[int, list[str]] = {}
        for row in rows:
            groups.setdefault(row["group"], []).append("/".join(Path(path_of(row)).parts[-2:]))
        return {
            "groups": sorted(sorted(names) for names in groups.values()),
            "distances": sorted(float(row["distance"]) for row in rows),
        }


def vectors() -> Results:
    """Gallery vectors are those of the metric."""
    from idmetric import IDSim
    from idmetric.gallery import Gallery

    with workspace():
        for number, path in enumerate(examples()[:4]):
            keep(str(path), f"photos/{number}.png")
        picture("one more").save("photos/4.png")
        build()
        gallery = Gallery("index", IDSim("tiny", device="cpu"))
        found = np.asarray(gallery.vectors(), dtype=np.float64)
        found /= np.linalg.norm(found, axis=1, keepdims=True)
        return {"cosines": found @ found.T}


CASES = [
    same("query", query, needs=EXTRA),
    same("query/exclude same", query_without_itself, needs=EXTRA),
    same("query/rerank", query_by_patches, 5e-6, needs=EXTRA),
    same("query/masks", query_of_masked, 5e-6, needs=EXTRA),
    same("rebuilt", rebuilt, needs=EXTRA),
    same("duplicates", duplicates, needs=EXTRA),
    same("identities/average", lambda: identities("average"), needs=EXTRA),
    same("identities/complete", lambda: identities("complete"), needs=EXTRA),
    same("vectors", vectors, needs=EXTRA),
]
