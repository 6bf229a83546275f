"""The open points of docs/reports/confirm.md, checked with the published weights, as a table to paste into an issue.

Each check is a function of a model's name that returns observations. One that fails is a row with its reason, and the
others still run.
"""

from __future__ import annotations

import json
import platform
import statistics
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from importlib import metadata
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any, Literal

from idmetric.metric.checkpoints import released
from idmetric.metric.checkpoints.hub import fetch, repository_facts
from idmetric.metric.checkpoints.revision import Hub
from idmetric.metric.files.hints import need
from idmetric.metric.files.tables import printable
from idmetric.metric.models.sizes import SIZES
from idmetric.scoring.demo import CAPTIONS, REFERENCE, demo_images
from idmetric.version import __version__

if TYPE_CHECKING:
    import torch

    from idmetric.evaluate.protocols.common.result import Value
    from idmetric.metric.models.embedder import Embedder

Verdict = Literal["as expected", "differs", "no reference yet", "failed", "by hand"]
ANY = ""  # in place of a model's name: a check of no model
BATCHES = (1, 8)  # images per pass whose speed is measured
_ENOUGH = 5.0  # seconds of a run that need no repetition
_MOST = 300  # characters of a cell
_PACKAGES = ("torch", "timm", "transformers", "peft", "huggingface_hub", "pillow", "numpy")


@dataclass(frozen=True)
class Observation:
    """A line of the table.

    Attributes:
        what: was measured or read. expected: "" where neither the papers nor the releases say it.
    """

    what: str
    measured: str
    expected: str
    verdict: Verdict


@dataclass
class Setup:
    """What the checks share: settings, and the model that was opened last.

    Attributes:
        device: default the best one. sample: rows of each data set to measure tables on.
    """

    device: str | None = None
    sample: int = 300
    _opened: dict[str, Embedder] = field(default_factory=dict)

    def model(self, name: str) -> Embedder:
        """The published model of a name; the one before it is let go."""
        if name not in self._opened:
            from idmetric.metric.models.load import load

            self._opened.clear()
            self._opened[name] = load(name, device=self.device)
        return self._opened[name]


@dataclass(frozen=True)
class ConfirmCheck:
    """A check.

    Attributes:
        run: the observations about a model, whose name it gets.
        plan: what it does, in words. needs: what it downloads.
        models: the published models that it is of; (ANY,) for a check of no model.
    """

    run: Callable[[str, Setup], Iterable[Observation]]
    plan: str
    needs: str
    models: Sequence[str]


@dataclass(frozen=True)
class SampleTable:
    """A published table, and the data set that a part of it is measured on."""

    kind: str
    sources: tuple[str, ...]
    protocol: str


def compared(what: str, measured: str, expected: str = "") -> Observation:
    """An observation whose verdict is whether the texts are equal."""
    if not expected:
        return Observation(what, measured, expected, "no reference yet")
    return Observation(what, measured, expected, "as expected" if measured == expected else "differs")


# The checks


def check_repository(name: str, setup: Setup) -> Iterable[Observation]:
    """Licenses, revisions and gates of a model's repositories."""
    release = released.models()[name]
    expected_commit = release.revision or ""
    expected_license = "" if release.license == "unknown" else release.license
    facts = repository_facts(release.repo)
    yield compared(f"license of {release.repo}", facts.license or "none on its card", expected_license)
    yield compared(f"gated: {release.repo}", _yes(facts.gated), "no")
    yield compared(f"commit of {release.repo}", facts.commit, expected_commit)
    if name in released.IDSIM:
        backbone = repository_facts(f"timm/{release.backbone}")
        yield compared(f"gated: timm/{release.backbone}", _yes(backbone.gated), "no")
        yield compared(f"commit of timm/{release.backbone}", backbone.commit)
    if name in released.VISID:
        yield compared("adapter_config.json in the files", _yes(released.ADAPTER_CONFIG in facts.files), "no")


