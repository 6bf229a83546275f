"""Edit or generate images with diffusion models. A stop loses at most one image: run the same command again.

Tasks, and the engines that do them:
  context     the object on another background, in other light (ID-Sim, A.2.1): qwen_edit
  identity    part of the object becomes another's, a hard negative (ID-Sim, A.2.2): flux_fill
  noise       anchors and positives of triplets pass through the engine that edited their negative, at strength 0.1,
              so that artifacts do not give the negative away (ID-Sim, A.2.2): flux_fill
  distractor  another object of its kind in the same place (NearID, 0.B.1): sdxl_inpaint, flux_fill, flux_canny,
              qwen_inpaint
  grid        identity edits of photos in seven strengths, each with every background and light: the pictures of
              `idmetric eval sensitivity` (ID-Sim, F.1): qwen_edit_inpaint, then qwen_edit
  ilgen       objects from category names, each relit before several backgrounds (ILGen): sd_turbo, then iclight;
              given a manifest with masks instead of --categories, its images are relit

examples:
  idmetric data generate photos.parquet --task distractor --engine sdxl_inpaint --resolution native -o out.parquet
  idmetric data generate frames.parquet --task identity --weights flux_fill=/models/FLUX.1-Fill-dev -o hard.parquet
  idmetric data generate --task ilgen --categories objects.txt -o ilgen.parquet

Several workers or GPUs share a manifest and a folder: the same command with --shard 1/2 and with --shard 2/2, then
without it, which writes the manifest.

Weights come from the Hub under their authors' licenses, which are printed and recorded with each image; FLUX.1 [dev]
forbids commercial use. Gated ones need `hf auth login`. Without @revision the current main branch is used.
"""

from __future__ import annotations

import os
from argparse import ArgumentParser, ArgumentTypeError, Namespace
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from idmetric.cli.command import say, status_of
from idmetric.cli.data.common import add_on_error, add_output, check_output, pairs, progress, save
from idmetric.cli.options import natural, positive

if TYPE_CHECKING:
    from idmetric.data.generate.engine import Engine
    from idmetric.data.generate.jobs import GenerateTask
    from idmetric.data.generate.wording import Wording
    from idmetric.data.old_manifest.table import Manifest

ENGINES = {  # of each task, in the order of their use; --engine chooses another for distractors
    "context": ("qwen_edit",),
    "identity": ("flux_fill",),
    "noise": ("flux_fill",),
    "distractor": ("sdxl_inpaint",),
    "grid": ("qwen_edit_inpaint", "qwen_edit"),
    "ilgen": ("iclight",),
    "objects": ("sd_turbo", "iclight"),
}
DISTRACTORS = ("sdxl_inpaint", "flux_fill", "flux_canny", "qwen_inpaint")
REMOVERS = ("clean", "none")
_COPIED = ("context", "identity", "distractor", "ilgen", "objects")
USED_BY = {  # option -> tasks that use it, "objects" being ilgen with --categories; others are used by all
    "engine": ("distractor",),
    "resolution": ("distractor",),
    "views": ("grid",),
    "categories": ("objects",),
    "domain": ("objects",),
    "each": ("objects",),
    "remover": ("objects",),
    "ask": ("objects",),
    "copies": _COPIED,
    "with_sources": _COPIED,
    "limit": (*_COPIED, "grid"),
    "dataset": ("context", "identity", "distractor", "grid", "ilgen"),
}
_FIXED = {  # settings of engines that a task chooses itself
    "identity": ("strength", "guidance"),
    "noise": ("strength", "guidance"),
    "grid": ("strength",),
}
_CATEGORIES, _OBJECTS = 200, 10  # to ask for, and of each category, where the paper has no number


