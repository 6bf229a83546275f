"""Options of `idmetric data generate`: their values, and which of them go together."""

from __future__ import annotations

import argparse
from collections.abc import Sequence

# task -> its engines, the default first
TASKS = {
    "context": ("qwen_edit",),
    "identity": ("flux_fill",),
    "noise": ("flux_fill", "sdxl_inpaint"),
    "distractor": ("sdxl_inpaint", "flux_fill", "flux_canny", "qwen_inpaint", "powerpaint"),
    "grid": ("qwen_edit",),
    "ilgen": ("iclight", "sd2_background"),
}
GRID_IDENTITY = "qwen_edit_inpaint"  # the engine of a grid's identity edits; the task's own makes the contexts
OBJECT_ENGINES = ("sd_turbo", "sd2")  # of ilgen's objects, the default first
_LARGEST = 4096  # side that --resolution takes; engines were trained at a third of it at most


def refuse_idle(args: argparse.Namespace) -> None:
    """Refuse options that the task does not use."""
    from idmetric.data.generate import GenerateError

    drawn = args.task == "ilgen" and args.categories is not None
    others = {"noise": ("copies", "limit", "dataset", "with_sources"), "grid": ("copies", "with_sources")}
    idle: dict[str, tuple[str, ...]] = {
        "for --task distractor": () if args.task == "distractor" else ("resolution",),
        "for --task ilgen": () if args.task == "ilgen" else ("categories", "padding"),
        "for --task grid": () if args.task == "grid" else ("factor", "views"),
        "for other tasks": others.get(args.task, ()),
        "with --categories": () if drawn else ("domain", "each", "remover", "ask", "object_engine", "objects_only"),
        "with a manifest": ("class_from", "dataset") if drawn else (),
        "with --ask": () if args.ask else ("ask_model", "ask_count", "ask_key", "ask_prompts"),
        "for relighting": ("engine", "copies", "padding", "with_sources") if args.objects_only else (),
    }
    for where, names in idle.items():
        for name in names:
            if getattr(args, name) is not None and getattr(args, name) is not False:
                raise GenerateError(f"--{name.replace('_', '-')} is used {where} alone: leave it out")
    if args.remover == "none" and not args.objects_only:
        raise GenerateError("--remover none needs --objects-only: images without masks cannot be relit")
    if args.task in ("grid", "identity", "noise"):
        preset = GRID_IDENTITY if args.task == "grid" else named(args)
        if "strength" in pairs(args.set, preset, "--set"):
            raise GenerateError(f"--set {preset}.strength has no use here: --task {args.task} sets it")
    used = _used(args, drawn)
    for given, texts in (("--set", args.set), ("--weights", args.weights)):
        for text in texts:
            who = text.partition("=")[0].partition(".")[0]
            pairs([text], who, given)
            if who not in used:
                raise GenerateError(f"{given} {text!r}: {who} is not used here, only {', '.join(sorted(used))}")


def _used(args: argparse.Namespace, drawn: bool) -> tuple[str, ...]:
    """Return the engines and the remover of the task."""
    if args.task == "grid":
        return named(args), GRID_IDENTITY
    if not drawn:
        return (named(args),)
    making = (args.object_engine or OBJECT_ENGINES[0], args.remover or "clean")
    return tuple(name for name in making if name != "none") + (() if args.objects_only else (named(args),))


def named(args: argparse.Namespace) -> str:
    """Return the name of the engine that does the task."""
    from idmetric.data.generate import GenerateError, open_engine

    name: str = args.engine or TASKS[args.task][0]
    open_engine(name)
    if name not in TASKS[args.task]:
        raise GenerateError(f"{args.task} is made by {', '.join(TASKS[args.task])}, not by {name}")
    return name


def pairs(given: Sequence[str], engine: str, option: str) -> dict[str, str]:
    """Collect an engine's values from repeated options ENGINE.PART=VALUE; weights without a part are its base."""
    from idmetric.data.generate import ENGINES, REMOVERS, GenerateError

    found = {}
    for text in given:
        name, equals, value = text.partition("=")
        who, dot, part = name.partition(".")
        if not equals or not value or (option == "--set" and not part):
            wanted = "ENGINE.SETTING=VALUE" if option == "--set" else "ENGINE[.PART]=PLACE"
            raise GenerateError(f"{option} {text!r} is not {wanted}")
        if who not in ENGINES and who not in REMOVERS:
            there = ", ".join((*ENGINES, *REMOVERS))
            raise GenerateError(f"{option} {text!r}: unknown engine {who!r}; there are {there}")
        if who == engine:
            found[part if dot else "base"] = value
    return found


def side(text: str) -> int | None:
    """Parse the value of --resolution; None is the engine's native one."""
    from idmetric.data.generate import GenerateError

    if text == "native":
        return None
    if not (text.isdecimal() and len(text) <= 4 and 16 <= int(text) <= _LARGEST):
        raise GenerateError(f"--resolution {text!r} is neither native nor a number of pixels from 16 to {_LARGEST}")
    return int(text)


def shard(text: str) -> tuple[int, int]:
    """Parse the value of --shard."""
    number, _, count = text.partition("/")
    if not (number.isdecimal() and count.isdecimal() and 1 <= int(number) <= int(count)):
        raise argparse.ArgumentTypeError(f"{text!r} is not I/N with I within 1..N, such as 1/4")
    return int(number), int(count)
