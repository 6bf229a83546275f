"""`idmetric eval`: run a paper's protocol on data and models, and print a table next to the paper's values."""

from __future__ import annotations

import argparse
import os
import shutil
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from idmetric.cli import options
from idmetric.cli.command import (
    WRONG_USAGE,
    CommandError,
    check_output,
    codes,
    counting_embeddings,
    ended,
    files_among,
    fixable,
    parser_of,
    refuse_inputs,
    say,
    warnings_as_lines,
    write,
)
from idmetric.cli.data.common import of_splits
from idmetric.evaluate.protocols.common.protocol import Protocol, find, modules
from idmetric.evaluate.settings import Checked, add_options, values_of
from idmetric.metric.files import Progress, need
from idmetric.store import cache_folder

if TYPE_CHECKING:
    from pandas import DataFrame

    from idmetric.evaluate.evaluation import Evaluation
    from idmetric.evaluate.protocols.common.result import Result
    from idmetric.evaluate.protocols.common.scorers import EvalSettings, Models, PairJudge

ALL_NAMED = "named"  # a --model that stands for all published scores of images
PROTOCOLS = modules()
FORMATS = ("table", "json", "csv", "markdown", "latex")  # a literal, as --help should not import torch
_EXAMPLES = """examples:
  idmetric eval folder --data photos/ --model tiny --model hsv --out results/
  idmetric eval generator --model tiny --out results/
  idmetric eval nearid --data bench.parquet --split test --model nearid --model siglip2:nearid --out results/
  idmetric eval retrieval --data met.parquet --model mine=run/ --out results/

"""
_NOTES = """Models: as for `idmetric score --model`; the baselines hsv, lpips, dreamsim,
dreamsim:BRANCH, diffsim, diffsim:dreambench++ (docs/protocols/baselines.md); named for all published scores of images,
each under its name (docs/models/named-scores.md); untrained:NAME for the same architecture with random weights;
dual:REPO for CLIP or SigLIP with its text tower; judge:FILE.json for a multimodal language model
(docs/protocols/judge.md). NAME=SOURCE gives a model another name in the table.

--out keeps PROTOCOL.json, .csv, .md and .tex, the score of every item as Parquet, and embeddings: a stopped or repeated
run embeds missing images alone. The pages of docs/ are on https://idmetric.github.io/idmetric/.

"""
_EPILOG = _NOTES + codes(0, 1, 2, 130, 143)


def build_parser(protocol: str | None = None, prog: str = "idmetric eval") -> argparse.ArgumentParser:
    """The parser of all protocols, with the options of one of them."""
    text = f"Run the papers' evaluation protocols. `{prog} PROTOCOL --help` lists the options of one."
    return parser_of(prog, "protocol", PROTOCOLS, protocol, _add_arguments, text, _EXAMPLES + _EPILOG)


def _add_arguments(parser: argparse.ArgumentParser, name: str) -> None:
    protocol = find(name)
    parser.epilog = _EPILOG
    files = parser.add_argument_group("data, models and result")
    files.add_argument("--data", type=Path, metavar="PATH", help=protocol.data_help)
    files.add_argument("--split", action="append", metavar="NAME", help="only rows of this split; may be repeated")
    files.add_argument(
        "--model",
        action="append",
        default=[],
        metavar="[NAME=]SOURCE",
        help=f"model or baseline, see below; may be repeated (default: {options.DEFAULT_MODEL})",
    )
    files.add_argument("--out", type=Path, metavar="DIR", help="folder for the tables, items and embeddings")
    files.add_argument(
        "--plots",
        choices=("png", "svg"),
        help="also draw plots into --out: ROC, sensitivity, ...",
    )
    files.add_argument(
        "--html",
        type=Path,
        metavar="FILE",
        help="also write a page: table, plots, the hardest items with their images (pip install 'idmetric[eval]')",
    )
    options.add_shared(
        files, "--format", choices=FORMATS, default="table", help="format of the result (default: table)"
    )
    files.add_argument("--explain", action="store_true", help="also print what each column is, in a sentence")
    options.add_shared(files, "--quiet")
    add_options(parser.add_argument_group(name), protocol.options)

    run = parser.add_argument_group("run")
    options.add_shared(run, "--distance", help="default: %(default)s, as in the papers")
    run.add_argument(
        "--subject",
        choices=options.OUTSIDE,
        help="compare subjects alone, by the manifest's masks, and replace the other pixels so",
    )
    options.add_shared(run, "--mask-id")
    run.add_argument(
        "--bootstrap",
        type=int,
        default=1000,
        metavar="N",
        help="resamples of identities for 95 %% intervals, 0 = no intervals (default: %(default)s)",
    )
    run.add_argument("--seed", type=int, default=0, help="seed of the resampling (default: %(default)s)")
    options.add_shared(run, "--on-error", help="unreadable images: stop and list all (default), or leave them out")
    options.add_shared(run, "--batch-size")
    options.add_shared(run, "--workers", help="threads that read images (default: one per core)")
    options.add_shared(
        run,
        "--cache",
        help="keep embeddings there, by image content; other commands share them (default: the environment's "
        "IDMETRIC_CACHE, else the folder embeddings in --out)",
    )
    options.add_shared(run, "--device", "--dtype")
    run.add_argument(
        "--max-pairs",
        type=options.positive,
        default=1_000_000,
        metavar="N",
        help="the most pairs of images that LPIPS and DiffSim may compare; more are an error (default: %(default)s)",
    )


