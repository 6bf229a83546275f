"""Numbers printed in the papers, to stand next to measured ones.

A model is matched with a paper's row by its label (`Embedder.label`; baselines have their names). A number that a paper
does not print is None. Tables keep the paper's units (shares or percent); functions return shares.
"""

from __future__ import annotations

from collections.abc import Mapping

Pair = tuple[float | None, float | None]


def row_of(label: str, rows: Mapping[str, str]) -> str | None:
    """The row of the first key that the label starts with, or None."""
    return next((row for start, row in rows.items() if label.startswith(start)), None)


# ID-Sim: Fig. 25 (class features), Table 2a (judges), Table 2b (patches), Table 2c (segmentation)

# Fig. 25. The head prints "DeepFashion2 AP" and so on out of order; the scores of a metric without skill identify the
# columns (LPIPS on Subjects2k: AUC .483, AP .235, where 473 of 2,000 pairs are positive).
IDSIM_COLUMNS = (
    ("pods", "AUC"), ("pods", "mAP"), ("pods", "nDCG"), ("deepfashion2", "mAP"), ("aerialcattle", "mAP"),
    ("petface", "AUC"), ("petface", "AP"), ("cute easy", "accuracy"), ("cute hard", "accuracy"),
    ("subjects2k", "AUC"), ("subjects2k", "AP"),
)  # fmt: skip
IDSIM_FIG_25: dict[str, tuple[float, ...]] = {
    "ID-Sim": (0.9642, 0.7727, 0.9161, 0.8045, 0.6786, 0.9002, 0.8958, 0.8887, 0.8559, 0.7053, 0.4113),  # of 10 seeds
    "DINOv3 ViT-L": (0.929, 0.424, 0.744, 0.519, 0.516, 0.879, 0.884, 0.827, 0.813, 0.642, 0.323),
    "CLIP ViT-L": (0.862, 0.294, 0.656, 0.408, 0.368, 0.754, 0.776, 0.779, 0.687, 0.594, 0.296),
    "OpenCLIP ViT-L": (0.887, 0.359, 0.705, 0.488, 0.430, 0.753, 0.772, 0.796, 0.699, 0.584, 0.294),
    "DreamSim": (0.897, 0.317, 0.672, 0.529, 0.593, 0.814, 0.824, 0.770, 0.734, 0.603, 0.289),
    "LPIPS": (0.603, 0.067, 0.387, 0.309, 0.442, 0.752, 0.769, 0.651, 0.625, 0.483, 0.235),
    "UNED": (0.944, 0.671, 0.871, 0.714, 0.468, 0.784, 0.800, 0.815, 0.777, 0.654, 0.356),
}
# standard deviations of ID-Sim's row over its 10 seeds
IDSIM_DEVIATIONS = (0.0035, 0.0106, 0.0050, 0.0119, 0.0123, 0.0072, 0.0101, 0.0077, 0.0124, 0.0048, 0.0060)

# Table 2b. CUTE is the hard mode, as everywhere in the main text (D.1).
IDSIM_PATCH_COLUMNS = (
    ("deepfashion2", "mAP"), ("aerialcattle", "mAP"), ("cute hard", "accuracy"), ("petface", "AP"), ("pods", "mAP"),
    ("subjects2k", "AP"),
)  # fmt: skip
IDSIM_TABLE_2B: dict[str, tuple[float, ...]] = {
    "ID-Sim": (0.7967, 0.6245, 0.8189, 0.8446, 0.7907, 0.3674),
    "ID-Sim without patch supervision": (0.4765, 0.5471, 0.6439, 0.8377, 0.8181, 0.2348),
    "DINOv3 ViT-L": (0.4071, 0.4516, 0.6561, 0.7849, 0.5825, 0.2314),
}

# Table 2a, Subjects2k: GPT-4o with the prompts of Subjects200K, GPT-5 with those of D.3. Gemini's cell is illegible
# (0.2354 or 0.3354) and left out.
IDSIM_TABLE_2A: dict[str, float] = {"GPT-4o": 0.2901, "GPT-5": 0.3159}

