"""The open points of docs/reports/releases.md, checked with the published weights; prints a table for an issue.

    python benchmarks/confirm.py > confirm.md                            all models: downloads tens of gigabytes
    python benchmarks/confirm.py --models nearid --checks open distances

Each check is a function of a model's name that gives rows (what, measured, expected). A check that fails is a row with
its reason, and the others still run. The exit status is 1 if a row failed or differs.
"""

from __future__ import annotations

import argparse
import json
import platform
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from huggingface_hub import HfApi, ModelInfo

from idmetric.cli.demo import CAPTIONS, REFERENCE, demo_images
from idmetric.data.generate.engines import ENGINES
from idmetric.data.generate.weights import Repository
from idmetric.data.importers.run import import_dataset
from idmetric.evaluate.protocols.common.protocol import find
from idmetric.evaluate.protocols.common.result import numbers_of
from idmetric.evaluate.protocols.common.scorers import EvalSettings
from idmetric.metric.checkpoints import released
from idmetric.metric.checkpoints.format import file_of
from idmetric.metric.checkpoints.resolve import resolve
from idmetric.metric.embedder import Embedder
from idmetric.metric.load import load
from idmetric.version import __version__

Row = tuple[str, str, str]  # what, measured, expected: "" where neither the papers nor the releases say it
Check = Callable[[str, argparse.Namespace], Iterable[Row]]
_MOST = 300  # characters of a cell
# kind of data set, its sources and the protocol of each family's table
TABLES = {
    "idsim": ("subjects2k", ["chaenayo/Subjects2k"], "idsim"),
    "nearid": ("nearid", ["Aleksandar/NearID", "Aleksandar/NearID-Flux"], "nearid"),
    "visid": ("mveb", ["HugC/MVEB-test"], "mveb"),
}


@lru_cache(1)
def opened(name: str, device: str | None) -> Embedder:
    """A published model."""
    return load(name, device=device)


# The checks


def check_repository(name: str, options: argparse.Namespace) -> Iterator[Row]:
    """Licenses, revisions and gates of a model's repositories."""
    release = released.MODELS[name]
    info = HfApi().model_info(release.repo)
    yield f"license of {release.repo}", license_of(info), "" if release.license == "unknown" else release.license
    yield f"gated: {release.repo}", yes(info.gated), "no"
    yield f"commit of {release.repo}", str(info.sha), release.revision or ""
    if name in released.IDSIM:
        backbone = HfApi().model_info(f"timm/{release.backbone}")
        yield f"gated: timm/{release.backbone}", yes(backbone.gated), "no"
        yield f"commit of timm/{release.backbone}", str(backbone.sha), ""
    if name in released.VISID:
        yield "adapter_config.json in the files", yes(released.ADAPTER_CONFIG in files_of(info)), "no"


def check_files(name: str, options: argparse.Namespace) -> Iterator[Row]:
    """Settings in a model's small files: the adapter's, or those of the processor and the config."""
    if name in released.IDSIM:
        adapter = read_json(name, released.ADAPTER_CONFIG)
        for key in ("target_modules", "r", "lora_alpha"):
            yield f"{released.ADAPTER_CONFIG}: {key}", str(adapter.get(key)), ""
        return
    processor = read_json(name, released.PROCESSOR)
    if name in released.NEARID:
        yield f"{released.PROCESSOR}: resample (2 = bilinear)", str(processor.get("resample")), "2"
        return
    config = read_json(name, "config.json")
    pixels = processor.get("min_pixels", processor.get("size", {}).get("shortest_edge"))
    yield f"{released.PROCESSOR}: min_pixels", str(pixels), "3136"
    yield "config.json: transformers_version", str(config.get("transformers_version")), ""


def check_card(name: str, options: argparse.Namespace) -> Iterator[Row]:
    """Lines of a VisID's card on prompts, pooling and normalization, to read; the assumption is in the page."""
    if name not in released.VISID:
        return
    card = file_of(resolve(name, ["README.md"]), "README.md").read_text(encoding="utf-8")
    for word in ("prompt", "instruction", "pool", "normaliz", "transformers"):
        lines = [line.strip() for line in card.splitlines() if word in line.lower()]
        yield f"card, lines with {word!r}", " / ".join(lines) or "none", ""


def check_open(name: str, options: argparse.Namespace) -> Iterator[Row]:
    """Layer names and files: an unknown or missing layer is an error that names it."""
    metric = opened(name, options.device)
    count = sum(parameter.numel() for parameter in metric.parameters())
    yield "parameters", f"{count:,}", f"{released.MODELS[name].parameters:,}"
    yield "revision", metric.revision, ""


def check_distances(name: str, options: argparse.Namespace) -> Iterator[Row]:
    """Distances of the pictures in the package, to compare with the official code's on the same files."""
    metric = opened(name, options.device)
    pictures = demo_images()
    reference = pictures.pop(REFERENCE)
    distances = ["cls", "patch_pooled", "patch_biased"] if name in released.IDSIM else ["cls"]
    for distance in distances:
        for picture, path in pictures.items():
            value = metric(reference, path, distance).item()
            yield f"{distance} of {REFERENCE}.webp and {picture}.webp ({CAPTIONS[picture]})", f"{value:.6f}", ""


