"""Published scores under one name each: encoder, transform, aggregation, and where they are written down.

"DINO" and "CLIP-I" are many scores. `idmetric.load("dino-i:dreambooth")` opens the encoder with the transform of that
source, and `idmetric score` adds the source's number to its summary. Similarities: higher = more similar.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray


# arguments of `Backbone`: the class token or the projection, and the crop of torchvision or of transformers' processors
DINO = {"pool": "cls", "image_size": 224, "resize": "crop", "crop_pct": 224 / 256, "interpolation": "bicubic"}
CLIP = {"pool": "head", "image_size": 224, "resize": "crop", "crop_pct": 1.0, "interpolation": "bicubic"}
DINO_HUB = {**DINO, "resize": "hub-crop"}  # BitImageProcessor of facebook/dinov2-*
CLIP_HUB = {**CLIP, "resize": "hub-crop"}  # CLIPImageProcessor of openai/clip-*


@dataclass(frozen=True)
class NamedScore:
    """A published score of generated images against reference images.

    Args:
        backbone: timm's name of the encoder; its Hub repository has the weights.
        source: the paper or the file that defines the score.
        options: arguments of `Backbone` that the source sets: global feature, size, crop and filter of the resize.
        backbone_args: more arguments of `timm.create_model`.
        references: "all" averages over every pair of image and reference; "own" compares an image with the one
            reference that it was generated from; "none": the source has rows of tables, and no number of images.
        scale: factor of the published number.
        clamp: whether a negative mean counts as 0.
        plain_positions: position embeddings are resampled without antialiasing, as transformers does (timm does not).
    """

    backbone: str
    source: str
    options: Mapping[str, Any]
    backbone_args: Mapping[str, Any] = field(default_factory=dict)
    references: Literal["all", "own", "none"] = "own"
    scale: float = 1.0
    clamp: bool = False
    plain_positions: bool = False

    def value(self, cosines: Sequence[Sequence[float]] | NDArray[np.float64]) -> float:
        """The published number of cosines (images, references), or (pairs, 1).

        Raises:
            ValueError: for references that do not fit the source's definition.
        """
        import numpy as np

        table = np.asarray(cosines, dtype=np.float64)
        if self.references == "own" and table.shape[1] > 1:
            raise ValueError("it compares each image with its own reference: give one reference, or pairs")
        mean = float(table.mean())
        if self.clamp:
            mean = max(mean, 0.0)
        return self.scale * mean


_NEARID = "NearID, evaluation/sim_test.py"
# timm's weights at 378 pixels are those of google/siglip2-so400m-patch14-384: both see 27 x 27 patches
_SIGLIP2 = NamedScore(
    "vit_so400m_patch14_siglip_378.v2_webli",
    _NEARID,
    {"pool": "head", "image_size": 384, "resize": "squash", "interpolation": "bilinear"},
    backbone_args={"act_layer": "gelu_tanh"},
    references="none",
)

NAMED = {
    "dino-i:dreambooth": NamedScore(
        "vit_small_patch16_224.dino",
        "DreamBooth, section 4.1; github.com/google/dreambooth/issues/3",
        DINO,
        references="all",
    ),
    # the paper does not name the encoder; ViT-B/32 is that of later evaluations of DreamBooth's data
    "clip-i:dreambooth": NamedScore(
        "vit_base_patch32_clip_quickgelu_224.openai",
        "DreamBooth, section 4.1; ViT-B/32 as in later evaluations",
        CLIP,
        references="all",
    ),
    "dino-i:kosmos-g": NamedScore(
        "vit_small_patch16_224.dino", "Kosmos-G's evaluation on DreamBench", DINO, scale=100, clamp=True
    ),
    "dino-i:dreambench++": NamedScore(
        "vit_small_patch8_224.dino", "DreamBench++, dreambench_plus/metrics/dino_score.py, v1", DINO, scale=100
    ),
    "dinov2-i:dreambench++": NamedScore(
        "vit_small_patch14_dinov2.lvd142m",
        "DreamBench++, dreambench_plus/metrics/dino_score.py, v2",
        DINO_HUB,
        scale=100,
        plain_positions=True,
    ),
    "clip-i:dreambench++": NamedScore(
        "vit_base_patch32_clip_quickgelu_224.openai",
        "DreamBench++, dreambench_plus/metrics/clip_score.py",
        CLIP_HUB,
        scale=100,
    ),
    "dino:peft": NamedScore(
        "vit_base_patch14_dinov2.lvd142m",
        "peft, method_comparison/image-gen/run.py",
        DINO_HUB,
        plain_positions=True,
    ),
    # frozen rows of NearID's tables, with the processors of the Hub's repositories
    "clip:nearid": NamedScore("vit_large_patch14_clip_quickgelu_224.openai", _NEARID, CLIP_HUB, references="none"),
    "dinov2:nearid": NamedScore(
        "vit_large_patch14_dinov2.lvd142m", _NEARID, DINO_HUB, references="none", plain_positions=True
    ),
    "siglip2:nearid": _SIGLIP2,
    "siglip2-mean:nearid": replace(
        _SIGLIP2, source="NearID, dreambench_plus/score_backbone.py", options={**_SIGLIP2.options, "pool": "avg"}
    ),
}

# frozen encoders that are often asked for: timm's name, and the global feature
FROZEN = {
    "frozen:pe-core-b16": ("vit_pe_core_base_patch16_224.fb", "head"),
    "frozen:pe-core-l14": ("vit_pe_core_large_patch14_336.fb", "head"),
    "frozen:siglip2-b16": ("vit_base_patch16_siglip_224.v2_webli", "head"),
    "frozen:siglip2-so400m": ("vit_so400m_patch14_siglip_378.v2_webli", "head"),
    "frozen:dinov3-b16": ("vit_base_patch16_dinov3.lvd1689m", "cls"),
    "frozen:dinov3-l16": ("vit_large_patch16_dinov3.lvd1689m", "cls"),
    "frozen:aimv2-l14": ("aimv2_large_patch14_224.apple_pt", "auto"),
    "frozen:megadescriptor-t": ("hf-hub:BVRA/MegaDescriptor-T-224", "auto"),
    "frozen:megadescriptor-l": ("hf-hub:BVRA/MegaDescriptor-L-384", "auto"),
}
