"""Record what every command prints and writes, and compare two records.

    python -m tests.golden record before/     # in a checkout of one version
    python -m tests.golden record after/      # in a checkout of the other
    python -m tests.golden compare before/ after/

`record` scores the images of `examples/` with every distance and mask mode, runs the commands below, and keeps stdout,
stderr, exit status and the files that they write. `compare` prints what differs: file names, text, or the largest
difference of numbers in arrays. One thread, CPU, so that equal code gives equal bytes.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np

ROOT = Path(__file__).resolve().parents[2]
IMAGES = ("mug_a", "mug_b", "mug_c", "mug_other", "box_a", "box_b", "box_c", "box_other")
DISTANCES = ("cls", "patch", "joint", "patch_pooled", "joint_pooled", "patch_biased")
SCORE = "idmetric-score"

# name -> (program, arguments); {o} is a folder of the command's own, and commands run in order: later ones read earlier
COMMANDS: dict[str, tuple[str, str]] = {
    "score-table": (SCORE, "--model tiny images/mug_a.png images/"),
    "score-json": (SCORE, "--model tiny images/mug_a.png images/ --format json"),
    "score-jsonl": (SCORE, "--model tiny images/mug_a.png images/ --format jsonl --distance joint"),
    "score-csv": (SCORE, "--model tiny images/mug_a.png images/ --format csv --distance patch"),
    "score-refs": (SCORE, "--model tiny --ref images/mug_a.png --ref images/mug_b.png images/"),
    "score-include": (SCORE, "--model tiny --ref images/mug_a.png --ref images/mug_b.png images/ --threshold 0.5"),
    "score-threshold": (SCORE, "--model tiny images/mug_a.png images/ --threshold 0.2"),
    "score-masks": (SCORE, "--model tiny images/mug_a.png images/ --mask-dir masks/ --outside crop"),
    "score-calibrated": (SCORE, "--model tiny images/mug_a.png images/ --format json"),
    "score-html": (SCORE, "--model tiny images/mug_a.png images/ --html {o}/page.html"),
    "score-cache": (SCORE, "--model tiny images/mug_a.png images/ --cache {o}/kept --format csv"),
    "score-cache-again": (SCORE, "--model tiny images/mug_a.png images/ --cache score-cache/kept --format csv"),
    "score-skip": (SCORE, "--model tiny images/mug_a.png images/ broken.png --on-error skip"),
    "score-fail": (SCORE, "--model tiny images/mug_a.png images/ broken.png"),
    "score-missing": (SCORE, "--model tiny images/mug_a.png nowhere/"),
    "pairs": (SCORE, "--model tiny --pairs pairs.csv --format csv --output {o}/scores.csv"),
    "pairs-json": (SCORE, "--model tiny --pairs pairs.csv --format json --distance joint"),
    "gallery-build": ("idmetric", "gallery build images/ --gallery {o}/index --model tiny"),
    "gallery-query": ("idmetric", "gallery query images/mug_a.png --gallery gallery-build/index -k 5"),
    "gallery-rerank": (
        "idmetric",
        "gallery query images/mug_a.png --gallery gallery-build/index -k 5 --distance joint --rerank 6",
    ),
    "gallery-dedupe": ("idmetric", "gallery dedupe images/ --model tiny --output {o}/duplicates.csv"),
    "gallery-cluster": (
        "idmetric",
        "gallery cluster --gallery gallery-build/index --threshold 0.3 --output {o}/identities.csv",
    ),
    "data-folder": ("idmetric", "data import folder photos -o {o}/photos.parquet"),
    "data-info": ("idmetric", "data info data-folder/photos.parquet --decode"),
    "data-split": (
        "idmetric",
        "data split data-folder/photos.parquet -o {o}/split.csv --part train=0.5 --part val=0.5",
    ),
    "data-curate": ("idmetric", "data curate data-folder/photos.parquet -o {o}/curated.csv --recipe idsim"),
    "data-mine": ("idmetric", "data mine negatives data-folder/photos.parquet -o {o}/mined.csv --model tiny"),
    "eval-folder": (
        "idmetric",
        "eval folder --data photos --model tiny --model hsv --out {o}/results --bootstrap 200",
    ),
    "eval-folder-csv": (
        "idmetric",
        "eval folder --data photos --model tiny --out {o}/results --format csv --distance joint --html {o}/page.html",
    ),
    "calibrate": (
        "idmetric",
        "eval calibrate --data photos --model tiny --out {o}/results --bootstrap 50",
    ),
    **{
        f"train-{recipe}": ("idmetric", f"train {recipe} --smoke --out {{o}}/run")
        for recipe in ("idsim", "nearid", "visme", "ilgen")
    },
    **{
        f"help-{command}-{'-'.join(sub) or 'all'}": ("idmetric", " ".join([command, *sub, "--help"]))
        for command, subs in {
            "score": [[]],
            "data": [[], *([[s] for s in ("info", "import", "merge", "split", "curate", "frames", "generate")])],
            "train": [[], *([[s] for s in ("idsim", "nearid", "visme", "ilgen")])],
            "eval": [
                [],
                *(
                    [[s] for s in ("folder", "nearid", "retrieval", "idsim")]
                    + [["mveb"], ["sensitivity"], ["segmentation"], ["dreambench"], ["calibrate"]]
                ),
            ],
        }.items()
        for sub in subs
    },
}


def prepare(folder: Path) -> None:
    """Example images, masks, folders of identities, a table of pairs and a broken file, under `folder`."""
    from PIL import Image

    for name in IMAGES:
        source = ROOT / "examples" / "images" / f"{name}.png"
        identity = "other_" + name.split("_")[0] if name.endswith("other") else name.split("_")[0]
        for target in (folder / "images" / source.name, folder / "photos" / identity / source.name):
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(source, target)
        with Image.open(source) as image:
            width, height = image.size
        mask = np.zeros((height, width), np.uint8)
        mask[height // 5 : height * 4 // 5, width // 6 : width * 5 // 6] = 255
        (folder / "masks").mkdir(exist_ok=True)
        Image.fromarray(mask).save(folder / "masks" / source.name)
        if name.endswith("other"):  # a second view of each look-alike
            Image.fromarray(np.asarray(Image.open(source).convert("RGB"))[:, ::-1].copy()).save(
                folder / "photos" / identity / f"{name}_mirrored.png"
            )

    rows = [f"images/{a}.png,images/{b}.png" for a, b in itertools.product(IMAGES[:3], IMAGES)]
    (folder / "pairs.csv").write_text("a,b\n" + "\n".join(rows) + "\n")
    (folder / "broken.png").write_bytes((ROOT / "examples/images/mug_a.png").read_bytes()[:900])


def record(folder: Path, only: str) -> None:
    """Run everything and keep it under `folder`."""
    folder.mkdir(parents=True, exist_ok=True)
    prepare(folder)
    environment = dict(os.environ, OMP_NUM_THREADS="1", MKL_NUM_THREADS="1", COLUMNS="100", PYTHONPATH=str(ROOT),
                       XDG_STATE_HOME=str(folder / "state"), HF_HUB_OFFLINE="1")  # fmt: skip
    if re.search(only, "distances"):
        program = "import sys; from tests.golden.__main__ import distances; distances(sys.argv[1])"
        subprocess.run([sys.executable, "-c", program, str(folder)], check=True, env=environment, cwd=ROOT)

    project = (ROOT / "pyproject.toml").read_text()
    scripts = dict(re.findall(r'^(idmetric[-\w]*) = "([\w.]+):main"', project, re.MULTILINE))
    for name, (program, arguments) in COMMANDS.items():
        if not re.search(only, name):
            continue
        own = folder / name
        own.mkdir(exist_ok=True)
        words = [word.format(o=name) for word in arguments.split()]
        call = f"import sys; from {scripts[program]} import main; sys.argv[0] = {program!r}; sys.exit(main())"
        done = subprocess.run(
            [sys.executable, "-c", call, *words], capture_output=True, text=True, cwd=folder, env=environment
        )
        (own / "stdout.txt").write_text(done.stdout)
        (own / "stderr.txt").write_text(done.stderr)
        (own / "status.txt").write_text(str(done.returncode))
        print(f"{name}: exit {done.returncode}", flush=True)


def distances(folder: str) -> None:
    """Matrices of the example images by every distance and way to treat what lies outside the masks."""
    from idmetric import IDSim

    metric = IDSim("tiny", device="cpu")
    images = [str(ROOT / "examples" / "images" / f"{name}.png") for name in IMAGES]
    masks = [str(Path(folder) / "masks" / f"{name}.png") for name in IMAGES]
    matrices = {}
    for distance in DISTANCES:
        matrices[distance] = metric.pairwise(images, images, distance=distance).tolist()
        for outside in ("black", "white", "crop", "keep"):
            embedding = metric.embed(images, masks=masks, outside=outside)
            matrices[f"{distance}-{outside}"] = metric.pairwise(embedding, embedding, distance=distance).tolist()
    (Path(folder) / "distances.json").write_text(json.dumps(matrices))


SECONDS = re.compile(r"\d+(\.\d+)? ?(s|ms|seconds|images/s|steps/s)\b|\d{4}-\d\d-\d\d[T ][\d:.+Z]+")
STAMPS = re.compile(r'"stamp": \[\[[^\]]*\]\]')  # of files, in galleries
RANDOM = re.compile(r"(?<=[-.])[0-9a-f]{20,32}(?=\.)")  # in names of files that the package writes


def compare(before: Path, after: Path) -> int:
    """Print every difference between two records; the number of files that differ."""
    files = [
        {RANDOM.sub("*", str(p.relative_to(root))): p for p in sorted(root.rglob("*")) if p.is_file()}
        for root in (before, after)
    ]
    differing = 0
    for name in sorted({*files[0], *files[1]}):
        old, new = (found.get(name) for found in files)
        if old is None or new is None:
            print(f"{name}: only {'after' if old is None else 'before'}")
            differing += 1
        elif old.read_bytes() != new.read_bytes():
            text = difference(old, new, str(before), str(after))
            if text:
                print(f"{name}: {text}")
                differing += 1
    print(f"{len({*files[0], *files[1]})} files, {differing} differ")
    return differing


def difference(old: Path, new: Path, before: str, after: str) -> str:
    """How two files differ, or "" where only times and folders do."""
    if old.suffix == ".safetensors":
        from safetensors.numpy import load_file

        a = load_file(old)
        b = load_file(new)
        if a.keys() != b.keys():
            return f"tensors {sorted(a.keys() ^ b.keys())}"
        largest = 0.0
        for name, tensor in a.items():
            if tensor.shape != b[name].shape:
                return "shapes differ"
            if tensor.size:
                differences = np.abs(tensor.astype(float) - b[name].astype(float))
                largest = max(largest, float(differences.max()))
        return f"tensors differ by {largest:.3g}" if largest else ""
    if old.suffix == ".parquet":
        import pyarrow.parquet as pq

        return "" if pq.read_table(old).equals(pq.read_table(new)) else "tables differ"
    if old.suffix in (".png", ".webp", ".lock"):
        return "pixels differ"
    old_lines = lines_of(old, before)
    new_lines = lines_of(new, after)
    changed = []
    for old_line, new_line in itertools.zip_longest(old_lines, new_lines, fillvalue=""):
        if old_line != new_line:
            changed.append(f"- {old_line}\n    + {new_line}")
    if not changed:
        return ""
    return f"{len(changed)} lines\n    " + "\n    ".join(line[:300] for line in changed[:3])


def lines_of(file: Path, root: str) -> list[str]:
    """The lines of a file, without the folder, times and stamps of its run."""
    text = file.read_text(errors="replace").replace(root, "")
    return STAMPS.sub("STAMP", SECONDS.sub("TIME", text)).splitlines()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    recorder = commands.add_parser("record", help="run the commands and keep what they print and write")
    recorder.add_argument("folder", type=Path)
    recorder.add_argument("--only", default="", help="regular expression of the names to run")
    comparer = commands.add_parser("compare", help="compare two records")
    comparer.add_argument("before", type=Path)
    comparer.add_argument("after", type=Path)
    args = parser.parse_args()

    if args.command == "record":
        record(args.folder.resolve(), args.only)
    else:
        sys.exit(bool(compare(args.before.resolve(), args.after.resolve())))


if __name__ == "__main__":
    main()
