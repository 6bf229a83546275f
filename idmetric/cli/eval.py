"""`idmetric eval`: run a paper's protocol on data and models, and print a table next to the paper's values."""

from __future__ import annotations

import argparse
import importlib
import os
import shutil
import sys
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any

from idmetric.cli import options
from idmetric.cli.command import (
    CommandError,
    UsageError,
    check_output,
    codes,
    ended,
    fixable,
    parser_of,
    say,
    warnings_as_lines,
    write,
)
from idmetric.cli.data.common import of_splits, read_data
from idmetric.metric.files.hints import need_all
from idmetric.metric.files.progress import Progress
from idmetric.metric.files.settings import add_options, values_of

if TYPE_CHECKING:
    from idmetric.data.manifest.table import Manifest
    from idmetric.evaluate.protocols.common.result import Result
    from idmetric.evaluate.protocols.common.tables import View

ALL_NAMED = "named"  # a --model that stands for all published scores of images

# name -> the module in idmetric.evaluate.protocols and the line that describes it. A module has
# `run(data, models, settings, options)`, or where it needs more of the command line,
# `command(args, data, models, settings)`; and where it needs them `open_data(args)` (also without --data)
# and OPTIONAL ("data", "model"). Its options are in `protocols.options`
_MODULES = {
    "folder": ("folder", "your own photos: retrieval and verification, a folder for each identity"),
    "photos": ("photos", "the README's table: retrieval on packages, turntable objects, garments"),
    "nearid": ("nearid_table1_margins", "NearID-bench and Mind-the-Glitch (NearID, Tables 1, 5, 7)"),
    "retrieval": ("ilgen_table2_retrieval", "ILGen's retrieval benchmarks (Tables 2 to 5)"),
    "idsim": (
        "idsim_table2b_retrieval.protocol",
        "ID-Sim's benchmarks: PODS, DeepFashion2, CUTE, ... (Fig. 25, Table 2b)",
    ),
    "mveb": ("visme_table1_mveb", "MVEB's four meta-tasks, precision at 1 (VisME, Table 1)"),
    "mmeb": ("visme_table1_mmeb", "MMEB's 36 sets of images and texts, precision at 1 (VisME, Tables 1 to 5)"),
    "sensitivity": (
        "idsim_fig6_sensitivity",
        "sensitivity to identity and to context over edit grids (ID-Sim, Fig. 6); no download",
    ),
    "segmentation": (
        "idsim_table2c_segmentation.protocol",
        "where a subject is: patch maps and PerSAM (ID-Sim, Table 2c)",
    ),
    "matches": ("matches", "do matched patches lie on the subject? against masks; no download"),
    "ilias": ("ilias", "ILIAS: mAP@1k by scale, clutter and category of the object"),
    "finer": ("finer_rank", "Finer-Personalization Rank: generated images query real look-alikes, mAP of each method"),
    "dreambench": ("nearid_table2_dreambench.protocol", "DreamBench++: agreement with people (NearID, Table 2)"),
    "openset": ("openset", "known individuals by name, unknown ones as new: BAKS, BAUS"),
    "generator": (
        "generator.protocol",
        "your generated images: identity, copying, diversity, prompt fidelity of each method",
    ),
    "sets": (
        "generator.sets",
        "sets of generated images against sets of real photos: CMMD, Frechet distance, the noise floor",
    ),
    "checkpoints": (
        "checkpoints.protocol",
        "samples of a LoRA's checkpoints: identity, copying, drift over steps, and the best step",
    ),
    "calibrate": ("calibrate", "same-identity probabilities and thresholds from labeled pairs"),
    "agreement": ("agreement", "agreement with people: labels of pairs or triplets, such as NIGHTS and Subjects2k"),
}
PROTOCOLS = {name: (f"idmetric.evaluate.protocols.{module}", line) for name, (module, line) in _MODULES.items()}
FORMATS = ("table", "json", "csv", "markdown", "latex")  # a literal, as --help should not import torch
_MANIFEST = "manifest (.parquet, .csv, .jsonl), folder with a manifest, or folder with one folder per identity"
_OUTPUTS = "folder of generated images (--pattern or --layout), or table of them (.csv, .parquet, .jsonl)"
_SAMPLES = "folder of samples, or table of them with a column step (.csv, .parquet, .jsonl)"
_DATA = {"generator": _OUTPUTS, "sets": _OUTPUTS, "checkpoints": _SAMPLES}  # protocol -> the help of --data
# options that name the data, kept among the settings of results
_TRACED = ("data", "split", "ratings", "pattern", "layout", "benchmark", "references", "training", "base", "prompts",
           "clip_t")  # fmt: skip
