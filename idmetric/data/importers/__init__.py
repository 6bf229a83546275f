"""Importers: manifests of published datasets and of folders.

    from idmetric.data.importers.run import import_dataset
    table = import_dataset("nearid", ["Aleksandar/NearID", "Aleksandar/NearID-Flux"], images="images")

This module only lists the importers; a command line can name them without loading them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True)
class ImporterKind:
    """An importer.

    Attributes:
        module: the module that defines it, as a function of the importer's name.
        line: a description.
        options: name -> description.
        local: reads local folders only; other importers also read tables of the Hub.
        several: accepts more than one source.
    """

    module: str
    line: str
    options: Mapping[str, str] = field(default_factory=dict)
    local: bool = False
    several: bool = False


_MMEB = {
    "image_dir": "folder that the tables' image paths start from (default: the source's)",
    "most": "training rows of a subset to stop after (default: 50000; 0 keeps all)",
    "targets": "b3: with B3's instructions before classes, answers and captions (default: plain)",
    "variant": "training tables to use, original or diverse_instruction (default: original)",
}
_ILIAS = {
    "splits": "yes (default) or no: whether rows have the splits query and gallery; training data needs none",
    "distractors": "folder of images to search as well, such as unpacked yfcc100m/",
    "taxonomy": "ILIAS's misc/taxonomy.json (default: taxonomy.json in the source, if it is there)",
}
_DREAMBENCH = {
    "samples": "folder with one folder of generated images per method",
    "ratings": "folder with ratings: group1/METHOD-cp.json, group2/METHOD-cp.json",
}
_FOLDER = "folder per identity, perhaps below train/, val/, test/, joined if deeper; masks are x_mask.png or in masks/"
_CUTE = {"depth": "how many folders name the object (default: all above the first folder that names a scene)"}
_NEARID = "NearID and its distractor sets: images1..3, masks1..3, nimg1..3"
_SYNCD = "SynCD: metadata.json, images and masks/ of its unpacked archives; an identity per record"
_MTG = "Mind-the-Glitch: image_{1,2}_{original,inpainted,object_mask,part_mask}; oracle scores"
_PODS = "PODS: image, mask, label, scene_type; or its folders train/, test/, test_masks/"
_DEEPFASHION = "DeepFashion2: train/image/, train/annos/; photos of one garment, with masks drawn from polygons"
_UNED = "UnED: info_files/SET/train.json and images/SET/ of MET, GLDv2, SOP, In-Shop and RP2k, for ILGen's Real sets"
_WILDLIFE = (
    "WildlifeReID-10k, AnimalCLEF: metadata.csv with identity, path, and where present split, dataset, bbox, date"
)

KINDS = {
    "folder": ImporterKind("folders", _FOLDER, local=True),
    "nearid": ImporterKind("nearid", _NEARID, several=True),
    "syncd": ImporterKind("sets", _SYNCD, local=True),
    "mtg": ImporterKind("sets", _MTG),
    "dreambench_pp": ImporterKind(
        "dreambench",
        "DreamBench++: images/, captions/, and generated samples with their ratings",
        _DREAMBENCH,
        local=True,
    ),
    "nights": ImporterKind("sets", "NIGHTS and triplets like it: data.csv with ref, left, right and votes, 6 or more"),
    "subjects2k": ImporterKind("sets", "Subjects2k: pairs with human same/different labels"),
    "pods": ImporterKind("sets", _PODS),
    "cute": ImporterKind("folders", "CUTE: folders of objects, with folders of scenes below", _CUTE, local=True),
    "deepfashion2": ImporterKind("deepfashion2", _DEEPFASHION, local=True),
    "uned": ImporterKind("sets", _UNED, local=True),
    "ilias": ImporterKind(
        "ilias", "ILIAS: ilias_core/NAME/{query,pos}/, image_ids/, taxonomy.json", _ILIAS, local=True
    ),
    "wildlife": ImporterKind("wildlife", _WILDLIFE, local=True),
    "mveb": ImporterKind("mveb", "MVEB and VLM2Vec-like tables: queries, targets, negatives with instructions"),
    "mmeb": ImporterKind("mmeb", "MMEB: queries and targets of images, texts or both, to train or to evaluate", _MMEB),
    "table": ImporterKind("sets", "any Parquet, Arrow, CSV or JSON lines; columns named by --map"),
}
