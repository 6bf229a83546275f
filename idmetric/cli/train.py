"""`idmetric train`: train the papers' models, from a manifest to a model folder that `idmetric.load` opens.

Ctrl-C and SIGTERM write a checkpoint first (exit status 130 or 143); the same command resumes from it.
"""

from __future__ import annotations

import contextlib
import importlib
import sys
import tempfile
from argparse import ArgumentParser, Namespace
from collections.abc import Sequence
from dataclasses import fields
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from idmetric.cli.command import CommandError, codes, ended, fixable, parser_of, say
from idmetric.cli.options import add_shared
from idmetric.evaluate.settings import add_options, from_file, values_of
from idmetric.metric.files import need
from idmetric.train.options import TrainSettings

if TYPE_CHECKING:
    from pandas import DataFrame

    from idmetric.train.loop import Recipe, Stopped
    from idmetric.train.processes import Processes


# name -> the module, with Config, SMOKE, build and smoke_data, and the line that describes it. A module may also have
# MASKS and MOST_RATIO, for the check of the data
RECIPES = {
    "idsim": ("idmetric.train.idsim.recipe", "ID-Sim: LoRA on a ViT, class and patch similarities"),
    "nearid": (
        "idmetric.train.nearid.recipe",
        "NearID: an attention-pooling head on frozen SigLIP2, near-identity distractors",
    ),
    "visme": ("idmetric.train.visme.recipe", "VisME: LoRA on Qwen2.5-VL, identity-aware batches, gradient caching"),
    "ilgen": ("idmetric.train.ilgen.recipe", "ILGen: a whole encoder, recall@k on generated instances"),
}
_EXAMPLES = """examples:
  idmetric train {name} --data train.parquet --out run/
  idmetric train {name} --smoke --out /tmp/run                 under a minute, offline, small random weights
  idmetric train {name} --data train.parquet --out run/ --config mine.toml --dry-run
  accelerate launch -m idmetric.cli.train {name} --data train.parquet --out run/
  torchrun --nproc-per-node 8 -m idmetric.cli.train {name} --data train.parquet --out run/

The same command resumes a run that was stopped. `idmetric.load("run/")` opens the result.

"""
_EPILOG = _EXAMPLES + codes(0, 1, 2, 130, 143)


def build_parser(recipe: str | None = None, prog: str = "idmetric train") -> ArgumentParser:
    """The parser of all recipes, with the options of one of them."""
    text = f"Train the models of the papers. `{prog} RECIPE --help` lists the options of one."
    return parser_of(prog, "recipe", RECIPES, recipe, _add_arguments, text, _EPILOG.format(name="nearid"))


def _add_arguments(parser: ArgumentParser, name: str) -> None:
    config = importlib.import_module(RECIPES[name][0].replace(".recipe", ".config")).Config  # loads no torch
    parser.epilog = _EPILOG.format(name=name)
    files = parser.add_argument_group("data and result")
    add = files.add_argument
    text = "manifest to train on (.parquet, .csv, .jsonl), or folder with one folder per identity"
    add("--data", type=Path, metavar="PATH", help=text)
    add("--out", type=Path, metavar="DIR", help="folder of the run, new or to be resumed")
    add("--config", type=Path, metavar="FILE", help="read the settings below from a .json or .toml file")
    add("--smoke", action="store_true", help="a small random model and few steps, to test the setup")
    add("--dry-run", action="store_true", help="print the plan and stop")
    text = "write the model of the latest checkpoint of --out to this new folder, without training"
    add("--export", type=Path, metavar="DIR", help=text)
    text = "unreadable images: stop and list all (default), or train without them"
    add_shared(files, "--on-error", help=text)
    add(
        "--check",
        choices=("full", "files"),
        default="full",
        help="before the first step, read all images (default), or only check that the files exist",
    )
    add("--cpu", action="store_true", help="stay on the CPU")
    add_shared(files, "--quiet", help="no progress of the check of images")

    add_options(parser.add_argument_group(f"{name} (defaults: the paper's)"), config)
    add_options(parser.add_argument_group("run"), TrainSettings, but=[entry.name for entry in fields(config)])


def configure(module: Any, args: Namespace) -> tuple[Any, TrainSettings]:
    """The recipe's Config and the loop's settings: defaults, below --smoke, below --config, below the command line.

    Raises:
        ValueError: for an invalid value.
    """
    values = dict(module.SMOKE) if args.smoke else {}
    if args.config:
        values |= from_file(args.config, TrainSettings, module.Config)
    values |= values_of(args, TrainSettings) | values_of(args, module.Config)
    config = _filled(module.Config, values)
    return config, _filled(TrainSettings, {**values, **vars(config)})


def _filled(kind: Any, values: dict[str, Any]) -> Any:
    """A dataclass from the values that are among its fields."""
    names = [entry.name for entry in fields(kind)]
    return kind(**{name: value for name, value in values.items() if name in names})


