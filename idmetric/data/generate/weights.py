"""Weights of diffusion models and their licenses; only safetensors are loaded, and no code of repositories is run."""

from __future__ import annotations

import hashlib
import importlib
import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, fields, replace
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar, Self

from idmetric.metric.checkpoints.resolve import resolve
from idmetric.metric.errors import CheckpointError, RequestError
from idmetric.metric.files import accept, from_text
from idmetric.metric.paths import matching

Options = dict[str, Any]  # settings, or arguments of a pipeline, by name

# parts of Stable Diffusion's pipelines: the safety checker would add black images to the data
NO_CHECKER: Options = {"safety_checker": None, "requires_safety_checker": False}
_WEIGHTS = "diffusion_pytorch_model.safetensors"
_LIBRARIES = ("diffusers", "transformers")  # of a pipeline's models
_READ = {".safetensors", ".json", ".txt", ".model", ".jinja"}  # extensions of files that pipelines load
_SAMPLE, _SAMPLES = 16 * 1024, 256  # bytes of a sample, and samples of a file


@dataclass(frozen=True)
class Rejection:
    """Returned in place of a generated picture that cannot be used. Other pictures are not affected.

    Attributes:
        reason: why it cannot be used.
        is_flat: the picture has one color, usually because numbers were not finite.
    """

    reason: str
    is_flat: bool = False


@dataclass(frozen=True)
class Repository:
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
        if self.revision:
            name += f"@{self.revision}"
        if self.file:
            name += f":{self.file}"
        return name

    @cached_property
    def key(self) -> str:
        """The name of the weights that enters names of images; for a folder it depends on the content, not the path.

        On the Hub it is the repository with the requested revision. Without one, or with a branch, only `version` has
        the commit.
        """
        return f"{self}#{version(self)}" if self.local else str(self)

    def at(self, place: str) -> Repository:
        """The same weights from another location: a folder, a file, or `owner/name` with an optional `@revision`."""
        path = Path(place)
        if path.is_dir():
            return replace(self, repo=place, revision=None)
        if path.is_file() and self.file:
            return replace(self, repo=str(path.parent), revision=None, file=path.name)

        repo, _, revision = place.partition("@")
        if path.is_file() or not re.fullmatch(r"[^./][^/]*/[^/]*", repo):
            wanted = "folder, a file" if self.file else "folder"
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

        from idmetric.metric.embedder import auto_device

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


@dataclass(frozen=True)
class Weighted:
    """Base of engines and removers: fields that are weights or settings, and where their models run."""

    place: Place = AUTO

    name: ClassVar[str] = ""

    @property
    def configuration(self) -> Options:
        """Weights and settings by field."""
        return {field.name: getattr(self, field.name) for field in fields(self) if field.name != "place"}

    @property
    def settings(self) -> Options:
        """Everything except its input that determines the pixels, as JSON values."""
        return self.configuration | {name: weights.key for name, weights in self.weights.items()}

    @property
    def weights(self) -> dict[str, Repository]:
        """Its weights by field."""
        return {name: value for name, value in self.configuration.items() if isinstance(value, Repository)}

    @property
    def licenses(self) -> dict[str, str]:
        """Repository -> license of its weights."""
        return {weights.key: weights.license for weights in self.weights.values()}

    @cached_property
    def versions(self) -> dict[str, str]:
        """Commit or fingerprint of its weights by field, available once they are loaded."""
        return {name: version(weights) for name, weights in self.weights.items()}

    def load(self) -> None:
        """Load its models now instead of at their first use."""

    def changed(
        self,
        weights: Mapping[str, str],
        settings: Options,
    ) -> Self:
        """The same with other weights and settings.

        Args:
            weights: other locations of its weights by field ("base", "lora", ...): see `Repository.at`.
            settings: other values of its fields; text is converted to their types.
        """
        changes: Options = {}
        for name, location in weights.items():
            if name not in self.weights:
                raise RequestError(f"{self.name} has no weights {name!r}; it has {_listed(self.weights)}")
            changes[name] = self.weights[name].at(location)

        known_settings = self.configuration.keys() - self.weights.keys()
        for name, value in settings.items():
            if name not in known_settings:
                raise RequestError(f"{self.name} has no setting {name!r}; it has {_listed(known_settings)}")
            kind = type(self.configuration[name])
            if isinstance(value, str):
                value = from_text(value, kind)
            changes[name] = accept(f"{self.name}.{name}", value, kind)

        return replace(self, **changes)


def _listed(names: Iterable[str]) -> str:
    return ", ".join(sorted(names)) or "none"


def load_pipeline(
    kind: str,
    weights: Repository,
    place: Place,
    **parts: Any,
) -> Any:
    """A pipeline of diffusers' class `kind`, on the CPU, in the place's dtype; `parts` replace components.

    Raises:
        CheckpointError: naming the weights, if they cannot be downloaded, have no safetensors, or do not fit the class.
    """
    folder = Path(weights.repo)
    if not weights.local:
        folder = _downloaded(weights, parts)
    for file in [*folder.glob("*.py"), *folder.glob("*/*.py")]:  # hidden ones too: some versions of diffusers run it
        name = file.relative_to(folder)
        raise CheckpointError(f"cannot load {weights} as {kind}: it holds {name}, and code is not run")

    from idmetric.metric.checkpoints.format import read_json

    index = folder / "model_index.json"
    entries = {}
    if index.is_file():
        entries = read_json(index)
    with _explained(weights, kind):
        for component, entry in entries.items():
            if component.isidentifier() and component not in parts and _is_model(entry):
                library, class_name = entry
                parts[component] = _filled(library, class_name, folder / component, place)
        return _from_pretrained(kind, folder, place, **parts)


