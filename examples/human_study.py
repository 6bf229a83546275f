"""Ask people which photos show the same individual, and turn their answers into labels (ID-Sim, appendix D.2).

    python examples/human_study.py build photos/ study/ --count 60
    python examples/human_study.py collect study/ answers/ labels.csv
    idmetric eval agreement --data labels.csv --model tiny --out results/

`build` draws pairs from a folder that has a folder for each identity, half of them of one identity, and writes
study/page.html. Give participants this page alone: study/study.json holds the right answers. Each participant answers
in a browser and sends you the file that the page saves; `collect` reads the files of a folder.

Some questions have an obvious answer: sentinels. Whoever misses one does not count, as in D.2. A pair needs three
votes; its label is the share of votes for "same". The page makes no requests, and an answer holds no personal data.
"""

from __future__ import annotations

import argparse
import base64
import csv
import io
import itertools
import json
import random
import sys
import tempfile
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from PIL import Image

from idmetric.metric.images import read_image

SAME, DIFFERENT = "same", "different"
VOTES = 3  # that a pair needs
SIDE = 512  # longest side of the pictures on the page
ENDINGS = {".jpg", ".jpeg", ".png", ".webp"}

PAGE = """<!doctype html>
<html lang="en">
<meta charset="utf-8">
<meta name="viewport" content="width=device-width">
<title>Which photos show the same individual?</title>
<style>
  body {{ font: 1.1em system-ui; max-width: 60em; margin: auto; padding: 1em }}
  #images {{ display: flex; gap: 1em; flex-wrap: wrap }}
  img {{ max-width: 28em; width: 100% }}
  button {{ font: inherit; padding: .5em 2em; margin: 1em 1em 0 0 }}
</style>
<h1>Do both photos show the same individual?</h1>
<p>The same animal, person or object, not only the same kind. Light, background and viewpoint may differ.</p>
<p id="progress" role="status"></p>
<div id="images"></div>
<div id="buttons"><button value="same">Same</button><button value="different">Different</button></div>
<script type="application/json" id="study">{study}</script>
<script>
const study = JSON.parse(document.getElementById("study").textContent)
const participant = Array.from(crypto.getRandomValues(new Uint8Array(8)), b => b.toString(16).padStart(2, "0")).join("")
const answers = {{}}
const shuffled = list => list.map(item => [Math.random(), item]).sort((a, b) => a[0] - b[0]).map(pair => pair[1])
const questions = shuffled(study.questions)

function show() {{
  const done = Object.keys(answers).length
  document.getElementById("progress").textContent = `${{done}} of ${{questions.length}} answered`
  if (done === questions.length) return save()
  document.getElementById("images").replaceChildren(...shuffled(questions[done].images).map((source, k) => {{
    const image = new Image()
    image.src = source
    image.alt = `Photo ${{k + 1}}`
    return image
  }}))
}}

function save() {{
  const record = JSON.stringify({{study: study.id, participant, answers}})
  const link = document.createElement("a")
  link.href = URL.createObjectURL(new Blob([record], {{type: "application/json"}}))
  link.download = `answers-${{participant}}.json`
  link.textContent = "Save your answers again"
  document.getElementById("images").replaceChildren(link)
  document.getElementById("buttons").remove()
  document.getElementById("progress").textContent = "Thank you. Please send us the file that was saved."
  link.click()
}}

for (const button of document.querySelectorAll("button"))
  button.onclick = () => {{ answers[questions[Object.keys(answers).length].id] = button.value; show() }}
show()
</script>
</html>
"""