def run(name: str, module: Any, args: Namespace) -> Stopped | None:
    """Train, or with --dry-run print the plan; returns where a signal stopped the training, if one did.

    Raises:
        CommandError: if a setting, the data or the output is wrong.
        idmetric.train.state.TrainError: as `fit`.
    """
    from idmetric.metric.checkpoints.format import RECORD
    from idmetric.metric.files import check_writable
    from idmetric.train import run_folder
    from idmetric.train.loader import seed_all
    from idmetric.train.loop import export, fit
    from idmetric.train.processes import Processes
    from idmetric.train.state import TrainError

    with contextlib.ExitStack() as stack:
        with fixable(TrainError):  # once training runs, such errors are bugs
            if args.out is None and not args.dry_run:
                raise ValueError("--out DIR is needed: the folder of the run")
            if args.data is None and not args.smoke:
                raise ValueError("--data PATH is needed: a manifest, or a folder (or --smoke, which renders its own)")
            config, settings = configure(module, args)
            processes = stack.enter_context(contextlib.closing(Processes(settings.precision, args.cpu)))
            if args.dry_run:
                smoke_folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
            else:
                smoke_folder = args.out / run_folder.SMOKE_DATA
                processes.on_main(lambda: check_writable(args.out / RECORD, parents=True))
            data = _data(module, args, processes, smoke_folder)
            seed_all(settings.seed)  # new weights follow from the seed
            recipe = module.build(config, data, processes)
            if args.dry_run:
                if processes.main:
                    print("\n".join(plan(name, recipe, data, args, settings, processes)))
                return None
            if args.export is not None:
                if processes.count > 1:
                    raise ValueError("--export needs no second process: run it without a launcher")
                step = export(recipe, args.out, args.export, settings, processes)
                print(f"wrote the model of step {step} of {recipe.steps} to {args.export}")
                return None

        return fit(recipe, args.out, settings, processes)


def _data(module: Any, args: Namespace, processes: Processes, smoke_folder: Path) -> DataFrame:
    """The manifest without unreadable rows, which the main process finds for all; or that of --smoke."""
    from idmetric.cli.data.common import progress
    from idmetric.data.manifest import take
    from idmetric.data.reading import read_data
    from idmetric.train.batches import check

    if args.data is None:
        processes.on_main(lambda: len(module.smoke_data(smoke_folder)))
        smoke_data: DataFrame = module.smoke_data(smoke_folder)  # reads the existing files
        return smoke_data
    data = read_data(args.data)

    def readable_rows() -> list[int]:
        checked = check(
            data,
            args.on_error,
            masks=getattr(module, "MASKS", False),
            decode=args.check == "full",
            most_ratio=getattr(module, "MOST_RATIO", None),
            progress=partial(progress, quiet=args.quiet),
        )
        usable: list[int] = data.index[data["id"].isin(checked["id"])].tolist()
        return usable

    rows = processes.on_main(readable_rows)
    return data if len(rows) == len(data) else take(data, rows)


def plan(
    name: str, recipe: Recipe, data: DataFrame, args: Namespace, settings: TrainSettings, processes: Processes
) -> list[str]:
    """Describe a run, as lines of text."""
    from idmetric.train import state
    from idmetric.train.loader import worker_count
    from idmetric.train.recipe import parameter_counts

    trained, whole = parameter_counts(recipe)
    identities = data["identity"].nunique()
    workers = worker_count(settings.workers, processes)
    lines = [
        f"recipe  {name}",
        f"data    {args.data or 'painted for --smoke'}: {len(data):,} rows, {identities:,} identities",
        f"steps   {recipe.steps:,}",
        f"trains  {trained:,} of {whole:,} parameters",
        f"on      {processes.device.type}, precision {processes.precision}, processes: {processes.count}, "
        f"loading processes of each: {workers}",
    ]
    if args.out is not None:
        done = max(state.checkpoints(args.out), default=0)
        lines.append(f"out     {args.out}, {f'a run with {done} steps done' if done else 'a new run'}")
    return [*lines, *(f"  {key} = {value}" for key, value in recipe.settings.items())]


def main(argv: Sequence[str] | None = None, prog: str = "idmetric train") -> int:
    """Run a recipe; returns the exit status."""
    words = list(sys.argv[1:] if argv is None else argv)
    name = build_parser(prog=prog).parse_args(words[:1]).recipe  # ends here for help, the version and unknown names
    parser = build_parser(name, prog)
    args = parser.parse_args(words)
    return ended(partial(_main, name, args), parser)


def _main(name: str, args: Namespace) -> int:
    packages = {"accelerate": "accelerate", "pandas": "pandas", "tensorboard": "tensorboard"}
    if name in ("idsim", "visme"):
        packages["peft"] = "peft"
    if name == "visme":
        packages["transformers"] = "transformers"
    need("train", f"idmetric train {name}", **packages)
    from idmetric.metric.files import OutputError
    from idmetric.train.state import TrainError

    try:
        stopped = run(name, importlib.import_module(RECIPES[name][0]), args)
    except (TrainError, ImportError, OutputError) as error:
        raise CommandError(str(error)) from error
    if stopped is not None:
        say(str(stopped))
        return 128 + stopped.signal
    return 0


if __name__ == "__main__":
    sys.exit(main())
