"""Weights of diffusion models and their licenses; only safetensors are loaded, and no code of repositories is run."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields, replace
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar, Self

from idmetric.metric.checkpoints.errors import CheckpointError
from idmetric.metric.checkpoints.hub import Hub, cached_file, fetch
from idmetric.metric.files.hints import need
from idmetric.metric.files.typed import accept, from_text

# parts of Stable Diffusion's pipelines: the safety checker would add black images to the data
NO_CHECKER: Mapping[str, Any] = {"safety_checker": None, "requires_safety_checker": False}
_READ = {".safetensors", ".json", ".txt", ".model", ".jinja"}  # extensions of files that pipelines load
_SAMPLE, _SAMPLES = 16 * 1024, 256  # bytes of a sample, and samples of a file


class GenerateError(ValueError):
    """Generation cannot continue; the message says why and what to do."""


class Rejected(ValueError):
    """A generated picture that cannot be used; the message says why. Other pictures are not affected."""


class Flat(Rejected):
    """A generated picture of one color, usually caused by numbers that are not finite."""


@dataclass(frozen=True)
class Weights:
    """A Hub repository or local folder, or one file of it.

    Attributes:
        repo: `owner/name` on the Hub, or a folder.
        license: name of the weights' license.
        revision: commit, branch or tag on the Hub; None = its main branch.
        file: one file of the repository or folder; None = all of it.
    """

    repo: str
    license: str
    revision: str | None = None
    file: str | None = None

    @property
    def local(self) -> bool:
        return Path(self.repo).is_dir()

    def __str__(self) -> str:
        """A name for messages."""
        name = Path(self.repo).resolve().name if self.local else self.repo
        return name + (f"@{self.revision}" if self.revision else "") + (f":{self.file}" if self.file else "")

    @cached_property
    def key(self) -> str:
        """The name of the weights that enters names of images; for a folder it depends on the content, not the path.

        On the Hub it is the repository with the requested revision. Without one, or with a branch, only `version` has
        the commit.
        """
        return f"{self}#{version(self)}" if self.local else str(self)

    def at(self, place: str) -> Weights:
        """The same weights from another location: a folder, a file, or `owner/name` with an optional `@revision`."""
        path = Path(place)
        if path.is_dir():
            return replace(self, repo=place, revision=None)
        if path.is_file() and self.file is not None:
            return replace(self, repo=str(path.parent), revision=None, file=path.name)
        repo, _, revision = place.partition("@")
        if path.is_file() or repo.count("/") != 1 or repo.startswith((".", "/")):
            wanted = "folder" if self.file is None else "folder, a file"
            raise CheckpointError(f"{place!r} is not a {wanted}, or owner/name[@revision] on the Hub")
        return replace(self, repo=repo, revision=revision or None)


@dataclass(frozen=True)
class Place:
    """Device and precision of models.

    Attributes:
        device: such as cuda:1, mps or cpu; None = the best available.
        dtype: bfloat16 as in ID-Sim (A.2.1, A.2.2), float16 or float32.
        offload: keep only the active part on the device (slower, with a fraction of the memory).
    """

    device: str | None = None
    dtype: str = "bfloat16"
    offload: bool = False

    def torch_dtype(self) -> Any:
        import torch

        return getattr(torch, self.dtype)

    def torch_device(self) -> Any:
        import torch

        from idmetric.metric.models.devices import auto_device

        return torch.device(self.device) if self.device else auto_device()

    def settle(self, pipe: Any) -> Any:
        """Move the pipeline to its device and turn its progress bars off."""
        device = self.torch_device()
        pipe.set_progress_bar_config(disable=True)
        if self.offload and device.type != "cpu":
            pipe.enable_model_cpu_offload(device=device)
        else:
            pipe.to(device)
        return pipe


AUTO = Place()
_KINDS = {"int": int, "float": float, "str": str}


@dataclass(frozen=True)
class Weighted:
    """Base of engines and removers: fields that are weights or settings, and where their models run."""

    place: Place = AUTO

    name: ClassVar[str] = ""

    @property
    def settings(self) -> dict[str, Any]:
        """Everything except its input that determines the pixels, as JSON values."""
        values = {f.name: getattr(self, f.name) for f in fields(self) if f.name != "place"}
        return {k: v.key if isinstance(v, Weights) else v for k, v in values.items()}

    @property
    def weights(self) -> dict[str, Weights]:
        """Its weights by field."""
        return {f.name: w for f in fields(self) if isinstance(w := getattr(self, f.name), Weights)}

    @property
    def licenses(self) -> dict[str, str]:
        """Repository -> license of its weights."""
        return {w.key: w.license for w in self.weights.values()}

    @cached_property
    def versions(self) -> dict[str, str]:
        """Commit or fingerprint of its weights by field, available once they are loaded."""
        return {name: version(w) for name, w in self.weights.items()}

    def changed(self, weights: Mapping[str, str] | None, settings: Mapping[str, Any]) -> Self:
        """The same with other weights and settings.

        Args:
            weights: other locations of its weights by field ("base", "lora", ...): see `Weights.at`.
            settings: other values of its fields; text is converted to their types.
        """
        kinds = {f.name: _KINDS[str(f.type)] for f in fields(self) if str(f.type) in _KINDS}
        for given, known, what in ((settings, kinds, "setting"), (weights or {}, self.weights, "weights")):
            if unknown := sorted(set(given) - set(known)):
                there = ", ".join(sorted(known)) or "none"
                raise GenerateError(f"{self.name} has no {what} {unknown[0]!r}; it has {there}")
        found: dict[str, Any] = {part: self.weights[part].at(where) for part, where in (weights or {}).items()}
        for setting, value in settings.items():
            kind = kinds[setting]
            value = from_text(value, kind) if isinstance(value, str) else value
            found[setting] = accept(f"{self.name}.{setting}", value, kind)
        return replace(self, **found)


def load_pipeline(kind: str, weights: Weights, place: Place, dtype: Any = None, **parts: Any) -> Any:
    """A pipeline of diffusers' class `kind`, on the CPU, in the place's dtype or another; `parts` replace components.

    Raises:
        CheckpointError: naming the weights, if they cannot be downloaded, have no safetensors, or do not fit the class.
    """
    need("generate", "generating images", diffusers="diffusers", transformers="transformers")
    folder = Path(weights.repo)
    if not weights.local:
        from diffusers import DiffusionPipeline

        options = {**parts, "revision": weights.revision, "use_safetensors": True}
        # downloads only the components that the index names and that `parts` do not replace
        folder = _fetched(weights, lambda: DiffusionPipeline.download(weights.repo, **options))
    for code in [*folder.glob("*.py"), *folder.glob("*/*.py")]:  # some versions of diffusers run it
        found = code.relative_to(folder)
        raise CheckpointError(f"cannot load {weights} as {kind}: it holds {found}, and code is not run")
    return _loaded(kind, weights, folder, place.torch_dtype() if dtype is None else dtype, **parts)


def _loaded(kind: str, weights: Weights, folder: str | Path, dtype: Any, **parts: Any) -> Any:
    import diffusers

    new = tuple(int(n) for n in diffusers.__version__.split(".")[:2]) >= (0, 42)
    options = {"dtype" if new else "torch_dtype": dtype, "use_safetensors": True, **parts}
    try:
        return getattr(diffusers, kind).from_pretrained(folder, **options)
    except (OSError, ValueError, TypeError, KeyError, RuntimeError) as error:
        raise CheckpointError(f"cannot load {weights} as {kind}: {_line(error)}") from error


def load_model(kind: str, weights: Weights, place: Place) -> Any:
    """A single model of diffusers' class `kind`, such as a ControlNet; errors as `load_pipeline`."""
    need("generate", "generating images", diffusers="diffusers")
    return _loaded(kind, weights, weights.repo, place.torch_dtype(), revision=weights.revision)