def build(photos: Path, folder: Path, count: int = 60, sentinels: int = 7, seed: int = 0) -> None:
    """Draw pairs and sentinels, and write page.html and study.json."""
    rng = random.Random(seed)
    images = {
        directory.name: sorted(path for path in directory.iterdir() if path.suffix.lower() in ENDINGS)
        for directory in sorted(photos.iterdir())
        if directory.is_dir()
    }
    identity_of = {path: identity for identity, paths in images.items() for path in paths}
    same = [pair for paths in images.values() for pair in itertools.combinations(paths, 2)]
    if not same or len(images) < 2:
        raise SystemExit(f"{photos} needs two folders with photos, one for each identity, and one of them two photos")

    paths = list(identity_of)
    pairs = rng.sample(same, min(len(same), count // 2))
    while len(pairs) < count and len(set(identity_of.values())) > 1:
        first, second = rng.sample(paths, 2)
        if identity_of[first] != identity_of[second]:
            pairs.append((first, second))

    # a sentinel shows a photo and its middle, or photos of two identities with very different colors
    questions = [{"id": f"pair-{k}", "paths": pair, "answer": None} for k, pair in enumerate(pairs)]
    for k in range(sentinels):
        first = rng.choice(paths)
        strangers = [path for path in rng.sample(paths, len(paths)) if identity_of[path] != identity_of[first]]
        second = first if k % 2 else max(strangers[:16], key=lambda path, first=first: color_difference(first, path))
        questions.append({"id": f"check-{k}", "paths": (first, second), "answer": SAME if k % 2 else DIFFERENT})

    study_id = f"{rng.getrandbits(64):016x}"
    names = {question["id"]: f"{rng.getrandbits(48):012x}" for question in questions}  # do not give sentinels away
    shown = [
        {"id": names[question["id"]], "images": [data_uri(path, k == 1 and question["answer"] == SAME)
         for k, path in enumerate(question["paths"])]} for question in questions
    ]  # fmt: skip
    kept = [
        {"id": names[q["id"]], "paths": [str(path.resolve()) for path in q["paths"]], "answer": q["answer"],
         "identities": [identity_of[path] for path in q["paths"]]} for q in questions
    ]  # fmt: skip
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "study.json").write_text(json.dumps({"id": study_id, "questions": kept}, indent=1), encoding="utf-8")
    record = json.dumps({"id": study_id, "questions": shown}).replace("<", "\\u003c")
    (folder / "page.html").write_text(PAGE.format(study=record), encoding="utf-8")
    print(f"wrote {folder / 'page.html'}: {len(pairs)} pairs and {sentinels} sentinels")


def data_uri(path: Path, middle: bool) -> str:
    """A small copy of a photo as an address; or of its middle, which a sentinel compares with the whole."""
    picture = read_image(path)
    if middle:
        width, height = picture.size
        picture = picture.crop((width // 20, height // 20, width - width // 20, height - height // 20))
    picture.thumbnail((SIDE, SIDE))
    buffer = io.BytesIO()
    picture.save(buffer, format="JPEG", quality=90)
    return "data:image/jpeg;base64," + base64.b64encode(buffer.getvalue()).decode()


def color_difference(first: Path, second: Path) -> int:
    """Sum of the absolute differences of both photos at 8 x 8 pixels."""
    pixels = [read_image(path).resize((8, 8)).tobytes() for path in (first, second)]
    return sum(abs(a - b) for a, b in zip(*pixels, strict=True))


def collect(folder: Path, answers: Path, labels: Path) -> None:
    """Count the votes of participants who answered every sentinel right, and write a manifest of labeled pairs."""
    study = json.loads((folder / "study.json").read_text(encoding="utf-8"))
    questions = {question["id"]: question for question in study["questions"]}
    votes = {name: Counter() for name, question in questions.items() if question["answer"] is None}
    participants = set()

    for file in sorted(answers.glob("*.json")):
        try:
            record = json.loads(file.read_text(encoding="utf-8"))
            given, participant = dict(record["answers"]), str(record["participant"])
            valid = record["study"] == study["id"] and set(given.values()) <= {SAME, DIFFERENT}
        except (OSError, ValueError, TypeError, KeyError) as error:
            print(f"left out {file}: no answers of this page ({error!r})", file=sys.stderr)
            continue

        missed = [q for q in questions.values() if q["answer"] is not None and given.get(q["id"]) != q["answer"]]
        if not valid or missed or participant in participants:
            reason = f"{len(missed)} sentinels missed" if valid and missed else "another study, or counted already"
            print(f"left out {file}: {reason}", file=sys.stderr)
            continue
        participants.add(participant)
        for name in given.keys() & votes.keys():
            votes[name][given[name]] += 1

    enough = {name: count for name, count in votes.items() if count.total() >= VOTES}
    with labels.open("w", newline="", encoding="utf-8") as file:
        table = csv.writer(file)
        table.writerow(["identity", "path", "group", "slot", "label", "x_votes"])
        for name, count in enough.items():
            question, share = questions[name], count[SAME] / count.total()
            (anchor, candidate), (identity, other) = question["paths"], question["identities"]
            table.writerow([identity, anchor, name, "anchor", "", count.total()])
            table.writerow([other, candidate, name, "candidate", share, count.total()])
    print(f"{len(participants)} participants; wrote {labels}: {len(enough)} of {len(votes)} pairs have {VOTES} votes")


def main(argv: Sequence[str] | None = None) -> None:
    """Run one of both commands."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--smoke", action="store_true", help="build a study of a few painted images, to try the script")
    commands = parser.add_subparsers(dest="command")
    builder = commands.add_parser("build")
    builder.add_argument("photos", type=Path)
    builder.add_argument("study", type=Path)
    builder.add_argument("--count", type=int, default=60, help="pairs (default: 60)")
    builder.add_argument("--sentinels", type=int, default=7, help="questions with an obvious answer (default: 7)")
    builder.add_argument("--seed", type=int, default=0)
    collector = commands.add_parser("collect")
    for name in ("study", "answers", "labels"):
        collector.add_argument(name, type=Path)
    args = parser.parse_args(argv)

    if args.smoke:
        with tempfile.TemporaryDirectory() as folder:
            for number in range(4):
                (Path(folder) / f"{number // 2}").mkdir(exist_ok=True)
                Image.new("RGB", (64, 64), (60 * number, 90, 120)).save(Path(folder) / f"{number // 2}/{number}.png")
            build(Path(folder), Path(folder) / "study", 2, 2)
    elif args.command == "build":
        build(args.photos, args.study, args.count, args.sentinels, args.seed)
    elif args.command == "collect":
        collect(args.study, args.answers, args.labels)
    else:
        parser.error("give build or collect")


if __name__ == "__main__":
    main()