_EXAMPLES = """examples:
  idmetric eval folder --data photos/ --model tiny --model hsv --out results/
  idmetric eval generator --model tiny --out results/
  idmetric eval nearid --data bench.parquet --split test --model nearid --model siglip2:nearid --out results/
  idmetric eval retrieval --data met.parquet --model mine=run/ --out results/

"""
_NOTES = """Models: as for `idmetric score --model`; the baselines hsv, pixels, ssim, lpips, dreamsim,
dreamsim:BRANCH, diffsim, diffsim:dreambench++ (docs/baselines.md); named for all published scores of images, each
under its name (docs/named-scores.md); untrained:NAME for the same architecture with random weights; dual:REPO for CLIP
or SigLIP with its text tower; judge:FILE.json for a multimodal language model (docs/judge.md). NAME=SOURCE gives a
model another name in the table.

--out keeps PROTOCOL.json, .csv, .md and .tex, the score of every item as Parquet, and embeddings: a stopped or repeated
run embeds only what is missing.

"""
_EPILOG = _NOTES + codes(0, 1, 2, 130, 143)


def build_parser(protocol: str | None = None, prog: str = "idmetric eval") -> argparse.ArgumentParser:
    """The parser of all protocols, with the options of one of them."""
    text = f"Run the papers' evaluation protocols. `{prog} PROTOCOL --help` lists the options of one."
    return parser_of(prog, "protocol", PROTOCOLS, protocol, _add_arguments, text, _EXAMPLES + _EPILOG)


def _add_arguments(parser: argparse.ArgumentParser, name: str) -> None:
    from idmetric.evaluate.protocols.options import OPTIONS

    parser.epilog = _EPILOG
    files = parser.add_argument_group("data, models and result")
    files.add_argument("--data", type=Path, metavar="PATH", help=_DATA.get(name, _MANIFEST))
    files.add_argument("--split", action="append", metavar="NAME", help="only rows of this split; may be repeated")
    text = f"model or baseline, see below; may be repeated (default: {options.DEFAULT_MODEL})"
    files.add_argument("--model", action="append", default=[], metavar="[NAME=]SOURCE", help=text)
    files.add_argument("--out", type=Path, metavar="DIR", help="folder for the tables, items and embeddings")
    text = "also draw plots into --out: ROC, precision and recall, distributions, sensitivity, ..."
    files.add_argument("--plots", choices=("png", "svg"), help=text)
    text = "also write a page: table, plots, the hardest items with their images (pip install 'idmetric[report]')"
    files.add_argument("--html", type=Path, metavar="FILE", help=text)
    options.add_format(files, FORMATS)
    shown = parser.add_argument_group("table", "of --format table, markdown, latex, and of --out's .md and .tex files")
    text = "pivot: the values of these two become rows and columns: model, metric, or a label of the rows (method, ...)"
    shown.add_argument("--rows", metavar="NAME", help=text)
    shown.add_argument("--columns", metavar="NAME", help="see --rows")
    text = "columns of numbers to show, in this order, such as identity,clip_t,copies (default: all)"
    shown.add_argument("--show", metavar="NAMES", type=lambda names: tuple(names.split(",")), default=(), help=text)
    text = "95 %% intervals, small, in LaTeX too; --no-intervals leaves them out everywhere"
    shown.add_argument("--intervals", action=argparse.BooleanOptionalAction, help=text)
    shown.add_argument("--explain", action="store_true", help="also print what each column is, in a sentence")
    options.add_quiet(files)
    if name in OPTIONS:
        add_options(parser.add_argument_group(name), OPTIONS[name])

    run = parser.add_argument_group("run")
    options.add_distance(run, "default: %(default)s, as in the papers")
    text = "compare subjects alone, by the manifest's masks, and replace the other pixels so"
    run.add_argument("--subject", choices=options.OUTSIDE, help=text)
    options.add_mask_id(run)
    options.add_decode(run)
    text = "resamples of identities for 95 %% intervals, 0 = no intervals (default: %(default)s)"
    run.add_argument("--bootstrap", type=int, default=1000, metavar="N", help=text)
    run.add_argument("--seed", type=int, default=0, help="seed of the resampling (default: %(default)s)")
    options.add_on_error(run, fail="stop and list all", skip="leave them out")
    options.add_batch_size(run)
    options.add_workers(run, "one per core")
    options.add_device(run)
    options.add_dtype(run)
    text = "the most pairs of images that SSIM, LPIPS and DiffSim may compare; more are an error (default: %(default)s)"
    run.add_argument("--max-pairs", type=options.positive, default=1_000_000, metavar="N", help=text)


