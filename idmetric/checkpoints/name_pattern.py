"""Untrusted regular expressions, matched against names of modules in a bounded number of steps.

Python's `re` backtracks: some patterns take it years. Here all patterns become one automaton (Thompson 1968, Regular
expression search algorithm; its sets of states are kept, as in a lazily built DFA), and a budget bounds the steps. The
syntax is that of patterns which PEFT writes and documents: literals, `.`, escapes, `[...]`, groups, `|`, `* + ? {m,n}`
and their lazy forms, `^` and `$`. Lookarounds, backreferences, flags and possessive repeats are refused.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence

STEPS = 10_000_000  # a few seconds
STATES = 100_000
LETTERS = 100_000  # of all patterns together
_COMPILED = 500  # steps charged for compiling a class of characters
_NESTED = 50
_REPEAT = re.compile(r"\{([0-9]*)(,?)([0-9]*)\}")
_GROUP = re.compile(r"\?(:|P<\w+>)")
_CLASS = re.compile(r"\[\^?\]?(?:\\.|[^\\\]])*\]")
_RESERVED = re.compile(r"\[|--|&&|~~|\|\|")  # within a class: a future Python may read these otherwise
_ESCAPES = "wWdDsSnrtfv"

Test = Callable[[str], object]
Piece = Callable[[int], int]  # adds a part of a pattern before a given state, and returns its own first state


class PatternError(ValueError):
    """A pattern outside the syntax above, or patterns that take too many steps."""


class NamePatterns:
    """Patterns for names such as "blocks.0.attn.qkv", matched as PEFT matches them: `(.*\\.)?(PATTERN)$`.

    Args:
        patterns: in order of precedence. steps: the budget of this object.

    Raises:
        PatternError: naming the pattern that is not understood or too large.
    """

    def __init__(self, patterns: Sequence[str], steps: int = STEPS) -> None:
        if sum(map(len, patterns)) > LETTERS:
            raise PatternError(f"the patterns have more than {LETTERS} letters together: name modules plainly")
        self._left = steps
        # a state takes a character that passes its test, or none where it has no test; then one of the next follows
        self._tests: list[Test | None] = []
        self._next: list[tuple[int, ...]] = []
        self._anchors: dict[int, str] = {}
        self._ends: dict[int, int] = {}
        self._starts: list[int] = []
        for number, pattern in enumerate(patterns):
            end = self.state(None)
            self._ends[end] = number
            try:
                self._starts.append(_Parser(pattern, self).piece()(end))
            except PatternError as error:
                shown = repr(pattern)
                raise PatternError(f"{shown if len(shown) <= 60 else shown[:57] + '...'} {error}") from error
        self._sets: list[tuple[int, ...]] = []
        self._numbers: dict[tuple[int, ...], int] = {}
        self._moves: dict[tuple[int, str, bool], int] = {}

    def first(self, name: str) -> int | None:
        """The number of the first pattern that matches a name, or its end after a dot; None if none does.

        Raises:
            PatternError: when the budget is spent.
        """
        now = self._set(self._starts, begins=True, ends=not name)
        for at, character in enumerate(name):
            step = (now, character, at + 1 == len(name))
            if (known := self._moves.get(step)) is None:
                known = self._moves[step] = self._move(*step)
            self.spend(1)
            now = known
        return min((self._ends[state] for state in self._sets[now] if state in self._ends), default=None)

    def state(self, test: Test | None, *following: int, anchor: str = "") -> int:
        """Add a state; one with an anchor is passed only where the name begins ("^") or ends ("$")."""
        if len(self._tests) >= STATES:
            raise PatternError("repeats too much: name modules plainly")
        self._tests.append(test)
        self._next.append(following)
        if anchor:
            self._anchors[len(self._tests) - 1] = anchor
        return len(self._tests) - 1

    def link(self, state: int, *following: int) -> None:
        """Set what follows a state that was added before these."""
        self._next[state] = following

    def spend(self, steps: int) -> None:
        """Take steps from the budget."""
        self._left -= steps
        if self._left < 0:
            raise PatternError("the patterns take too many steps to match: name modules plainly")

    def _move(self, now: int, character: str, ends: bool) -> int:
        """The set of states after a character."""
        self.spend(len(self._sets[now]))
        following = self._starts[:] if character == "." else []
        for state in self._sets[now]:
            test = self._tests[state]
            if test is not None and test(character):
                following += self._next[state]
        return self._set(following, begins=False, ends=ends)

    def _set(self, states: Iterable[int], begins: bool, ends: bool) -> int:
        """The states that take a character, or end a pattern, and are reached from these without one."""
        seen, waiting, found = set[int](), list(states), []
        while waiting:
            state = waiting.pop()
            if state in seen:
                continue
            seen.add(state)
            if self._tests[state] is not None or state in self._ends:
                found.append(state)
            elif {None: True, "^": begins, "$": ends}[self._anchors.get(state)]:
                waiting += self._next[state]
                self.spend(len(self._next[state]))
        self.spend(len(seen))
        key = tuple(sorted(found))
        if key not in self._numbers:
            self._numbers[key] = len(self._sets)
            self._sets.append(key)
        return self._numbers[key]


class _Parser:
    """One pattern, by recursive descent."""

    def __init__(self, pattern: str, into: NamePatterns) -> None:
        self._text, self._at, self._into = pattern, 0, into

    def piece(self) -> Piece:
        """The whole pattern."""
        found = self._choice(0)
        if self._at < len(self._text):
            raise PatternError("has a ) without (")
        return found

    def _choice(self, depth: int) -> Piece:
        if depth > _NESTED:
            raise PatternError(f"nests groups more than {_NESTED} deep")
        options = [self._row(depth)]
        while self._taken("|"):
            options.append(self._row(depth))
        if len(options) == 1:
            return options[0]
        return lambda after: self._into.state(None, *[option(after) for option in options])

    def _row(self, depth: int) -> Piece:
        parts: list[Piece] = []
        while self._at < len(self._text) and self._text[self._at] not in "|)":
            parts.append(self._repeated(self._one(depth)))

        def linked(after: int) -> int:
            for part in reversed(parts):
                after = part(after)
            return after

        return linked

    def _one(self, depth: int) -> Piece:
        if self._taken("("):
            if self._taken("?", move=False):
                if (named := _GROUP.match(self._text, self._at)) is None:
                    raise PatternError("uses (?...), of which only (?:...) is supported")
                self._at = named.end()
            inner = self._choice(depth + 1)
            if not self._taken(")"):
                raise PatternError("has a ( without )")
            return inner
        character = self._text[self._at]
        if character in "*+?" or self._count():
            raise PatternError(f"repeats nothing at {character!r}")
        if character in "^$":
            self._at += 1
            if self._text[self._at : self._at + 1] in ("*", "+", "?") or self._count():
                raise PatternError(f"repeats {character}")
            return lambda after: self._into.state(None, after, anchor=character)
        test = self._test()
        return lambda after: self._into.state(test, after)

    def _test(self) -> Test:
        """The test of one character; `re` itself tests classes and escapes."""
        character = self._text[self._at]
        text = character
        if character == "[":
            text = found.group() if (found := _CLASS.match(self._text, self._at)) else ""
        elif character == "\\":
            text = self._text[self._at : self._at + 2]
        if text in ("", "\\"):
            raise PatternError(f"ends within {character}")
        self._at += len(text)

        if text == ".":
            return "\n".__ne__
        if text == character:
            return character.__eq__
        if character == "\\" and not text[1].isalnum():
            return text[1].__eq__
        if (character == "\\" and text[1] not in _ESCAPES) or (character == "[" and _RESERVED.search(text, 1)):
            raise PatternError(f"uses {text[:20]}, which is not supported")
        self._into.spend(_COMPILED)
        try:
            return re.compile(text).fullmatch
        except re.error as error:
            raise PatternError(f"is not understood: {error}") from error

    def _repeated(self, part: Piece) -> Piece:
        sign, counted = self._text[self._at : self._at + 1], self._count()
        if counted:
            if max(len(counted[1]), len(counted[3])) > 6:
                raise PatternError("repeats too much: name modules plainly")
            least = int(counted[1] or 0)
            most = int(counted[3]) if counted[3] else None if counted[2] else least
        elif sign and sign in "*+?":
            least, most = int(sign == "+"), 1 if sign == "?" else None
        else:
            return part
        if most is not None and least > most:
            raise PatternError("has a repeat with its bounds swapped")

        self._at += len(counted[0]) if counted else 1
        self._taken("?")  # lazy: it matches the same names
        if self._text[self._at : self._at + 1] in ("*", "+", "?") or self._count():
            raise PatternError("repeats a repeat without a group")
        return lambda after: self._copies(part, least, most, after)

    def _count(self) -> re.Match[str] | None:
        """A repeat in braces at this place; others are literal, as in `re`."""
        found = _REPEAT.match(self._text, self._at)
        return found if found and (found[1] or found[2]) else None

    def _copies(self, part: Piece, least: int, most: int | None, after: int) -> int:
        """A loop or copies that may be left out, after `least` copies that may not."""
        start = after
        if most is None:
            start = self._into.state(None)
            self._into.link(start, part(start), after)
        for _ in range((most or least) - least):
            start = self._into.state(None, part(start), after)
        for _ in range(least):
            start = self._into.state(None, part(start))
        return start

    def _taken(self, character: str, move: bool = True) -> bool:
        there = self._text.startswith(character, self._at)
        self._at += move and there
        return there
