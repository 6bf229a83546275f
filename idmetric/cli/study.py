"""`idmetric eval study build` and `collect`: pages of questions for people, and the labels that their answers give."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from idmetric.cli import options
from idmetric.cli.command import fixable, say
from idmetric.cli.data.common import check_output, of_splits, read_data
from idmetric.io.hints import need
from idmetric.io.progress import Progress

if TYPE_CHECKING:
    from idmetric.protocols.study.study import Study
    from idmetric.protocols.study.votes import Votes

_BUILD = """Make pages that ask people whether two images show the same individual, or which of two does (ID-Sim, D.2).

examples:
  idmetric eval study build --data photos.parquet --out study/
  idmetric eval study build --data bench.parquet --split test --task triplets --count 300 --out study/

Give participants the pages alone: study.json and items.parquet hold the right answers. docs/human-study.md has the
steps.
"""
_COLLECT = """Check the answers of participants, count votes, and write a manifest with the labels (ID-Sim, D.2).

example:
  idmetric eval study collect answers/ --study study/ --out labels.parquet

A participant who missed a sentinel does not count. A question needs three votes, and nine if people disagree.
"""


def add_steps(parser: argparse.ArgumentParser) -> None:
    """Add both commands below `idmetric eval study`; their `step` runs them."""
    steps = parser.add_subparsers(title="commands", metavar="COMMAND")
    line = "make pages that ask people about pairs or triplets of images"
    build = steps.add_parser("build", help=line, description=_BUILD, allow_abbrev=False)
    line = "make a table of labels from the answers"
    collect = steps.add_parser("collect", help=line, description=_COLLECT, allow_abbrev=False)
    build.set_defaults(step=_build)
    collect.set_defaults(step=_collect)

    text = "manifest (.parquet, .csv, .jsonl), folder with a manifest, or folder with one folder per identity"
    build.add_argument("--data", type=Path, metavar="PATH", required=True, help=text)
    build.add_argument("--split", action="append", metavar="NAME", help="only rows of this split; may be repeated")
    build.add_argument("--out", type=Path, metavar="DIR", required=True, help="folder for the study")
    text = "pairs: the same individual or not; triplets: which of two shows the reference's (default: %(default)s)"
    build.add_argument("--task", choices=("pairs", "triplets"), default="pairs", help=text)
    text = "pairs or triplets, at most (default: %(default)s)"
    build.add_argument("--count", type=options.positive, default=100, metavar="N", help=text)
    text = "pairs or triplets on a page, without sentinels (default: %(default)s)"
    build.add_argument("--per-page", type=options.positive, default=50, metavar="N", help=text)
    text = "questions with an obvious answer on each page, to recognize careless answers (default: %(default)s)"
    build.add_argument("--sentinels", type=options.natural, default=7, metavar="N", help=text)
    text = "longest side of the images in pixels (default: %(default)s)"
    build.add_argument("--side", type=options.positive, default=512, metavar="PIXELS", help=text)
    text = "heading of the pages (default: %(default)s)"
    build.add_argument("--title", default="Which images show the same individual?", metavar="TEXT", help=text)
    build.add_argument("--seed", type=options.natural, default=0, help="seed of the drawing (default: %(default)s)")
    options.add_quiet(build)

    collect.add_argument("answers", type=Path, nargs="+", help="files of answers, or folders of such .json files")
    collect.add_argument("--study", type=Path, required=True, metavar="DIR", help="folder of the study")
    text = "the manifest of labels to write: .parquet, .csv or .jsonl"
    collect.add_argument("-o", "--out", type=Path, required=True, metavar="FILE", help=text)


def run(args: argparse.Namespace) -> int:
    """Run a command; returns the exit status."""
    need("report", "the pages of a study", jinja2="jinja2")
    need("data", "the table of a study", pyarrow="pyarrow")
    with fixable():
        return int(args.step(args))


def _build(args: argparse.Namespace) -> int:
    """Write a study and its pages, and print what there is."""
    from idmetric.io.output import writing
    from idmetric.protocols.study.study import INFO, TABLE, new_study, read_study
    from idmetric.report.study import write_pages

    folder: Path = args.out
    study = new_study(
        of_splits(read_data(args.data), args), args.task, args.count, per_page=args.per_page,
        sentinels=args.sentinels, side=args.side, seed=args.seed, title=args.title,
    )  # fmt: skip
    if (folder / INFO).exists() and read_study(folder).id != study.id:
        raise ValueError(f"{folder} holds another study, and its answers need it: name another folder")
    with writing(folder):
        folder.mkdir(parents=True, exist_ok=True)
    with Progress("images", not args.quiet, verb="read") as progress:
        written = write_pages(study, folder, progress)
    study.write(folder)

    asked = len(study.asked)
    checks = sum(map(len, study.pages.values())) - asked
    pages = f"{len(written)} page{'s' * (len(written) > 1)}"
    print(f"study {study.id}: {asked} {study.task} and {checks} sentinels on {pages}")
    for path in written:
        print(f"{path}  {path.stat().st_size / 1e6:.1f} MB")
    print(f"give participants the pages alone: {INFO} and {TABLE} hold the right answers")
    return 0


def _collect(args: argparse.Namespace) -> int:
    from idmetric.io.output import refuse_inputs
    from idmetric.protocols.study.study import INFO, TABLE, read_study
    from idmetric.protocols.study.votes import collect, table

    check_output(args.out)
    missing = [str(path) for path in args.answers if not path.exists()]
    if missing:
        raise ValueError(f"{missing[0]}: no such file or folder")
    files = list(dict.fromkeys(
        file for path in args.answers for file in (sorted(path.glob("*.json")) if path.is_dir() else [path])
    ))  # fmt: skip
    refuse_inputs({"--out": args.out}, [*files, *(args.study / name for name in (INFO, TABLE))])

    study = read_study(args.study)
    votes = collect(files, study)
    _report(study, votes, len(files))
    made = table(study, votes)
    made.write(args.out)
    print(f"wrote {args.out}: labels of {len(set(made.column('group')))} {study.task}")
    return 0


def _report(study: Study, votes: Votes, files: int) -> None:
    """Print participants, votes, agreement and labels, and on stderr which files and participants do not count."""
    from idmetric.protocols.study.votes import AGREEMENT, agreement

    for path, reason in votes.refused.items():
        say(f"refused {path!r}: {reason}")
    for path in votes.repeated:
        say(f"left out {path!r}: the participant has a later or an equal file of this page")
    for name, missed in votes.failed.items():
        say(f"left out participant {name}: {missed} sentinels missed")
    left = len(votes.refused) + len(votes.repeated)
    print(
        f"{files} files, {left} of them left out; {len(votes.participants)} participants count, {len(votes.failed)} "
        "missed a sentinel"
    )

    voted = votes.total > 0
    if not voted.any():
        return
    share, total = votes.shares()[voted], votes.total[voted]
    found = agreement(study, votes)
    alpha = "undefined" if found is None else f"{found.value:.3f}"
    if found is not None and found.low is not None:
        alpha += f" [{found.low:.3f}, {found.high:.3f}]"
    print(
        f"{voted.sum()} of {len(voted)} {study.task} have votes, {total.mean():.2f} on average ({total.min()} to "
        f"{total.max()}); agreement {(abs(share - 0.5) + 0.5).mean():.3f}, Krippendorff's alpha {alpha}"
    )
    first, second = (int((votes.counts[voted, k] / total >= AGREEMENT).sum()) for k in (0, 1))
    names = {"pairs": ("the same", "different"), "triplets": ("left", "right")}[study.task]
    print(
        f"{first} {names[0]}, {second} {names[1]}, {len(total) - first - second} undecided (agreement below "
        f"{AGREEMENT:g})"
    )
    missing = votes.missing()
    if missing.any():
        print(f"{int((missing > 0).sum())} {study.task} need {int(missing.sum())} more votes")
