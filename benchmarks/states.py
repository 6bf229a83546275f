"""How often does `match` name the right state? Composites of photos, by the rule that gives the thresholds.

    python benchmarks/states.py --data DATA --composites 1200

`composites.py` describes the composites. One half of them was used to choose the constants of
`idmetric.matching.assignment`; the other half shows other subjects, strangers and photos. Regions and photos are
embedded once, and all rules are applied to the same distances. "States" is the share of right states, one for each
subject of a composite, and "images" the share of composites in which all are right, with 95 % intervals by subject.
DATA holds manifest.csv and its photos. The script takes two minutes on one core.
"""

from __future__ import annotations

import argparse
import math
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from composites import Composite, Identity, Photo, composites, draw, halves, identities
from numpy.typing import NDArray

from idmetric import load
from idmetric.evaluate.statistics.bootstrap import Interval, bootstrap
from idmetric.matching.assignment import MARGIN, State, assigned
from idmetric.matching.thresholds import FEWEST
from idmetric.metric.distance import distance_matrix
from idmetric.metric.embedder import Embedder
from idmetric.metric.embedding import Embedding
from idmetric.scoring.calibration import PAIR_RATE, Calibration, calibration_of
from idmetric.scoring.references import leave_one_out
from idmetric.tables import aligned

Array = NDArray[np.float64]
BATCH = 40  # composites
NO_MARGIN = math.inf
MARGINS = (0.0, 0.05, 0.1, 0.15, 0.2, 0.25, 0.3, 0.5, NO_MARGIN)
STATES: tuple[State, ...] = ("matched", "missing", "twice")

# thresholds (S,) of a cast by the subjects' own ones, NaN where a subject has too few photos, and a calibration
Rule = Callable[[Array, Calibration], Array]
RULES: dict[str, Rule] = {
    "stored, 5 % of pairs": lambda own, stored: np.full(len(own), stored.threshold_at(PAIR_RATE).distance),
    "own photos, else stored": lambda own, stored: np.where(
        np.isnan(own), stored.threshold_at(PAIR_RATE).distance, own
    ),
    "larger of own and stored": lambda own, stored: np.fmax(own, stored.threshold_at(PAIR_RATE).distance),
    "given, 0.4": lambda own, stored: np.full(len(own), 0.4),
    "stored, 0.1 % of pairs": lambda own, stored: np.full(len(own), stored.threshold_at(0.001).distance),
}


@dataclass(frozen=True)
class Measured:
    """A composite, the distances (S, R) of its subjects to its regions, and the thresholds (S,) of their own photos."""

    composite: Composite
    distances: Array
    own_thresholds: Array


@dataclass(frozen=True)
class Verdict:
    """The state of a subject in a composite, and the one that was named."""

    composite: Composite
    subject: str
    state: str
    named: str


# Distances


def measure(metric: Embedder, pool: Sequence[Identity], data: Path, count: int, seed: int) -> Iterator[Measured]:
    """Draw composites of a pool, and measure them."""
    rng = np.random.default_rng(seed)
    backgrounds = sorted((data / "train" / "backgrounds").glob("*.jpg"))
    plans = list(composites(pool, count, rng))

    photos: list[Photo] = []
    for identity in pool:
        photos += identity.photos
    photo_embedding = metric.embed([photo.open()[0] for photo in photos], patches=False)
    row_of = {photo: row for row, photo in enumerate(photos)}

    for start in range(0, count, BATCH):
        batch = plans[start : start + BATCH]
        crops = []
        for composite in batch:
            picture, boxes = draw(composite, backgrounds, rng)
            crops += [picture.crop(box) for box in boxes]
        crop_embedding = metric.embed(crops, patches=False)

        first_crop = 0
        for composite in batch:
            regions = crop_embedding[range(first_crop, first_crop + len(composite.regions))]
            first_crop += len(composite.regions)
            references = []
            for subject_photos in composite.references:
                references.append(photo_embedding[[row_of[photo] for photo in subject_photos]])
            yield _measured(composite, references, regions)


def _measured(composite: Composite, references: Sequence[Embedding], regions: Embedding) -> Measured:
    """Compare the references of each subject with the regions, and with each other."""
    distances = []
    own_thresholds = []
    for embedding in references:
        to_regions = distance_matrix(embedding, regions).double().numpy()
        distances.append(to_regions.min(0))
        own_threshold = math.nan
        if len(embedding) >= FEWEST:  # as matching.thresholds.own_limit
            among = distance_matrix(embedding, None).double().numpy()
            own_threshold = float(leave_one_out(among).max())
        own_thresholds.append(own_threshold)
    return Measured(composite, np.stack(distances), np.array(own_thresholds))


# States


def verdicts(part: Sequence[Measured], rule: str, calibration: Calibration, margin: float) -> list[Verdict]:
    """The states that a rule names, composite by composite."""
    results = []
    for measured in part:
        thresholds = RULES[rule](measured.own_thresholds, calibration)
        named = assigned(measured.distances, thresholds, margin=margin).states
        composite = measured.composite
        for subject, state, named_state in zip(composite.subjects, composite.states, named, strict=True):
            results.append(Verdict(composite, subject, state, named_state))
    return results