# Table 2c, on PODS with PerSAM: mAP and F1
IDSIM_TABLE_2C: dict[str, Pair] = {
    "ID-Sim": (0.436, 0.409), "ID-Sim without patch supervision": (0.214, 0.235), "DINOv3 ViT-L": (0.153, 0.18),
}  # fmt: skip

IDSIM_ROWS = tuple(dict.fromkeys([*IDSIM_FIG_25, *IDSIM_TABLE_2B, *IDSIM_TABLE_2A]))
PATCH_DISTANCES = ("patch", "patch_pooled", "patch_biased")  # the paper does not say which of them Table 2b uses
_IDSIM_LABELS = {
    "IDSim:dinov3_vitl16": "ID-Sim",
    "Backbone:vit_large_patch16_dinov3.lvd1689m": "DINOv3 ViT-L",
    "Backbone:vit_large_patch14_clip_224.openai": "CLIP ViT-L",
    "Backbone:vit_large_patch14_clip_224.laion2b": "OpenCLIP ViT-L",
    "dreamsim": "DreamSim",
    "lpips": "LPIPS",
}


def idsim_row(label: str) -> str | None:
    """ID-Sim's row for a model; its DreamSim is the ensemble, not one of the single branches."""
    return None if label.startswith("dreamsim:") else row_of(label, _IDSIM_LABELS)


def idsim_printed(row: str | None, benchmark: str, metric: str, distance: str = "cls") -> float | None:
    """ID-Sim's number in a row; None for distances that join class token and patches, which the paper does not use."""
    if row in IDSIM_TABLE_2A:
        return IDSIM_TABLE_2A[row] if (benchmark, metric) == ("subjects2k", "AP") else None
    if row is None or distance in ("joint", "joint_pooled"):
        return None
    patches = distance in PATCH_DISTANCES
    columns, table = (IDSIM_PATCH_COLUMNS, IDSIM_TABLE_2B) if patches else (IDSIM_COLUMNS, IDSIM_FIG_25)
    return dict(zip(columns, table.get(row, ()), strict=False)).get((benchmark, metric))


# NearID, Tables 1, 5 and 7: identity against matched contexts

ALL_ENGINES, PART_EDITS = "all", "MTG"  # rows of Table 5

# Table 5, in percent: model -> row -> SSR, PA
NEARID_TABLE_5: dict[str, dict[str, Pair]] = {
    "NearID": {
        "Flux": (99.4, 99.8), "Flux_1024": (99.4, 99.7), "Qwen": (99.2, 99.7), "Qwen_1328": (98.2, 99.5),
        "PowerPaint": (99.2, 99.8), "SDXL": (99.8, 99.9), "SDXL_1024": (99.0, 99.6), "FluxC": (97.8, 99.1),
        "FluxC_1024": (98.8, 99.6), "training": (99.0, 99.7), "unseen fill": (99.3, 99.8),
        "unseen canny": (98.3, 99.3), "fill": (99.17, 99.71), ALL_ENGINES: (99.0, 99.6), PART_EDITS: (35.0, 46.5),
    },
    "SigLIP2": {
        "Flux": (35.8, 55.7), "Flux_1024": (27.4, 44.8), "Qwen": (33.8, 51.4), "Qwen_1328": (16.2, 32.1),
        "PowerPaint": (34.0, 52.7), "SDXL": (42.0, 59.3), "SDXL_1024": (26.0, 45.6), "FluxC": (27.4, 47.4),
        "FluxC_1024": (25.8, 47.8), "training": (28.3, 46.0), "unseen fill": (34.0, 52.5),
        "unseen canny": (26.6, 47.6), "fill": (30.74, 48.81), ALL_ENGINES: (29.8, 48.5), PART_EDITS: (0.0, 0.0),
    },
    "CLIP": {"fill": (10.31, 20.92), PART_EDITS: (0.0, 0.0)},  # Table 1
    "DINOv2": {"fill": (20.43, 34.55), PART_EDITS: (0.0, 0.0)},
}  # fmt: skip

# Table 7, in percent: SSR and PA of the row "fill" on foregrounds alone
NEARID_TABLE_7: dict[str, Pair] = {
    "NearID": (95.3, 98.0), "SigLIP2": (64.7, 80.5), "CLIP": (51.3, 71.6), "DINOv2": (63.7, 77.4),
}  # fmt: skip

