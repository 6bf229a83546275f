"""Patterns of names match as Python's `re` does, without its backtracking."""

from __future__ import annotations

import re
from random import Random

from idmetric.checkpoints.name_pattern import NamePatterns


def _random_pattern(rng: Random, depth: int = 0) -> str:
    def atom() -> str:
        kind = rng.random()
        if kind < 0.2 and depth < 3:
            return rng.choice(["(%s)", "(?:%s)"]) % _random_pattern(rng, depth + 1)
        if kind < 0.4:
            return rng.choice([r"\.", r"\d", r"\w", ".", r"\_", "[ab]", "[^a]", "[0-9]", "[a-c_]", r"[\d.]"])
        return rng.choice("ab0._")

    def piece() -> str:
        repeats = ["*", "+", "?", "{2}", "{1,3}", "{,2}", "{2,}", "{,}", "*?", "+?", "??", "{x}"]
        return rng.choice(["^", "$"]) if rng.random() < 0.06 else atom() + rng.choice(["", "", rng.choice(repeats)])

    options = ["".join(piece() for _ in range(rng.randint(0, 4))) for _ in range(rng.choice([1, 1, 2, 3]))]
    return "|".join(options)


def test_patterns_match_the_names_that_peft_would_match() -> None:
    rng, matched = Random(0), 0
    for _ in range(2000):
        patterns = [_random_pattern(rng) for _ in range(rng.randint(1, 3))]
        ours = NamePatterns(patterns)
        for _ in range(8):
            name = "".join(rng.choice("ab0_..") for _ in range(rng.randint(0, 7)))
            theirs = next((k for k, p in enumerate(patterns) if re.match(rf"(.*\.)?({p})$", name)), None)
            assert ours.first(name) == theirs, (patterns, name)
            matched += theirs is not None
    assert 2000 < matched < 14000  # both answers occur


def test_an_adapter_with_an_alpha_for_each_of_its_layers_is_read() -> None:
    names = [f"model.layers.{k}.self_attn.{x}_proj" for k in range(250) for x in "qkvo"]
    patterns = NamePatterns(names)
    assert [patterns.first(f"base_model.model.{name}") for name in names] == list(range(1000))
