"""The published checkpoints, and readers of the formats their authors chose."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from idmetric.checkpoints import format as checkpoint
from idmetric.checkpoints.format import Checkpoint, CheckpointError, Files, Hub
from idmetric.checkpoints.pth_file import load_pickled_tensors
from idmetric.models import backbone as backbones
from idmetric.models import dinov3


@dataclass(frozen=True)
class Release:
    """One published checkpoint.

    Args:
        repo: Hub repository. revision: its pinned commit, where known.
        backbone: timm's name of the backbone, or the base model's.
        licence: of the weights, as far as it could be confirmed.
        gigabytes: size of the download, backbone included, from the number of parameters.
        resolution: how large images are seen.
    """

    repo: str
    revision: str | None
    backbone: str
    licence: str
    gigabytes: float
    resolution: str


# Backbones: DINOv3 under Meta's "dinov3-license", DINOv2 under Apache-2.0. Of the heads and adapters only the ViT-B/14
# repository's licence could be confirmed; the code of the release is MIT.
IDSIM: dict[str, Release] = {
    "dinov3_vitl16": Release(
        "chaenayo/id-sim_dinov3_vitl16_cls_patch", None, "vit_large_patch16_dinov3.lvd1689m", "dinov3-license", 1.2,
        "448x448",
    ),
    "dinov3_vitb16": Release(
        "chaenayo/id-sim_dinov3_vitb16_cls_patch", None, "vit_base_patch16_dinov3.lvd1689m", "dinov3-license", 0.4,
        "448x448",
    ),
    "dinov2_vitl14": Release(
        "chaenayo/id-sim_dinov2_vitl14_cls_patch", None, "vit_large_patch14_dinov2.lvd142m", "apache-2.0", 1.2,
        "448x448",
    ),
    "dinov2_vitb14": Release(
        "chaenayo/id-sim_dinov2_vitb14_cls_patch", "bcd3f388bec7db42e75b165e235196833111c4ae",
        "vit_base_patch14_dinov2.lvd142m", "mit", 0.4, "448x448",
    ),
}  # fmt: skip

# the code's licence; the weights' could not be confirmed
NEARID: dict[str, Release] = {
    "nearid": Release("Aleksandar/nearid-siglip2", None, "vit_so400m_patch14_siglip_384", "apache-2.0", 0.9, "384x384"),
}

# the weights' licence could not be confirmed
VISID: dict[str, Release] = {
    "visid_3b": Release("HugC/VisME-Qwen25VL-3B", None, "Qwen2.5-VL-3B", "unknown", 7.5, "<=200704px"),
    "visid_7b": Release("HugC/VisME-Qwen25VL-7B", None, "Qwen2.5-VL-7B", "unknown", 16.6, "<=200704px"),
}


IDSIM_SIZE = 448
_CLS_PATCH = "_cls_patch"  # ends the ID-Sim release's names
ADAPTER_CONFIG, ADAPTER = "adapter_config.json", "adapter_model.safetensors"
HEADS = {"mlp_cls": "mlp_cls.pth", "mlp_patch": "mlp_patch.pth"}
_PREFIX = "base_model.model."
_TRUNK = "extractor.model."
PROCESSOR = "preprocessor_config.json"


def models() -> dict[str, Release]:
    """Every published model under the name that `idmetric.load` and the command line know."""
    return {**IDSIM, **NEARID, **VISID}


def find(name: str, releases: Mapping[str, Release]) -> Release | None:
    """The release of that name, or in that Hub repository; a local folder comes first.

    The ID-Sim release's own names count too, e.g. "dinov3_vitl16_cls_patch".
    """
    if Path(name).is_dir():
        return None
    return releases.get(name.removesuffix(_CLS_PATCH)) or next(
        (release for release in releases.values() if release.repo == name), None
    )


def files_of(name: str, releases: Mapping[str, Release], hub: Hub) -> Files:
    """The files of a release, at its pinned revision unless `hub` says another; of a folder or repository otherwise."""
    release = find(name, releases)
    if release is None:
        return Files(name, hub)
    return Files(release.repo, replace(hub, revision=hub.revision or release.revision))


def is_cached(release: Release) -> bool:
    """Whether everything that loading needs is in the Hub cache, an ID-Sim's backbone as well."""
    hub, index = Hub(revision=release.revision), "model.safetensors.index.json"
    if release in IDSIM.values():
        backbone = str(backbones.pretrained_config(release.backbone).hf_hub_id)
        ours = all(checkpoint.cached(release.repo, file, hub) for file in (ADAPTER_CONFIG, ADAPTER, *HEADS.values()))
        return ours and checkpoint.cached(backbone, checkpoint.WEIGHTS) is not None
    if (path := checkpoint.cached(release.repo, index, hub)) is not None:
        weights = sorted({str(shard) for shard in checkpoint.read_json(path).get("weight_map", {}).values()})
    else:
        weights = [checkpoint.WEIGHTS]
    files = [checkpoint.CONFIG, PROCESSOR, *weights, *(["tokenizer.json"] if release in VISID.values() else [])]
    return bool(weights) and all(checkpoint.cached(release.repo, file, hub) for file in files)