def check_table(name: str, options: argparse.Namespace) -> Iterator[Row]:
    """A published table on the first rows of its data set: the paper's number should lie within the interval."""
    family = "visid"
    if name in released.IDSIM:
        family = "idsim"
    elif name in released.NEARID:
        family = "nearid"
    kind, sources, protocol_name = TABLES[family]
    with TemporaryDirectory() as folder:
        data = import_dataset(kind, sources, images=folder, limit=options.sample, on_error="skip")
        protocol = find(protocol_name)
        models = {name: opened(name, options.device)}
        [result] = protocol.run(data, models, EvalSettings(bootstrap=200, device=options.device), protocol.options())
    for row in result.rows:
        labels = " ".join(label for label in row.values() if isinstance(label, str))
        for metric, value in numbers_of(row).items():
            if value.low is not None and value.high is not None and value.paper is not None:
                interval = f"{value.value:.3f} [{value.low:.3f}, {value.high:.3f}], n {value.count}"
                what = f"{protocol_name}: {labels} {metric}, {interval}, holds the paper's {value.paper:.3f}"
                yield what, yes(value.low <= value.paper <= value.high), "yes"


def check_generators(name: str, options: argparse.Namespace) -> Iterator[Row]:
    """Licenses, commits and files of the engines that generate training data."""
    for engine in ENGINES.values():
        for part in vars(engine()).values():
            if not isinstance(part, Repository):
                continue
            info = HfApi().model_info(part.repo, revision=part.revision)
            yield f"{engine.name}: license of {part.repo}", license_of(info), part.license
            yield f"{engine.name}: commit of {part.repo}", str(info.sha), ""
            if part.file:
                yield f"{engine.name}: {part.file} in {part.repo}", yes(part.file in files_of(info)), "yes"
            else:
                pickled = ", ".join(parts_without_safetensors(files_of(info))) or "none"
                yield f"{engine.name}: parts of {part.repo} without safetensors", pickled, "none"


def parts_without_safetensors(files: Iterable[str]) -> list[str]:
    """Folders of a pipeline whose weights are pickled alone; the safety checker, which is never loaded, is left out."""
    endings: dict[str, set[str]] = {}
    for name in files:
        folder, _, file = name.rpartition("/")
        ending = file.rpartition(".")[2]
        if folder and ending in ("bin", "ckpt", "pth", "safetensors"):
            endings.setdefault(folder, set()).add(ending)
    return [folder for folder in endings if "safetensors" not in endings[folder] and folder != "safety_checker"]


CHECKS: dict[str, Check] = {
    "repository": check_repository,
    "files": check_files,
    "card": check_card,
    "open": check_open,
    "distances": check_distances,
    "table": check_table,
    "generators": check_generators,  # of no model
}


# Texts


def license_of(info: ModelInfo) -> str:
    """The license of a repository's card."""
    licenses = [tag.removeprefix("license:") for tag in info.tags or [] if tag.startswith("license:")]
    return licenses[0] if licenses else "none on its card"


def files_of(info: ModelInfo) -> list[str]:
    """The names of a repository's files."""
    return [sibling.rfilename for sibling in info.siblings or []]


def read_json(name: str, file: str) -> Mapping[str, Any]:
    """A JSON file of a model's repository, at its pinned revision."""
    path = file_of(resolve(name, [file]), file)
    settings: Mapping[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return settings


def yes(value: object) -> str:
    """Yes or no."""
    return "yes" if value else "no"


def line(*cells: str) -> str:
    """A row of a Markdown table."""
    texts = [" ".join(cell.split()).replace("|", "\\|")[:_MOST] for cell in cells]
    return f"| {' | '.join(texts)} |"


def main(argv: Sequence[str] | None = None) -> int:
    """Run the checks and print their table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    names = tuple(released.MODELS)
    parser.add_argument("--models", nargs="+", choices=names, default=names, metavar="MODEL")
    parser.add_argument("--checks", nargs="+", choices=tuple(CHECKS), default=tuple(CHECKS), metavar="CHECK")
    parser.add_argument("--sample", type=int, default=300, help="rows of each data set for the check table")
    parser.add_argument("--device", help="torch's device; default: the best one")
    options = parser.parse_args(argv)

    print(f"idmetric {__version__}, torch {torch.__version__}, {platform.platform()}\n")
    print(line("model", "check", "what", "measured", "expected", "verdict"))
    print(line(*["---"] * 6))
    has_faults = False
    pairs = [(model, check) for model in options.models for check in options.checks if check != "generators"]
    if "generators" in options.checks:
        pairs.append(("-", "generators"))  # of no model
    for model, check in pairs:
        try:
            for what, measured, expected in CHECKS[check](model, options):
                verdict = "as expected" if measured == expected else "differs"
                if not expected:
                    verdict = "no reference yet"
                has_faults |= verdict == "differs"
                print(line(model, check, what, measured, expected, verdict), flush=True)
        except Exception as error:  # the table lists failures of all kinds, bugs too
            has_faults = True
            text = f"{type(error).__name__}: {error}".replace(str(Path.home()), "~")  # the table is for an issue
            print(line(model, check, CHECKS[check].__doc__ or "", text, "", "failed"), flush=True)
    return int(has_faults)


if __name__ == "__main__":
    sys.exit(main())
