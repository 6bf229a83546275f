"""Models of transformers: classes of the installed package, filled with the safetensors of one folder.

transformers opens no file of weights itself. So it follows no index to other folders, adds no adapter, and fetches
nothing; settings that would have it import or fetch anything are refused before they reach it.

Functions raise CheckpointError, which names the folder or file.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path, PurePosixPath
from typing import Any

import torch
from torch import Tensor

from idmetric.metric.checkpoints.format import CONFIG, WEIGHTS, read_json, revision_of
from idmetric.metric.checkpoints.released import ADAPTER_CONFIG, PROCESSOR
from idmetric.metric.checkpoints.weights import (
    check_loaded,
    check_types,
    is_table,
    last_part,
    read_mapped,
    refuse,
)
from idmetric.metric.errors import CheckpointError
from idmetric.metric.paths import matching

FILES = ("*.json", "*.safetensors", "*.txt", "*.jinja", "*.model")  # of a Hub repository: no code, no pickles

_SETTINGS = (
    CONFIG,
    PROCESSOR,
    "processor_config.json",
    "video_preprocessor_config.json",
    "audio_tokenizer_config.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
)
# settings with which transformers imports or fetches something, or reads other files, in any of these files
_REFUSED = {
    "auto_map": "code of the repository",
    "custom_generate": "code of the repository",
    "custom_pipelines": "code of the repository",
    "quantization_config": "a package that quantizes",
    "compression_config": "a package that quantizes",
    "kernel_config": "kernels from the Hub",
    "use_kernels": "kernels from the Hub",
    "fusion_config": "changes of transformers' classes",
    "backbone": "another model",
    "use_pretrained_backbone": "another model",
    "use_timm_backbone": "another model",
    "base_model_name_or_path": "another model",
    "audio_tokenizer": "another model",
    "audio_tokenizer_name_or_path": "another model",
    "configuration_files": "another config.json",
    "transformers_weights": "another file of weights",
}
_IMPLEMENTATION = re.compile(r"_?(attn|experts)_implementation(_internal)?")
_BUILT_IN = (None, "eager", "sdpa")  # other implementations are packages, or kernels that are fetched
_LOCAL: dict[str, Any] = {"local_files_only": True, "trust_remote_code": False}


def open_model(
    class_name: str,
    folder: Path,
    parts: Sequence[str] = (),
    *,
    dtype: torch.dtype | None = None,
    device: torch.device | str | None = None,
    unused: Sequence[str] = (),
    is_exact: bool = True,
) -> Any:
    """A model in eval mode, filled exactly.

    Args:
        class_name: in transformers.
        parts: what each `model_type` in the config.json begins with, for the model and the models inside it; () any.
            transformers 4 wrote "" for some models inside.
        dtype: default that of the config.json, else of the file.
        device: where its tensors are copied to, one after the other; None leaves them in the mappings of their files,
            whose changes would change them.
        unused: what names of tensors begin with that the file or the class may lack, as nothing here uses them.
        is_exact: whether the file may hold no other tensors.
    """
    check_settings(folder)
    if parts:
        _check_parts(folder / CONFIG, parts)
    state = read_shards(weight_files(folder))
    weights = {key: tensor for key, tensor in state.items() if not is_table(key) and not key.startswith(tuple(unused))}
    check_types(weights, str(folder))

    model, report = _filled(class_name, folder, state, dtype)
    persistent = {last_part(key) for key in model.state_dict()}
    computed = {last_part(key) for key, _ in model.named_buffers()} - persistent
    unexpected = []
    if is_exact:
        unexpected = [key for key in report["unexpected_keys"] if last_part(key) not in computed]
    check_report(report | {"unexpected_keys": unexpected}, str(folder), unused)
    check_types({key: tensor for key, tensor in state.items() if last_part(key) in persistent}, str(folder))
    check_loaded(model.state_dict(), state, str(folder))
    if is_exact:
        used = {key: tensor for key, tensor in weights.items() if last_part(key) not in computed}
        filled = {key: tensor for key, tensor in model.state_dict().items() if not key.startswith(tuple(unused))}
        _check_all_used(used, filled, folder)

    if device is not None:
        for key, tensor in [*model.named_parameters(), *model.named_buffers()]:
            if not key.startswith(tuple(unused)):
                tensor.data = tensor.data.to(device, copy=True)
    return model.eval()


def _filled(class_name: str, folder: Path, state: Mapping[str, Tensor], dtype: torch.dtype | None) -> tuple[Any, Any]:
    """A model of transformers, and its report of missing, unexpected and mismatched tensors."""
    import transformers

    architecture = getattr(transformers, class_name)
    try:
        config = architecture.config_class.from_pretrained(folder, **_LOCAL)
        model, report = architecture.from_pretrained(
            None,
            config=config,
            state_dict=dict(state),
            dtype=dtype or "auto",
            ignore_mismatched_sizes=True,  # they are in the report
            output_loading_info=True,
            **_LOCAL,
        )
    except Exception as error:  # of many kinds, for damaged files
        raise _cannot_open(class_name, folder, error) from error
    return model, report


def check_report(report: Mapping[str, Any], name: str, unused: Sequence[str] = ()) -> None:
    """Check that transformers found exactly a model's tensors in its files: the ones that it did not stay random.

    Args:
        report: from `from_pretrained(..., output_loading_info=True)`.
        unused: what names of tensors begin with that may be missing or unexpected. So may tables of positions, which
            classes of transformers compute.
    """
    faults = {}
    for fault in ("missing", "unexpected"):
        names = sorted(report[f"{fault}_keys"])
        faults[fault] = [key[:80] for key in names if not key.startswith(tuple(unused)) and not is_table(key)]
    faults["wrong shape"] = [str(fault)[:300] for fault in report["mismatched_keys"]]
    faults["error"] = [str(error)[:300] for error in report.get("error_msgs", ())]
    refuse(faults, name)


def _check_all_used(stored: Mapping[str, Tensor], filled: Mapping[str, Tensor], folder: Path) -> None:
    """Refuse files that hold a tensor of the model by two names: transformers drops one of them without a word.

    Tensors that the model ties may be stored by each of their names.
    """
    names_of_tensor: dict[int, list[str]] = {}
    for key, tensor in filled.items():
        if not is_table(key):
            names_of_tensor.setdefault(tensor.data_ptr(), []).append(key)
    room = 0
    for names in names_of_tensor.values():
        times_stored = sum(name in stored for name in names)
        room += filled[names[0]].numel() * max(1, times_stored)
    surplus = sum(tensor.numel() for tensor in stored.values()) - room
    if surplus > 0:
        others = sorted(key[:80] for key in stored.keys() - filled.keys())
        raise CheckpointError(
            f"{str(folder)!r} holds {surplus:,} numbers more than the model: tensors are there by two names, such as "
            f"those of two releases ({', '.join(others[:5])}); save the model again"
        )


def open_processor(class_name: str, folder: Path) -> Any:
    """A tokenizer or processor."""
    import transformers

    check_settings(folder)
    try:
        return getattr(transformers, class_name).from_pretrained(folder, **_LOCAL)
    except Exception as error:  # of many kinds, for damaged files
        raise _cannot_open(class_name, folder, error) from error


def _cannot_open(class_name: str, folder: Path, error: Exception) -> CheckpointError:
    return CheckpointError(f"transformers cannot open {str(folder)!r} as {class_name}: {type(error).__name__}: {error}")


def folder_revision(folder: Path) -> str:
    """The revision of all files of a folder that may decide an output."""
    files = {*weight_files(folder), *matching(folder, *FILES)}
    return revision_of(*sorted(files))


def weight_files(folder: Path, name: str = WEIGHTS) -> list[Path]:
    """The file of that name with a model's weights, or those that its index names, which must lie in the folder."""
    single = folder / name
    if single.is_file():
        return [single]
    index = folder / f"{name}.index.json"
    if not index.is_file():
        raise CheckpointError(f"{str(folder)!r} has no safetensors file: neither {name} nor {index.name}")
    weight_map = read_json(index).get("weight_map")
    if not isinstance(weight_map, dict) or not all(isinstance(shard, str) for shard in weight_map.values()):
        raise CheckpointError(f"{str(index)!r} is damaged: its weight_map is not a table of tensors and files")
    return [_inside(folder, shard, index) for shard in sorted(set(weight_map.values()))]