def load_model(kind: str, weights: Repository, place: Place) -> Any:
    """A model of diffusers' class `kind`; place and errors as `load_pipeline`."""
    from idmetric.metric.checkpoints.pretrained import FILES

    folder = resolve(weights.repo, FILES, revision=weights.revision, advice="--weights NAME=FOLDER")
    with _explained(weights, kind):
        return _filled("diffusers", kind, folder, place)


def _is_model(entry: Any) -> bool:
    """Whether a component in a pipeline's index, [library, class], has weights."""
    if not isinstance(entry, list) or len(entry) != 2 or entry[0] not in _LIBRARIES:
        return False
    import torch

    library = importlib.import_module(entry[0])
    kind = getattr(library, str(entry[1]), None)
    return isinstance(kind, type) and issubclass(kind, torch.nn.Module)


def _filled(library: str, class_name: str, folder: Path, place: Place) -> Any:
    """A model of diffusers or transformers, each tensor of which is in its files; they may hold more."""
    from idmetric.metric.checkpoints.pretrained import (
        check_report,
        check_settings,
        open_model,
        read_shards,
        weight_files,
    )
    from idmetric.metric.checkpoints.weights import check_finite, check_types

    if library == "transformers":
        return open_model(class_name, folder, dtype=place.torch_dtype(), is_exact=False)
    check_settings(folder)
    files = weight_files(folder, _WEIGHTS)
    if (folder / _WEIGHTS).is_file() and (folder / f"{_WEIGHTS}.index.json").is_file():
        raise CheckpointError(f"{str(folder)!r} holds {_WEIGHTS} and an index of shards: remove one of them")
    state = read_shards(files)
    check_types(state, str(folder))
    model, report = _from_pretrained(class_name, folder, place, output_loading_info=True)
    check_report(report | {"unexpected_keys": []}, folder)
    check_finite(model.state_dict(), folder)
    return model


def _from_pretrained(kind: str, folder: Path, place: Place, **options: Any) -> Any:
    import diffusers
    from packaging.version import Version

    is_new = Version(diffusers.__version__) >= Version("0.42")
    options["dtype" if is_new else "torch_dtype"] = place.torch_dtype()
    return getattr(diffusers, kind).from_pretrained(folder, use_safetensors=True, local_files_only=True, **options)


@contextmanager
def _explained(weights: Repository, kind: str) -> Iterator[None]:
    try:
        yield
    except CheckpointError as error:
        raise CheckpointError(f"cannot load {weights} as {kind}: {error}") from error
    except (OSError, ValueError, TypeError, KeyError, RuntimeError) as error:
        raise CheckpointError(f"cannot load {weights} as {kind}: {_line(error)}") from error


def load_tensors(weights: Repository) -> dict[str, Any]:
    """The tensors of one safetensors file; errors as `load_pipeline`."""
    from idmetric.metric.checkpoints.weights import check_finite, read_tensors

    name = str(weights.file)
    path = resolve(weights.repo, [name], revision=weights.revision) / name
    tensors = read_tensors(path)
    check_finite(tensors, path)
    return tensors


def version(weights: Repository) -> str:
    """The commit of downloaded weights on the Hub, or the `fingerprint` of local weights."""
    if weights.local:
        return fingerprint(Path(weights.repo, weights.file or ""))
    files = [weights.file] if weights.file else ["model_index.json", "config.json"]
    return resolve(weights.repo, files, revision=weights.revision, local_files_only=True).name


def fingerprint(path: Path) -> str:
    """12 hex digits of a SHA-256 over a folder's files, or over one file: names, sizes and up to 256 samples of each.

    Samples, because hashing all of a model of 50 GB would take minutes. The path of the folder doesn't matter.
    """
    digest = hashlib.sha256()
    root, files = path.parent, [path]
    if path.is_dir():
        root, files = path, matching(path, "**/*")
    for file in files:
        if not file.is_file() or file.suffix not in _READ:
            continue
        size = file.stat().st_size
        digest.update(f"{file.relative_to(root).as_posix()}\0{size}\0".encode())
        with file.open("rb") as stream:
            for start in range(0, size, max(_SAMPLE, size // _SAMPLES)):
                stream.seek(start)
                digest.update(stream.read(_SAMPLE))
    return digest.hexdigest()[:12]


def _downloaded(weights: Repository, parts: Options) -> Path:
    """The folder of the components that a pipeline's index names and that `parts` do not replace."""
    from diffusers import DiffusionPipeline

    repo = weights.repo
    try:
        options = {"revision": weights.revision, "use_safetensors": True, **parts}
        return Path(DiffusionPipeline.download(repo, **options))
    except Exception as error:  # the Hub client raises OSError, ValueError and its HTTP library's own errors
        raise CheckpointError(
            f"cannot fetch {weights} from the Hub ({_line(error)}); if it is gated, accept its license at "
            f"https://huggingface.co/{repo} and run `hf auth login`; without a network, give a local folder: "
            "--weights NAME=FOLDER for generating, --model diffsim@FOLDER for the baseline"
        ) from error


def _line(error: Exception) -> str:
    text = " ".join(str(error).split()) or "no reason given"
    return f"{type(error).__name__}: {text[:300]}"