def main(argv: Sequence[str] | None = None, prog: str = "idmetric eval") -> int:
    """Run a protocol; returns the exit status."""
    given = list(sys.argv[1:] if argv is None else argv)
    name = build_parser(prog=prog).parse_args(given[:1]).protocol  # ends here for help, the version and unknown names
    parser = build_parser(name, prog)
    args = parser.parse_args(given)
    kept = "nothing was kept: with --out DIR the same command would resume"
    if args.out is not None:
        kept = "embeddings in --out are kept, and the same command resumes"
    return ended(partial(_run, name, args), parser, kept)


def _run(name: str, args: argparse.Namespace) -> int:
    if args.mask_id is not None and args.subject is None:
        raise UsageError("--mask-id needs --subject: masks are not used without it")
    if (args.rows is None) != (args.columns is None):
        raise UsageError("--rows and --columns belong together, such as --rows method --columns subject")
    if args.out is None:
        check_output(None, "keep the result by --out DIR")
    with fixable():  # a mistyped name should not wait for torch
        from idmetric.evaluate.protocols.common.models import check
        from idmetric.evaluate.protocols.options import OPTIONS

        sources = _sources(args.model)
        for source in sources.values():
            check(source)
        if name in OPTIONS:
            args.options = OPTIONS[name](**values_of(args, OPTIONS[name]))
            if name == "generator":  # properties of images in a pivot, by which they have to be grouped
                more = [axis for axis in (args.rows, args.columns) if axis not in (None, "model", "metric", "method")]
                args.options = replace(args.options, by=tuple(dict.fromkeys([*args.options.by, *more])))
            vars(args).update(vars(args.options))
    _need(name, args, list(sources.values()))
    from idmetric.evaluate.protocols.common import tables

    view, wrong = tables.View(args.rows, args.columns, args.show, args.intervals), None
    with warnings_as_lines():
        with fixable(), ExitStack() as stack:
            data, results = _measured(name, args, stack)
            try:
                text = _text(results, name, args, view)
            except tables.TableError as error:  # the numbers are kept
                wrong, view = error, tables.View()
                text = _text(results, name, args, view)
        try:
            with fixable():
                written = _keep(results, data, args, name, view)
        except CommandError as error:  # such as a disk that is full by now
            raise CommandError(f"{error}; the result is on stdout") from error
        finally:  # whatever happens, hours of work are printed
            write(text, instead="keep the result by --out DIR")
    if not args.quiet:
        for path in written:
            say(f"wrote {path}")
    if wrong is not None:
        raise CommandError(f"{wrong}; the whole table was printed instead")
    return 0


def _text(results: list[Result], name: str, args: argparse.Namespace, view: View) -> str:
    """The results in the form of --format."""
    from idmetric.evaluate.protocols.common import tables

    if args.format == "table":
        width = shutil.get_terminal_size((0, 0)).columns  # 0: not a terminal
        elsewhere = "--show chooses columns" if args.out is None else os.fspath(args.out / f"{name}.md")
        text = tables.table(results, view, width, elsewhere)
    else:
        text = tables.FORMATS[args.format](results, view)
    if args.explain and args.format in ("table", "markdown"):
        text += "\n".join(["", *tables.explained(results, view), ""])
    return text


