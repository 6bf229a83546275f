"""Commands in processes of their own, quickly: one process has everything loaded, and forks for each command.

with Children() as children:
    child = children.start("idmetric.cli.score", ["a.png", "b.png"], folder)
    child.interrupt()
    child.wait()
    child.status, child.said
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any

_LIMIT = 60.0  # seconds for a command, on a busy machine


@dataclass
class Child:
    """A command that runs."""

    pid: int
    children: Children
    status: int | None = None
    said: str = ""

    def interrupt(self) -> None:
        """Ctrl-C, unless it has ended."""
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.pid, signal.SIGINT)

    def wait(self) -> Child:
        """Until it ends: its exit status, and what it printed."""
        answer = json.loads(self.children.line())
        self.status, self.said = answer["status"], answer["said"]
        return self


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
        self.process.wait(10)
        self.process.stdout.close()

    def line(self) -> str:
        """The next thing it tells."""
        return str(self.process.stdout.readline())

    def start(
        self, module: str, words: list[str], folder: Path, *, largest: int | None = None, plain: bool = False
    ) -> Child:
        """Run `module.main(words)` in a folder.

        Args:
            largest: bytes of a file that it may write, as if the disk were full there.
            plain: without the administrator's rights, so that a read-only folder is one.
        """
        asked = {"module": module, "words": words, "folder": str(folder), "largest": largest, "plain": plain}
        self.process.stdin.write(json.dumps(asked) + "\n")
        self.process.stdin.flush()
        return Child(int(self.line()), self)

    def run(self, module: str, words: list[str], folder: Path, **limits: Any) -> Child:
        """The same, to its end."""
        return self.start(module, words, folder, **limits).wait()


def _serve() -> None:
    """In the process: load what commands need, then fork for each line."""
    import importlib

    import timm  # noqa: F401

    for name in ("score", "gallery", "eval", "data", "train", "bench"):
        importlib.import_module(f"idmetric.cli.{name}")
    for name in (
        "gallery",
        "models.idsim",
        "data.manifest.table",
        "protocols.folder",
        "protocols.common.scorers",
        "data.importers.run",
        "evaluate.copies",
        "cli.bench.pairs",
        "report.evaluation",
        "report.html",
        "train.nearid.recipe",
        "data.world.write",
    ):
        importlib.import_module(f"idmetric.{name}")
    print("ready", flush=True)
    for line in sys.stdin:
        asked = json.loads(line)
        read, write = os.pipe()
        pid = os.fork()
        if pid == 0:
            os.close(read)
            _become(asked, write)
        os.close(write)
        print(pid, flush=True)
        with os.fdopen(read, "rb") as pipe:
            said = pipe.read().decode("utf-8", "replace")
        _, status = os.waitpid(pid, 0)
        code = os.waitstatus_to_exitcode(status)
        print(json.dumps({"status": 128 - code if code < 0 else code, "said": said}), flush=True)


def _become(asked: dict[str, Any], out: int) -> None:
    """In the fork: run the command as a shell would, and end."""
    import importlib
    import resource
    import traceback

    code = 1
    try:
        os.dup2(out, 1)
        os.dup2(out, 2)
        signal.signal(signal.SIGINT, signal.default_int_handler)
        signal.alarm(int(_LIMIT))
        os.chdir(asked["folder"])
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