def main(argv: Sequence[str] | None = None, prog: str = "idmetric eval") -> int:
    """Run a protocol; returns the exit status."""
    words = list(sys.argv[1:] if argv is None else argv)
    name = build_parser(prog=prog).parse_args(words[:1]).protocol  # ends here for help, the version and unknown names
    parser = build_parser(name, prog)
    args = parser.parse_args(words)
    return ended(partial(_run, find(name), args), parser)


def _run(protocol: Protocol[Checked], args: argparse.Namespace) -> int:
    if args.mask_id is not None and args.subject is None:
        raise CommandError("--mask-id needs --subject: masks are not used without it", WRONG_USAGE)
    if args.out is None:
        check_output(None, "keep the result by --out DIR")
    with fixable():  # a mistyped name should not wait for torch
        from idmetric.evaluate.protocols.common.models import check as check_source

        sources = _sources(args.model or ([options.DEFAULT_MODEL] if protocol.needs_model else []))
        for source in sources.values():
            check_source(source)
        protocol_options = protocol.options(**values_of(args, protocol.options))
    _need_packages(protocol, protocol_options, sources, args)

    with warnings_as_lines():
        with fixable(), counting_embeddings(args.quiet), ExitStack() as stack:
            evaluation = _measured(protocol, protocol_options, sources, args, stack)
            text = _text(evaluation.results, protocol.name, args)
        try:
            with fixable():
                written = _write_files(evaluation, args)
        except CommandError as error:  # such as a disk that is full by now
            raise CommandError(f"{error}; the result is on stdout") from error
        finally:  # whatever happens, hours of work are printed
            write(text, instead="keep the result by --out DIR")

    if not args.quiet:
        for path in written:
            say(f"wrote {path}")
    return 0


# Before the work


def _sources(models: Sequence[str]) -> dict[str, str]:
    """Name -> source of the models of --model."""
    from idmetric.metric.named import NAMED

    all_models: list[str] = []
    for model in models:
        if model == ALL_NAMED:
            all_models += [name for name, score in NAMED.items() if score.references in ("all", "own")]
        else:
            all_models.append(model)

    sources: dict[str, str] = {}
    for model in all_models:
        name, _, source = model.rpartition("=")
        if not name or Path(model).exists():
            name = source = model
        if sources.setdefault(name, source) != source:
            raise ValueError(f"two models are called {name!r}: give one another name, NAME=SOURCE")
    return sources


def _need_packages(
    protocol: Protocol[Checked], protocol_options: Checked, sources: Mapping[str, str], args: argparse.Namespace
) -> None:
    """Report missing optional packages before the work, not where they are used."""
    packages = {"pyarrow": "pyarrow", "scipy": "SciPy", "sklearn": "scikit-learn"}
    if args.out is not None or args.format == "latex":
        packages |= {"pandas": "pandas", "jinja2": "jinja2"}
    for option_name, package in protocol.packages.items():
        if getattr(protocol_options, option_name):
            packages[package] = package
    if any(source.startswith("dual:") for source in sources.values()):
        packages["transformers"] = "transformers"

    if args.plots or args.html is not None:
        packages["matplotlib"] = "matplotlib"
    if args.html is not None:
        packages["jinja2"] = "jinja2"
    need("eval", f"idmetric eval {protocol.name}", **packages)


