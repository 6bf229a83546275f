"""Verdicts of a judge, the report of their cost, and answers on disk."""

from __future__ import annotations

import json
import threading
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from idmetric.io import json_file
from idmetric.io.output import replacing
from idmetric.protocols.judges.prompts import Question


@dataclass(frozen=True)
class Verdict:
    """The outcome for a pair.

    Attributes:
        similarity: in 0..1, higher = more surely the same; None without an answer.
        answer: its fields. reason: of a missing answer.
        stored: whether the answer comes from an earlier request.
    """

    similarity: float | None
    answer: Mapping[str, Any] | None = None
    reason: str | None = None
    stored: bool = False


@dataclass
class Report:
    """The work of a judge since it was created.

    Attributes:
        pairs: number of pairs. stored: pairs answered from disk. failed: pairs without an answer.
        requests: number of requests sent. unmetered: number of replies without a count of tokens.
        tokens_in, tokens_out: as the server counts them, including failed tries.
        waiting: seconds until replies, summed over requests. seconds: wall-clock time.
        cost: tokens x prices; None without prices.
        reasons: number of tries by reason of failure.
    """

    pairs: int = 0
    stored: int = 0
    failed: int = 0
    requests: int = 0
    unmetered: int = 0
    tokens_in: int = 0
    tokens_out: int = 0
    waiting: float = 0.0
    seconds: float = 0.0
    cost: float | None = None
    reasons: Counter[str] = field(default_factory=Counter)

    def __str__(self) -> str:
        text = f"{self.pairs} pairs, {self.stored} of them known, {self.failed} without an answer"
        text += f"; {self.requests} requests, {self.tokens_in} + {self.tokens_out} tokens"
        if self.cost is not None:
            text += f", cost {'at least ' if self.unmetered else ''}{self.cost:.4f}"
        each = self.waiting / self.requests if self.requests else 0.0
        return f"{text}; {self.seconds:.1f} s, {each:.2f} s a request"


class Answers:
    """Answers by the digest of their question, in a JSON file each; a stopped run keeps them, and runs can share them.

    Args:
        folder: created with the first answer; None keeps answers in memory alone.
    """

    def __init__(self, folder: Path | None) -> None:
        self.folder = folder
        self._known: dict[str, dict[str, Any]] = {}
        self._lock = threading.Lock()

    def load(self, key: str, question: Question) -> dict[str, Any] | None:
        """The answer to a question; None if it is unknown or its file damaged."""
        if key in self._known or self.folder is None:
            return self._known.get(key)
        try:
            return question.parse(json.dumps(json_file.read(self._path(key))["answer"]))
        except (OSError, ValueError, KeyError, TypeError):  # ask again and replace the file
            return None

    def holds(self, key: str) -> bool:
        """Whether the folder has a file for a question, even an unreadable one."""
        return self.folder is not None and self._path(key).is_file()

    def keep(self, key: str, record: Mapping[str, Any]) -> None:
        """Keep an answer together with its question."""
        with self._lock:
            self._known[key] = record["answer"]
            if self.folder is not None:
                path = self._path(key)
                path.parent.mkdir(parents=True, exist_ok=True)
                with replacing(path) as temporary:
                    temporary.write_text(json.dumps(record, ensure_ascii=False, indent=1) + "\n", encoding="utf-8")

    def _path(self, key: str) -> Path:
        assert self.folder is not None
        return self.folder / key[:2] / f"{key}.json"
