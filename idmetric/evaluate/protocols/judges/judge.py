"""Multimodal language models as a baseline: a judge answers whether two images show the same individual.

    judge = Judge(Endpoint("http://127.0.0.1:8000/v1", "Qwen3-VL-30B-A3B-Instruct"), store=Path("results/judge"))
    verdicts = judge.ask([("a.jpg", "b.jpg"), ("a.jpg", "c.jpg")])
    print(judge.report())

After NearID, section 0.E.11 (question "evidence"), and ID-Sim, section D.3 ("instance"). Every answer is a line of
answers.jsonl, under a digest of the question (images, words, model, settings): a stopped run resumes, and no answer is
paid for twice. A pair without an answer is counted and has no score, never a score of 0.
"""

from __future__ import annotations

import hashlib
import io
import json
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from PIL import Image

from idmetric.evaluate.protocols.judges.endpoint import Endpoint
from idmetric.evaluate.protocols.judges.questions import QUESTIONS, Question
from idmetric.metric.errors import RequestError
from idmetric.metric.images import read_image

ANSWERS = "answers.jsonl"  # in the folder for answers
_TRIES = 4  # answers to a pair that may be unreadable
_TEMPERATURE_AGAIN = 0.7  # after an unreadable answer: the same request would give the same answer
_GIVE_UP_AFTER = 20  # failed pairs in a row
_SEED = 0


@dataclass(frozen=True)
class Verdict:
    """The outcome for a pair.

    Attributes:
        similarity: in 0..1, higher = more surely the same; None without an answer. reason: of a missing answer.
        stored: whether the answer comes from an earlier request.
    """

    similarity: float | None
    reason: str = ""
    stored: bool = False