def check_files(name: str, setup: Setup) -> Iterable[Observation]:
    """Settings in a model's small files: the adapter's, or those of the processor and the config."""
    if name in released.IDSIM:
        adapter = _settings(name, released.ADAPTER_CONFIG)
        for key in ("target_modules", "r", "lora_alpha"):
            yield compared(f"{released.ADAPTER_CONFIG}: {key}", _text(adapter.get(key)))
        return
    processor = _settings(name, released.PROCESSOR)
    if name in released.NEARID:
        yield compared(f"{released.PROCESSOR}: resample (2 = bilinear)", _text(processor.get("resample")), "2")
        return
    config = _settings(name, "config.json")
    pixels = processor.get("min_pixels", processor.get("size", {}).get("shortest_edge"))
    yield compared(f"{released.PROCESSOR}: min_pixels", _text(pixels), "3136")
    yield compared("config.json: transformers_version", _text(config.get("transformers_version")))


def check_card(name: str, setup: Setup) -> Iterable[Observation]:
    """Lines of a model's card on prompts, pooling and normalization, to read."""
    release = released.models()[name]
    card = fetch(release.repo, "README.md", Hub(revision=release.revision)).read_text(encoding="utf-8")
    assumptions = {
        "prompt": "image, a space, instruction",
        "instruction": "Represent the image",
        "pool": "the last token",
        "normaliz": "unit length",
        "transformers": "4.52",
    }
    for word, assumption in assumptions.items():
        lines = [line.strip() for line in card.splitlines() if word in line.lower()]
        yield Observation(f"card, lines with {word!r}", " / ".join(lines) or "none", assumption, "by hand")


def check_open(name: str, setup: Setup) -> Iterable[Observation]:
    """Layer names and files: an unknown or missing layer is an error that names it."""
    metric = setup.model(name)
    count = sum(parameter.numel() for parameter in metric.parameters())
    yield compared("parameters", f"{count:,}", f"{SIZES[name].parameters:,}")
    yield compared("revision", metric.revision)


def check_distances(name: str, setup: Setup) -> Iterable[Observation]:
    """Distances of the pictures in the package, to compare with the official code's on the same files."""
    metric = setup.model(name)
    pictures = demo_images()
    reference = pictures.pop(REFERENCE)
    distances = ["cls", "patch_pooled", "patch_biased"] if name in released.IDSIM else ["cls"]
    for distance in distances:
        for picture, path in pictures.items():
            value = metric(reference, path, distance).item()
            what = f"{distance} of {REFERENCE}.webp and {picture}.webp ({CAPTIONS[picture]})"
            yield compared(what, f"{value:.6f}")


def check_speed(name: str, setup: Setup) -> Iterable[Observation]:
    """Images per second and memory on this device; the formulas are those of `idmetric models`."""
    metric = setup.model(name)
    picture = demo_images()[REFERENCE]
    for batch in BATCHES:
        run = partial(metric.embed, [picture] * batch, batch_size=batch, patches=False)
        seconds = seconds_of(run, metric.device)
        yield compared(f"images/s, read and embedded, {batch} in a pass", f"{batch / seconds:.3g}")

        weights = sum(parameter.numel() * parameter.element_size() for parameter in metric.parameters())
        measured = weights + allocated_peak(run, metric.device)
        expected = SIZES[name].memory(batch)
        is_near = abs(measured - expected) <= 0.25 * expected
        yield Observation(
            f"GB of weights and a pass of {batch} (25 % allowed)",
            f"{measured / 1e9:.3g}",
            f"{expected / 1e9:.3g}",
            "as expected" if is_near else "differs",
        )