def add_arguments(parser: ArgumentParser) -> None:
    """Add the options of `idmetric data generate`."""
    add = parser.add_argument
    add("manifest", type=Path, nargs="?", help="the manifest of sources: .parquet, .csv or .jsonl")
    tasks = [task for task in ENGINES if task != "objects"]
    add("--task", choices=tasks, required=True, help="kind of images to make, see above")
    add("--engine", choices=DISTRACTORS, help="model that makes distractors (default: sdxl_inpaint)")
    add("--copies", type=positive, help="images of each source (default 1; of ilgen 4)")
    add("--seed", type=natural, default=0, help="seed of all random choices (0)")
    add(
        "--resolution",
        type=_side,
        metavar="512|native|SIDE",
        help="distractor: work at the area of a square of this side (512), or at the engine's native one",
    )
    add("--prompts", type=Path, metavar="DIR", help="folder of word files that replace the built-in ones")
    add(
        "--views",
        action="store_true",
        help="grid: take all other photos of an identity as views, in their order, with identity edits of their own",
    )

    add = parser.add_argument_group("ilgen").add_argument
    add("--categories", type=Path, help="text file, one category on each line; --ask writes it if absent")
    add("--domain", help="generic (default), art, landmark, product, or a description")
    add("--each", type=positive, help="objects of each category (default: the paper's for the domain, or 10)")
    add(
        "--remover",
        choices=REMOVERS,
        help="method that finds the object: clean (default; by color, without a model), or none: objects "
        "without masks, which are not relit, for another program to cut out",
    )
    add("--ask", metavar="URL", help="OpenAI-compatible address, such as http://localhost:8000/v1")
    add("--ask-model", help="name of the model at that address")
    add(
        "--ask-key",
        metavar="VARIABLE",
        help="environment variable that holds the key for that address (OPENAI_API_KEY goes to OpenAI's own by "
        "default)",
    )

    add = parser.add_argument_group("weights and machine").add_argument
    add(
        "--weights",
        action="append",
        default=[],
        metavar="ENGINE[.PART]=PLACE",
        help="other weights: folder, file, or owner/name[@revision]; parts: base, lora, controlnet, offset",
    )
    add(
        "--set",
        action="append",
        default=[],
        metavar="ENGINE.SETTING=VALUE",
        help="another value of a setting of an engine or remover, such as sdxl_inpaint.steps=20 or clean.tolerance=20",
    )
    add("--device", help="cuda, cuda:1, mps or cpu (default: the best available)")
    add("--dtype", choices=("bfloat16", "float16", "float32"), default="bfloat16", help="(bfloat16)")
    add("--offload", action="store_true", help="keep only the active part of the model on the device")

    add = parser.add_argument_group("work").add_argument
    add(
        "--shard",
        type=_shard,
        default=(1, 1),
        metavar="I/N",
        help="do the I-th of N parts and write no manifest; the command without it does",
    )
    add("--limit", type=positive, help="use only the first rows, or categories (and ask for so many)")
    add("--dataset", action="append", metavar="NAME", help="use only rows of this dataset; may be repeated")
    add("--with-sources", action="store_true", help="also list the sources (ilgen: cut-out objects)")
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
    from idmetric.data.generate.idsim import noised
    from idmetric.data.generate.wording import read_wording
    from idmetric.data.old_manifest.table import merge
    from idmetric.metric.errors import RequestError

    check_output(args.out)
    task_name = "objects" if args.task == "ilgen" and args.categories else args.task
    models = [args.engine] if args.engine else list(ENGINES[task_name])
    if task_name == "objects":
        models.append(args.remover or "clean")
        if args.remover == "none":  # then nothing is relit
            models = [models[0], "none"]
    _refuse_unused(args, task_name, models)
    words = read_wording(args.prompts)
    if task_name == "objects":
        return _make_objects(args, words)
    if args.manifest is None:
        raise RequestError("name the manifest of sources (for ilgen, or --categories)")
    sources = _limited(args)
    if task_name == "grid":
        return _make_grid(args, sources, words)

    engine = _opened(args, models[0])
    task = _task(args, sources, engine, words)
    manifest, left_out = _make(args, _shard_of(args, task))
    if task_name == "noise" and args.shard == (1, 1):
        manifest, incomplete = noised(sources, manifest, task)
        if incomplete:
            say(f"left out: {incomplete} triplets with an image that was not made")
    if args.with_sources:
        manifest = merge([sources, manifest], shared=True)
    return _finish(args, manifest, left_out)


