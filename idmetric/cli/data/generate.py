"""Edit or generate images with diffusion models. A stop loses at most one image: run the same command again.

Tasks, and the engines that do them:
  context        the object on another background, in other light (ID-Sim, A.2.1): qwen_edit
  identity       part of the object becomes another's, a hard negative (ID-Sim, A.2.2): flux_fill
  noise          anchors and positives of triplets pass through the engine that edited their negative, at strength
                 0.1, so that artifacts do not give the negative away (ID-Sim, A.2.2): flux_fill
  distractor     another object of its kind in the same place (NearID, 0.B.1): sdxl_inpaint, flux_fill, flux_canny,
                 qwen_inpaint
  grid-identity  identity edits of photos in seven strengths (ID-Sim, F.1): qwen_edit_inpaint
  grid-context   of its result: every background and light, for `idmetric eval sensitivity` (ID-Sim, F.1): qwen_edit
  objects        objects of the categories in a text file, with masks (ILGen): sd_turbo
  relight        objects with masks before several backgrounds, in their light (ILGen): iclight

examples:
  idmetric data generate photos.parquet --task distractor --engine sdxl_inpaint --resolution native -o out.parquet
  idmetric data generate frames.parquet --task identity --set flux_fill.base=/models/FLUX.1-Fill-dev -o hard.parquet
  idmetric data generate objects.txt --task objects -o objects.parquet
  idmetric data generate objects.parquet --task relight -o ilgen.parquet

Several workers or GPUs share a manifest and a folder: the same command with --shard 1/2 and with --shard 2/2, then
without it, which writes the manifest. `idmetric data merge --shared` joins it with the sources.

Weights come from the Hub under their authors' licenses, which are printed and recorded with each image; FLUX.1 [dev]
forbids commercial use. Gated ones need `hf auth login`. Without @revision the current main branch is used.
"""

from __future__ import annotations

import importlib
import inspect
from argparse import ArgumentParser, ArgumentTypeError, Namespace
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from idmetric.cli.command import say, status_of
from idmetric.cli.data.common import add_on_error, add_output, check_output, pairs, progress, save
from idmetric.cli.options import natural, positive

if TYPE_CHECKING:
    from idmetric.data.generate.wording import Wording

# task -> the module and function that plan it, and the engines that do it, the default first
TASKS = {
    "context": ("idsim", "contextual_task", ["qwen_edit"]),
    "identity": ("idsim", "identity_task", ["flux_fill"]),
    "noise": ("idsim", "noise_task", ["flux_fill"]),
    "distractor": ("distractor", "distractor_task", ["sdxl_inpaint", "flux_fill", "flux_canny", "qwen_inpaint"]),
    "grid-identity": ("grid", "grid_identity_task", ["qwen_edit_inpaint"]),
    "grid-context": ("grid", "grid_context_task", ["qwen_edit"]),
    "objects": ("ilgen", "object_task", ["sd_turbo"]),
    "relight": ("ilgen", "relight_task", ["iclight"]),
}
OPTIONS = ("seed", "copies", "resolution", "views", "domain", "each", "remover")  # of tasks with such a parameter
_CATEGORIES = 200  # to ask for, where the paper has no number


def add_arguments(parser: ArgumentParser) -> None:
    """Add the options of `idmetric data generate`."""
    add = parser.add_argument
    add("sources", type=Path, help="the manifest of sources; of objects a text file, a category on each line")
    add("--task", choices=list(TASKS), required=True, help="kind of images to make, see above")
    choices = sorted({engine for *_, engines in TASKS.values() for engine in engines})
    add("--engine", choices=choices, help="model that makes them, see above (default: the first)")
    add("--copies", type=positive, help="images of each source (default 1; of relight 4)")
    add("--seed", type=natural, help="seed of all random choices (0)")
    text = "distractor: work at the area of a square of this side (512), or at the engine's native one"
    add("--resolution", type=_side, metavar="512|native|SIDE", help=text)
    text = "grid-identity: take all other photos of an identity as views, in their order, with edits of their own"
    add("--views", action="store_true", default=None, help=text)
    add("--prompts", type=Path, metavar="DIR", help="folder of word files that replace the built-in ones")

    add = parser.add_argument_group("objects").add_argument
    add("--domain", help="generic (default), art, landmark, product, or a description")
    add("--each", type=positive, help="objects of each category (default: the paper's for the domain, or 10)")
    text = "what finds the object: clean (default; by color, without a model), or none, for a program of your own"
    add("--remover", choices=("clean", "none"), help=text)
    add("--ask", metavar="URL", help="OpenAI-compatible address that gives the categories, if the file is absent")
    add("--ask-model", help="name of the model at that address")
    text = "environment variable that holds its key (OPENAI_API_KEY goes to OpenAI's own address by default)"
    add("--ask-key", metavar="VARIABLE", help=text)

    add = parser.add_argument_group("weights and machine").add_argument
    text = (
        "another value of a setting, such as sdxl_inpaint.steps=20 or clean.tolerance=20, or other weights (base, "
        "lora, controlnet, offset): folder, file, or owner/name[@revision]; may be repeated"
    )
    add("--set", action="append", default=[], metavar="ENGINE.SETTING=VALUE", help=text)
    add("--device", help="cuda, cuda:1, mps or cpu (default: the best available)")
    add("--dtype", choices=("bfloat16", "float16", "float32"), default="bfloat16", help="(bfloat16)")
    add("--offload", action="store_true", help="keep only the active part of the model on the device")
    text = "do the I-th of N parts and write no manifest; the command without it does"
    add("--shard", type=_shard, default=(1, 1), metavar="I/N", help=text)
    add("--limit", type=positive, help="use only the first rows, or categories (and ask for so many)")
    add_on_error(parser)
    add_output(parser)