def check_table(name: str, setup: Setup) -> Iterable[Observation]:
    """A published table on the first rows of its data set: the paper's number should lie within the interval."""
    from idmetric.data.importers.run import import_dataset
    from idmetric.evaluate.protocols.common.protocol import find
    from idmetric.evaluate.protocols.common.result import numbers_of
    from idmetric.evaluate.protocols.common.scorers import EvalSettings

    need("eval", "the check table", pyarrow="pyarrow", scipy="SciPy", sklearn="scikit-learn")
    table = sample_table(name)
    with TemporaryDirectory() as folder:
        data = import_dataset(table.kind, table.sources, images=folder, limit=setup.sample, on_error="skip")
        protocol = find(table.protocol)
        settings = EvalSettings(bootstrap=200, device=setup.device)
        [result] = protocol.run(data, {name: setup.model(name)}, settings, protocol.options())
        for row in result.rows:
            labels = " ".join(label for label in row.values() if isinstance(label, str))
            for metric, value in numbers_of(row).items():
                yield _of_interval(f"{table.protocol}: {labels} {metric} (n {value.count})", value)
        for note in result.notes:
            yield compared(f"{table.protocol}: note", note)


def check_generators(name: str, setup: Setup) -> Iterable[Observation]:
    """Licenses, commits and files of the engines that generate training data."""
    from idmetric.data.generate.engines import ENGINES
    from idmetric.data.generate.weights import Repository

    for engine in ENGINES.values():
        for part in vars(engine()).values():
            if not isinstance(part, Repository):
                continue
            try:
                facts = repository_facts(part.repo, Hub(revision=part.revision))
            except Exception as error:  # of one repository; the others are asked, too
                yield Observation(f"{engine.name}: {part.repo}", _text(error), "", "failed")
                continue
            yield compared(f"{engine.name}: license of {part.repo}", facts.license or "none", part.license)
            yield compared(f"{engine.name}: commit of {part.repo}", facts.commit)
            if part.file:
                yield compared(f"{engine.name}: {part.file} in {part.repo}", _yes(part.file in facts.files), "yes")
            else:
                pickled = ", ".join(parts_without_safetensors(facts.files)) or "none"
                yield compared(f"{engine.name}: parts of {part.repo} without safetensors", pickled, "none")


def parts_without_safetensors(files: Iterable[str]) -> list[str]:
    """Folders of a pipeline whose weights are pickled alone; the safety checker, which is never loaded, is left out."""
    endings: dict[str, set[str]] = {}
    for name in files:
        folder, _, file = name.rpartition("/")
        ending = file.rpartition(".")[2]
        if folder and ending in ("bin", "ckpt", "pth", "safetensors"):
            endings.setdefault(folder, set()).add(ending)
    return [folder for folder in endings if "safetensors" not in endings[folder] and folder != "safety_checker"]


def check_by_hand(name: str, setup: Setup) -> Iterable[Observation]:
    """Points that need the official code, data of one's own or a GPU for hours."""
    for point, command in BY_HAND.items():
        yield Observation(point, command, "", "by hand")


_PUBLISHED = tuple(released.models())
CHECKS = {
    "repository": ConfirmCheck(
        check_repository, "ask the Hub for licenses, gates, commits and files", "nothing", _PUBLISHED
    ),
    "files": ConfirmCheck(check_files, "read the adapter's or processor's settings", "JSON files", _PUBLISHED),
    "card": ConfirmCheck(check_card, "quote the card on prompts and pooling", "README.md", tuple(released.VISID)),
    "open": ConfirmCheck(check_open, "open the model, count its parameters", "the weights", _PUBLISHED),
    "distances": ConfirmCheck(check_distances, "compare the pictures in the package", "the weights", _PUBLISHED),
    "speed": ConfirmCheck(check_speed, "measure images per second and memory", "the weights", _PUBLISHED),
    "table": ConfirmCheck(
        check_table, "measure a published table on a sample", "the weights, part of a data set", _PUBLISHED
    ),
    "generators": ConfirmCheck(
        check_generators, "ask the Hub for licenses, commits and files of the engines", "nothing", (ANY,)
    ),
    "by-hand": ConfirmCheck(check_by_hand, "list the commands of the other points", "nothing", (ANY,)),
}
TABLES = {
    "idsim": SampleTable("subjects2k", ("chaenayo/Subjects2k",), "idsim"),
    "nearid": SampleTable("nearid", ("Aleksandar/NearID", "Aleksandar/NearID-Flux"), "nearid"),
    "visid": SampleTable("mveb", ("HugC/MVEB-test",), "mveb"),
}
# point of docs/reports/confirm.md -> what to run
BY_HAND = {
    "ID-Sim scores": "the official id_sim() with mode='cls', on the pictures of distances",
    "NearID's scores": "the repository's example, on the pictures of distances",
    "VisME's scores": "the card's code, on the pictures of distances",
    "VisME's images with a side under 28 pixels": "the card's code",
    "MMEB's layout": "idmetric data import mmeb MMEB-eval/ --dry-run -o mmeb.parquet",
    "Generation: the Lightning LoRAs' layers": "idmetric data generate photos.parquet --task context -o a.parquet",
    "Generation: Qwen-Image-Edit's positions of image tokens": "the same request with transformers 4",
    "Generation: PowerPaint v1's files": "idmetric data generate photos.parquet --task distractor --engine powerpaint",
    "ILIAS's lists of ids": "idmetric data import ilias ilias/ -o ilias.parquet",
    "SynCD's folder": "idmetric data import syncd syncd/ -o syncd.parquet --limit 10",
    "DreamBench++'s ratings of all methods": "idmetric eval dreambench --ratings ratings/ --category object",
    "ID-Sim's 6,921 pairs of DreamBench++": "the row animal + object of idmetric eval dreambench",
}


