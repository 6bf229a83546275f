"""The published checkpoints: names, repositories, licenses, sizes, and where their files are."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from idmetric.metric.errors import CheckpointError
from idmetric.metric.files import StrPath


@dataclass(frozen=True)
class Release:
    """One published checkpoint.

    Args:
        model_type: as in the config.json of our own format, or of transformers.
        repo: Hub repository. revision: its pinned commit, where known.
        backbone: timm's name of the backbone, or the base model's.
        license: of the weights, as far as it could be confirmed.
        download: gigabytes, backbone included, from the number of parameters.
        parameters: their number.
        memory: gigabytes of the weights and a pass of 32 images, as models are opened by default.
        seconds: processor time for an image on one core of an AMD EPYC server with AVX-512; None: not measured.
        resolution: how large images are seen.
        gated: whether the Hub wants a login and an accepted license first, as far as it could be confirmed.
    """

    model_type: str
    repo: str
    revision: str | None
    backbone: str
    license: str
    download: float
    parameters: int
    memory: float
    seconds: float | None
    resolution: str
    gated: str = "not known to be"


# Backbones: DINOv3 under Meta's "dinov3-license", DINOv2 under Apache-2.0. Of the heads and adapters only the ViT-B/14
# repository's license could be confirmed; the code of the release is MIT.
IDSIM = {
    "dinov3_vitl16": Release(
        model_type="idsim",
        repo="chaenayo/id-sim_dinov3_vitl16_cls_patch",
        revision=None,
        backbone="vit_large_patch16_dinov3.lvd1689m",
        license="dinov3-license",
        download=1.2,
        parameters=305_183_746,
        memory=2.47,
        seconds=5.58,
        resolution="448x448",
    ),
    "dinov3_vitb16": Release(
        model_type="idsim",
        repo="chaenayo/id-sim_dinov3_vitb16_cls_patch",
        revision=None,
        backbone="vit_base_patch16_dinov3.lvd1689m",
        license="dinov3-license",
        download=0.4,
        parameters=87_219_714,
        memory=1.29,
        seconds=1.71,
        resolution="448x448",
    ),
    "dinov2_vitl14": Release(
        model_type="idsim",
        repo="chaenayo/id-sim_dinov2_vitl14_cls_patch",
        revision=None,
        backbone="vit_large_patch14_dinov2.lvd142m",
        license="apache-2.0",
        download=1.2,
        parameters=306_118_658,
        memory=2.7,
        seconds=7.35,
        resolution="448x448",
    ),
    "dinov2_vitb14": Release(
        model_type="idsim",
        repo="chaenayo/id-sim_dinov2_vitb14_cls_patch",
        revision="bcd3f388bec7db42e75b165e235196833111c4ae",
        backbone="vit_base_patch14_dinov2.lvd142m",
        license="mit",
        download=0.4,
        parameters=87_893_250,
        memory=1.46,
        seconds=2.33,
        resolution="448x448",
    ),
}

# the code's license; the weights' could not be confirmed
NEARID = {
    "nearid": Release(
        model_type="nearid",
        repo="Aleksandar/nearid-siglip2",
        revision=None,
        backbone="vit_so400m_patch14_siglip_384",
        license="apache-2.0",
        download=0.9,
        parameters=428_225_600,
        memory=2.95,
        seconds=6.69,
        resolution="384x384",
    ),
}

# without language head; the weights' license could not be confirmed
VISID = {
    "visid_3b": Release(
        model_type="qwen2_5_vl",
        repo="HugC/VisME-Qwen25VL-3B",
        revision=None,
        backbone="Qwen2.5-VL-3B",
        license="unknown",
        download=7.5,
        parameters=3_754_622_976,
        memory=8.35,
        seconds=None,
        resolution="<=200704px",
    ),
    "visid_7b": Release(
        model_type="qwen2_5_vl",
        repo="HugC/VisME-Qwen25VL-7B",
        revision=None,
        backbone="Qwen2.5-VL-7B",
        license="unknown",
        download=16.6,
        parameters=7_747_169_280,
        memory=16.3,
        seconds=None,
        resolution="<=200704px",
    ),
}

MODELS = {**IDSIM, **NEARID, **VISID}

_CLS_PATCH = "_cls_patch"  # ends the ID-Sim release's names
ADAPTER_CONFIG, ADAPTER = "adapter_config.json", "adapter_model.safetensors"
HEADS = {"mlp_cls": "mlp_cls.pth", "mlp_patch": "mlp_patch.pth"}
PROCESSOR, WEIGHTS = "preprocessor_config.json", "model.safetensors"


def find(name: str, releases: Mapping[str, Release] = MODELS) -> Release | None:
    """The release of that name, or in that Hub repository, even if there is a folder of that name ("./NAME").

    The ID-Sim release's own names count too, e.g. "dinov3_vitl16_cls_patch".
    """
    by_repo = {release.repo: release for release in releases.values()}
    return releases.get(name.removesuffix(_CLS_PATCH)) or by_repo.get(name)


def short_name(source: str) -> str:
    """The one name of a model: without the release's "_cls_patch", `owner/name` for a folder of the Hub's cache."""
    short = source.removesuffix(_CLS_PATCH)
    if short in IDSIM:
        return short
    folder = Path(source).resolve()  # .../models--owner--name/snapshots/<commit>
    if folder.parent.name == "snapshots":
        return folder.parent.parent.name.removeprefix("models--").replace("--", "/", 1)
    return source


def source_name(source: StrPath) -> str:
    """A model's source as text; a `Path` is always a folder or file, never the published name that it looks like."""
    if isinstance(source, str) or os.path.isabs(source):
        return os.fspath(source)
    return os.path.join(os.curdir, source)


def check_repository(name: str) -> None:
    """Refuse a name that is not of the form owner/name."""
    if not re.fullmatch(r"[\w.-]+/[\w.-]+", name):
        raise CheckpointError(f"{name!r} is neither an existing folder nor a Hub repository of the form owner/name")