def idsim_variant(folder: str | os.PathLike[str]) -> str | None:
    """The released ID-Sim variant that a folder's name contains, e.g. "id-sim_dinov3_vitb16_cls_patch".

    For a folder of the Hub cache (`snapshots/<commit>`), the repository's name counts.
    """
    name = checkpoint.hub_name(folder) or Path(folder).resolve().name
    return next((variant for variant in IDSIM if variant in name), None)


def short_name(source: str) -> str:
    """The one name of a model: without the release's "_cls_patch", `owner/name` for a folder of the Hub cache."""
    if Path(source).is_dir():
        return checkpoint.hub_name(source) or source
    short = source.removesuffix(_CLS_PATCH)
    return short if short in IDSIM else source


def idsim_cache(cache_dir: str | os.PathLike[str], variant: str) -> tuple[Path, Path | None] | None:
    """A variant's files where the ID-Sim release's loader keeps them: its folder, and Meta's backbone file if present.

    None if the folder `<variant>_cls_patch` in `cache_dir` holds no adapter.
    """
    folder = Path(cache_dir, variant + _CLS_PATCH)
    if not (folder / ADAPTER_CONFIG).is_file():
        return None
    backbones_there = [*Path(cache_dir).glob(f"checkpoints/{variant}_pretrain*.pth"),
                       *Path(cache_dir).glob(f"{variant}_pretrain*.pth")]  # fmt: skip
    return folder, next(iter(sorted(backbones_there)), None)


def read_idsim(
    release: Release,
    files: Files,
    *,
    backbone_args: Mapping[str, Any] | None = None,
    backbone_weights: str | os.PathLike[str] | None = None,
    image_size: int = IDSIM_SIZE,
) -> Checkpoint:
    """Read an ID-Sim checkpoint as its authors published it: a PEFT adapter and two heads, over a frozen backbone.

    The adapter is folded into timm's weights. Official file names and key prefixes are expected; PEFT may have wrapped
    the patch embedding and the heads as well, as it does when `target_modules` is a list of name endings. A DINOv3 with
    query or value biases, in its file or in the adapter, becomes timm's variant with them.

    Args:
        release: which backbone.
        files: folder or Hub repository with the four official files.
        backbone_args: more arguments of `timm.create_model`.
        backbone_weights: local file with the backbone, instead of timm's Hub repository: safetensors in timm's format,
            or Meta's .pth.
        image_size: input side in pixels (the release's is 448).

    Returns:
        A checkpoint in our own format, `config` fitting `IDSimConfig`; its revision names both parts, as
        "adapter+backbone".

    Raises:
        CheckpointError: naming the file that is missing, unreachable or not understood.
    """
    # the adapter's files first: they are small, and say early that there is no network
    adapter_config = checkpoint.read_json(files[ADAPTER_CONFIG])
    adapter = checkpoint.read_finite(files[ADAPTER])
    heads = {name: _read_head(files[file], adapter_config) for name, file in HEADS.items()}
    hub = replace(files.hub, revision=None)  # the revision is the adapter's, not the backbone's
    weights = backbone_weights or backbones.pretrained_file(release.backbone, hub)
    with checkpoint.understanding(files[ADAPTER]), checkpoint.naming(files[ADAPTER]):
        changes = _trunk_adapter(adapter)
    with checkpoint.naming(weights):
        name, trunk = release.backbone, backbones.read_weights(weights)
        if "dinov3" in name:
            changes = dinov3.timm_names(changes)
            name = dinov3.with_biases(name, trunk, changes)
        trunk = backbones.fitted(name, trunk, weights, backbone_args)
        if "dinov2" in name:
            # Meta's DINOv2 resamples its position embedding without antialiasing and with a slightly larger factor;
            # timm's resampling differs, so it is done here on the table of the pretrained size
            side = image_size // trunk["patch_embed.proj.weight"].shape[-1]
            trunk["pos_embed"] = resample_dinov2_positions(trunk["pos_embed"], side)
    with checkpoint.understanding(files[ADAPTER]), checkpoint.naming(files[ADAPTER]):
        trunk = checkpoint.fold_lora(trunk, changes, adapter_config, prefix=_TRUNK)
    state = {f"backbone.{key}": value for key, value in trunk.items()}
    state |= {f"{name}.{key}": value for name, head in heads.items() for key, value in head.items()}
    config: dict[str, Any] = {
        "model_type": "idsim",
        "format": checkpoint.FORMAT,
        "backbone": name,
        "backbone_args": dict(backbone_args or {}),
        "image_size": image_size,
        "hidden": heads["mlp_cls"]["fc1.weight"].shape[0],
    }
    ours = checkpoint.revision_of(*(files[file] for file in (ADAPTER, ADAPTER_CONFIG, *HEADS.values())))
    revision = f"{ours}+{checkpoint.revision_of(weights)[:12]}"
    return Checkpoint(config, state, files.name, revision, files)


