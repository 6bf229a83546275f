"""Weights of diffusion models and their licenses; only safetensors are loaded, and no code of repositories is run."""

from __future__ import annotations

import importlib
import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from idmetric.metric.checkpoints.resolve import resolve
from idmetric.metric.errors import CheckpointError, understanding
from idmetric.metric.paths import matching

Options = dict[str, Any]  # settings, or arguments of a pipeline, by name

# parts of Stable Diffusion's pipelines: the safety checker would add black images to the data
NO_CHECKER: Options = {"safety_checker": None, "requires_safety_checker": False}
_INDEX = "model_index.json"  # of a pipeline: component -> [library, class]
_WEIGHTS = "diffusion_pytorch_model.safetensors"
_FILES = ("**/*.safetensors", "**/*.json", "**/*.txt", "**/*.model", "**/*.jinja")  # that pipelines load
_LIBRARIES = ("diffusers", "transformers")  # of a pipeline's models


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
        if not re.fullmatch(r"[^./][^/]*/[^/]*", repo):
            raise CheckpointError(f"{place!r} is not a folder, a file of weights, or owner/name[@revision] on the Hub")
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


def load_pipeline(kind: str, weights: Repository, place: Place, **parts: Any) -> Any:
    """A pipeline of diffusers' class `kind`, on the CPU, in the place's dtype; `parts` replace components.

    Raises:
        CheckpointError: naming the weights, if they cannot be downloaded, have no safetensors, or do not fit the class.
    """
    folder = Path(weights.repo)
    if not weights.local:
        folder = _downloaded(weights, parts)
    for file in [*folder.glob("*.py"), *folder.glob("*/*.py")]:  # hidden ones too: some versions of diffusers run it
        raise CheckpointError(f"{weights} holds {file.relative_to(folder)}, and code is not run")
    with understanding(f"{weights} as {kind}"):
        for component, library, class_name in _models_of(folder):
            if component not in parts:
                parts[component] = _filled(library, class_name, folder / component, place)
        return _from_pretrained(kind, folder, place, **parts)


def load_model(kind: str, weights: Repository, place: Place) -> Any:
    """A model of diffusers' class `kind`; place and errors as `load_pipeline`."""
    from idmetric.metric.checkpoints.pretrained import FILES

    folder = resolve(weights.repo, FILES, revision=weights.revision, advice="--set ENGINE.controlnet=FOLDER")
    with understanding(f"{weights} as {kind}"):
        return _filled("diffusers", kind, folder, place)


def load_tensors(weights: Repository) -> dict[str, Any]:
    """The tensors of one safetensors file; errors as `load_pipeline`."""
    from idmetric.metric.checkpoints.weights import check_finite, read_tensors

    name = str(weights.file)
    path = resolve(weights.repo, [name], revision=weights.revision) / name
    tensors = read_tensors(path)
    check_finite(tensors, path)
    return tensors


def version(weights: Repository) -> str:
    """The commit of downloaded weights on the Hub, or 12 hex digits of a digest of local files."""
    from idmetric.metric.checkpoints.format import content_digest

    if not weights.local:
        files = [weights.file] if weights.file else [_INDEX, "config.json"]
        return resolve(weights.repo, files, revision=weights.revision, local_files_only=True).name
    if weights.file:
        return content_digest(Path(weights.repo, weights.file))
    return content_digest(*sorted(matching(Path(weights.repo), *_FILES)))


def _models_of(folder: Path) -> Iterator[tuple[str, str, str]]:
    """Name, library and class of each component of a pipeline that has weights."""
    import torch

    from idmetric.metric.checkpoints.format import read_json

    for component, entry in read_json(folder / _INDEX).items():
        if not isinstance(entry, list) or entry[0] not in _LIBRARIES:
            continue
        library, class_name = entry
        kind = getattr(importlib.import_module(library), class_name)
        if issubclass(kind, torch.nn.Module):
            yield component, library, class_name


def _filled(library: str, class_name: str, folder: Path, place: Place) -> Any:
    """A model of diffusers or transformers, each tensor of which is in its files; they may hold more."""
    from idmetric.metric.checkpoints import pretrained
    from idmetric.metric.checkpoints.weights import check_finite, check_types

    if library == "transformers":
        return pretrained.open_model(class_name, folder, dtype=place.torch_dtype(), is_exact=False)
    pretrained.check_settings(folder)
    stored = pretrained.read_shards(pretrained.weight_files(folder, _WEIGHTS))
    check_types(stored, str(folder))
    model, report = _from_pretrained(class_name, folder, place, output_loading_info=True)
    pretrained.check_report(report | {"unexpected_keys": []}, folder)
    check_finite(model.state_dict(), folder)
    return model


def _from_pretrained(kind: str, folder: Path, place: Place, **options: Any) -> Any:
    import diffusers
    from packaging.version import Version

    is_new = Version(diffusers.__version__) >= Version("0.42")
    options["dtype" if is_new else "torch_dtype"] = place.torch_dtype()
    return getattr(diffusers, kind).from_pretrained(folder, use_safetensors=True, local_files_only=True, **options)


def _downloaded(weights: Repository, parts: Options) -> Path:
    """The folder of the components that a pipeline's index names and that `parts` do not replace."""
    from diffusers import DiffusionPipeline

    options = {"revision": weights.revision, "use_safetensors": True, **parts}
    try:
        return Path(DiffusionPipeline.download(weights.repo, **options))
    except Exception as error:  # the Hub client raises OSError, ValueError and its HTTP library's own errors
        raise CheckpointError(
            f"cannot fetch {weights} from the Hub ({type(error).__name__}: {error}); if it is gated, accept its "
            f"license at https://huggingface.co/{weights.repo} and run `hf auth login`; or give a local folder"
        ) from error
