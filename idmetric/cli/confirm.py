"""`idmetric confirm`: check the open points of docs/reports/confirm.md with the published weights."""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Sequence
from functools import partial

from idmetric.cli.command import Parser, check_output, codes, ended, say, warnings_as_lines, write
from idmetric.cli.options import add_shared, positive
from idmetric.evaluate.confirm import CHECKS, Setup, gigabytes_of_weights, plan_table, planned, report, run_checks
from idmetric.metric.checkpoints import released
from idmetric.metric.checkpoints.hub import is_reachable

_EXAMPLES = """examples:
  idmetric confirm --dry-run
  idmetric confirm --models nearid --checks open distances --output nearid.md

A row says as expected, differs, no reference yet (neither paper nor release gives the number), failed, or by hand.
Paste the table into an issue: https://github.com/idmetric/idmetric/issues/new?template=confirm.yml"""


def build_parser(prog: str = "idmetric confirm") -> Parser:
    """The parser of the command."""
    parser = Parser(
        prog=prog,
        description="Check with the published weights what could not be checked without them, and print a table.\n"
        "Without a network, print what would be checked.",
        epilog=f"{_EXAMPLES}\n\n{codes(0, 1, 2, 130, 143)}",
    )
    add = parser.add_argument
    models = tuple(released.models())
    add("--models", nargs="+", choices=models, default=models, metavar="MODEL", help=f"default: {', '.join(models)}")
    add(
        "--checks",
        nargs="+",
        choices=CHECKS,
        default=tuple(CHECKS),
        metavar="CHECK",
        help=f"default: {', '.join(CHECKS)}",
    )
    add("--dry-run", "--offline", action="store_true", help="print what would be checked, and the downloads")
    add(
        "--sample",
        type=positive,
        default=300,
        metavar="N",
        help="rows of each data set for the check `table` (default: %(default)s)",
    )
    add_shared(parser, "--device")
    add("--output", metavar="FILE", help="write the table there instead of to stdout (Markdown)")
    add_shared(parser, "--quiet")
    return parser


def main(argv: Sequence[str] | None = None, prog: str = "idmetric confirm") -> int:
    """Run the command; returns the exit status: 1 if a check failed or differs, else 0."""
    parser = build_parser(prog)
    args = parser.parse_args(argv)
    return ended(partial(_run, args), parser)


def _run(args: Namespace) -> int:
    check_output(args.output)
    pairs = planned(args.models, args.checks)
    if not args.quiet:
        say(f"{gigabytes_of_weights(pairs):.1f} GB of weights are needed; --models and --checks take less")
    if args.dry_run or not is_reachable():
        if not args.dry_run:
            say("the Hub does not answer (no network, or HF_HUB_OFFLINE): this is what would be checked")
        write(plan_table(pairs), args.output)
        return 0

    setup = Setup(device=args.device, sample=args.sample)
    with warnings_as_lines(args.quiet):
        rows = run_checks(pairs, setup, (lambda line: None) if args.quiet else say)
    write(report(rows, args.device), args.output)
    return int(any(row.observation.verdict in ("failed", "differs") for row in rows))
