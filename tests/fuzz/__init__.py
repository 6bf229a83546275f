"""Malformed inputs for what reads files; tests/io/test_fuzz_readers.py gives them to the readers.

`damage` spoils bytes and JSON values; `images` and `tables` make inputs; `readers` says what reads them and
which errors it may raise.
"""

from __future__ import annotations

from pathlib import Path


def forget_peak() -> int:
    """Forget the peak of this process's memory so far; returns what is used now, in bytes."""
    Path("/proc/self/clear_refs").write_text("5")
    return status("VmRSS")


def status(name: str) -> int:
    """A number of /proc/self/status in bytes, such as the peak of memory, "VmHWM"."""
    for text in Path("/proc/self/status").read_text().splitlines():
        if text.startswith(f"{name}:"):
            return int(text.split()[1]) * 1024
    raise OSError(f"no {name} in /proc/self/status: this needs Linux")