def right_states(results: Sequence[Verdict]) -> Interval:
    """The share of right states, with its interval by subject."""
    are_right = np.array([verdict.state == verdict.named for verdict in results])
    subjects = [verdict.subject for verdict in results]
    return bootstrap(lambda rows: float(are_right[rows].mean()), subjects)


def right_images(results: Sequence[Verdict]) -> Interval:
    """The share of composites in which all states are right, with its interval by their first two subjects."""
    is_right: dict[int, bool] = {}
    pairs: dict[int, tuple[str, ...]] = {}
    for verdict in results:
        number = id(verdict.composite)
        is_right[number] = is_right.get(number, True) and verdict.state == verdict.named
        pairs[number] = verdict.composite.subjects[:2]
    are_right = np.array(list(is_right.values()))
    return bootstrap(lambda rows: float(are_right[rows].mean()), list(pairs.values()))


# Tables


def shares_table(part: Sequence[Measured], calibration: Calibration) -> list[str]:
    """Shares of right states and images by rule, without and with the margin."""
    lines = [("thresholds", "margin", "states", "", "images", "")]
    for rule in RULES:
        for margin in (NO_MARGIN, MARGIN):
            results = verdicts(part, rule, calibration, margin)
            cells = [rule, shown_margin(margin)]
            for share in (right_states(results), right_images(results)):
                cells += [f"{share.value:.3f}", f"[{share.low:.3f}, {share.high:.3f}]"]
            lines.append(tuple(cells))
    return aligned(lines, right=(1, 2, 4))


def margins_table(part: Sequence[Measured], calibration: Calibration) -> list[str]:
    """Shares of right states by margin and rule."""
    lines = [("margin", *RULES)]
    for margin in MARGINS:
        cells = [shown_margin(margin)]
        for rule in RULES:
            results = verdicts(part, rule, calibration, margin)
            cells.append(f"{right_states(results).value:.3f}")
        lines.append(tuple(cells))
    return aligned(lines, right=range(1 + len(RULES)))


def shown_margin(margin: float) -> str:
    """A margin in a cell."""
    return "none" if margin == NO_MARGIN else f"{margin:.2f}"


def confusion_table(results: Sequence[Verdict]) -> list[str]:
    """Counts of the states in rows, as the columns name them."""
    counts = Counter((verdict.state, verdict.named) for verdict in results)
    lines = [("", *STATES)]
    for state in STATES:
        cells = [str(counts[state, named]) for named in STATES]
        lines.append((state, *cells))
    return aligned(lines, right=range(1, 1 + len(STATES)))


def groups_table(
    part: Sequence[Measured], calibration: Calibration, title: str, group_of: Callable[[Verdict], str]
) -> list[str]:
    """Shares of right states in groups of verdicts, by rule."""
    by_group: dict[str, list[list[bool]]] = {}
    for rule in RULES:
        are_right: dict[str, list[bool]] = defaultdict(list)
        for verdict in verdicts(part, rule, calibration, MARGIN):
            are_right[group_of(verdict)].append(verdict.state == verdict.named)
        for group, values in are_right.items():
            by_group.setdefault(group, []).append(values)

    lines = [(title, "states", *RULES)]
    for group, values_of_rules in sorted(by_group.items()):
        shares = [f"{np.mean(values):.3f}" for values in values_of_rules]
        lines.append((group, str(len(values_of_rules[0])), *shares))
    return aligned(lines, right=range(1, 2 + len(RULES)))


def kind_of(verdict: Verdict) -> str:
    """The kind of composite."""
    composite = verdict.composite
    if composite.has_look_alikes and composite.kind != "look-alikes":
        return f"{composite.kind}, two look alike"
    return composite.kind


def source_of(verdict: Verdict) -> str:
    """The kind of subject."""
    if verdict.subject.startswith("grocery"):
        return "packages"
    return "toys and cups" if verdict.subject.startswith("eth80") else "everyday subjects"


def print_table(title: str, lines: Sequence[str]) -> None:
    """Print a table."""
    print(f"\n{title}\n")
    print("\n".join(lines), flush=True)


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--composites", type=int, default=1200, help="in both halves together")
    parser.add_argument("--model", default="tiny", help="with a stored calibration")
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()

    metric = load(args.model)
    calibration = calibration_of(metric)
    if calibration is None:
        parser.error(f"{args.model} has no stored calibration: make one, idmetric eval calibrate")
    parts = halves(identities(args.data), np.random.default_rng(args.seed))
    count = args.composites // 2
    for name, number in (("choosing", 0), ("reporting", 1)):
        pool = parts[number]
        part = list(measure(metric, pool, args.data, count, seed=args.seed + 1 + number))
        heading = f"For {name}: {count} composites, {len(pool)} subjects"
        if name == "choosing":
            print_table(f"{heading}. Right states by margin", margins_table(part, calibration))
        print_table(f"{heading}. Right states and images", shares_table(part, calibration))

    print_table("Right states by kind of composite", groups_table(part, calibration, "kind", kind_of))
    print_table("Right states by kind of subject", groups_table(part, calibration, "subject", source_of))
    for rule in RULES:
        print_table(f"True states by named state, {rule}", confusion_table(verdicts(part, rule, calibration, MARGIN)))


if __name__ == "__main__":
    main()