# Running them


@dataclass(frozen=True)
class ConfirmRow:
    """An observation with the model and the check that it is of."""

    model: str
    check: str
    observation: Observation


def planned(models: Sequence[str], checks: Sequence[str]) -> list[tuple[str, str]]:
    """The (model, check) to run: all checks of a model one after the other, so that it is opened once."""
    pairs = []
    for model in [*models, ANY]:
        for check in checks:
            if model in CHECKS[check].models:
                pairs.append((model, check))
    return pairs


def gigabytes_of_weights(pairs: Sequence[tuple[str, str]]) -> float:
    """How much the checks download of the models' weights, if the cache has none of them."""
    models = {model for model, name in pairs if "the weights" in CHECKS[name].needs}
    return sum(released.models()[model].gigabytes for model in models)


def plan_table(pairs: Sequence[tuple[str, str]]) -> str:
    """What would be run, as a Markdown table."""
    rows = [["model", "check", "what it does", "download"]]
    for model, name in pairs:
        check = CHECKS[name]
        needs = check.needs
        if "the weights" in needs:
            needs = needs.replace("the weights", f"{released.models()[model].gigabytes} GB")
        plan = check.plan
        if name == "table":
            table = sample_table(model)
            plan = f"{plan}: {table.protocol} on {', '.join(table.sources)}"
        rows.append([model or "-", name, plan, needs])
    return _markdown(rows)


def run_checks(
    pairs: Sequence[tuple[str, str]], setup: Setup, progress: Callable[[str], object] = lambda line: None
) -> list[ConfirmRow]:
    """Run checks in order; one that fails is a row with its reason, after the observations that it had."""
    rows = []
    for model, name in pairs:
        progress(f"{model or 'all'}: {CHECKS[name].plan}")
        try:
            for observation in CHECKS[name].run(model, setup):
                rows.append(ConfirmRow(model, name, observation))
        except Exception as error:  # a report lists failures of all kinds, bugs too
            rows.append(ConfirmRow(model, name, Observation(CHECKS[name].plan, _text(error), "", "failed")))
    return rows


def report(rows: Sequence[ConfirmRow], device: str | None = None) -> str:
    """The observations as Markdown: versions and device, a table, and how many have which verdict."""
    table = [["model", "check", "what", "measured", "expected", "verdict"]]
    counts: dict[str, int] = {}
    for row in rows:
        result = row.observation
        counts[result.verdict] = counts.get(result.verdict, 0) + 1
        table.append([row.model or "-", row.check, result.what, result.measured, result.expected, result.verdict])
    summary = ", ".join(f"{count} {verdict}" for verdict, count in counts.items())
    return f"{environment(device)}\n\n{_markdown(table)}\n{summary or 'nothing was checked'}\n"