# Tables 1 and 7: M-O and M-O-pair on whole images, M-O on foregrounds
NEARID_ORACLE: dict[str, tuple[float, float, float]] = {
    "NearID": (0.465, 0.486, 0.641), "SigLIP2": (0.180, 0.366, 0.365), "CLIP": (0.239, 0.484, 0.297),
    "DINOv2": (0.324, 0.519, 0.301),
}  # fmt: skip

_NEARID_LABELS = {
    "NearID:nearid": "NearID",
    "NearID:Aleksandar/nearid-siglip2": "NearID",
    "Backbone:vit_so400m_patch14_siglip_378.v2": "SigLIP2",
    "Backbone:vit_so400m_patch14_siglip_384.v2": "SigLIP2",
    "Backbone:vit_large_patch14_clip_224.openai": "CLIP",
    "Backbone:vit_large_patch14_dinov2": "DINOv2",
}


def nearid_row(label: str) -> str | None:
    """NearID's row for a model."""
    return row_of(label, _NEARID_LABELS)


def nearid_printed(row: str | None, source: str, foreground: bool) -> Pair:
    """NearID's SSR and PA against a source of distractors, on whole images or foregrounds alone."""
    if row is None:
        return None, None
    if foreground:
        pair = NEARID_TABLE_7[row] if source == "fill" else (None, None)
    else:
        pair = NEARID_TABLE_5[row].get(source, (None, None))
    ssr, pa = (None if x is None else x / 100 for x in pair)
    return ssr, pa


def nearid_oracle(row: str | None, foreground: bool) -> Pair:
    """NearID's M-O and M-O-pair; the latter is not printed for foregrounds."""
    if row is None:
        return None, None
    whole, pair, foregrounds = NEARID_ORACLE[row]
    return (foregrounds, None) if foreground else (whole, pair)


# ILGen, Table 5: retrieval with frozen backbones

ILGEN_COLUMNS = ("avg", "met", "rop", "gldv2", "sop", "instre", "mini_ilias")

# mAP in percent; SigLIP's pretrained row is ID 1 of Table 3
ILGEN_TABLE_5: dict[str, tuple[float, ...]] = {
    "SigLIP ViT-L/16": (47.5, 67.3, 45.0, 15.7, 55.4, 80.6, 21.0),
    "SigLIP ViT-L/16, ILGen-ALL": (52.6, 75.0, 48.7, 18.3, 55.3, 87.4, 30.8),
    "CLIP ViT-L/14": (37.5, 47.1, 40.0, 10.5, 41.8, 75.1, 10.4),
    "CLIP ViT-L/14, ILGen-ALL": (46.8, 69.6, 43.7, 16.8, 45.5, 81.7, 23.8),
    "ViT-B/16": (25.7, 34.2, 24.6, 5.7, 43.7, 41.9, 4.0),
    "ViT-B/16, ILGen-ALL": (34.3, 50.8, 29.8, 9.1, 40.8, 65.1, 10.1),
}

# A checkpoint trained by `idmetric train ilgen` does not name its training data: --paper chooses its row.
_ILGEN_LABELS = {
    "Backbone:vit_large_patch16_siglip_384.webli": "SigLIP ViT-L/16",
    "Backbone:vit_large_patch14_clip_336": "CLIP ViT-L/14",
    "Backbone:vit_base_patch16_224": "ViT-B/16",
}


def ilgen_printed(label: str, row: str | None = None) -> dict[str, float]:
    """ILGen's mAP by column, of the given row or the model's own; empty without a row."""
    row = row or row_of(label, _ILGEN_LABELS)
    return {} if row is None else dict(zip(ILGEN_COLUMNS, (v / 100 for v in ILGEN_TABLE_5[row]), strict=True))


# VisME on MVEB: Tables 1 and 2

VISME_COLUMNS = ("ID-Rec", "Re-ID", "ID-Grd", "ID-Edit", "MVEB")  # four meta-tasks, and the mean of all 28 sets

