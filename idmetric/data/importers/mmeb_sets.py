"""MMEB's 36 data sets, their meta-tasks (VLM2Vec; VisME, section 5.1), and B3's words for their targets."""

from __future__ import annotations

# meta-task -> its data sets; * = out of domain, for evaluation alone
SETS = {
    "Cls": "ImageNet-1K N24News HatefulMemes VOC2007 SUN397 Place365* ImageNet-A* ImageNet-R* ObjectNet* Country211*",
    "VQA": "OK-VQA A-OKVQA DocVQA InfographicsVQA ChartQA Visual7W ScienceQA* VizWiz* GQA* TextVQA*",
    "Ret": "VisDial CIRR VisualNews_t2i VisualNews_i2t MSCOCO_t2i MSCOCO_i2t NIGHTS WebQA "
    "FashionIQ* Wiki-SS-NQ* OVEN* EDIS*",
    "Grd": "MSCOCO RefCOCO* RefCOCO-Matching* Visual7W-Pointing*",
}
TASK_OF: dict[str, str] = {}
for _task, _names in SETS.items():
    TASK_OF |= dict.fromkeys(_names.replace("*", "").split(), _task)
_CAPTIONS = ("MSCOCO_i2t", "VisualNews_i2t")
_WORDS = {"Cls": "Represent the class label: ", "VQA": "Represent the answer: "}


def known_name(dataset: str) -> str | None:
    """MMEB's own name of a data set, such as "ImageNet-1K" for "mmeb/ImageNet_1K"; None if it is not one of the 36."""
    wanted = _plain(dataset.rpartition("/")[2])
    return next((name for name in TASK_OF if _plain(name) == wanted), None)


def target_words(dataset: str) -> str:
    """B3's instruction for targets of text alone, such as "Represent the answer: "; empty for sets without one.

    From B3's code (Thirukovalluru et al., arXiv 2505.11293), where it precedes targets in training and evaluation.
    """
    name = known_name(dataset)
    if name in _CAPTIONS:
        return "Represent the image caption: "
    return _WORDS.get(TASK_OF.get(name or "", ""), "")


def _plain(name: str) -> str:
    return "".join(filter(str.isalnum, name.lower()))
