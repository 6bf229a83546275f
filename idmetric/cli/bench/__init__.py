"""`idmetric bench`: how fast a model is on this machine, stage by stage, and the first score; as a table and as JSON.

After an error or Ctrl-C, the sections measured so far are written.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from idmetric.cli import options
from idmetric.cli.command import Parser, UsageError, codes, ended, fixable
from idmetric.cli.options import check_model
from idmetric.io.progress import Progress

if TYPE_CHECKING:
    from idmetric.cli.bench.rows import Row
    from idmetric.cli.bench.setting import Setting
    from idmetric.models.embedder import Embedder

SECTIONS = {
    "stages": "decode, preprocess, backbone, heads, whole: images/s, latency, memory",
    "start": "a command from nothing to its first score",
}
ALIAS = "idmetric-bench"  # name of the stand-alone command
_EXAMPLES = """examples:
  idmetric bench
  idmetric bench --model dinov3_vitl16 --random-weights --batch-size 8 --only stages
  idmetric bench --model nearid --images photos/ --device cuda --dtype bfloat16 --batch-size 64"""


def build_parser(prog: str = ALIAS) -> Parser:
    """The parser of the command."""
    sections = "\n".join(f"  {name:<10}{text}" for name, text in SECTIONS.items())
    parser = Parser(
        prog=prog, description=f"Measure how fast models are on this machine.\n\n"
        f"sections:\n{sections}", epilog=f"{_EXAMPLES}\n\n{codes(0, 1, 2, 130)}",
    )  # fmt: skip
    text = "as for `idmetric score --model`; may be repeated (default: tiny)"
    parser.add_argument("--model", action="append", default=[], metavar="NAME", help=text)
    text = "give published models random weights, which need no download and take the same time"
    parser.add_argument("--random-weights", action="store_true", help=text)
    text = "measure only this section; may be repeated (default: all)"
    parser.add_argument("--only", action="append", default=[], choices=tuple(SECTIONS), metavar="SECTION", help=text)
    options.add_device(parser)
    parser.add_argument("--dtype", choices=options.DTYPES[:3], default="float32", help="default: %(default)s")
    options.add_batch_size(parser, "--batch", dest="batch", default=8)
    parser.add_argument(
        "--images", metavar="DIR", help="photos to use (default: generated JPEG files of 960 x 720 pixels)"
    )
    parser.add_argument("--json", metavar="FILE", help="also write all results there, with the seconds of each run")
    options.add_quiet(parser)
    parser.add_version()

    timing = parser.add_argument_group("timing")
    timing.add_argument("--threads", type=options.positive, metavar="N", help="CPU threads (default: torch's choice)")
    text = "timed runs of each function, at least 3 (default: %(default)s)"
    timing.add_argument("--repeats", type=options.positive, default=10, metavar="N", help=text)
    text = "untimed runs of each function before that (default: %(default)s)"
    timing.add_argument("--warmup", type=options.natural, default=1, metavar="N", help=text)
    text = "start no further round of a measurement after this time, once it has 3 (default: %(default)g)"
    timing.add_argument("--seconds", type=float, default=60.0, metavar="S", help=text)
    return parser


def main(argv: Sequence[str] | None = None, prog: str = ALIAS) -> int:
    """Run the command; returns the exit status."""
    parser = build_parser(prog)
    args = parser.parse_args(argv)
    if not args.seconds > 0:
        parser.error("--seconds must be above 0")
    kept = f"measured sections were printed{f' and are in {args.json}' if args.json else ''}"
    return ended(partial(_measured, args), parser, kept)


def _measured(args: argparse.Namespace) -> int:
    from idmetric.images.paths import is_image, walk
    from idmetric.io.output import check, refuse_inputs

    for name in args.model:
        check_model(name)
    try:
        if args.json:
            below = walk(Path(args.images)) if args.images and os.path.isdir(args.images) else ()
            refuse_inputs({"the file": args.json}, filter(is_image, below))
            check(args.json)
    except OSError as error:
        raise UsageError(f"--json: {error}") from error
    with fixable(RuntimeError, in_one_line=True):
        return _run(args)


def _run(args: argparse.Namespace) -> int:
    import torch

    from idmetric.cli.bench.rows import as_json, describe, line
    from idmetric.models.embedder import auto_device

    if args.threads:
        torch.set_num_threads(args.threads)
    device = torch.device(args.device) if args.device else auto_device()
    if device.type == "cuda" and not torch.cuda.is_available():
        raise ValueError("--device cuda: torch sees no such device here: install its CUDA build, or choose cpu")
    described = describe(device)  # before the load of this run
    print(line(described), flush=True)
    rows: list[Row] = []
    try:
        for part in _sections(args, _setting(args, device)):
            rows.extend(part)
    finally:  # keep earlier results if a later model cannot be opened
        if args.json and rows:
            from idmetric.io.output import replacing

            with replacing(Path(args.json)) as path:
                path.write_text(as_json(described, vars(args), rows), encoding="utf-8")
    return 0


def _setting(args: argparse.Namespace, device: Any) -> Setting:
    import torch

    from idmetric.cli.bench.setting import Setting, make_files, read_files
    from idmetric.cli.bench.timing import Clock

    count = max(2, args.batch)
    return Setting(
        files=read_files(args.images, count) if args.images else make_files(count),
        batch=args.batch,
        clock=Clock(device, args.repeats, args.warmup, args.seconds),
        dtype=getattr(torch, args.dtype),
    )  # fmt: skip


def _sections(args: argparse.Namespace, setting: Setting) -> Iterator[list[Row]]:
    """Measure the first score, then the stages of each model; print and yield their rows."""
    from idmetric.cli.bench.setting import open_model
    from idmetric.cli.bench.stages import stages, start

    wanted = args.only or SECTIONS
    sources = (args.model or ["tiny"]) if "stages" in wanted else []
    # on a terminal, the tables on stdout show the progress
    progress = Progress("sections", not args.quiet and not sys.stderr.isatty(), verb="measured")
    total, done = ("start" in wanted) + len(sources), 0
    if "start" in wanted:
        yield _shown("start", "", start(setting))
        progress(done := done + 1, total)

    for source in sources:
        metric = open_model(
            source, random_weights=args.random_weights, device=setting.clock.device, dtype=setting.dtype
        )
        yield _shown("stages", _weights(metric), stages(metric, setting))
        progress(done := done + 1, total)


def _shown(name: str, model: str, measured: Iterator[Row]) -> list[Row]:
    from idmetric.cli.bench.rows import table

    rows = list(measured)
    print(f"\n{name}: {SECTIONS[name]}{model}\n{table(rows)}", end="", flush=True)
    return rows


def _weights(metric: Embedder) -> str:
    dtype = str(metric.dtype).removeprefix("torch.")
    millions = sum(p.numel() for p in metric.parameters()) / 1e6
    return f"\n{metric.label}, {metric.resolution}, {millions:.0f} M parameters, {dtype}"
