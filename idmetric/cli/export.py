"""`idmetric export`: a model as one ONNX file that runs without this package, and without torch."""

from __future__ import annotations

import os
from argparse import Namespace
from collections.abc import Sequence
from functools import partial
from pathlib import Path

from idmetric.cli import options
from idmetric.cli.command import WRONG_USAGE, CommandError, Parser, codes, ended, fixable, say, warnings_as_lines
from idmetric.cli.options import check_model, load_options
from idmetric.metric.files.hints import need

_EXAMPLES = """examples:
  idmetric export --model tiny --out tiny.onnx
  idmetric export --model tiny --out tiny.int8.onnx --int8 photos/"""


def build_parser(prog: str = "idmetric export") -> Parser:
    """The parser of the command."""
    parser = Parser(
        prog=prog,
        description="Write a model as one file: pixels in, embedding out, preprocessing inside.\n"
        "onnxruntime runs it without torch and without this package.",
        epilog=f"{_EXAMPLES}\n\n{codes(0, 1, 2, 130, 143)}",
    )
    options.add_shared(parser, "--model", "--revision")
    parser.add_argument(
        "--out",
        "-o",
        required=True,
        metavar="FILE",
        help="the .onnx file to write; one that exists is kept, and the command stops",
    )
    parser.add_argument(
        "--preprocessing",
        choices=("standard", "release"),
        help="how the file's model reads images; release: as the ID-Sim and NearID releases",
    )
    parser.add_argument(
        "--int8",
        metavar="PATH",
        help="quantize to 8-bit integers, with ranges from these images: a folder or pattern with some of yours",
    )
    return parser


def main(argv: Sequence[str] | None = None, prog: str = "idmetric export") -> int:
    """Run the command; returns the exit status."""
    parser = build_parser(prog)
    args = parser.parse_args(argv)
    return ended(partial(_run, args), parser)


def _run(args: Namespace) -> int:
    need("onnx", "idmetric export", onnx="onnx", onnxruntime="onnxruntime", onnxscript="onnxscript")
    check_model(args.model)
    with warnings_as_lines(), fixable(RuntimeError, in_one_line=True):
        from idmetric.adapters.export import TOLERANCE, check_target, export, export_int8
        from idmetric.metric.images.paths import listed
        from idmetric.metric.models.load import load

        target = Path(args.out)
        check_target(target)
        images = [] if args.int8 is None else listed(args.int8)  # which refuses an empty folder
        for path in images:  # said before the model is opened
            if not os.path.isfile(path):
                raise CommandError(f"--int8: there is no {path!r}: name a folder or a pattern of images", WRONG_USAGE)

        metric = load(args.model, **load_options(args, device="cpu", dtype="float32"))  # --revision, --preprocessing
        if args.int8 is not None:
            distance = export_int8(metric, target, images)
            note = f"embeddings of {args.int8} are {distance:.4f} from those in float32 on average (cosine distance)"
        else:
            difference = export(metric, target)
            note = f"features differ from PyTorch by {difference:.1g} at most ({TOLERANCE:g} allowed)"
    say(f"{args.out}: {target.stat().st_size / 1e6:.1f} MB, {note}")
    return 0
