"""`idmetric eval study build` and `collect`: pages of questions for people, and the labels that their answers give."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from idmetric.cli import options
from idmetric.cli.command import fixable, say
from idmetric.cli.data.common import check_output, of_splits, read_data
from idmetric.io.hints import need
from idmetric.io.progress import Progress

if TYPE_CHECKING:
    from idmetric.protocols.study.study import Study
    from idmetric.protocols.study.votes import Labels, Votes

_BUILD = """Make pages that ask people whether two images show the same individual, or which of two does (ID-Sim, D.2).

examples:
  idmetric eval study build --data photos.parquet --out study/
  idmetric eval study build --data bench.parquet --split test --task triplets --count 300 --out study/

Give participants the pages alone: study.json and items.parquet hold the right answers. docs/human-study.md has the
steps.
"""
_COLLECT = """Check the answers of participants, count votes, and write a manifest with the labels (ID-Sim, D.2).

examples:
  idmetric eval study collect answers/ --study study/ --out labels.parquet
  idmetric eval study collect answers/ --study study/ --out labels.parquet --follow-up more/
  idmetric eval study collect answers/ --study study/ --study more/ --out labels.parquet

A participant who missed a sentinel does not count. A question needs three votes, and nine if people disagree.
"""


def add_steps(parser: argparse.ArgumentParser) -> None:
    """Add both commands below `idmetric eval study`; their `step` runs them."""
    steps = parser.add_subparsers(title="commands", metavar="COMMAND")
    line = "make pages that ask people about pairs or triplets of images"
    build = steps.add_parser("build", help=line, description=_BUILD, allow_abbrev=False)
    line = "make a table of labels from the answers"
    collect = steps.add_parser("collect", help=line, description=_COLLECT, allow_abbrev=False)
    _add_build(build)
    _add_collect(collect)
    build.set_defaults(step=_build)
    collect.set_defaults(step=_collect)


def _add_build(parser: argparse.ArgumentParser) -> None:
    text = "manifest (.parquet, .csv, .jsonl), folder with a manifest, or folder with one folder per identity"
    parser.add_argument("--data", type=Path, metavar="PATH", required=True, help=text)
    parser.add_argument("--split", action="append", metavar="NAME", help="only rows of this split; may be repeated")
    parser.add_argument("--out", type=Path, metavar="DIR", required=True, help="folder for the study")
    text = "pairs: the same individual or not; triplets: which of two shows the reference's (default: %(default)s)"
    parser.add_argument("--task", choices=("pairs", "triplets"), default="pairs", help=text)
    text = "pairs or triplets, at most (default: %(default)s)"
    parser.add_argument("--count", type=options.positive, default=100, metavar="N", help=text)
    _add_per_page(parser)
    text = "questions with an obvious answer on each page, to recognize careless answers (default: %(default)s)"
    parser.add_argument("--sentinels", type=options.natural, default=7, metavar="N", help=text)
    text = "longest side of the images in pixels (default: %(default)s)"
    parser.add_argument("--side", type=options.positive, default=512, metavar="PIXELS", help=text)
    text = "heading of the pages (default: %(default)s)"
    parser.add_argument("--title", default="Which images show the same individual?", metavar="TEXT", help=text)
    parser.add_argument("--seed", type=options.natural, default=0, help="seed of the drawing (default: %(default)s)")
    options.add_quiet(parser)


def _add_collect(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("answers", type=Path, nargs="+", help="files of answers, or folders of such .json files")
    text = "folder of the study; repeat it for the folders of follow-ups, the study first"
    parser.add_argument("--study", type=Path, action="append", required=True, metavar="DIR", help=text)
    text = "the manifest of labels to write: .parquet, .csv or .jsonl"
    parser.add_argument("-o", "--out", type=Path, required=True, metavar="FILE", help=text)
    text = "also write pages there that ask for the votes that are missing"
    parser.add_argument("--follow-up", type=Path, metavar="DIR", help=text)
    _add_per_page(parser)
    options.add_quiet(parser)


def _add_per_page(parser: argparse.ArgumentParser) -> None:
    text = "pairs or triplets on a page, without sentinels (default: %(default)s)"
    parser.add_argument("--per-page", type=options.positive, default=50, metavar="N", help=text)


def run(args: argparse.Namespace) -> int:
    """Run a command; returns the exit status."""
    need("report", "the pages of a study", jinja2="jinja2")
    need("data", "the table of a study", pyarrow="pyarrow")
    with fixable():
        return int(args.step(args))


def _build(args: argparse.Namespace) -> int:
    from idmetric.protocols.study.study import new_study

    data = of_splits(read_data(args.data), args)
    study = new_study(
        data, args.task, args.count, per_page=args.per_page, sentinels=args.sentinels, side=args.side,
        seed=args.seed, title=args.title,
    )  # fmt: skip
    _write(study, args.out, args.quiet)
    return 0


def _write(study: Study, folder: Path, quiet: bool) -> None:
    """Write a study and its pages, and print what there is."""
    from idmetric.io.output import writing
    from idmetric.protocols.study.study import INFO, TABLE, read_study
    from idmetric.report.study import write_pages

    if (folder / INFO).exists() and read_study(folder).id != study.id:
        raise ValueError(f"{folder} holds another study, and its answers need it: name another folder")
    with writing(folder):
        folder.mkdir(parents=True, exist_ok=True)
    with Progress("images", not quiet, verb="read") as progress:
        written = write_pages(study, folder, progress)
    study.write(folder)

    questions = [q for page in study.pages.values() for q in page]
    checks = sum(q.sentinel is not None for q in questions)
    pages = f"{len(written)} page{'s' * (len(written) > 1)}"
    print(f"study {study.id}: {len(questions) - checks} {study.task} and {checks} sentinels on {pages}")
    for path in written:
        print(f"{path}  {path.stat().st_size / 1e6:.1f} MB")
    print(f"give participants the pages alone: {INFO} and {TABLE} hold the right answers")


def _collect(args: argparse.Namespace) -> int:
    from idmetric.io.output import refuse_inputs
    from idmetric.protocols.study.study import CHOICES, INFO, TABLE, follow_up, read_study
    from idmetric.protocols.study.votes import collect, count, table

    check_output(args.out)
    files = _files(args.answers)
    refuse_inputs({"--out": args.out}, [*files, *(folder / name for folder in args.study for name in (INFO, TABLE))])
    studies = [read_study(folder) for folder in args.study]
    for folder, one in zip(args.study, studies, strict=True):
        if one.origin != studies[0].id:
            raise ValueError(f"{folder}: not a follow-up of {args.study[0]}, which is to be named first")

    votes = collect(files, studies)
    labels = count(votes.of, CHOICES[studies[0].task])
    _report(votes, len(files))
    _summarize(studies[0], labels)
    missing = labels.missing()
    if missing.any():
        said = "" if args.follow_up else ": --follow-up DIR writes pages that ask for them"
        print(f"{int((missing > 0).sum())} {studies[0].task} need {int(missing.sum())} more votes{said}")

    made = table(studies[0], labels)
    made.write(args.out)
    print(f"wrote {args.out}: labels of {len(set(made.column('group')))} {studies[0].task}")
    if missing.any() and args.follow_up:
        again = [item for item, needed in zip(labels.items, missing.tolist(), strict=True) if needed]
        _write(follow_up(studies[0], again, args.per_page), args.follow_up, args.quiet)
    return 0


def _files(given: Sequence[Path]) -> list[Path]:
    """The files of answers, those of folders in alphabetical order.

    Raises:
        ValueError: naming a path that does not exist, or if there are no files.
    """
    found: dict[Path, None] = {}
    for path in given:
        if not path.exists():
            raise ValueError(f"{path}: no such file or folder")
        found |= dict.fromkeys(sorted(path.glob("*.json")) if path.is_dir() else [path])
    if not found:
        raise ValueError("no files of answers: these end in .json")
    return list(found)


def _report(votes: Votes, files: int) -> None:
    """Print how many files and participants count, and on stderr which do not, with the reason."""
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


def _summarize(study: Study, labels: Labels) -> None:
    """Print votes, agreement and Krippendorff's alpha, and how many labels there are."""
    from idmetric.protocols.study.votes import AGREEMENT, agreement

    voted = labels.votes > 0
    if not voted.any():
        return
    share = labels.shares()[voted]
    found = agreement(study, labels)
    alpha = "undefined" if found is None else f"{found.value:.3f}"
    if found is not None and found.low is not None:
        alpha += f" [{found.low:.3f}, {found.high:.3f}]"
    votes = labels.votes[voted]
    print(
        f"{voted.sum()} of {len(voted)} {study.task} have votes, {votes.mean():.2f} on average ({votes.min()} to "
        f"{votes.max()}); agreement {(abs(share - 0.5) + 0.5).mean():.3f}, Krippendorff's alpha {alpha}"
    )
    first, second = (labels.agreed(AGREEMENT, k) for k in (0, 1))
    names = {"pairs": ("the same", "different"), "triplets": ("left", "right")}[study.task]
    print(
        f"{first} {names[0]}, {second} {names[1]}, {int(voted.sum()) - first - second} undecided (agreement below "
        f"{AGREEMENT:g})"
    )
