"""Commands in processes of their own, quickly: one process has everything loaded, and forks for each command.

with Children() as children:
    child = children.run("idmetric.cli.score", ["a.png", "b.png"], folder)
    child.status, child.said
"""

from __future__ import annotations

import json
import mmap
import os
import signal
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any

_LIMIT = 600  # seconds for a command that hangs


@dataclass(frozen=True)
class Child:
    """A command that has ended: its exit status, its output, and how many files of its folder it opened or renamed."""

    status: int
    said: str
    files: int


@dataclass
class Children:
    """The process that forks; a command at a time."""

    process: Any = field(default=None)

    def __enter__(self) -> Children:
        environment = {
            **os.environ,
            "OMP_NUM_THREADS": "1",
            "HF_HUB_OFFLINE": "1",
            "PYTHONPATH": os.pathsep.join(sys.path),
        }
        self.process = subprocess.Popen(
            [sys.executable, "-m", "tests.fuzz.children"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
            env=environment,
        )  # fmt: skip
        assert self.line() == "ready\n"
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.process.stdin.close()
        self.process.wait(60)  # on a busy machine
        self.process.stdout.close()

    def line(self) -> str:
        """The next line of its answers."""
        return str(self.process.stdout.readline())

    def run(
        self, module: str, words: list[str], folder: Path, *, stop_at: int = 0,
        largest: int | None = None, plain: bool = False,
    ) -> Child:  # fmt: skip
        """Run `module.main(words)` in a folder, to its end.

        Args:
            stop_at: interrupt it, as Ctrl-C does, just before it opens or renames this one of its folder's files.
            largest: bytes of a file that it may write, as if the disk were full there.
            plain: without the administrator's rights, so that a read-only folder is one.
        """
        asked = {"module": module, "words": words, "folder": str(folder), "stop_at": stop_at,
                 "largest": largest, "plain": plain}  # fmt: skip
        self.process.stdin.write(json.dumps(asked) + "\n")
        self.process.stdin.flush()
        return Child(**json.loads(self.line()))


def _serve() -> None:
    """In the process: load what commands need, then fork for each line."""
    import importlib

    import timm  # noqa: F401

    for name in (
        "cli.score", "cli.match", "cli.gallery", "cli.eval", "cli.data", "cli.train", "gallery",
        "metric.idsim", "scoring.copies", "data.manifest", "data.importers.run", "data.painter",
        "evaluate.protocols.folder", "evaluate.protocols.common.scorers", "evaluate.report.evaluation",
        "scoring.sheet", "train.nearid.recipe", "matching.matching",
    ):  # fmt: skip
        importlib.import_module(f"idmetric.{name}")
    print("ready", flush=True)
    for line in sys.stdin:
        asked = json.loads(line)
        read, write = os.pipe()
        count = mmap.mmap(-1, 8)  # shared with the fork
        pid = os.fork()
        if pid == 0:
            os.close(read)
            _become(asked, write, count)
        os.close(write)
        with os.fdopen(read, "rb") as pipe:
            said = pipe.read().decode("utf-8", "replace")
        _, status = os.waitpid(pid, 0)
        code = os.waitstatus_to_exitcode(status)
        files = int.from_bytes(count[:], "little")
        print(json.dumps({"status": 128 - code if code < 0 else code, "said": said, "files": files}), flush=True)


def _watch(folder: str, stop_at: int, count: mmap.mmap) -> None:
    """Count the files below a folder as they are opened or renamed; interrupt the process at one of them."""
    seen = 0

    def look(event: str, args: tuple[Any, ...]) -> None:
        nonlocal seen
        if event not in ("open", "os.rename") or isinstance(args[0], int):
            return
        if os.path.abspath(os.fsdecode(args[0])).startswith(folder):
            seen += 1
            count[:] = seen.to_bytes(8, "little")
            if seen == stop_at:
                os.kill(os.getpid(), signal.SIGINT)

    sys.addaudithook(look)


def _become(asked: dict[str, Any], out: int, count: mmap.mmap) -> None:
    """In the fork: run the command as a shell would, and end."""
    import importlib
    import resource
    import traceback

    code = 1
    try:
        os.dup2(out, 1)
        os.dup2(out, 2)
        signal.signal(signal.SIGINT, signal.default_int_handler)
        signal.alarm(_LIMIT)
        os.chdir(asked["folder"])
        _watch(asked["folder"], asked["stop_at"], count)
        if asked["largest"] is not None:
            resource.setrlimit(resource.RLIMIT_FSIZE, (asked["largest"], asked["largest"]))
        if asked["plain"]:
            _give_up_rights()
        code = importlib.import_module(asked["module"]).main(asked["words"])
    except SystemExit as error:
        code = error.code if isinstance(error.code, int) else 1
    except KeyboardInterrupt:
        code = 130  # as Python ends
    except BaseException:
        traceback.print_exc()
        code = 70
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def _give_up_rights() -> None:
    """Give up the administrator's right to write anywhere (Linux's capabilities); others have none to give up."""
    import ctypes

    libc = ctypes.CDLL(None, use_errno=True)
    header = (ctypes.c_uint32 * 2)(0x20080522, 0)
    if libc.capset(header, (ctypes.c_uint32 * 6)()) != 0:
        raise OSError(ctypes.get_errno(), "cannot give up rights")


if __name__ == "__main__":
    _serve()
