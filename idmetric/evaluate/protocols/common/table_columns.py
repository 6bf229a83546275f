"""What the columns of tables say: a sentence each, whether higher is better, and the source.

Columns of one protocol alone stand in its file.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Column:
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
        text = self.says
        if self.better:
            direction = {1: "higher", -1: "lower"}[self.better]
            text += f"; {direction} is better"
        if self.source:
            text += f" ({self.source})"
        return text


SHARED = {
    "mAP": Column("mean average precision over queries, in 0..1"),
    "P@1": Column("share of queries that find their target nearest"),
    "recall": Column("share of a query's positives among the k nearest, mean over queries", 1),
    "hit": Column("share of queries with a positive among the k nearest", 1, "Recall@k in metric learning"),
    "AUC": Column("ROC AUC of same against different identity, in 0..1; 0.5 = chance"),
    "AP": Column("average precision over pairs of same against different identity, in 0..1"),
    "Spearman": Column("rank correlation with people, in -1..1", 1, "ID-Sim, D.1"),
    "Kendall": Column("Kendall's tau with people, in -1..1", 1, "ID-Sim, D.1"),
}
