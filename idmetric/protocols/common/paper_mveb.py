"""MVEB's data sets and what VisME prints of them (Fig. 3, Tables 1 and 2)."""

from __future__ import annotations

# meta-task -> its data sets; * = out of domain, for evaluation alone. Queries in thousands (figure of the data's page):
# Cars196 1.6, CompCars 2.4, Inshop 3.5, Rp2k 5.4, SOP 2.8, MET 2.7, GLDV2 3, iNat 3, Product1m 3.1, ShopProduct 3;
# MS-Celeb 3, iCartoonFace 1.8, DukeMTMC 2.2, IUST 1.4, VeRi776 1.5, Market1501 2.9, CasiaFace 3; PIPA 2.9, MultiID 3.1,
# IDMR 3, WikiPerson 3, FORB 3, IDMROOD 3; GPTImageEdit 2.3, SEEDMultiTurn 2.3, COCOEdit 2, SynCPR 3, OpenGPT4o 8.3
_SETS = {
    "ID-Rec": "Cars196 CompCars Inshop Rp2k SOP MET GLDV2 iNat Product1m* ShopProduct*",
    "Re-ID": "MS-Celeb iCartoonFace DukeMTMC IUST VeRi776 Market1501* CasiaFace*",
    "ID-Grd": "PIPA MultiID IDMR WikiPerson* FORB* IDMROOD*",
    "ID-Edit": "GPTImageEdit SEEDMultiTurn COCOEdit SynCPR OpenGPT4o*",
}
TASKS = tuple(_SETS)
TASK_OF = {name.rstrip("*"): task for task, names in _SETS.items() for name in names.split()}
OUT_OF_DOMAIN = frozenset(n.rstrip("*") for names in _SETS.values() for n in names.split() if n.endswith("*"))
IND, OOD, ALL = "IND", "OOD", "MVEB"

_OTHER_NAMES = {
    "msceleb1m": "MS-Celeb", "casiawebface": "CasiaFace", "caisiaface": "CasiaFace", "inaturalist": "iNat",
    "stanfordonlineproducts": "SOP", "googlelandmarksv2": "GLDV2", "opengpt4oimage": "OpenGPT4o",
}  # fmt: skip

# Table 1: P@1 in percent of each meta-task and the average over the 28 sets (not over the four)
TABLE_1: dict[str, tuple[float, ...]] = {
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
# Tables 2 and 4: the 3B model's 20 sets in domain and 8 out of it. (Table 3 prints 76.8 and 72.6 of Qwen2-VL-2B, whose
# mean is not the 69.1 of Table 1 but the 3B model's in Table 4; it is left out.)
DOMAINS: dict[str, tuple[float, float]] = {"VisME (Qwen2.5-VL-3B)": (77.7, 74.1)}

# how a model's label (`Embedder.label`) starts -> its row
_LABELS = {
    "VisIDEmbed:3b": "VisME (Qwen2.5-VL-3B)",
    "VisIDEmbed:7b": "VisME (Qwen2.5-VL-7B)",
    "VisIDEmbed:visid_3b": "VisME (Qwen2.5-VL-3B)",
    "VisIDEmbed:visid_7b": "VisME (Qwen2.5-VL-7B)",
    "VisIDEmbed:HugC/VisME-Qwen25VL-3B": "VisME (Qwen2.5-VL-3B)",
    "VisIDEmbed:HugC/VisME-Qwen25VL-7B": "VisME (Qwen2.5-VL-7B)",
    "DualEncoder:openai/clip-vit-large-patch14": "CLIP (ViT-large-14)",
    "DualEncoder:google/siglip2-so400m-patch14-384": "SigLIP2 (so400m-14-384)",
}


def known_name(dataset: str) -> str | None:
    """MVEB's own name of a data set, such as "Cars196" of "mveb/cars196"; None if it is none of the 28."""
    plain = _plain(dataset.rpartition("/")[2])
    return _OTHER_NAMES.get(plain) or next((name for name in TASK_OF if _plain(name) == plain), None)


def row_of(label: str) -> str | None:
    """The paper's row of a model, by its label; None if it has none."""
    name = label.partition("[")[0]
    return _LABELS.get(name)


def printed(row: str | None, column: str) -> float | None:
    """P@1 in 0..1 that is printed of a meta-task, `IND`, `OOD` or `ALL`; None where there is none."""
    if row is None:
        return None
    columns = dict(zip((*TASKS, ALL), TABLE_1[row], strict=True))
    columns |= dict(zip((IND, OOD), DOMAINS.get(row, ()), strict=False))
    return columns[column] / 100 if column in columns else None


def _plain(name: str) -> str:
    return "".join(c for c in name.lower() if c.isalnum())