def _refuse_unused(args: Namespace, task_name: str, models: Sequence[str]) -> None:
    """Refuse options that the task does not use."""
    from idmetric.metric.errors import RequestError

    unused = [option for option, tasks in USED_BY.items() if task_name not in tasks and getattr(args, option)]
    if args.ask_model and not args.ask:
        unused.append("ask_model")
    if unused:
        raise RequestError(f"--{unused[0].replace('_', '-')} is not used by this task: leave it out")
    if task_name == "objects" and args.manifest is not None:
        raise RequestError("a manifest and --categories exclude each other: relight the one, or draw the other")
    for option in ("set", "weights"):
        for key in pairs(getattr(args, option), f"--{option}"):
            model, _, setting = key.partition(".")
            is_fixed = option == "set" and setting in _FIXED.get(task_name, ())
            if model not in models or is_fixed:
                raise RequestError(f"--{option} {key} is not used by this task; its models are {', '.join(models)}")


def _limited(args: Namespace) -> Manifest:
    """The rows of the manifest that --dataset and --limit choose."""
    from idmetric.data.old_manifest.table import read
    from idmetric.metric.errors import RequestError

    manifest = read(args.manifest)
    if args.dataset:
        for name in args.dataset:
            if name not in manifest.column("dataset"):
                raise RequestError(f"{args.manifest}: no rows of dataset {name!r}")
        manifest = manifest.filter(dataset=args.dataset)
    return manifest.take(range(len(manifest))[: args.limit])


def _opened(args: Namespace, name: str) -> Any:
    """An engine or a remover with the weights and settings of --weights and --set."""
    from idmetric.data.generate.engines import open_engine
    from idmetric.data.generate.masks import open_remover
    from idmetric.data.generate.weights import Place

    def values_for_model(option: str) -> dict[str, str]:
        values = {}
        for key, value in pairs(getattr(args, option), f"--{option}").items():
            model, _, part = key.partition(".")
            if model == name:
                values[part or "base"] = value
        return values

    if name == "clean":
        return open_remover(values_for_model("weights"), **values_for_model("set"))
    machine = Place(args.device, args.dtype, args.offload)
    return open_engine(name, machine, values_for_model("weights"), **values_for_model("set"))


def _task(args: Namespace, sources: Manifest, engine: Engine, words: Wording) -> GenerateTask:
    from idmetric.data.generate import idsim
    from idmetric.data.generate.distractor import distractor_task
    from idmetric.data.generate.ilgen import relight_task

    tasks: dict[str, Callable[..., GenerateTask]] = {
        "noise": idsim.noise_task,
        "context": idsim.contextual_task,
        "identity": idsim.identity_task,
        "distractor": distractor_task,
        "ilgen": relight_task,
    }
    options: dict[str, Any] = {"seed": args.seed}
    if args.copies is not None:
        options["copies"] = args.copies
    if args.resolution is not None:
        options["side"] = None if args.resolution == "native" else args.resolution
    return tasks[args.task](sources, engine, words, **options)


def _make_objects(args: Namespace, words: Wording) -> int:
    """Make objects, then their relit images; every shard relights the objects that it made."""
    from idmetric.data.curate.recipes import ILGEN
    from idmetric.data.generate.ilgen import VARIANTS, object_task, relight_task
    from idmetric.data.old_manifest.table import merge

    domain = args.domain or "generic"
    per_category = args.each or _OBJECTS
    if domain in ILGEN and not args.each:
        per_category = ILGEN[domain].per_category
    draw, relight = (_opened(args, name) for name in ENGINES["objects"])
    remover = None if args.remover == "none" else _opened(args, args.remover or "clean")
    categories = _categories(args, domain, words)[: args.limit]

    task = object_task(categories, per_category, draw, remover, words, args.seed, domain)
    if remover is None:
        objects, left_out = _make(args, _shard_of(args, task))
        return _finish(args, objects, left_out)
    objects, left_out = _make(args, _shard_of(args, task))
    draw.unload()
    task = relight_task(objects, relight, words, args.seed, args.copies or VARIANTS)
    relit, left_out_too = _make(args, task)
    if args.with_sources:
        relit = merge([objects, relit], shared=True)
    return _finish(args, relit, left_out + left_out_too)


