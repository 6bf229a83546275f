"""What the columns of the protocols' tables say: a sentence each, whether higher is better, and the source."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Measure:
    """A column of numbers.

    Attributes:
        says: one sentence with the unit; s(x, r) is the similarity 1 - distance of an image and a reference.
        better: 1 where higher is better, -1 where lower is, 0 where neither.
        source: who defined it; empty for our own.
    """

    says: str
    better: int = 1
    source: str = ""

    def __str__(self) -> str:
        which = {1: "; higher is better", -1: "; lower is better", 0: ""}[self.better]
        return f"{self.says}{which}{f' ({self.source})' if self.source else ''}"


MEASURES: dict[str, Measure] = {
    # generated images
    "identity": Measure("mean over images x of the mean over references r of s(x, r), in -1..1", 1, "DINO-I, CLIP-I"),
    "weakest": Measure("mean over images of the lowest identity of their subjects, in -1..1"),
    "worst": Measure("lowest mean identity of a subject, in -1..1"),
    "real": Measure("mean similarity of each reference to the others of its subject: what real photos get", 0),
    "SCR": Measure("share of subjects with a mean identity under the threshold", -1, "SCR@tau"),
    "real SCR": Measure("share of subjects of which the references themselves are under the threshold", 0),
    "copies": Measure("share of images that repeat the pixels of a reference or training image", -1),
    "leaning": Measure(
        "how much nearer images are to training images (1) than to references (-1)", -1, "MultiID-Bench, copy-paste"
    ),
    "diversity": Measure("mean distance of images of one prompt that differ by seed, in 0..2"),
    "Vendi": Measure("effective number of different images of a prompt, from 1", 1, "Friedman and Dieng 2023, Eq. 1"),
    "published": Measure("the published score of that name, in its own unit"),
    "CLIP-T": Measure("mean cosine of image and prompt, in -1..1", 1, "CLIPScore without factor and clamp"),
    "p": Measure("sign-flip test over subjects of the differences in identity, corrected by Holm over all pairs", 0),
    "drift": Measure("mean of (1 - cos) / 2 with the base model's images, 0 = alike", -1, "peft"),
    # sets of images
    "score": Measure("the measure named in the row", 0),
    "sets/real": Measure("the noise floor: the same of two halves of n real photos each, split at random", 0),
    "beyond": Measure("share of subjects with a score worse than 97.5 % of the splits of their own photos", -1),
    # retrieval and verification
    "mAP": Measure("mean average precision over queries, in 0..1"),
    "P": Measure("share of queries with an image of their identity nearest"),
    "P@1": Measure("share of queries that find their target nearest"),
    "recall": Measure("share of a query's positives among the k nearest, mean over queries", 1),
    "hit": Measure("share of queries with a positive among the k nearest", 1, "Recall@k in metric learning"),
    "nDCG": Measure("normalized discounted cumulative gain, mean over queries, in 0..1"),
    "AUC": Measure("ROC AUC of same against different identity, in 0..1; 0.5 = chance"),
    "AP": Measure("average precision over pairs of same against different identity, in 0..1"),
    "accuracy": Measure("share of triplets with the positive nearer than the negative"),
    "oracle": Measure("the mAP@k of a perfect re-ranking of the first k", 0),
    # margins
    "SSR": Measure(
        "share of samples with all views nearer to each other than to any distractor", 1, "NearID, Eq. 4 and 5"
    ),
    "PA": Measure("share of pairs of views that are nearer than the view and its distractor", 1, "NearID, Eq. 5"),
    "M-O": Measure("correlation of similarity to part edits with the share of the object that they keep", 1, "NearID"),
    "M-O-pair": Measure("the same between a view and its own part edit alone", 1, "NearID"),
    # agreement with people
    "M-H": Measure("Pearson's r with the ratings of people, mean over two groups", 1, "NearID, Table 2"),
    "±": Measure("half the difference of the two groups, or the standard error over methods", 0),
    "Spearman": Measure("rank correlation with people, in -1..1", 1, "ID-Sim, D.1"),
    "Kendall": Measure("Kendall's tau with people, in -1..1", 1, "ID-Sim, D.1"),
    "2AFC": Measure("share of triplets in which the model chooses as people do", 1, "NIGHTS"),
    # open sets
    "closed": Measure("share of queries of known identities with their identity nearest, mean over identities"),
    "OSCR": Measure("area under BAKS over 1 - BAUS at all thresholds", 1, "open-set classification rate"),
    "tau": Measure("the threshold, a similarity", 0),
    "BAKS": Measure("balanced accuracy on queries of known identities"),
    "BAUS": Measure("balanced accuracy on queries of unknown identities, which count if they are called new"),
    # sensitivity
    "sensitivity/identity": Measure("similarity lost per unit of a change of identity", 1, "ID-Sim, 4.4"),
    "context": Measure("similarity lost per unit of a change of context; nearer to 0 is better", 0, "ID-Sim, 4.4"),
    "R^2": Measure("share of the variance that the fit explains", 0),
    # places of a subject
    "pointing": Measure("share of images with the map's maximum on the subject"),
    "IoU": Measure("intersection over union of predicted and true mask"),
    "IoU best": Measure("IoU at each image's own best threshold: an oracle", 1),
    "IoU one": Measure("IoU at the single threshold that is best for all images", 1),
    "mIoU": Measure("IoU over all images of a subject together, mean over subjects", 1, "PerSAM"),
    "F1": Measure("F1 of predicted masks, mean over IoU 0.5 to 0.95 and subjects", 1, "ID-Sim, Table 2c"),
    "on subject": Measure("share of the strongest patch matches with both ends on the subject"),
    # calibration
    "ECE": Measure("expected calibration error of probabilities, in 0..1", -1, "Naeini et al. 2015"),
    "log loss": Measure("mean of -log P(true label), in nats", -1),
    "Brier": Measure("mean squared error of probabilities", -1, "Brier 1950"),
    "true accept": Measure("share of pairs of one identity under the distance"),
    "false accept": Measure("share of pairs of two identities under the distance", -1),
}


def measure(name: str, protocol: str = "") -> Measure | None:
    """The measure of a protocol's column; "mAP@100" is an mAP, "real SCR@0.5" a real SCR."""
    stem = name.partition("@")[0]
    return next((MEASURES[key] for key in (f"{protocol}/{name}", name, stem) if key in MEASURES), None)
