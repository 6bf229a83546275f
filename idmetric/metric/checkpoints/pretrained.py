"""Models of transformers: classes of the installed package, filled with the safetensors of one folder.

transformers opens no file of weights itself. So it follows no index to other folders, adds no adapter, and fetches
nothing; settings that would have it import or fetch anything are refused before they reach it.

Functions raise CheckpointError, which names the folder or file.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from idmetric.metric.checkpoints.format import CONFIG, WEIGHTS, file_of, read_json, revision_of
from idmetric.metric.checkpoints.released import ADAPTER_CONFIG, PROCESSOR
from idmetric.metric.checkpoints.weights import check_finite, check_types, is_table, read_mapped, refuse
from idmetric.metric.errors import CheckpointError, understanding
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
    "auto_map",
    "custom_generate",
    "custom_pipelines",
    "quantization_config",
    "compression_config",
    "kernel_config",
    "use_kernels",
    "fusion_config",
    "backbone",
    "use_pretrained_backbone",
    "use_timm_backbone",
    "base_model_name_or_path",
    "audio_tokenizer",
    "audio_tokenizer_name_or_path",
    "configuration_files",
    "transformers_weights",
}
_IMPLEMENTATION = re.compile(r"_?(attn|experts)_implementation(_internal)?")
_BUILT_IN = (None, "eager", "sdpa")  # other implementations are packages, or kernels that are fetched
_LOCAL: dict[str, Any] = {"local_files_only": True, "trust_remote_code": False}


# Models


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
        dtype: default that of the config.json, else of the file.
        device: where its tensors are copied to, one after the other; None leaves them in the mappings of their files,
            whose changes would change them.
        unused: what names of tensors begin with that the file or the class may lack, as nothing here uses them.
        is_exact: whether the file may hold no other tensors.
    """
    import transformers

    check_settings(folder, parts)
    stored = read_shards(weight_files(folder))
    weights = {key: tensor for key, tensor in stored.items() if not _may_be_absent(key, unused)}
    check_types(weights, folder)

    with understanding(folder):
        architecture = getattr(transformers, class_name)
        model, report = architecture.from_pretrained(
            None,
            config=architecture.config_class.from_pretrained(folder, **_LOCAL),
            state_dict=dict(stored),
            dtype=dtype or "auto",
            ignore_mismatched_sizes=True,  # they are in the report
            output_loading_info=True,
            **_LOCAL,
        )
    check_report(report if is_exact else report | {"unexpected_keys": []}, folder, unused)
    state = {key: tensor for key, tensor in model.state_dict().items() if not _may_be_absent(key, unused)}
    check_finite(state, folder)
    if is_exact:
        _check_each_once(weights, state, folder)

    if device is not None:
        for key, tensor in [*model.named_parameters(), *model.named_buffers()]:
            if not key.startswith(tuple(unused)):
                tensor.data = tensor.data.to(device, copy=True)
    return model.eval()


def open_processor(class_name: str, folder: Path) -> Any:
    """A tokenizer or processor."""
    import transformers

    check_settings(folder)
    with understanding(folder):
        return getattr(transformers, class_name).from_pretrained(folder, **_LOCAL)


def check_report(report: Mapping[str, Any], folder: Path, unused: Sequence[str] = ()) -> None:
    """Check that transformers found exactly a model's tensors in its files: the ones that it did not stay random.

    Args:
        report: from `from_pretrained(..., output_loading_info=True)`.
        unused: see `open_model`.
    """
    faults = {
        "wrong shape": [str(fault) for fault in report["mismatched_keys"]],
        "error": [str(error) for error in report.get("error_msgs", ())],
    }
    for fault in ("missing", "unexpected"):
        names = sorted(report[f"{fault}_keys"])
        faults[fault] = [key for key in names if not _may_be_absent(key, unused)]
    refuse(faults, folder)


def _check_each_once(stored: Mapping[str, Tensor], state: Mapping[str, Tensor], folder: Path) -> None:
    """Refuse files that hold a tensor of the model by two names: transformers drops one of them without a word.

    The numbers are counted, as transformers renames and joins tensors. Those that the model ties may be stored by each
    of their names.
    """
    room = 0
    counted = set()
    for key in sorted(state, key=lambda key: key not in stored):  # stored names first
        address = state[key].data_ptr()
        if key in stored or address not in counted:
            room += state[key].numel()
        counted.add(address)
    surplus = sum(tensor.numel() for tensor in stored.values()) - room
    if surplus > 0:
        others = sorted(stored.keys() - state.keys())
        refuse({f"{surplus:,} numbers more than the model has, by two names": others or sorted(stored)}, folder)


def _may_be_absent(key: str, unused: Sequence[str]) -> bool:
    """Whether nothing depends on a tensor in the file: it is unused, or a table that its class computes as well."""
    return is_table(key) or key.endswith(("inv_freq", "box_bias")) or key.startswith(tuple(unused))


# Files


def folder_revision(folder: Path) -> str:
    """The revision of all files of a folder that may decide an output."""
    files = {*weight_files(folder), *matching(folder, *FILES)}
    return revision_of(*sorted(files))


def weight_files(folder: Path, name: str = WEIGHTS) -> list[Path]:
    """The file of that name with a model's weights, or those that its index names, which must lie in the folder."""
    index = folder / f"{name}.index.json"
    if (folder / name).is_file() or not index.is_file():
        return [file_of(folder, name)]
    root = folder.resolve()
    if root.parent.name == "snapshots":  # files of the Hub's cache are links to another folder of the repository
        root = root.parent.parent
    with understanding(index):
        shards = sorted(set(read_json(index)["weight_map"].values()))
        for shard in shards:
            if not (folder / shard).resolve().is_relative_to(root):
                raise CheckpointError(f"it names {shard!r}, which is not in its folder: copy the file there")
    return [folder / shard for shard in shards]


def read_shards(paths: Sequence[Path]) -> dict[str, Tensor]:
    """The tensors of several files, mapped, of any type; each tensor may be in one file only."""
    state: dict[str, Tensor] = {}
    for path in paths:
        tensors = read_mapped(path)
        refuse({"also in another file of the index:": sorted(state.keys() & tensors.keys())}, path)
        state |= tensors
    return state


# Settings


def check_settings(folder: Path, parts: Sequence[str] = ()) -> None:
    """Refuse a folder with an adapter, or with settings that have transformers import, fetch or read anything else.

    Args:
        parts: see `open_model`.
    """
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
            is_foreign = _IMPLEMENTATION.fullmatch(setting) and value not in _BUILT_IN
            if is_foreign or (setting in _REFUSED and value):
                raise CheckpointError(
                    f"{str(path)!r} asks for other code, models or files ({setting} = {value!r}), which are not "
                    "fetched, imported or read: remove the setting if the model is complete without it"
                )
            is_type = name == CONFIG and setting == "model_type"
            if parts and is_type and value and not str(value).startswith(tuple(parts)):  # "" by transformers 4
                raise CheckpointError(f"{str(path)!r} describes a model of type {value!r}, not {', '.join(parts)}")


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
