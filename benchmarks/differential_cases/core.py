"""Distances, inputs, masks and losses of all models."""

from __future__ import annotations

from differential_cases import Results, examples, same


def pairs_of_tiny() -> Results:
    from idmetric import IDSim

    metric = IDSim("tiny", device="cpu")
    reference, *others = examples()
    names = ("cls", "patch", "joint", "patch_pooled", "joint_pooled", "patch_biased")
    return {name: metric(reference, others, name) for name in names}


CASES = [same("tiny/distances", pairs_of_tiny, 5e-6)]
