"""`idmetric train`: train the papers' models, from a manifest to a model folder that `idmetric.load` opens.

Ctrl-C and SIGTERM write a checkpoint first (exit status 130 or 143); the same command resumes from it.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import fields
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from idmetric.cli import options
from idmetric.cli.command import CommandError, codes, ended, fixable, parser_of, say
from idmetric.metric.files.hints import need_all
from idmetric.metric.files.settings import add_options, from_file, values_of
from idmetric.train.options import TrainSettings

if TYPE_CHECKING:
    from idmetric.data.manifest.table import Manifest
    from idmetric.train.loop import Recipe
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


def build_parser(recipe: str | None = None, prog: str = "idmetric train") -> argparse.ArgumentParser:
    """The parser of all recipes, with the options of one of them."""
    text = f"Train the models of the papers. `{prog} RECIPE --help` lists the options of one."
    return parser_of(prog, "recipe", RECIPES, recipe, _add_arguments, text, _EPILOG.format(name="nearid"))


def _add_arguments(parser: argparse.ArgumentParser, name: str) -> None:
    config = importlib.import_module(RECIPES[name][0].replace(".recipe", ".config")).Config  # loads no torch
    parser.epilog = _EPILOG.format(name=name)
    files = parser.add_argument_group("data and result")
    files.add_argument("--data", type=Path, metavar="FILE", help="manifest to train on: .parquet, .csv or .jsonl")
    files.add_argument("--out", type=Path, metavar="DIR", help="folder of the run, new or to be resumed")
    files.add_argument("--config", type=Path, metavar="FILE", help="read the settings below from a .json or .toml file")
    files.add_argument("--smoke", action="store_true", help="a small random model and few steps, to test the setup")
    files.add_argument("--dry-run", action="store_true", help="print the plan and stop")
    options.add_on_error(files, fail="stop and list all", skip="train without them")
    text = "before the first step, read all images (default), or only check that the files exist"
    files.add_argument("--check", choices=("full", "files"), default="full", help=text)
    files.add_argument("--cpu", action="store_true", help="stay on the CPU")
    options.add_quiet(files, "no progress of the check of images")
    own = parser.add_argument_group(f"{name} (defaults: the paper's)")
    add_options(own, config)
    run = parser.add_argument_group("run")
    add_options(run, TrainSettings, but={f.name for f in fields(config)})


def configure(module: Any, args: argparse.Namespace) -> tuple[Any, TrainSettings]:
    """The recipe's Config and the loop's Settings: defaults, below --smoke, below --config, below the command line.

    Raises:
        ValueError: for an invalid value.
    """
    given = {**values_of(args, TrainSettings), **values_of(args, module.Config)}
    saved = from_file(args.config, TrainSettings, module.Config) if args.config else {}
    values = {**(module.SMOKE if args.smoke else {}), **saved, **given}
    own, of_run = ({f.name for f in fields(kind)} for kind in (module.Config, TrainSettings))
    config = module.Config(**{name: value for name, value in values.items() if name in own})
    shared = {name: getattr(config, name) for name in own & of_run}
    settings = TrainSettings(**{**{name: value for name, value in values.items() if name in of_run}, **shared})
    return config, settings


def run(name: str, module: Any, args: argparse.Namespace) -> None:
    """Train, or with --dry-run print the plan.

    Raises:
        CommandError: if a setting, the data or the output is wrong.
        idmetric.train.loop.TrainError, Stopped: as `fit`.
    """
    from idmetric.metric.files.output import check
    from idmetric.train import run_folder
    from idmetric.train.loader import seed_all
    from idmetric.train.loop import fit
    from idmetric.train.processes import Processes
    from idmetric.train.state import TrainError

    with contextlib.ExitStack() as held:
        with fixable(TrainError):  # once training runs, such errors are bugs
            if args.out is None and not args.dry_run:
                raise ValueError("--out DIR is needed: the folder of the run")
            if args.data is None and not args.smoke:
                raise ValueError("--data FILE is needed: the manifest to train on (or --smoke, which renders its own)")
            config, settings = configure(module, args)
            processes = held.enter_context(contextlib.closing(Processes(settings.precision, args.cpu)))
            scratch = Path(held.enter_context(tempfile.TemporaryDirectory()))
            if not args.dry_run:
                processes.on_main(lambda: check(args.out / run_folder.FILE, parents=True))
                processes.on_main(lambda: run_folder.read(args.out))
            data = _data(module, args, processes, scratch if args.dry_run else args.out / run_folder.SMOKE_DATA)
            seed_all(settings.seed)  # new weights follow from the seed
            recipe = module.build(config, data, processes)
            if args.dry_run:
                if processes.main:
                    print("\n".join(plan(name, recipe, data, args, settings, processes)))
                return

        fit(recipe, args.out, settings, processes)


def _data(module: Any, args: argparse.Namespace, processes: Processes, smoke: Path) -> Manifest:
    """The manifest without unreadable rows, which the main process finds for all; or that of --smoke."""
    from idmetric.cli.data.common import progress
    from idmetric.data.manifest.table import read
    from idmetric.train.batches import check

    if args.data is None:
        processes.on_main(lambda: len(module.smoke_data(smoke)))
        made: Manifest = module.smoke_data(smoke)  # reads the existing files
        return made
    data = read(args.data)

    def kept() -> list[int]:
        found = check(
            data, args.on_error, masks=getattr(module, "MASKS", False), decode=args.check == "full",
            most_ratio=getattr(module, "MOST_RATIO", None), progress=partial(progress, quiet=args.quiet),
        )  # fmt: skip
        names = set(found.column("id"))
        return [row for row, name in enumerate(data.column("id")) if name in names]

    rows = processes.on_main(kept)
    return data if len(rows) == len(data) else data.take(rows)


def plan(
    name: str, recipe: Recipe, data: Manifest, args: argparse.Namespace, settings: TrainSettings, processes: Processes
) -> list[str]:
    """Describe a run, as lines of text."""
    from idmetric.train import state
    from idmetric.train.loader import worker_count
    from idmetric.train.recipe import parameter_counts

    trained, whole = parameter_counts(recipe)
    identities = len(set(data.column("identity")) - {None})
    lines = {
        "recipe": name,
        "data": f"{args.data or 'painted for --smoke'}: {len(data):,} rows, {identities:,} identities",
        "steps": f"{recipe.steps:,}",
        "trains": f"{trained:,} of {whole:,} parameters",
        "on": f"{processes.device.type}, precision {processes.precision}, processes: {processes.count}, "
        f"loading processes of each: {worker_count(settings.workers, processes)}",
    }
    if args.out is not None:
        done = max(state.checkpoints(args.out), default=0)
        lines["out"] = f"{args.out}, {f'a run with {done} steps done' if done else 'a new run'}"
    return [f"{key:<8}{value}" for key, value in lines.items()] + [f"  {k} = {v}" for k, v in recipe.settings.items()]


def main(argv: Sequence[str] | None = None, prog: str = "idmetric train") -> int:
    """Run a recipe; returns the exit status."""
    given = list(sys.argv[1:] if argv is None else argv)
    name = build_parser(prog=prog).parse_args(given[:1]).recipe  # ends here for help, the version and unknown names
    parser = build_parser(name, prog)
    args = parser.parse_args(given)
    kept = "checkpoints written so far are kept, and the same command resumes from the last one"
    return ended(partial(_main, name, args), parser, kept)


def _main(name: str, args: argparse.Namespace) -> int:
    packages = {"accelerate": "accelerate", "pyarrow": "pyarrow", "tensorboard": "tensorboard"}
    if name in ("idsim", "visme"):
        packages["peft"] = "peft"
    if name == "visme":
        packages["transformers"] = "transformers"
    need_all(f"idmetric train {name}", {"train": packages})
    from idmetric.metric.files.output import OutputError
    from idmetric.train.loop import Stopped, TrainError
    from idmetric.train.processes import OtherFailed

    try:
        module = importlib.import_module(RECIPES[name][0])
        run(name, module, args)
    except Stopped as stopped:
        say(str(stopped))
        return 128 + stopped.signal
    except OtherFailed as error:  # which prints all of it
        raise CommandError(str(error).partition("\n")[0]) from error
    except (TrainError, ImportError, OutputError) as error:
        raise CommandError(str(error)) from error
    return 0


if __name__ == "__main__":
    sys.exit(main())