def _make_grid(args: Namespace, manifest: Manifest, words: Wording) -> int:
    """Make the grids of all photos; every shard changes the context of its anchors and of the edits that it made."""
    from idmetric.data.generate.grid import grid_context_task, grid_identity_task, grid_sources, plain
    from idmetric.data.old_manifest.table import merge

    sources = grid_sources(manifest, args.views)
    repaint, edit = (_opened(args, name) for name in ENGINES["grid"])
    task = grid_identity_task(sources, repaint, words, args.seed)
    edits, left_out = _make(args, _shard_of(args, task))
    repaint.unload()  # two such models rarely fit one device

    number, count = args.shard
    anchors = plain(sources)
    anchors = anchors.take(range(number - 1, len(anchors), count))
    photos = merge([anchors, plain(edits)], shared=True)
    contexts, left_out_too = _make(args, grid_context_task(photos, edit, words, args.seed))
    return _finish(args, merge([sources, edits, contexts], shared=True), left_out + left_out_too)


def _shard_of(args: Namespace, task: GenerateTask) -> GenerateTask:
    """The part of a task that --shard names: every n-th job."""
    number, count = args.shard
    return replace(task, jobs=task.jobs[number - 1 :: count])


def _make(args: Namespace, task: GenerateTask) -> tuple[Manifest, int]:
    """The finished images of a task and the number of those left out."""
    from idmetric.data.generate.jobs import run_jobs

    for model in task.models:
        for weights, license in model.licenses.items():
            say(f"{model.name}: weights {weights}, license {license}")
    images = args.out.with_name(f"{args.out.stem}_images")
    outcome = run_jobs(task, images, args.on_error, partial(progress, quiet=args.quiet))
    for name, why in outcome.left_out:
        say(f"left out: {name}: {why}")
    print(f"made {outcome.made} images, {len(outcome.manifest)} are finished; folder {images}")
    return outcome.manifest, len(outcome.left_out)


def _finish(args: Namespace, manifest: Manifest, left_out: int) -> int:
    """Write the manifest, unless this is one of several shards; returns 4 if images were left out."""
    number, count = args.shard
    if count > 1:
        print(f"part {number} of {count} is done; run without --shard to write {args.out}")
    else:
        save(manifest, args.out)
    return status_of(left_out)


def _categories(args: Namespace, domain: str, words: Wording) -> list[str]:
    """Read the categories of the file; if it is absent, ask the model for them and write it first."""
    from idmetric.data.curate.recipes import ILGEN
    from idmetric.data.generate.categories import Chat, ask_categories, read_categories
    from idmetric.metric.errors import RequestError
    from idmetric.metric.files import replacing

    path: Path = args.categories
    if path.exists() or not args.ask:
        return read_categories(path)
    if not args.ask_model:
        raise RequestError("--ask needs --ask-model, the model's name at that address")
    if args.ask_key and args.ask_key not in os.environ:
        raise RequestError(f"the environment variable {args.ask_key} is not set; it must hold the key for {args.ask}")
    count = args.limit or _CATEGORIES
    if domain in ILGEN and not args.limit:
        count = ILGEN[domain].categories
    chat = Chat(args.ask, args.ask_model)
    variable = args.ask_key or ("OPENAI_API_KEY" if chat.is_openai else "")
    categories = ask_categories(replace(chat, key=os.environ.get(variable, "")), domain, count, words.domains)
    with replacing(path, parents=True) as temporary:
        temporary.write_text("\n".join(categories) + "\n", encoding="utf-8")
    print(f"wrote {path}: {count} categories of {args.ask_model}")
    return categories