def _inside(folder: Path, name: str, index: Path) -> Path:
    """The path of a file that an index names; files of the Hub's cache are links to other folders of the repository."""
    root = folder.resolve()
    if root.parent.name == "snapshots":
        root = root.parent.parent
    path = folder / name
    is_plain = not PurePosixPath(name).is_absolute() and ".." not in PurePosixPath(name).parts
    if not is_plain or not path.resolve().is_relative_to(root):
        raise CheckpointError(f"{str(index)!r} names {name!r}, which is not in its folder: copy the file there")
    return path


def read_shards(paths: Sequence[Path]) -> dict[str, Tensor]:
    """The tensors of several files, mapped, of any type; each tensor may be in one file only."""
    state: dict[str, Tensor] = {}
    for path in paths:
        tensors = read_mapped(path)
        repeated = sorted(state.keys() & tensors.keys())
        if repeated:
            raise CheckpointError(
                f"{str(path)!r} holds {repeated[0][:80]}, which another file of its index holds as well"
            )
        state |= tensors
    return state


def check_settings(folder: Path) -> None:
    """Refuse a folder with an adapter, or with settings that have transformers import, fetch or read anything else."""
    if (folder / ADAPTER_CONFIG).exists():
        raise CheckpointError(
            f"{str(folder)!r} holds an adapter ({ADAPTER_CONFIG}): merge it into its base model with peft "
            "(merge_and_unload), and save that"
        )
    for name in _SETTINGS:
        path = folder / name
        if not path.is_file():
            continue
        for setting, value in _all_settings(read_json(path)):
            _check_setting(path, setting, value)


def _check_setting(path: Path, setting: str, value: Any) -> None:
    if _IMPLEMENTATION.fullmatch(setting) and value not in _BUILT_IN:
        raise CheckpointError(
            f"{str(path)!r} asks for code in place of PyTorch's ({setting} = {value!r}), which is not fetched or "
            "imported: remove the setting"
        )
    if setting in _REFUSED and value:
        raise CheckpointError(
            f"{str(path)!r} asks for {_REFUSED[setting]} ({setting}), which is not fetched, imported or read: "
            "remove the setting if the model is complete without it"
        )


def _check_parts(path: Path, parts: Sequence[str]) -> None:
    for setting, value in _all_settings(read_json(path)):
        if setting == "model_type" and value and not str(value).startswith(tuple(parts)):
            raise CheckpointError(
                f"{str(path)!r} describes a model of type {value!r}: supported are {', '.join(parts)}"
            )


def _all_settings(settings: Any) -> Iterator[tuple[str, Any]]:
    """Names and values at all depths."""
    remaining = [settings]
    while remaining:
        value = remaining.pop()
        if isinstance(value, dict):
            yield from value.items()
            remaining += value.values()
        elif isinstance(value, list):
            remaining += value
