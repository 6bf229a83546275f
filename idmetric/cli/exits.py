"""How the commands that print results end."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable

from idmetric.cli.score_format import LostOutputError, UsageError


def ended(run: Callable[[], int], parser: argparse.ArgumentParser) -> int:
    """The exit status of a run; wrong usage ends with the parser's own message and status 2."""
    try:
        return run()
    except UsageError as error:
        parser.error(str(error))
    except LostOutputError as error:
        print(f"{parser.prog}: error: {error}", file=sys.stderr)
        return 1
    except BrokenPipeError:  # the reader, e.g. `head`, has seen enough
        drop_stdout()
        return 1
    except KeyboardInterrupt:
        return 130


def drop_stdout() -> None:
    """Let what is still to be printed vanish, so that Python does not fail on it at exit."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
