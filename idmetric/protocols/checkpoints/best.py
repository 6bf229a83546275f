"""The checkpoint to keep, by a rule that anybody can check in the table.

1. Steps with more copies than a bound are left out, and with prompt fidelity, steps with a CLIP-T that lies more than a
   tolerance below the highest of all steps.
2. Among the other steps, the best is the *earliest* one with an identity that reaches the lower end of the interval of
   the highest identity; without an interval, the earliest with the highest identity.

The second part is the one-standard-error rule of Breiman et al. (Classification and Regression Trees, 1984, section
3.4.3), which takes the simplest model within one standard error of the best, with the lower end of the 95 % interval in
place of the standard error. An early checkpoint is the simplest: less drift, more freedom for prompts. Step 0 is
the base model, and never the best.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from idmetric.evaluate.arrays import comparable
from idmetric.protocols.checkpoints.reading import BASE
from idmetric.protocols.common.result import Row, Value
from idmetric.protocols.generator.columns import CLIP


@dataclass(frozen=True)
class Rule:
    """Bounds of the rule.

    Attributes:
        max_copies: share of copies that a step may have. clip_tolerance: how far its CLIP-T may lie below the highest.

    Raises:
        ValueError: for a share outside [0, 1], or a negative tolerance.
    """

    max_copies: float = 0.0
    clip_tolerance: float = 0.02

    def __post_init__(self) -> None:
        if not 0 <= self.max_copies <= 1:
            raise ValueError(f"the share of copies that a step may have is in 0..1, got {self.max_copies:g}")
        if not self.clip_tolerance >= 0:
            raise ValueError(f"the tolerance of CLIP-T is 0 or more, got {self.clip_tolerance:g}")


@dataclass(frozen=True)
class Best:
    """The best step, or None if no step qualifies, and the reason in words."""

    step: int | None
    reason: str


def best_step(rows: Mapping[int, Row], rule: Rule) -> Best:
    """Find the best step.

    Args:
        rows: step -> its numbers; a step without identity does not count.
    """
    steps = sorted(step for step, row in rows.items() if step != BASE and "identity" in row)
    identity, copies, clip = (_column(rows, steps, name) for name in ("identity", "copies", CLIP))
    kept, conditions = steps, []
    if not steps:
        return Best(None, "no best step: there is no checkpoint")

    if copies:
        kept = [step for step in kept if copies[step].value <= rule.max_copies]
        conditions.append(f"copies of at most {rule.max_copies:g}")
    if clip:
        least = max(value.value for value in clip.values()) - rule.clip_tolerance
        kept = [step for step in kept if step in clip and clip[step].value >= least]
        conditions.append(f"CLIP-T of at least {least:.3f} ({rule.clip_tolerance:g} below the highest)")
    if not kept:
        return Best(None, f"no best step: none of {len(steps)} has {' and '.join(conditions)}")

    top = max(kept, key=lambda step: comparable(identity[step].value))  # the earliest of equal ones
    highest, low = identity[top].value, identity[top].low
    bound = highest if low is None else low
    chosen = next(step for step in kept if comparable(identity[step].value) >= comparable(bound))
    among = f" among the {len(kept)} of {len(steps)} steps with {' and '.join(conditions)}" if conditions else ""
    unknown = "" if copies else "; copies were not looked for"
    if chosen != top:
        reach = f"{bound:.3f}, the lower end of the interval of the highest ({highest:.3f} at step {top})"
        return Best(chosen, f"best step {chosen}: the earliest with an identity of at least {reach}{among}{unknown}")
    end = "it (no interval)" if low is None else f"{bound:.3f}, the lower end of its interval"
    return Best(top, f"best step {top}: the highest identity ({highest:.3f}){among}; no earlier one reaches {end}"
                f"{unknown}")  # fmt: skip


def _column(rows: Mapping[int, Row], steps: list[int], name: str) -> dict[int, Value]:
    found = {step: rows[step].get(name) for step in steps}
    return {step: value for step, value in found.items() if isinstance(value, Value)}