class Judge:
    """Asks a model about pairs of images.

    Args:
        backend: the server that answers. question: the question about each pair.
        store: folder for answers; None keeps them in memory alone.
        side: images are scaled down to this many pixels on their longer side, never up.
        max_tokens: of an answer; default: the question's. concurrency: requests at a time.
    """

    def __init__(
        self,
        backend: Endpoint,
        question: Question = QUESTIONS["evidence"],
        *,
        store: Path | None = None,
        side: int = 768,
        max_tokens: int | None = None,
        concurrency: int = 4,
    ) -> None:
        self.max_tokens = question.max_tokens if max_tokens is None else max_tokens
        if min(side, self.max_tokens, concurrency) < 1:
            raise ValueError("side, max_tokens and concurrency are at least 1")
        self.backend, self.question, self.store = backend, question, store
        self.side, self.concurrency = side, concurrency
        self.counts: Counter[str] = Counter()  # pairs, known, replies, tokens in, tokens out
        self.failed: Counter[str] = Counter()  # reason -> pairs without an answer
        self.seconds = 0.0
        self._answers: dict[str, dict[str, Any]] = {}
        self._lock = threading.Lock()

    def signature(self) -> dict[str, str]:
        """Facts to report with a score: model, question, resolution and settings."""
        about = self.backend.about()
        return {
            "model": f"judge:{about['model']}",
            "question": f"{self.question.name}@{_digest(self.question.prompt)[:8]}",
            "resolution": f"<={self.side}px jpeg",
            "settings": _digest([about, self._asked()])[:8],
        }

    def report(self) -> str:
        """The work since the judge was created: pairs, replies, tokens as the server counts them, time."""
        c = self.counts
        pairs = f"{c['pairs']} pairs, {c['known']} of them known, {self.failed.total()} without an answer"
        if self.failed:
            [(reason, _)] = self.failed.most_common(1)
            pairs += f" (such as: {reason})"
        tokens = f"{c['tokens in']} + {c['tokens out']} tokens"
        return f"{pairs}; {c['replies']} replies, {tokens}, {self.seconds:.1f} seconds"

    def ask(
        self,
        pairs: Sequence[tuple[Any, Any]],
        progress: Callable[[int, int], None] | None = None,
        *,
        read: Callable[[Any], Image.Image] = read_image,
    ) -> list[Verdict]:
        """The verdict on each pair.

        Args:
            pairs: images of any kind that `read` opens, in threads.
            progress: called with (pairs done, pairs in all).

        Raises:
            ImageReadError: naming an image that cannot be read.
            RequestError: if no pair can be judged (key, address), or too many failed in a row. Answers so far are kept.
        """
        start = time.monotonic()
        stopped = threading.Event()
        self._answers = self._stored_answers() | self._answers

        def verdict_on(pair: tuple[Any, Any]) -> Verdict:
            if stopped.is_set():
                return Verdict(None, reason="stopped")
            try:
                return self._verdict([read(image) for image in pair])
            except BaseException:
                stopped.set()  # at once: no other thread sends its next request
                raise

        verdicts: list[Verdict] = []
        failed = 0  # in a row
        with ThreadPoolExecutor(self.concurrency) as pool:  # requests in flight are awaited: they are paid for
            try:
                for verdict in pool.map(verdict_on, pairs):
                    verdicts.append(verdict)
                    self.counts.update(pairs=1, known=int(verdict.stored))
                    if verdict.similarity is None:
                        failed += 1
                        self.failed[verdict.reason] += 1
                    else:
                        failed = 0
                    if failed >= _GIVE_UP_AFTER:
                        raise RequestError(f"{failed} pairs in a row had no answer, the last because: {verdict.reason}")
                    if progress is not None:
                        progress(len(verdicts), len(pairs))
            finally:
                stopped.set()
                self.seconds += time.monotonic() - start
        return verdicts

    def _verdict(self, images: Sequence[Image.Image]) -> Verdict:
        """The stored answer about two images, or a new one."""
        about = {
            "backend": self.backend.about(),
            "asked": self._asked(),
            "prompt": self.question.prompt,
            "images": [_pixels(image) for image in images],
        }
        key = _digest(about)
        answer = self._answers.get(key)
        if answer is not None:
            return Verdict(self.question.similarity(answer), stored=True)

        encoded = [encode(image, self.side) for image in images]
        reason = ""
        for attempt in range(_TRIES):
            reply = self.backend.ask(
                self.question.prompt,
                encoded,
                max_tokens=self.max_tokens,
                seed=_SEED + attempt,
                temperature=_TEMPERATURE_AGAIN if attempt else 0.0,
            )
            if reply.failed:
                return Verdict(None, reason=reply.problem)
            with self._lock:
                self.counts.update({"replies": 1, "tokens in": reply.tokens[0], "tokens out": reply.tokens[1]})
            try:
                if reply.problem:
                    raise ValueError(reply.problem)
                answer = self.question.parse(reply.text)
            except ValueError as error:
                reason = f"unreadable answer: {error}"
                continue
            facts = {"by": reply.model, "usage": reply.tokens, "tries": attempt + 1}
            self._store(key, {"answer": answer, **facts, **about})
            return Verdict(self.question.similarity(answer))
        return Verdict(None, reason=reason)

    def _asked(self) -> dict[str, Any]:
        return {
            "max_tokens": self.max_tokens,
            "seed": _SEED,
            "side": self.side,
            "format": "jpeg",
            "question": self.question.name,
        }

    # Answers by the digest of their question, in a line of JSON each

    def _stored_answers(self) -> dict[str, dict[str, Any]]:
        answers: dict[str, dict[str, Any]] = {}
        if self.store is None or not (self.store / ANSWERS).exists():
            return answers
        for line in (self.store / ANSWERS).read_text(encoding="utf-8", errors="replace").splitlines():
            try:
                record = json.loads(line)
                answers[record["key"]] = self.question.checked(record["answer"])
            except (ValueError, KeyError, TypeError):  # of another question, or cut off by a full disk: ask again
                continue
        return answers

    def _store(self, key: str, record: Mapping[str, Any]) -> None:
        with self._lock:
            self._answers[key] = record["answer"]
            if self.store is None:
                return
            self.store.mkdir(parents=True, exist_ok=True)
            with (self.store / ANSWERS).open("a", encoding="utf-8") as file:
                file.write(json.dumps({"key": key, **record}) + "\n")


def encode(image: Image.Image, side: int) -> bytes:
    """Encode an RGB image for a request as JPEG: no larger than `side`, without its file's metadata."""
    scale = side / max(image.size)
    if scale < 1:
        width, height = max(1, round(image.width * scale)), max(1, round(image.height * scale))
        image = image.resize((width, height), Image.Resampling.LANCZOS)
    data = io.BytesIO()
    image.save(data, "jpeg", quality=95, subsampling=0)
    return data.getvalue()


def _pixels(image: Image.Image) -> str:
    """Digest of an image's pixels; its encoding may differ between versions of a library."""
    return hashlib.sha256(f"{image.width}x{image.height};".encode() + image.tobytes()).hexdigest()


def _digest(value: Any) -> str:
    """Digest of a JSON value."""
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()
