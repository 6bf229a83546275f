"""Give inputs to child processes with limits of time and memory, and count what becomes of them."""

from __future__ import annotations

import contextlib
import importlib
import json
import multiprocessing
import os
import resource
import shutil
import sys
import tempfile
import time
import traceback
from collections import Counter
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from pathlib import Path

SECONDS = 120.0  # of the clock for one input, on a busy machine; the table shows the processor's
_HEAVY = ("torch", "timm", "pyarrow.parquet")
MEMORY = 3 * 2**30  # bytes of address space beyond what the child has when it starts


@dataclass
class Tally:
    """What became of one reader's inputs.

    Attributes:
        crashes: seed -> what happened. seconds: the longest of the processor's for one input.
        memory: the most that one input added to the process, in bytes.
    """

    inputs: int = 0
    typed: int = 0
    accepted: int = 0
    crashes: dict[str, str] = field(default_factory=dict)
    seconds: float = 0.0
    slowest: str = ""
    memory: int = 0


def counts(shares: dict[str, int], total: int) -> dict[str, int]:
    """How many inputs each reader gets: at least `total` together."""
    whole = sum(shares.values())
    return {name: -(-total * share // whole) for name, share in shares.items()}


def run(
    names: dict[str, int],
    seed: int,
    verbose: bool = False,
    *,
    source: str = "tests.fuzz.readers:all_readers",
    limit: float = SECONDS,
) -> dict[str, Tally]:
    """Give each reader so many inputs; a child that dies or hangs is replaced, and its input counts as a crash.

    Args:
        source: module and function that gives the readers. limit: seconds for one input.
    """
    found = {name: Tally() for name in names}
    jobs = [(name, f"{seed}:{name}:{k}") for name, count in names.items() for k in range(count)]
    at, start = 0, time.monotonic()
    while at < len(jobs):
        at = _child(jobs, at, found, source, limit)
        if verbose:
            print(f"{at}/{len(jobs)} inputs, {time.monotonic() - start:.0f} s", file=sys.stderr)
    return found


def _child(jobs: list[tuple[str, str]], at: int, found: dict[str, Tally], source: str, limit: float) -> int:
    """One child, until it ends; returns the place of the next job."""
    context = multiprocessing.get_context("forkserver")  # which has imported for all children
    context.set_forkserver_preload([*_HEAVY, "tests.fuzz.readers"])
    ours, theirs = context.Pipe()
    root = tempfile.mkdtemp(prefix="idmetric-fuzz-")
    child = context.Process(target=_work, args=(theirs, jobs[at:], source, root), daemon=True)
    child.start()
    theirs.close()
    why: str | None = None
    try:
        with contextlib.suppress(EOFError):  # what it died of is said below
            if ours.poll(SECONDS):
                ours.recv()  # it has imported everything
        while at < len(jobs):
            tally, seed = found[jobs[at][0]], jobs[at][1]
            why = None
            try:
                if not ours.poll(limit):
                    why = f"no answer in {limit:.0f} seconds"
                else:
                    became, seconds, memory = ours.recv()
            except (EOFError, ConnectionResetError):
                child.join(10)
                why = f"the process ended with {child.exitcode}"
            at += 1
            tally.inputs += 1
            if why is not None:
                tally.crashes[seed] = why
                return at
            tally.typed += became == "typed"
            tally.accepted += became == "accepted"
            if became not in ("typed", "accepted"):
                tally.crashes[seed] = became
            tally.memory = max(tally.memory, memory)
            if seconds > tally.seconds:
                tally.seconds, tally.slowest = seconds, seed
    finally:
        if at == len(jobs) and why is None:
            child.join(20)  # it takes its files away
        child.kill()
        child.join()
        shutil.rmtree(root, ignore_errors=True)
    return at


def _work(pipe: Connection, jobs: list[tuple[str, str]], source: str, root: str) -> None:
    """In the child: one job after the other, each in a fresh folder."""
    os.environ["XDG_STATE_HOME"] = os.path.join(root, "state")  # galleries note there which sources they may read
    quiet = os.open(os.devnull, os.O_WRONLY)
    os.dup2(quiet, 1)
    os.dup2(quiet, 2)  # decoders in C write there
    import torch

    torch.set_num_threads(1)
    from tests.fuzz.readers import outcome

    module, _, function = source.partition(":")
    readers = getattr(importlib.import_module(module), function)()
    for module in _HEAVY:
        __import__(module)
    space = _status("VmSize") + MEMORY
    resource.setrlimit(resource.RLIMIT_AS, (space, space))
    pipe.send("ready")
    for k, (name, seed) in enumerate(jobs):
        folder = Path(root, str(k))
        folder.mkdir()
        before, start = _begin(), time.process_time()
        try:
            became = outcome(readers[name], seed, folder)
        except BaseException as error:  # of what makes inputs, or KeyboardInterrupt and the like of what reads them
            became = f"outside: {''.join(traceback.format_exception(error)[-4:])}"[-600:]
        pipe.send((became, time.process_time() - start, _status("VmHWM") - before))
        shutil.rmtree(folder, ignore_errors=True)


def _begin() -> int:
    """Forget the peak of memory so far; returns what is used now."""
    Path("/proc/self/clear_refs").write_text("5")
    return _status("VmRSS")


def _status(name: str) -> int:
    for text in Path("/proc/self/status").read_text().splitlines():
        if text.startswith(f"{name}:"):
            return int(text.split()[1]) * 1024
    raise OSError(f"no {name} in /proc/self/status: fuzzing needs Linux")


def table(found: dict[str, Tally]) -> str:
    """reader, inputs, typed errors, accepted, crashes, longest seconds, peak memory."""
    lines = [f"{'reader':<26}{'inputs':>8}{'typed':>8}{'accepted':>10}{'crashes':>9}{'seconds':>9}{'peak MB':>9}"]
    rows = {**found, "all": _sum(found)}
    for name, t in rows.items():
        numbers = f"{t.inputs:>8}{t.typed:>8}{t.accepted:>10}{len(t.crashes):>9}"
        lines.append(f"{name:<26}{numbers}{t.seconds:>9.2f}{t.memory / 2**20:>9.0f}")
    for name, t in found.items():
        kinds = Counter(why[:120] for why in t.crashes.values())
        for why, count in kinds.most_common():
            seed = next(s for s, w in t.crashes.items() if w[:120] == why)
            lines.append(f"crash of {name}, {count} times, such as {seed!r}: {t.crashes[seed]}")
    return "\n".join(lines)


def _sum(found: dict[str, Tally]) -> Tally:
    whole = Tally()
    for t in found.values():
        whole.inputs, whole.typed, whole.accepted = (
            whole.inputs + t.inputs,
            whole.typed + t.typed,
            whole.accepted + t.accepted,
        )
        whole.crashes |= t.crashes
        whole.seconds, whole.memory = max(whole.seconds, t.seconds), max(whole.memory, t.memory)
    return whole


def as_json(found: dict[str, Tally]) -> str:
    """The same for programs."""
    return json.dumps({name: vars(tally) for name, tally in found.items()}, indent=1)