def _trunk_adapter(adapter: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The adapter's tensors for the backbone; those for the heads stand in the heads' own files too, which win."""
    found = {}
    for key, value in adapter.items():
        name = key.removeprefix(_PREFIX)
        if name.startswith(_TRUNK):
            found[name.removeprefix(_TRUNK).replace(".base_layer.", ".")] = value
        elif not name.startswith(tuple(HEADS)):
            raise CheckpointError(f"the adapter holds {key!r}: not a layer of ID-Sim's backbone or heads")
    return found


def _read_head(path: Path, adapter_config: Mapping[str, Any]) -> dict[str, Tensor]:
    try:
        state = load_pickled_tensors(path)  # the heads are published as pickles
    except (OSError, ValueError) as error:
        raise CheckpointError(f"cannot read the head {str(path)!r}: {error}") from error
    checkpoint.check_finite(state, path)
    trained = "modules_to_save.default."  # PEFT's copy of a module that it trains whole, beside the original
    if any(key.startswith(trained) for key in state):
        state = {key.removeprefix(trained): value for key, value in state.items() if key.startswith(trained)}
    plain = {key.replace(".base_layer.", "."): value for key, value in state.items() if ".lora_" not in key}
    lora = {key: value for key, value in state.items() if ".lora_" in key}
    with checkpoint.understanding(path), checkpoint.naming(path):
        folded = checkpoint.fold_lora(plain, lora, adapter_config, prefix=f"{path.stem}.")
        if "fc1.weight" not in folded:
            raise CheckpointError("not an ID-Sim head: it has no fc1.weight")
    return folded


def resample_dinov2_positions(table: Tensor, side: int) -> Tensor:
    """DINOv2's position embedding (1, 1 + n * n, D) for a grid of side x side patches, as Meta's code computes it.

    Bicubic, not antialiased, with the scale factor (side + 0.1) / n.
    """
    n = round((table.shape[1] - 1) ** 0.5)
    if n == side:
        return table
    grid = table[:, 1:].float().reshape(1, n, n, -1).permute(0, 3, 1, 2)
    factor = (side + 0.1) / n
    grid = F.interpolate(grid, scale_factor=(factor, factor), mode="bicubic", antialias=False)
    if grid.shape[-2:] != (side, side):
        raise CheckpointError(f"cannot resample a position embedding of {n} x {n} to {side} x {side}")
    return torch.cat([table[:, :1].float(), grid.permute(0, 2, 3, 1).reshape(1, side * side, -1)], 1)


# NearID

_ACTIVATIONS = {"gelu_pytorch_tanh": "gelu_tanh", "gelu": "gelu"}
_RESAMPLING = {1: "lanczos", 2: "bilinear", 3: "bicubic"}  # Pillow's numbers
_NEARID_PREFIX = re.compile(r"(?:backbone\.)?(?:vision_model\.)?")
_NEARID_NAMES = {
    r"embeddings\.patch_embedding\.": "patch_embed.proj.",
    r"embeddings\.position_embedding\.weight": "pos_embed",
    r"encoder\.layers\.(\d+)\.layer_norm([12])\.": r"blocks.\1.norm\2.",
    r"encoder\.layers\.(\d+)\.self_attn\.([qkv])_proj\.": r"blocks.\1.attn.\2.",
    r"encoder\.layers\.(\d+)\.self_attn\.out_proj\.": r"blocks.\1.attn.proj.",
    r"encoder\.layers\.(\d+)\.mlp\.": r"blocks.\1.mlp.",
    r"post_layernorm\.": "norm.",
    r"head\.probe": "attn_pool.latent",
    r"head\.attention\.in_proj_": "attn_pool.in.",
    r"head\.attention\.out_proj\.": "attn_pool.proj.",
    r"head\.layernorm\.": "attn_pool.norm.",
    r"head\.mlp\.": "attn_pool.mlp.",
}


def read_nearid(files: Files) -> Checkpoint:
    """Read a NearID model folder or Hub repository: as its authors published it, or in our own format.

    The published format is that of transformers' SigLIP (config.json with a `vision_config`, preprocessor_config.json,
    one safetensors file); none of its code is run.

    Returns:
        A checkpoint in our own format, `config` fitting `NearIDConfig`.

    Raises:
        CheckpointError: naming the file that is missing, unreachable or not understood.
    """
    published = checkpoint.read_json(files[checkpoint.CONFIG])
    if "vision_config" not in published:
        return checkpoint.read(files)
    with checkpoint.understanding(files.name):
        config = _nearid_config(published, str(files[checkpoint.CONFIG]))
        processor = checkpoint.read_json(files[PROCESSOR])
        config |= _nearid_processing(processor, config["image_size"], str(files[PROCESSOR]))
    weights = files[checkpoint.WEIGHTS]
    with checkpoint.understanding(weights), checkpoint.naming(weights):
        state = {f"backbone.{key}": value for key, value in nearid_names(checkpoint.read_finite(weights)).items()}
    revision = checkpoint.revision_of(weights, files[PROCESSOR], files[checkpoint.CONFIG])
    return Checkpoint(config, state, files.name, revision, files)


def read_siglip(files: Files) -> Checkpoint:
    """Read SigLIP or SigLIP2 (of one resolution) as transformers stores it: what NearID is before it is trained.

    The tensors of the text tower are not read.

    Returns:
        As `read_nearid`; the head is SigLIP's own.

    Raises:
        CheckpointError: naming the file that is missing, unreachable or not understood.
    """
    published = checkpoint.read_json(files[checkpoint.CONFIG])
    name, kind = str(files[checkpoint.CONFIG]), published.get("model_type")
    if kind not in ("siglip", "siglip_vision_model"):
        raise CheckpointError(f"{name!r} describes a model of type {kind!r}, not a SigLIP of one resolution ('siglip')")
    vision = published.get("vision_config", {}) if kind == "siglip" else published
    with checkpoint.understanding(files.name):
        config = _nearid_config({"model_type": "nearid", "vision_config": vision}, name)
        processor = checkpoint.read_json(files[PROCESSOR])
        config |= _nearid_processing(processor, config["image_size"], str(files[PROCESSOR]))
    weights = files[checkpoint.WEIGHTS]
    with checkpoint.understanding(weights), checkpoint.naming(weights):
        tensors = checkpoint.read_tensors(weights)  # mapped: what is left out is not read
        tower = {key: value for key, value in tensors.items() if not key.startswith(("text_model.", "logit_"))}
        checkpoint.check_finite(tower, weights)
        state = {f"backbone.{key}": value for key, value in nearid_names(tower).items()}
    return Checkpoint(config, state, files.name, checkpoint.revision_of(weights, files[PROCESSOR]), files)


def _nearid_config(published: Mapping[str, Any], name: str) -> dict[str, Any]:
    vision = published["vision_config"]
    if published.get("model_type") != "nearid" or not isinstance(vision, dict):
        raise CheckpointError(f"{name!r} describes a model of type {published.get('model_type')!r}, not 'nearid'")

    def get(key: str, default: Any) -> Any:  # transformers leaves out what equals its own default
        return vision.get(key, default)

    activation, epsilon = get("hidden_act", "gelu_pytorch_tanh"), get("layer_norm_eps", 1e-6)
    if activation not in _ACTIVATIONS or epsilon != 1e-6 or get("num_channels", 3) != 3:
        raise CheckpointError(
            f"{name!r} asks for activation {activation!r}, epsilon {epsilon} and {get('num_channels', 3)} channels; "
            f"supported are {', '.join(_ACTIVATIONS)}, 1e-06 and 3"
        )
    width, inner = get("hidden_size", 768), get("intermediate_size", 3072)
    if published.get("embed_dim", width) != width:
        raise CheckpointError(f"{name!r} projects {width} features to {published['embed_dim']}: not supported")
    return {
        "model_type": "nearid",
        "format": checkpoint.FORMAT,
        "backbone": NEARID["nearid"].backbone,
        "image_size": get("image_size", 224),
        "backbone_args": {
            "patch_size": get("patch_size", 16),
            "embed_dim": width,
            "depth": get("num_hidden_layers", 12),
            "num_heads": get("num_attention_heads", 12),
            "mlp_ratio": (inner + 0.5) / width,  # timm truncates ratio * width
            "act_layer": _ACTIVATIONS[activation],
        },
    }


def _nearid_processing(processor: Mapping[str, Any], side: int, name: str) -> dict[str, Any]:
    for step in ("do_resize", "do_rescale", "do_normalize"):
        if not processor.get(step, True):
            raise CheckpointError(f"{name!r} leaves out a step of the preprocessing ({step}): not supported")
    size = processor.get("size", side)
    if size not in (side, {"height": side, "width": side}) or processor.get("do_center_crop"):
        raise CheckpointError(f"{name!r} resizes to {size} or crops; supported: squashing to {side} x {side}")
    if abs(processor.get("rescale_factor", 1 / 255) - 1 / 255) > 1e-8:
        raise CheckpointError(f"{name!r} scales pixels by {processor['rescale_factor']}, not by 1/255: not supported")
    resample = processor.get("resample", 3)
    if resample not in _RESAMPLING:
        raise CheckpointError(f"{name!r} resizes with Pillow's filter {resample}; supported: {sorted(_RESAMPLING)}")
    half = [0.5, 0.5, 0.5]
    mean, std = processor.get("image_mean", half), processor.get("image_std", half)
    if not all(isinstance(x, list) and len(x) == 3 for x in (mean, std)):
        raise CheckpointError(f"{name!r} has image_mean {mean} and image_std {std}; three numbers each are needed")
    return {"interpolation": _RESAMPLING[resample], "mean": mean, "std": std}


def nearid_names(state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The tensors of transformers' SigLIP vision model under timm's names.

    Raises:
        CheckpointError: naming a tensor that no such model has.
    """
    found: dict[str, Tensor] = {}
    for key, value in state.items():
        short = _NEARID_PREFIX.sub("", key, count=1)
        for pattern, name in _NEARID_NAMES.items():
            renamed, hits = re.subn(f"^{pattern}", name, short)
            if hits:
                found[renamed] = value
                break
        else:
            raise CheckpointError(f"the checkpoint holds {key!r}: not a layer of a SigLIP vision model")
    for key in [key for key in found if re.search(r"attn\.q\.", key)]:
        parts = [found.pop(key.replace("attn.q.", f"attn.{x}."), None) for x in "qkv"]
        if any(part is None for part in parts):
            raise CheckpointError(f"the checkpoint lacks a part of {key.replace('attn.q.', 'attn.qkv.')}")
        found[key.replace("attn.q.", "attn.qkv.")] = torch.cat(parts)  # type: ignore[arg-type]  # checked above
    for kind in ("weight", "bias"):
        if (joint := found.pop(f"attn_pool.in.{kind}", None)) is not None:
            width = len(joint) // 3
            found[f"attn_pool.q.{kind}"], found[f"attn_pool.kv.{kind}"] = joint[:width], joint[width:]
    if "pos_embed" in found:
        found["pos_embed"] = found["pos_embed"][None]
    return found