def _measured(name: str, args: argparse.Namespace, stack: ExitStack) -> tuple[Manifest | None, list[Result]]:
    """Check the options, open data and models, and run the protocol."""
    import torch

    from idmetric.data.embed import Look
    from idmetric.evaluate.protocols.common.models import open_model
    from idmetric.evaluate.protocols.common.scorers import EvalSettings

    module = importlib.import_module(PROTOCOLS[name][0])
    optional = getattr(module, "OPTIONAL", ())
    _check(args, name, optional)
    images = stack.enter_context(Progress("images", not args.quiet, verb="processed"))
    pairs = stack.enter_context(Progress("pairs", not args.quiet, verb="compared"))
    data = None
    if hasattr(module, "open_data"):
        data = of_splits(module.open_data(args), args)
    elif args.data is not None:
        data = of_splits(read_data(args.data), args)

    settings = EvalSettings(
        args.distance, args.bootstrap, args.seed, None if args.out is None else args.out / "embeddings",
        Look() if args.subject is None else Look(True, args.subject, args.mask_id), args.on_error, args.batch_size,
        args.workers, images, args.max_pairs, pairs,
    )  # fmt: skip
    given = args.model or ([] if "model" in optional else [options.DEFAULT_MODEL])
    opened = partial(
        open_model, device=args.device, dtype=getattr(torch, args.dtype) if args.dtype else None, decode=args.decode
    )
    models = {model: opened(source) for model, source in _sources(given).items()}
    if getattr(args, "clip_t", None):
        from idmetric.evaluate.protocols.common.dual_encoder import DualEncoder

        models["CLIP-T"] = DualEncoder(args.clip_t, device=args.device)
    for judge, model in models.items():
        if hasattr(model, "report"):  # its cost is printed however the run ends
            stack.callback(_print_cost, judge, model)

    if hasattr(module, "command"):
        found = module.command(args, data, models, settings)
    else:
        found = module.run(data, models, settings, *([args.options] if hasattr(args, "options") else []))
    traced = {option: value for option in _TRACED if (value := getattr(args, option, None)) is not None}
    return data, [replace(result, settings={**result.settings, **traced}) for result in found]


def _print_cost(name: str, judge: Any) -> None:
    say(f"{name}: {judge.report()}")


def _check(args: argparse.Namespace, name: str, optional: Sequence[str]) -> None:
    """Check the options and the outputs before data and models are opened."""
    from idmetric.metric.files.output import check, files_among, refuse_inputs

    if args.data is None and "data" not in optional:
        raise ValueError("--data PATH is needed: a manifest, or a folder with a folder for each identity")
    if args.data is None and args.split:
        raise ValueError("--split chooses rows of --data: give that too")
    if args.plots and args.out is None:
        raise ValueError("--plots needs --out DIR: the folder that the plots go to")

    outputs: dict[str, Path | None] = {"--html": args.html}
    if args.out is not None:
        outputs |= {f"--out's {ending} file": args.out / f"{name}.{ending}" for ending in ("json", "csv", "md", "tex")}
    inputs = (value for option, value in vars(args).items() if option not in ("html", "out"))
    refuse_inputs(outputs, files_among(inputs))
    for path in (None if args.out is None else args.out / f"{name}.json", args.html):
        if path is not None:
            check(path, parents=True)


def _need(name: str, args: argparse.Namespace, sources: Sequence[str]) -> None:
    """Report missing optional packages before the work, not where they are used."""
    packages = {"pyarrow": "pyarrow", "scipy": "SciPy", "sklearn": "scikit-learn"}
    towers = any(source.startswith("dual:") for source in sources)
    if towers or getattr(args, "clip_t", None) or getattr(args, "sam", None):
        packages["transformers"] = "transformers"
    extras = {"eval": packages}
    if args.plots or args.html is not None:
        extras["report"] = {"matplotlib": "matplotlib", **({} if args.html is None else {"jinja2": "jinja2"})}
    need_all(f"idmetric eval {name}", extras)


def _keep(results: list[Result], data: Manifest | None, args: argparse.Namespace, name: str, view: View) -> list[Path]:
    """Write the files of --out, --plots and --html; returns them."""
    from idmetric.evaluate.protocols.common.tables import write

    written: list[Path] = []
    if args.out is not None:
        written += write(results, args.out, name, view)
    if args.plots:
        from idmetric.evaluate.report.plots import draw

        written += draw(results, args.out, name, args.plots)
    if args.html is not None:
        from idmetric.evaluate.report.evaluation import eval_page
        from idmetric.evaluate.report.page import write_page

        write_page(eval_page(results, data), args.html)
        written.append(args.html)
    return written


def _sources(models: Sequence[str]) -> dict[str, str]:
    """Name -> source of the models of --model."""
    from idmetric.metric.models.named import NAMED

    scores = [name for name, score in NAMED.items() if score.references in ("all", "own")]
    found: dict[str, str] = {}
    for given in chain.from_iterable(scores if model == ALL_NAMED else [model] for model in models):
        name, _, source = given.rpartition("=")
        name, source = (given, given) if not name or Path(given).exists() else (name, source)
        if found.setdefault(name, source) != source:
            raise ValueError(f"two models are called {name!r}: give one another name, NAME=SOURCE")
    return found


if __name__ == "__main__":
    sys.exit(main())
