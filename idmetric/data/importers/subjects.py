"""Subjects2k: 2,000 pairs of Subjects200K (Tan et al., OminiControl) with human votes (ID-Sim, appendix D.2).

A pair is "same" if at least 0.8 of the votes say so. It is a group with the slots anchor and candidate.
"""

from __future__ import annotations

from collections.abc import Iterator

from idmetric.data.importers.run import ImportJob, scalars
from idmetric.data.old_manifest.table import Row

ENGINE = "FLUX.1"  # OminiControl, section 4: both images are generated in one canvas


def rows(job: ImportJob) -> Iterator[Row]:
    """Two rows for each pair with a human label."""
    source = job.open("reference_image", "test_image", "binary_label", known=("pair_id", "human_votes"))
    for record in job.records(source):
        values = record.values
        group = record.text("pair_id") or str(record.number)
        label = record.number_in("binary_label")
        candidate_identity = group if label == 1 else f"{group}/other"
        votes = [int(vote) for vote in record.numbers_in("human_votes")]
        yield from record.group(
            group,
            {
                "anchor": (values["reference_image"], {"identity": group}),
                "candidate": (values["test_image"], {"identity": candidate_identity, "label": label}),
            },
            split=record.shard.split,
            engine=ENGINE,
            parameters={"source": source.label, **scalars(values, "pair_id", "binary_label"), "human_votes": votes},
        )
