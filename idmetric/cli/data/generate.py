"""Edit or generate images with diffusion models. A stop loses at most one image: run the same command again.

Tasks, and the engines that do them:
  context     the object on another background, in other light (ID-Sim, A.2.1): qwen_edit
  identity    part of the object becomes another's, a hard negative (ID-Sim, A.2.2): flux_fill
  noise       anchors and positives of triplets pass through the engine that edited their negative, at strength 0.1,
              so that artifacts do not give the negative away (ID-Sim, A.2.2): flux_fill, sdxl_inpaint
  distractor  another object of its kind in the same place (NearID, 0.B.1): sdxl_inpaint, flux_fill, flux_canny,
              qwen_inpaint, powerpaint (version 1; the paper has 2.1)
  grid        identity edits of photos in seven strengths, each with every background and light: the pictures of
              `idmetric eval sensitivity` (ID-Sim, F.1): qwen_edit_inpaint, then qwen_edit
  ilgen       objects from category names, each relit before several backgrounds (ILGen): sd_turbo (or sd2), then
              iclight (or sd2_background); given a manifest with masks instead of --categories, its images are relit

examples:
  idmetric data generate photos.parquet --task distractor --engine sdxl_inpaint --resolution native -o out.parquet
  idmetric data generate frames.parquet --task identity --weights flux_fill=/models/FLUX.1-Fill-dev -o hard.parquet
  idmetric data generate --task ilgen --categories objects.txt -o ilgen.parquet

Several workers or GPUs share a manifest and a folder: the same command with --shard 1/2, --shard 2/2, then --merge.

Weights come from the Hub under their authors' licenses, which are printed and recorded with each image; FLUX.1 [dev]
forbids commercial use. Gated ones need `hf auth login`. Without @revision the current main branch is used.
"""

from __future__ import annotations

import argparse
import os
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from idmetric.cli.data.common import add_on_error, add_output, check_output
from idmetric.cli.data.generate_options import (
    GRID_IDENTITY,
    OBJECT_ENGINES,
    TASKS,
    named,
    pairs,
    refuse_idle,
    shard,
    side,
)
from idmetric.cli.data.generate_work import Work, make_grid
from idmetric.cli.options import natural, positive

