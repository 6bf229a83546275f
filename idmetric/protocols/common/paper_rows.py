"""Every row of the papers' tables: the model that runs it here, or the reason why there is none.

A protocol's result names the rows without a model (`Result.missing`), so that a table next to a paper's is never
shorter than the paper's without a word.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class PaperRow:
    """A row of a paper's table.

    Attributes:
        model: what `--model` opens for it; "judge:FILE.json" is a language model that a file describes.
        missing: why there is no such model; one of the two is empty.
    """

    model: str = ""
    missing: str = ""

    def __post_init__(self) -> None:
        if bool(self.model) == bool(self.missing):
            raise ValueError("a row has either a model or the reason why it is missing")


_JUDGE = PaperRow("judge:FILE.json")
_DINOV3 = PaperRow("timm:vit_large_patch16_dinov3.lvd1689m")
_CLIP = PaperRow("timm:vit_large_patch14_clip_224.openai")
_DINOV2 = PaperRow("timm:vit_large_patch14_dinov2.lvd142m")
_SIGLIP2 = PaperRow("timm:vit_so400m_patch14_siglip_378.v2_webli")
# Shao and Cui, first place of the Universal Embedding challenge
_UNED = PaperRow(missing="its authors' repository has code to train it, and no trained weights were found")
# weights: abdo-eldesokey/mind-the-glitch on the Hub; the code needs CleanDIFT and a segmentation model as well
_VSM = PaperRow(missing="its authors' code, on CleanDIFT's diffusion features and object masks, is not rebuilt here")
_NO_PATCHES = PaperRow(missing="no weights of it are known; `idmetric train idsim --terms cls` trains such a model")
_ILGEN = PaperRow(missing="no weights of it are known; `idmetric train ilgen` trains such a model")
_VISME = PaperRow(missing="no weights of it are known; `idmetric train visme` trains such a model")
_UNIVERSAL = PaperRow(missing="it embeds with prompts and pooling of its own, for which there is no loader here")

_IDSIM = {
    "ID-Sim": PaperRow("dinov3_vitl16"),
    "DINOv3 ViT-L": _DINOV3,
    "CLIP ViT-L": _CLIP,
    "OpenCLIP ViT-L": PaperRow("timm:vit_large_patch14_clip_224.laion2b"),
    "DreamSim": PaperRow("dreamsim"),
    "LPIPS": PaperRow("lpips"),
    "UNED": _UNED,
}
_NO_PATCH_ROW = {"ID-Sim without patch supervision": _NO_PATCHES}

# VisME, Table 1
_VISME_ROWS = {
    "CLIP (ViT-large-14)": PaperRow("dual:openai/clip-vit-large-patch14"),
    "SigLIP2 (so400m-14-384)": PaperRow("dual:google/siglip2-so400m-patch14-384"),
    "VisME (Qwen2.5-VL-3B)": PaperRow("visid_3b"), "VisME (Qwen2.5-VL-7B)": PaperRow("visid_7b"),
    "VisME (Qwen2-VL-2B)": _VISME, "VisME (Qwen2-VL-7B)": _VISME,
    **dict.fromkeys((
        "LLM2CLIP (EVA-02)", "VLM2Vec (Qwen2-VL-2B)", "GME (Qwen2-VL-2B)", "UniME (Phi-3.5-V)",
        "LLaVE (Aquila-VL-2B)", "VLM2Vec-V2.0 (Qwen2-VL-2B)", "B3 (Qwen2-VL-2B)", "VLM2Vec (Qwen2-VL-7B)",
        "GME (Qwen2-VL-7B)", "UniME-v2 (LLaVA-OneVision-7B)", "LamRA (Qwen2.5-VL-7B)", "LLaVE (Llava-OV-7B)",
        "B3 (Qwen2-VL-7B)",
    ), _UNIVERSAL),
}  # fmt: skip

# protocol -> row -> how it runs
PAPER_ROWS: dict[str, dict[str, PaperRow]] = {
    # ID-Sim, Fig. 25, Tables 2a and 2b; DiffSim is among the baselines of section 4.1, and Fig. 25 has no row of it
    "idsim": {
        **_IDSIM, **_NO_PATCH_ROW, "DiffSim": PaperRow("diffsim"), "GPT-4o": _JUDGE, "GPT-5": _JUDGE, "Gemini": _JUDGE,
    },
    "sensitivity": _IDSIM,  # ID-Sim, Fig. 6
    "segmentation": {"ID-Sim": _IDSIM["ID-Sim"], **_NO_PATCH_ROW, "DINOv3 ViT-L": _DINOV3},  # ID-Sim, Table 2c
    # NearID, Tables 1, 5 and 7
    "nearid": {
        "NearID": PaperRow("nearid"), "SigLIP2": _SIGLIP2, "CLIP": _CLIP, "DINOv2": _DINOV2, "VSM": _VSM,
        "Qwen3-VL 4B": _JUDGE, "Qwen3-VL 8B": _JUDGE, "Qwen3-VL 30B": _JUDGE,
    },
    # NearID, Tables 1 and 2 and the numbers behind Fig. 4, by names of raters; ID-Sim, Fig. 25 and Tables 2a and 2b
    "dreambench": {
        "nearid": PaperRow("nearid"), "siglip2": _SIGLIP2, "siglip2-map": PaperRow("frozen:siglip2-so400m"),
        "clip": _CLIP, "dino": _DINOV2, "gpt": _JUDGE, "qwen3vl-30b": _JUDGE, "vsm": _VSM,
        **_IDSIM, **_NO_PATCH_ROW, "DiffSim": PaperRow("diffsim:dreambench++"),
        "GPT-4o": _JUDGE, "GPT-5": _JUDGE, "Gemini": _JUDGE,
    },
    # ILGen, Table 5, and with it the rows of Tables 3 and 4 that are in it
    "retrieval": {
        "SigLIP ViT-L/16": PaperRow("timm:vit_large_patch16_siglip_384.webli"), "SigLIP ViT-L/16, ILGen-ALL": _ILGEN,
        "CLIP ViT-L/14": PaperRow("timm:vit_large_patch14_clip_336.openai"), "CLIP ViT-L/14, ILGen-ALL": _ILGEN,
        "ViT-B/16": PaperRow("timm:vit_base_patch16_224.augreg_in21k"), "ViT-B/16, ILGen-ALL": _ILGEN,
    },
    "mveb": _VISME_ROWS,
    "mmeb": _VISME_ROWS,
}  # fmt: skip


def missing_rows(protocol: str) -> dict[str, str]:
    """Rows of the protocol's tables that this package has no model for, with the reason."""
    return {name: row.missing for name, row in PAPER_ROWS.get(protocol, {}).items() if row.missing}
