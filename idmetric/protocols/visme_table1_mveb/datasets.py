"""MVEB's 28 data sets and their meta-tasks (VisME, Fig. 3)."""

from __future__ import annotations

from idmetric.protocols.common.columns import plain

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
IND, OOD, ALL = "IND", "OOD", "MVEB"  # in domain, out of domain, all sets

_OTHER_NAMES = {
    "msceleb1m": "MS-Celeb", "casiawebface": "CasiaFace", "caisiaface": "CasiaFace", "inaturalist": "iNat",
    "stanfordonlineproducts": "SOP", "googlelandmarksv2": "GLDV2", "opengpt4oimage": "OpenGPT4o",
}  # fmt: skip


def known_name(dataset: str) -> str | None:
    """MVEB's own name of a data set, such as "Cars196" for "mveb/cars196"; None if it is not one of the 28."""
    wanted = plain(dataset.rpartition("/")[2])
    return _OTHER_NAMES.get(wanted) or next((name for name in TASK_OF if plain(name) == wanted), None)