# Table 1: P@1 in percent
VISME_TABLE_1: dict[str, tuple[float, ...]] = {
    "CLIP (ViT-large-14)": (55.3, 44.3, 37.4, 52.5, 48.2),
    "SigLIP2 (so400m-14-384)": (73.1, 45.6, 36.8, 65.4, 57.1),
    "LLM2CLIP (EVA-02)": (65.4, 47.5, 38.1, 72.1, 56.2),
    "VLM2Vec (Qwen2-VL-2B)": (50.1, 24.1, 32.5, 53.3, 40.4),
    "GME (Qwen2-VL-2B)": (62.2, 39.1, 33.7, 72.9, 52.2),
    "UniME (Phi-3.5-V)": (44.4, 31.8, 33.8, 70.3, 43.6),
    "LLaVE (Aquila-VL-2B)": (29.1, 26.6, 29.4, 72.9, 36.4),
    "VLM2Vec-V2.0 (Qwen2-VL-2B)": (61.8, 33.9, 39.8, 74.2, 52.3),
    "B3 (Qwen2-VL-2B)": (53.7, 13.8, 31.7, 59.5, 40.1),
    "VisME (Qwen2-VL-2B)": (74.7, 54.4, 62.0, 87.3, 69.1),
    "VisME (Qwen2.5-VL-3B)": (78.7, 67.7, 75.1, 87.4, 76.7),
    "VLM2Vec (Qwen2-VL-7B)": (61.8, 33.9, 39.8, 74.2, 52.3),
    "GME (Qwen2-VL-7B)": (63.3, 43.3, 39.8, 74.6, 55.3),
    "UniME-v2 (LLaVA-OneVision-7B)": (58.4, 40.5, 40.6, 69.3, 52.1),
    "LamRA (Qwen2.5-VL-7B)": (26.9, 17.2, 12.9, 19.9, 20.2),
    "LLaVE (Llava-OV-7B)": (57.8, 42.0, 44.9, 77.2, 54.5),
    "B3 (Qwen2-VL-7B)": (61.1, 35.5, 43.5, 70.9, 52.7),
    "VisME (Qwen2-VL-7B)": (78.6, 60.6, 68.6, 90.2, 74.0),
    "VisME (Qwen2.5-VL-7B)": (80.8, 70.6, 76.7, 88.7, 78.8),
}

# Tables 2 and 4: the 3B model's 20 sets in domain and 8 out of it. (Table 3 prints 76.8 and 72.6 for Qwen2-VL-2B; their
# mean is not the 69.1 of Table 1 but the 3B model's in Table 4, so they are left out.)
VISME_DOMAINS: dict[str, tuple[float, float]] = {"VisME (Qwen2.5-VL-3B)": (77.7, 74.1)}

_VISME_LABELS = {
    "VisIDEmbed:3b": "VisME (Qwen2.5-VL-3B)",
    "VisIDEmbed:7b": "VisME (Qwen2.5-VL-7B)",
    "VisIDEmbed:visid_3b": "VisME (Qwen2.5-VL-3B)",
    "VisIDEmbed:visid_7b": "VisME (Qwen2.5-VL-7B)",
    "VisIDEmbed:HugC/VisME-Qwen25VL-3B": "VisME (Qwen2.5-VL-3B)",
    "VisIDEmbed:HugC/VisME-Qwen25VL-7B": "VisME (Qwen2.5-VL-7B)",
    "DualEncoder:openai/clip-vit-large-patch14": "CLIP (ViT-large-14)",
    "DualEncoder:google/siglip2-so400m-patch14-384": "SigLIP2 (so400m-14-384)",
}


def visme_row(label: str) -> str | None:
    """VisME's row for a model, without the options in brackets at the end of its label."""
    return _VISME_LABELS.get(label.partition("[")[0])


def visme_printed(row: str | None, column: str) -> float | None:
    """VisME's P@1 for a meta-task, "MVEB", or the sets in domain ("IND") or out of it ("OOD")."""
    if row is None:
        return None
    columns = dict(zip(VISME_COLUMNS, VISME_TABLE_1[row], strict=True))
    columns |= dict(zip(("IND", "OOD"), VISME_DOMAINS.get(row, ()), strict=False))
    return columns[column] / 100 if column in columns else None
