"""NearID (Cvejic et al., "NearID: Identity Representation Learning via Near-identity Distractors", arXiv 2604.01973).

A frozen SigLIP2 trunk under a trained attention-pooling (MAP) head.

The embedding is the head's output scaled to unit length; the distance is 1 - cosine. Patch tokens are those the head
pools, the trunk's last after its final norm: training left them as SigLIP2 made them.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from idmetric.metric.checkpoints import format as checkpoint
from idmetric.metric.checkpoints.format import Checkpoint, file_of
from idmetric.metric.checkpoints.released import PROCESSOR, short_name, source_name
from idmetric.metric.checkpoints.resolve import resolve
from idmetric.metric.checkpoints.weights import check_finite, load_state, read_tensors, renamed
from idmetric.metric.embedder import Embedder, opening
from idmetric.metric.errors import CheckpointError, understanding
from idmetric.metric.files import StrPath, shown
from idmetric.metric.images import WHITE, Color, Preprocessing, check_interpolation
from idmetric.metric.load import tell_apart
from idmetric.metric.timm_models import Features, build, final_tokens

FILES = (*checkpoint.FILES, PROCESSOR)


@dataclass(frozen=True)
class NearIDConfig:
    """Settings of a `NearID`, saved in config.json. The defaults are the release's; `backbone_args` go to timm."""

    backbone: str = "vit_so400m_patch14_siglip_384"
    image_size: int = 384
    interpolation: str = "bilinear"
    mean: tuple[float, float, float] = (0.5, 0.5, 0.5)
    std: tuple[float, float, float] = (0.5, 0.5, 0.5)
    # timm builds this trunk with the exact GELU, SigLIP2 was trained with its tanh approximation
    backbone_args: dict[str, Any] = field(default_factory=lambda: {"act_layer": "gelu_tanh"})
    preprocessing: Preprocessing = "standard"

    def __post_init__(self) -> None:
        check_interpolation(self.interpolation)


class NearID(Embedder):
    """Identity similarity after NearID.

    >>> metric = NearID()  # doctest: +SKIP
    >>> metric("reference.jpg", ["a.png", "b.png"])  # distances, shape (2,)  # doctest: +SKIP

    Args:
        source: "nearid" (default), the published model, downloaded once; a folder or Hub repository in the published
            format, or as `save_pretrained` and training write it; or a `NearIDConfig` for a new, untrained model.
        revision, device, dtype, background, preprocessing, cache_dir, token, local_files_only: as for `IDSim`.

    Raises:
        CheckpointError: if the weights cannot be found, fetched or understood. No other model is ever loaded instead.
    """

    model_type = "nearid"

    @opening()
    def __init__(
        self,
        source: StrPath | NearIDConfig = "nearid",
        *,
        revision: str | None = None,
        device: torch.device | str | None = None,
        dtype: torch.dtype | str | None = None,
        background: Color = WHITE,
        preprocessing: Preprocessing | None = None,
        cache_dir: str | None = None,
        token: str | None = None,
        local_files_only: bool = False,
    ) -> None:
        # the weights and their settings; none for a new model
        saved: Checkpoint | None = None
        if isinstance(source, NearIDConfig):
            name, config = "untrained", source
        else:
            name = short_name(source_name(source))
            folder = resolve(
                source,
                FILES,
                revision=revision,
                cache_dir=cache_dir,
                token=token,
                local_files_only=local_files_only,
            )
            published = checkpoint.read_json(file_of(folder, checkpoint.CONFIG))
            saved = read_tower(folder, published) if "vision_config" in published else checkpoint.read(folder)
            config = checkpoint.parse(NearIDConfig, saved, self.model_type)
        if preprocessing is not None:
            config = replace(config, preprocessing=preprocessing)

        super().__init__(
            name=name,
            revision="" if saved is None else saved.revision,
            image_size=(config.image_size, config.image_size),
            mean=config.mean,
            std=config.std,
            interpolation=config.interpolation,
            background=background,
            preprocessing=config.preprocessing,
            folder=None if saved is None else saved.folder,
        )
        self.settings = config
        tell_apart(self)
        with nullcontext() if saved is None else understanding(saved.folder):
            self.backbone: Any = build(
                config.backbone, image_size=config.image_size, args=config.backbone_args, empty=saved is not None
            )
        if saved is not None:
            load_state(self, saved.state, saved.folder, dtype)
        self._finish(device, dtype)

    def forward_features(self, x: Tensor) -> Features:
        """See `Embedder.forward_features`; both kinds of feature have unit length."""
        pooled, tokens, grid = final_tokens(self.backbone, x)
        return F.normalize(pooled, dim=-1), F.normalize(tokens, dim=-1), grid


# The published format: SigLIP's vision tower as transformers stores it, with none of its code run.