def load_transformer(weights: Weights, place: Place, processor: str, model: str) -> tuple[Any, Any]:
    """A processor and a model of transformers' classes of these names, on the device; errors as `load_pipeline`."""
    need("generate", "generating images", transformers="transformers")
    import transformers

    options = {} if weights.local else {"revision": weights.revision}
    try:
        words = getattr(transformers, processor).from_pretrained(weights.repo, **options)
        found = getattr(transformers, model).from_pretrained(weights.repo, use_safetensors=True, **options)
    except (OSError, ValueError, KeyError, RuntimeError) as error:
        raise CheckpointError(f"cannot load {weights} as {model}: {_line(error)}") from error
    return words, found.eval().to(place.torch_device())


def load_tensors(weights: Weights) -> dict[str, Any]:
    """The tensors of one safetensors file; errors as `load_pipeline`."""
    from idmetric.metric.checkpoints.weights import read_tensors

    return read_tensors(_file(weights))


def version(weights: Weights) -> str:
    """The commit of downloaded weights on the Hub, or the `fingerprint` of local weights."""
    if weights.local:
        return fingerprint(_file(weights) if weights.file else Path(weights.repo))
    for name in [weights.file] if weights.file else ["model_index.json", "config.json"]:
        if found := cached_file(weights.repo, name, Hub(weights.revision)):
            return found.parts[found.parts.index("snapshots") + 1]
    raise CheckpointError(f"{weights} is not in the Hub's cache")


def fingerprint(path: Path) -> str:
    """12 hex digits of a SHA-256 over a folder's files, or over one file: names, sizes and up to 256 samples of each.

    Samples, because hashing all of a model of 50 GB would take minutes. The path of the folder doesn't matter.
    """
    digest = hashlib.sha256()
    root, found = (path, sorted(path.rglob("*"))) if path.is_dir() else (path.parent, [path])
    for file in found:
        if not file.is_file() or file.suffix not in _READ:
            continue
        size = file.stat().st_size
        digest.update(f"{file.relative_to(root).as_posix()}\0{size}\0".encode())
        with file.open("rb") as opened:
            for place in range(0, size, max(_SAMPLE, size // _SAMPLES)):
                opened.seek(place)
                digest.update(opened.read(_SAMPLE))
    return digest.hexdigest()[:12]


def _file(weights: Weights) -> Path:
    name = str(weights.file)
    if weights.local:
        return Path(weights.repo, name)
    return fetch(weights.repo, name, Hub(weights.revision))


def _fetched(weights: Weights, download: Callable[[], Any]) -> Path:
    try:
        return Path(download())
    except Exception as error:  # the Hub client raises OSError, ValueError and its HTTP library's own errors
        page = f"https://huggingface.co/{weights.repo}"
        raise CheckpointError(
            f"cannot fetch {weights} from the Hub ({_line(error)}); if it is gated, accept its license at {page} and "
            "run `hf auth login`; without a network, give a local folder: --weights NAME=FOLDER for generating, "
            "--model diffsim@FOLDER for the baseline"
        ) from error


def _line(error: Exception) -> str:
    text = " ".join(str(error).split()) or "no reason given"
    return f"{type(error).__name__}: {text[:300]}"