def environment(device: str | None) -> str:
    """Versions of the package and its dependencies, the system and the device."""
    import torch

    from idmetric.metric.models.devices import auto_device

    chosen = torch.device(device) if device else auto_device()
    name = torch.cuda.get_device_name(chosen) if chosen.type == "cuda" else platform.processor() or platform.machine()
    versions = [f"idmetric {__version__}", f"Python {platform.python_version()}"]
    for package in _PACKAGES:
        try:
            versions.append(f"{package} {metadata.version(package)}")
        except metadata.PackageNotFoundError:
            versions.append(f"{package} not installed")
    return f"{', '.join(versions)}; {platform.system()}; device {chosen.type} ({name})"


def sample_table(model: str) -> SampleTable:
    """The published table of a model."""
    if model in released.IDSIM:
        return TABLES["idsim"]
    if model in released.NEARID:
        return TABLES["nearid"]
    return TABLES["visid"]


# Measurements


def seconds_of(run: Callable[[], object], device: torch.device) -> float:
    """Seconds of a run: the median of three after one that is not counted, or of a long one alone."""
    times: list[float] = []
    while len(times) < 4:
        start = time.perf_counter()
        run()
        _wait(device)
        times.append(time.perf_counter() - start)
        if times[-1] > _ENOUGH:
            return times[-1]
    return statistics.median(times[1:])


def _wait(device: torch.device) -> None:
    import torch

    if device.type == "cuda":
        torch.cuda.synchronize(device)
    elif device.type == "mps":
        torch.mps.synchronize()


def allocated_peak(run: Callable[[], object], device: torch.device) -> int:
    """The most bytes that torch allocates at a time during a run, beyond those before it."""
    import torch

    if device.type == "cuda":
        before = torch.cuda.memory_allocated(device)
        torch.cuda.reset_peak_memory_stats(device)
        run()
        return torch.cuda.max_memory_allocated(device) - before

    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], profile_memory=True) as profile:
        run()
    allocated = peak = 0
    for event in profile.profiler.kineto_results.events():
        if event.name() == "[memory]":
            allocated += event.nbytes()
            peak = max(peak, allocated)
    return peak


def _of_interval(what: str, value: Value) -> Observation:
    """A number of a sample: as expected if the paper's lies within its interval."""
    measured = f"{value.value:.3f}"
    if value.low is None or value.high is None:
        return Observation(what, measured, "" if value.paper is None else f"{value.paper:.3f}", "no reference yet")
    measured += f" [{value.low:.3f}, {value.high:.3f}]"
    if value.paper is None:
        return Observation(what, measured, "", "no reference yet")
    is_within = value.low <= value.paper <= value.high
    return Observation(what, measured, f"{value.paper:.3f}", "as expected" if is_within else "differs")


# Texts


def _settings(name: str, file: str) -> Mapping[str, Any]:
    """A JSON file of a model's repository, at its pinned revision."""
    release = released.models()[name]
    path = fetch(release.repo, file, Hub(revision=release.revision))
    settings: Mapping[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return settings


def _yes(value: bool) -> str:
    return "yes" if value else "no"


def _text(value: object) -> str:
    """A value of a file; of an error its kind and message, without the home folder, since the table is for an issue."""
    if isinstance(value, Exception):
        return f"{type(value).__name__}: {value}".replace(str(Path.home()), "~")
    if isinstance(value, list):
        return ", ".join(str(entry) for entry in value)
    return str(value)


def _markdown(rows: Sequence[Sequence[str]]) -> str:
    """A Markdown table; the first row is its header."""
    header, *others = rows
    lines = [header, ["---"] * len(header), *others]
    text = ""
    for line in lines:
        cells = [_cell(cell) for cell in line]
        text += f"| {' | '.join(cells)} |\n"
    return text


def _cell(text: str) -> str:
    """Text that stays within its cell."""
    line = printable(" ".join(text.split())).replace("|", "\\|")
    if len(line) > _MOST:
        return f"{line[:_MOST]} ..."
    return line