def _side(text: str) -> int | str:
    return text if text == "native" else positive(text)


def _shard(text: str) -> tuple[int, int]:
    number, _, count = text.partition("/")
    if not (number.isdecimal() and count.isdecimal() and 1 <= int(number) <= int(count)):
        raise ArgumentTypeError(f"{text!r} is not I/N with I within 1..N, such as 1/4")
    return int(number), int(count)


def run(args: Namespace) -> int:
    """Make all images, then the manifest; returns 4 if some were left out."""
    from idmetric.data.generate.engines import open_engine
    from idmetric.data.generate.jobs import run_jobs
    from idmetric.data.generate.weights import Place
    from idmetric.data.generate.wording import read_wording
    from idmetric.data.manifest import read, take

    check_output(args.out)
    module, function, engines = TASKS[args.task]
    make_task = getattr(importlib.import_module(f"idmetric.data.generate.{module}"), function)
    name = args.engine or engines[0]
    options, settings = _request(args, name, make_task)
    words = read_wording(args.prompts)
    if args.task == "objects":
        sources: Any = _categories(args, words)[: args.limit]
    else:
        table = read(args.sources)
        sources = take(table, range(len(table))[: args.limit])

    engine = open_engine(name, settings, Place(args.device, args.dtype, args.offload))
    for weights in engine.weights.values():
        say(f"{name}: weights {weights}, license {weights.license}")
    task = make_task(sources, engine, words, **options)
    number, count = args.shard
    task = replace(task, jobs=task.jobs[number - 1 :: count])
    images = args.out.with_name(f"{args.out.stem}_images")
    outcome = run_jobs(task, images, args.on_error, partial(progress, quiet=args.quiet))
    for image, why in outcome.left_out:
        say(f"left out: {image}: {why}")
    print(f"made {outcome.made} images, {len(outcome.table)} are finished; folder {images}")
    if count > 1:
        print(f"part {number} of {count} is done; run without --shard to write {args.out}")
    else:
        save(task.result(outcome.table), args.out)
    return status_of(outcome.left_out)


def _request(args: Namespace, engine: str, make_task: Callable[..., Any]) -> tuple[dict[str, Any], dict[str, str]]:
    """The task's options and its engine's settings; RequestError for options that the task does not have."""
    from idmetric.data.generate.engine import with_settings
    from idmetric.data.generate.masks import CleanBackground
    from idmetric.metric.errors import RequestError

    options = {name: getattr(args, name) for name in OPTIONS if getattr(args, name) is not None}
    unused = [f"--{name}" for name in options if name not in inspect.signature(make_task).parameters]
    if engine not in TASKS[args.task][2]:
        unused.append(f"--engine {engine}")
    if args.ask and args.task != "objects":
        unused.append("--ask")

    settings: dict[str, dict[str, str]] = {engine: {}}
    if args.task == "objects":
        settings["clean"] = {}
    for key, value in pairs(args.set, "--set").items():
        model, _, setting = key.partition(".")
        if model in settings:
            settings[model][setting] = value
        else:
            unused.append(f"--set {key}")
    if unused:
        raise RequestError(f"{unused[0]} is not used by --task {args.task}: leave it out")

    if args.task == "objects":
        remover = with_settings(CleanBackground(), settings["clean"])
        options["remover"] = None if args.remover == "none" else remover
    return options, settings[engine]


def _categories(args: Namespace, words: Wording) -> list[str]:
    """Read the categories of the file; if it is absent, ask the model for them and write it first."""
    from idmetric.data.chat import key_for
    from idmetric.data.curate.recipes import ILGEN
    from idmetric.data.generate.categories import ask_categories, read_categories
    from idmetric.metric.errors import RequestError
    from idmetric.metric.files import replacing

    path: Path = args.sources
    if path.exists() or not args.ask:
        return read_categories(path)
    if not args.ask_model:
        raise RequestError("--ask needs --ask-model, the model's name at that address")
    domain = args.domain or "generic"
    count = args.limit or (ILGEN[domain].categories if domain in ILGEN else _CATEGORIES)
    key = key_for(args.ask, args.ask_key)
    categories = ask_categories(args.ask, args.ask_model, domain, count, words.domains, key)
    with replacing(path, parents=True) as temporary:
        temporary.write_text("\n".join(categories) + "\n", encoding="utf-8")
    print(f"wrote {path}: {count} categories of {args.ask_model}")
    return categories
