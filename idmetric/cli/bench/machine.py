"""A description of the machine, without which a measurement means little."""

from __future__ import annotations

import os
import platform
from importlib import metadata
from pathlib import Path
from typing import Any

import torch

from idmetric import __version__

PACKAGES = ("torch", "timm", "torchvision", "pillow", "numpy", "geomloss", "lpips", "dreamsim")


def describe(device: torch.device) -> dict[str, Any]:
    """Describe processor, cores, threads, memory, device, load and versions as plain JSON values.

    `busy` is the load average of the last minute per core, before the benchmark began. Above 0.2, other programs were
    running, and only ratios are meaningful. None if the system does not report it.
    """
    load = os.getloadavg()[0] if hasattr(os, "getloadavg") else None
    cores = os.cpu_count() or 1
    return {
        "processor": _processor(),
        "cores": cores,
        "threads": torch.get_num_threads(),
        "memory_gb": _memory(),
        "device": torch.cuda.get_device_name(device) if device.type == "cuda" else device.type,
        "busy": None if load is None else round(load / cores, 2),
        "system": f"{platform.system()} {platform.machine()}",
        "python": platform.python_version(),
        "idmetric": __version__,
        **{name: version for name in PACKAGES if (version := _version(name))},
    }


def line(machine: dict[str, Any]) -> str:
    """Describe the machine in a sentence."""
    memory = f", {machine['memory_gb']} GB" if machine["memory_gb"] else ""
    found = (
        f"{machine['processor']}, {machine['cores']} cores, {machine['threads']} threads{memory}; on "
        f"{machine['device']}; {machine['system']}, Python {machine['python']}, torch {machine['torch']}, timm "
        f"{machine['timm']}, idmetric {machine['idmetric']}"
    )
    if machine["busy"] is not None and machine["busy"] > 0.2:
        found += f"\nOther programs were running (load {machine['busy']} per core): trust ratios, not single times."
    return found


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        return next(line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    except (OSError, StopIteration):
        return platform.processor() or platform.machine()


def _memory() -> int | None:
    try:
        return round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30)
    except (AttributeError, ValueError, OSError):
        return None


def _version(name: str) -> str | None:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None