if TYPE_CHECKING:
    from idmetric.data.generate import Engine, Remover, Task, Wording
    from idmetric.data.generate.categories import Prompts
    from idmetric.data.manifest.table import Manifest


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of `idmetric data generate`."""
    parser.add_argument("manifest", type=Path, nargs="?", help="the manifest of sources: .parquet, .csv or .jsonl")
    parser.add_argument("--task", choices=TASKS, required=True, help="kind of images to make, see above")
    parser.add_argument("--engine", help="model that makes them (default: the first one named above)")
    parser.add_argument("--images", type=Path, help="folder of images (default: OUT_images next to the manifest)")
    parser.add_argument("--copies", type=positive, help="images of each source (default 1; of ilgen 4)")
    parser.add_argument("--seed", type=natural, default=0, help="seed of all random choices (0)")
    text = "distractor: work at the area of a square of this side (512), or at the engine's native one"
    parser.add_argument("--resolution", metavar="512|native|SIDE", help=text)
    text = "distractor: shorter side of the results, resized by Lanczos (512); 0 keeps each image's size"
    parser.add_argument("--side", type=natural, help=text)
    text = "column with the object's name for prompts: category (default), or text for descriptions"
    parser.add_argument("--class-from", choices=("category", "text"), help=text)
    parser.add_argument(
        "--prompts", type=Path, metavar="DIR", help="folder of word files that replace the built-in ones"
    )
    text = "another value of a setting of an engine or remover, such as sdxl_inpaint.steps=20 or clean.tolerance=20"
    parser.add_argument("--set", action="append", default=[], metavar="ENGINE.SETTING=VALUE", help=text)
    grid = parser.add_argument_group("grid")
    text = "context that varies in addition to identity; may be repeated (default: both)"
    grid.add_argument("--factor", action="append", choices=("background", "light"), help=text)
    text = "take all other photos of an identity as views, in their order, with identity edits of their own"
    grid.add_argument("--views", action="store_true", help=text)
    _add_ilgen(parser.add_argument_group("ilgen"))
    _add_machine(parser.add_argument_group("weights and machine"))
    _add_work(parser.add_argument_group("work"))
    add_on_error(parser)
    add_output(parser)


def _add_ilgen(group: argparse._ArgumentGroup) -> None:
    group.add_argument(
        "--categories", type=Path, help="text file, one category on each line; --ask writes it if absent"
    )
    group.add_argument("--domain", help="generic (default), art, landmark, product, or a description")
    text = "objects of each category (default: the paper's for the domain, or 10)"
    group.add_argument("--each", type=positive, help=text)
    text = "most padding around an object, as a share of the image's sides (0.5); 0 leaves it in place (Table 7, S9)"
    group.add_argument("--padding", type=float, metavar="SHARE", help=text)
    text = "model that draws the objects: sd_turbo (default) or sd2 (Table 7, S6)"
    group.add_argument("--object-engine", choices=OBJECT_ENGINES, help=text)
    text = "method that finds the object: clean (default; by color, without a model), clipseg, grounded_sam, or none"
    group.add_argument("--remover", choices=("clean", "clipseg", "grounded_sam", "none"), help=text)
    text = "stop before relighting: objects with their masks or, with --remover none, for another program to cut out"
    group.add_argument("--objects-only", action="store_true", help=text)
    group.add_argument("--ask", metavar="URL", help="OpenAI-compatible address, such as http://localhost:8000/v1")
    group.add_argument("--ask-model", help="name of the model at that address")
    text = "designed: describe the domain (default); template: one text for all domains (Table 7, S3)"
    group.add_argument("--ask-prompts", choices=("designed", "template"), help=text)
    group.add_argument("--ask-count", type=positive, help="categories to ask for (default: the paper's for the domain)")
    text = "environment variable that holds the key for that address (OPENAI_API_KEY goes to OpenAI's own by default)"
    group.add_argument("--ask-key", metavar="VARIABLE", help=text)


def _add_machine(group: argparse._ArgumentGroup) -> None:
    text = "other weights: folder, file, or owner/name[@revision]; parts: base, lora, controlnet, offset, unet, text"
    group.add_argument("--weights", action="append", default=[], metavar="ENGINE[.PART]=PLACE", help=text)
    group.add_argument("--device", help="cuda, cuda:1, mps or cpu (default: the best available)")
    group.add_argument("--dtype", choices=("bfloat16", "float16", "float32"), default="bfloat16", help="(bfloat16)")
    group.add_argument("--offload", action="store_true", help="keep only the active part of the model on the device")


def _add_work(group: argparse._ArgumentGroup) -> None:
    group.add_argument("--shard", type=shard, metavar="I/N", help="do the I-th of N parts; writes no manifest")
    group.add_argument("--merge", action="store_true", help="make no images; write the manifest of all shards")
    group.add_argument("--limit", type=positive, help="use only the first rows, or categories")
    text = "use only rows of this dataset; may be repeated"
    group.add_argument("--dataset", action="append", metavar="NAME", help=text)
    group.add_argument("--with-sources", action="store_true", help="also list the sources (ilgen: cut-out objects)")


def run(args: argparse.Namespace) -> int:
    """Make all images, then the manifest; returns 4 if some were left out."""
    from idmetric.data.generate import GenerateError, read_wording

    check_output(args.out, args.dry_run)
    if args.merge and args.shard:
        raise GenerateError("--merge goes over all shards: leave --shard out")
    if args.padding is not None and not 0 <= args.padding <= 4:
        raise GenerateError(f"--padding {args.padding:g} is not within 0..4")
    refuse_idle(args)
    words = read_wording(args.prompts)
    work = Work(args)
    if args.task == "ilgen" and args.categories:
        return _ilgen(work, words)
    if args.manifest is None:
        raise GenerateError("name the manifest of sources" + (", or --categories" if args.task == "ilgen" else ""))
    sources = work.limited(args.manifest)
    if args.task == "grid":
        return make_grid(work, sources, _engine(args, GRID_IDENTITY), _engine(args, named(args)), words)
    task, engine = _task(args, sources, words)
    work.plan(task, engine)
    if not args.dry_run and not work.make(task):
        return work.status
    return work.finish(task, sources)


def _task(args: argparse.Namespace, sources: Manifest, words: Wording) -> tuple[Task, Engine]:
    from idmetric.data import generate
    from idmetric.data.generate.idsim import GUIDANCE

    by_flux = args.task == "identity" or (args.task == "noise" and named(args) == "flux_fill")
    engine = _engine(args, named(args), {"guidance": GUIDANCE} if by_flux else {})
    common: dict[str, Any] = {"seed": args.seed, "class_column": args.class_from or "category"}
    if args.task == "ilgen":
        task = generate.relight_task(
            sources, engine, words, variants=args.copies or 4, padding=_padding(args), **common
        )
        return task, engine
    if args.task == "noise":
        return generate.noise_task(sources, engine, words, guidance=engine.settings["guidance"], **common), engine
    common["copies"] = args.copies or 1
    if args.task == "context":
        return generate.contextual_task(sources, engine, words, **common), engine
    if args.task == "identity":
        guidance = engine.settings["guidance"]
        return generate.identity_task(sources, engine, words, guidance=guidance, **common), engine
    common |= {"side": side(args.resolution or "512"), "out_side": 512 if args.side is None else args.side}
    return generate.distractor_task(sources, engine, words, **common), engine


def _ilgen(work: Work, words: Wording) -> int:
    """Make objects, then their relit images; every shard relights the objects it made."""
    from idmetric.data.generate import GenerateError, object_task, relight_task
    from idmetric.data.generate.categories import paper_numbers
    from idmetric.data.manifest.table import Manifest, Row

    args = work.args
    if args.manifest is not None:
        raise GenerateError("a manifest and --categories exclude each other: relight the one, or draw the other")
    domain = args.domain or "generic"
    listed = _categories(args, domain, words)
    each = args.each or paper_numbers(domain, args.ask_prompts or "designed", len(listed))[1]
    draw, remover = _engine(args, args.object_engine or OBJECT_ENGINES[0]), _remover(args)
    objects = object_task(listed[: args.limit], each, draw, remover, words, args.seed, domain)
    if args.objects_only:
        work.plan(objects, draw, remover=remover)
        done = args.dry_run or work.make(objects)
        return work.finish(objects, Manifest.from_rows([])) if done else work.status
    relight = _engine(args, named(args))
    planned = Manifest.from_rows(
        (Row(**job.row, path=f"{job.name}.png", mask=f"{job.name}.mask.png") for job in objects.jobs), work.images
    )
    blocks = [job.block for job in objects.jobs]
    images = relight_task(planned, relight, words, args.seed, args.copies or 4, padding=_padding(args), blocks=blocks)
    work.plan(objects, draw, remover=remover)
    work.plan(images, relight, check=False)  # their sources are yet to be made
    if not args.dry_run:
        go_on = work.make(objects)
        found = work.collected(objects)
        gone = {name for name, _ in found.rejected}
        if not work.make(images, without=gone) or not go_on:
            return work.status
        kept = [job for job in images.jobs if job.parent not in gone]
        return work.finish(replace(images, jobs=kept), found.manifest)
    return work.finish(images, planned)


def _padding(args: argparse.Namespace) -> float:
    from idmetric.data.generate.compose import PADDING

    return PADDING if args.padding is None else float(args.padding)


def _engine(args: argparse.Namespace, name: str, settings: dict[str, Any] | None = None) -> Engine:
    from idmetric.data.generate import Place, open_engine

    place = Place(args.device, args.dtype, args.offload)
    given = {**(settings or {}), **pairs(args.set, name, "--set")}
    return open_engine(name, place, pairs(args.weights, name, "--weights"), **given)


def _remover(args: argparse.Namespace) -> Remover | None:
    from idmetric.data.generate import Place, open_remover

    if args.remover == "none":
        return None
    place, name = Place(args.device, args.dtype, args.offload), args.remover or "clean"
    return open_remover(name, place, pairs(args.weights, name, "--weights"), **pairs(args.set, name, "--set"))


def _categories(args: argparse.Namespace, domain: str, words: Wording) -> list[str]:
    """Read the categories of the file; if it is absent, ask the model for them and write it first."""
    from idmetric.data.generate import GenerateError
    from idmetric.data.generate.categories import Chat, file_categories, paper_numbers, read_categories

    path: Path = args.categories
    if path.exists() or not args.ask:
        return read_categories(path)
    if not args.ask_model:
        raise GenerateError("--ask needs --ask-model, the model's name at that address")
    if args.ask_key and args.ask_key not in os.environ:
        raise GenerateError(f"the environment variable {args.ask_key} is not set; it must hold the key for {args.ask}")
    prompts: Prompts = args.ask_prompts or "designed"
    count = args.ask_count or paper_numbers(domain, prompts)[0]
    if not count:
        raise GenerateError(f"domain {domain!r} is not one of the paper's: give the number with --ask-count")
    if args.dry_run:
        raise GenerateError(f"{path} is absent; without --dry-run, {count} categories would be asked for and written")
    chat = Chat(args.ask, args.ask_model)
    variable = args.ask_key or ("OPENAI_API_KEY" if chat.openai else None)
    if variable is not None:
        chat = replace(chat, key=os.environ.get(variable))
    file_categories(path, chat, domain, count, words.domains, prompts=prompts)
    print(f"wrote {path}: {count} categories of {args.ask_model}")
    return read_categories(path)