_VISION = {  # transformers leaves out what equals its own default
    "hidden_size": 768,
    "intermediate_size": 3072,
    "num_hidden_layers": 12,
    "num_attention_heads": 12,
    "image_size": 224,
    "patch_size": 16,
}
_ACTIVATIONS = {"gelu_pytorch_tanh": "gelu_tanh", "gelu": "gelu"}
_RESAMPLING = {3: "bicubic", 2: "bilinear", 1: "lanczos"}  # Pillow's numbers
_TIMM_NAMES = {
    r"^(backbone\.)?(vision_model\.)?": "backbone.",
    r"\.embeddings\.patch_embedding\.": ".patch_embed.proj.",
    r"\.embeddings\.position_embedding\.weight": ".pos_embed",
    r"\.encoder\.layers\.": ".blocks.",
    r"\.layer_norm([12])\.": r".norm\1.",
    r"\.self_attn\.([qkv])_proj\.": r".attn.\1.",
    r"\.self_attn\.out_proj\.": ".attn.proj.",
    r"\.post_layernorm\.": ".norm.",
    r"\.head\.probe": ".attn_pool.latent",
    r"\.head\.attention\.in_proj_": ".attn_pool.in.",
    r"\.head\.attention\.out_proj\.": ".attn_pool.proj.",
    r"\.head\.layernorm\.": ".attn_pool.norm.",
    r"\.head\.mlp\.": ".attn_pool.mlp.",
}


def read_tower(folder: Path, published: Mapping[str, Any]) -> Checkpoint:
    """The vision tower in a folder of the published format.

    Args:
        published: NearID's config.json.

    Returns:
        A checkpoint in our own format, `config` fitting `NearIDConfig`.
    """
    config_file = folder / checkpoint.CONFIG
    processor_file = file_of(folder, PROCESSOR)
    weights = file_of(folder, checkpoint.WEIGHTS)
    tensors = read_tensors(weights)  # mapped: tensors that are left out are not read
    tower = {key: value for key, value in tensors.items() if not key.startswith(("text_model.", "logit_"))}
    check_finite(tower, weights)
    with understanding(folder):
        config = _trunk_settings(published)
        config |= _processing(checkpoint.read_json(processor_file), config["image_size"])
        state = timm_names(tower)
    revision = checkpoint.revision_of(weights, processor_file, config_file)
    return Checkpoint(config, state, revision, folder)


def _trunk_settings(published: Mapping[str, Any]) -> dict[str, Any]:
    vision = _VISION | published["vision_config"]
    width = vision["hidden_size"]
    _setting(published, "model_type", NearID.model_type)
    _setting(published, "embed_dim", width)
    _setting(vision, "layer_norm_eps", 1e-6)
    _setting(vision, "num_channels", 3)
    return {
        "model_type": NearID.model_type,
        "image_size": vision["image_size"],
        "backbone_args": {
            "patch_size": vision["patch_size"],
            "embed_dim": width,
            "depth": vision["num_hidden_layers"],
            "num_heads": vision["num_attention_heads"],
            "mlp_ratio": (vision["intermediate_size"] + 0.5) / width,  # timm truncates ratio * width
            "act_layer": _ACTIVATIONS[_setting(vision, "hidden_act", *_ACTIVATIONS)],
        },
    }


def _processing(processor: Mapping[str, Any], side: int) -> dict[str, Any]:
    """The interpolation and normalization of a preprocessor_config.json; its other settings must be the usual ones."""
    for step in ("do_resize", "do_rescale", "do_normalize"):
        _setting(processor, step, True)
    _setting(processor, "size", {"height": side, "width": side}, side)
    _setting(processor, "do_center_crop", False, None)
    _setting(processor, "rescale_factor", 1 / 255)
    return {
        "interpolation": _RESAMPLING[_setting(processor, "resample", *_RESAMPLING)],
        "mean": processor["image_mean"],
        "std": processor["image_std"],
    }


def _setting(settings: Mapping[str, Any], name: str, *supported: Any) -> Any:
    """A setting, refused if its value is not supported; where it is left out, it has the first of those values."""
    value = settings.get(name, supported[0])
    if value not in supported:
        raise CheckpointError(f"{name} = {shown(value)} is not supported, only {shown(supported)}")
    return value


def timm_names(tower: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The tensors of transformers' SigLIP vision model under the names of a `NearID`, which are timm's."""
    state = renamed(tower, _timm_name)
    state["backbone.pos_embed"] = state["backbone.pos_embed"][None]

    # timm has one layer for query, key and value
    for query_name in [name for name in state if ".attn.q." in name]:
        parts = [state.pop(query_name.replace(".q.", f".{letter}.")) for letter in "qkv"]
        state[query_name.replace(".q.", ".qkv.")] = torch.cat(parts)

    # its pooling has one for the query, one for key and value
    for kind in ("weight", "bias"):
        query, key, value = state.pop(f"backbone.attn_pool.in.{kind}").chunk(3)
        state[f"backbone.attn_pool.q.{kind}"] = query
        state[f"backbone.attn_pool.kv.{kind}"] = torch.cat([key, value])
    return state


def _timm_name(name: str) -> str:
    for pattern, replacement in _TIMM_NAMES.items():
        name = re.sub(pattern, replacement, name)
    return name