def _check_files(protocol: Protocol[Checked], args: argparse.Namespace) -> None:
    """Check the data and the outputs before data and models are opened."""
    from idmetric.metric.files import check_writable

    if args.data is None and protocol.needs_data:
        raise ValueError("--data PATH is needed: a manifest, or a folder with a folder for each identity")
    if args.data is None and args.split:
        raise ValueError("--split chooses rows of --data: give that too")
    if args.plots and args.out is None:
        raise ValueError("--plots needs --out DIR: the folder that the plots go to")

    outputs: dict[str, Path | None] = {"--html": args.html}
    written = [] if args.html is None else [args.html]
    if args.out is not None:
        written.append(args.out / f"{protocol.name}.json")
        for ending in ("json", "csv", "md", "tex"):
            outputs[f"--out's {ending} file"] = args.out / f"{protocol.name}.{ending}"
    inputs = [value for name, value in vars(args).items() if name not in ("html", "out")]
    refuse_inputs(outputs, files_among(inputs))
    for path in written:
        check_writable(path, parents=True)


# The work


def _measured(
    protocol: Protocol[Checked],
    protocol_options: Checked,
    sources: Mapping[str, str],
    args: argparse.Namespace,
    stack: ExitStack,
) -> Evaluation:
    """Open data and models, and run the protocol; with --html pictures are kept for the page."""
    from idmetric.evaluate.evaluation import measured, open_data
    from idmetric.evaluate.protocols.common.scorers import PairJudge

    _check_files(protocol, args)
    settings = _settings(args, stack)
    data = of_splits(open_data(protocol, args.data, settings, protocol_options), args)
    refuse_inputs({"--html": args.html}, _files_of(data))
    models = _open_models(sources, args)
    for name, model in models.items():
        if isinstance(model, PairJudge):  # its cost is printed however the run ends
            stack.callback(_print_cost, name, model)
    names_of_data = {"data": args.data, "split": args.split}
    return measured(protocol, data, models, settings, protocol_options, names_of_data, pages=args.html is not None)


def _store(args: argparse.Namespace) -> Path | None:
    """The folder that keeps embeddings."""
    folder = cache_folder(args.cache)
    if folder is None and args.out is not None:
        folder = args.out / "embeddings"
    return folder


def _settings(args: argparse.Namespace, stack: ExitStack) -> EvalSettings:
    from idmetric.evaluate.protocols.common.scorers import EvalSettings
    from idmetric.stream import Look

    look = Look()
    if args.subject is not None:
        look = Look(masked=True, outside=args.subject, mask_id=args.mask_id)
    return EvalSettings(
        distance=args.distance,
        bootstrap=args.bootstrap,
        seed=args.seed,
        store=_store(args),
        look=look,
        on_error=args.on_error,
        batch_size=args.batch_size,
        workers=args.workers,
        progress=stack.enter_context(Progress("images", not args.quiet, verb="processed")),
        max_pairs=args.max_pairs,
        pair_progress=stack.enter_context(Progress("pairs", not args.quiet, verb="compared")),
        out=args.out,
        data_name="" if args.data is None else args.data.name,
        device=args.device,
    )


def _files_of(data: DataFrame) -> Iterator[Path]:
    """The images and masks."""
    for column in ("path", "mask"):
        yield from map(Path, data[column].dropna())


def _open_models(sources: Mapping[str, str], args: argparse.Namespace) -> Models:
    import torch

    from idmetric.evaluate.protocols.common.models import open_model

    dtype = getattr(torch, args.dtype) if args.dtype else None
    return {name: open_model(source, device=args.device, dtype=dtype) for name, source in sources.items()}


def _print_cost(name: str, judge: PairJudge) -> None:
    say(f"{name}: {judge.report()}")


# The results


def _text(results: list[Result], name: str, args: argparse.Namespace) -> str:
    """The results in the form of --format."""
    from idmetric.evaluate.protocols.common import tables

    if args.format == "table":
        width = shutil.get_terminal_size((0, 0)).columns  # 0: not a terminal
        elsewhere = "--out DIR keeps them" if args.out is None else os.fspath(args.out / f"{name}.md")
        text = tables.table(results, width, elsewhere)
    else:
        text = tables.FORMATS[args.format](results)
    if args.explain and args.format in ("table", "markdown"):
        text += "\n".join(["", *tables.explained(results), ""])
    return text


def _write_files(evaluation: Evaluation, args: argparse.Namespace) -> list[Path]:
    """Write the files of --out, --plots and --html; returns them."""
    from idmetric.evaluate.protocols.common.tables import write

    written: list[Path] = []
    if args.out is not None:
        written += write(evaluation.results, args.out, evaluation.protocol)
    if args.plots:
        from idmetric.evaluate.report.plots import draw

        written += draw(evaluation.results, args.out, evaluation.protocol, args.plots)
    if args.html is not None:
        evaluation.write(args.html)
        written.append(args.html)
    return written


if __name__ == "__main__":
    sys.exit(main())
