"""Multimodal language models as a baseline: a judge answers whether two images show the same individual.

    judge = Judge(Endpoint("http://127.0.0.1:8000/v1", "Qwen3-VL-30B-A3B-Instruct"), store=Path("results/judge"))
    verdicts = judge.ask([("a.jpg", "b.jpg"), ("a.jpg", "c.jpg")])
    print(judge.report())

After NearID, section 0.E.11 (question "evidence") and ID-Sim, section D.3 (question "instance"). Every answer is kept
on disk under a digest of the question (images, words, model, settings): a stopped run resumes, and no answer is paid
for twice. A pair without an answer is counted and has no score, never a score of 0.
"""

from __future__ import annotations

import hashlib
import io
import json
import random
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, Protocol

from PIL import Image

from idmetric.images.read import read_image
from idmetric.io import json_file
from idmetric.io.output import replacing
from idmetric.protocols.judges.questions import EVIDENCE, AnswerError, Question
from idmetric.protocols.judges.reply import CallError, JudgeError, NoAnswerError, Picture, Reply


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

    def load(self, key: str, question: Question) -> dict[str, Any] | None:
        """The answer to a question; None if it is unknown or its file damaged."""
        if key in self._known or self.folder is None:
            return self._known.get(key)
        try:
            return question.parse(json.dumps(json_file.read(self._path(key))["answer"]))
        except (OSError, ValueError, KeyError, TypeError):  # ask again and replace the file
            return None

    def keep(self, key: str, record: Mapping[str, Any]) -> None:
        """Keep an answer together with its question."""
        self._known[key] = record["answer"]
        if self.folder is not None:
            path = self._path(key)
            path.parent.mkdir(parents=True, exist_ok=True)
            with replacing(path) as temporary:
                temporary.write_text(json.dumps(record, ensure_ascii=False, indent=1) + "\n", encoding="utf-8")

    def _path(self, key: str) -> Path:
        assert self.folder is not None
        return self.folder / key[:2] / f"{key}.json"


# Judge


_FORMATS: dict[str, dict[str, Any]] = {"jpeg": {"quality": 95, "subsampling": 0}, "png": {}}


class Backend(Protocol):
    """The model that answers: an `endpoint.Endpoint` or a `local.LocalModel`."""

    def about(self) -> dict[str, Any]:
        """Everything that its answers depend on, as JSON values."""

    def ask(self, prompt: str, pictures: Sequence[Picture], *, max_tokens: int, temperature: float, seed: int) -> Reply:
        """Ask one question; CallError if it failed, JudgeError if all questions would."""


@dataclass(frozen=True)
class Settings:
    """Settings of a judge's requests.

    Args:
        side: images are scaled down to this many pixels on their longer side, never up.
        image_format: "jpeg" (quality 95) or "png" (no loss, larger).
        max_tokens: of an answer; default: the question's.
        seed: sent with each request; servers may ignore it. The first try has temperature 0. Tries after an unreadable
            answer have `temperature_again` and another seed, since the same request would give the same answer.
        tries: requests for a pair before it counts as failed.
        pause: seconds before the second try, doubled for each further one up to `longest_pause`, plus a random part of
            up to half. A server's Retry-After takes precedence, up to `longest_pause`.
        concurrency: requests at a time.
        give_up_after: number of failed pairs in a row that stops the run.
    """

    side: int = 768
    image_format: Literal["jpeg", "png"] = "jpeg"
    max_tokens: int | None = None
    seed: int = 0
    temperature_again: float = 0.7
    tries: int = 4
    pause: float = 2.0
    longest_pause: float = 60.0
    concurrency: int = 4
    give_up_after: int = 20

    def __post_init__(self) -> None:
        if self.image_format not in _FORMATS:
            raise ValueError(f"unknown image_format {self.image_format!r}: choose {', '.join(_FORMATS)}")
        if min(self.side, self.tries, self.concurrency, self.give_up_after, self.max_tokens or 1) < 1:
            raise ValueError("side, tries, concurrency, give_up_after and max_tokens are at least 1")


class Judge:
    """Asks a model about pairs of images.

    Args:
        backend: the model that answers. question: the question about each pair.
        store: folder for answers; None keeps them in memory alone.
        prices: of a million tokens in and out, in any currency.
    """

    def __init__(
        self,
        backend: Backend,
        question: Question = EVIDENCE,
        settings: Settings | None = None,
        *,
        store: Path | None = None,
        prices: tuple[float, float] | None = None,
    ) -> None:
        self.backend, self.question, self.settings = backend, question, settings or Settings()
        self.prices = prices
        self._report, self._answers = Report(), Answers(store)
        self._asking: dict[str, threading.Lock] = {}  # equal pairs in flight are asked about once
        self._lock = threading.Lock()
        self._stop = threading.Event()

    @property
    def store(self) -> Path | None:
        """The folder of answers."""
        return self._answers.folder

    @store.setter
    def store(self, folder: Path) -> None:
        self._answers = Answers(folder)

    def signature(self) -> dict[str, str]:
        """Facts to report with a score: model, question, resolution and settings."""
        about = self.backend.about()
        return {
            "model": f"judge:{about['model']}",
            "question": f"{self.question.name}@{hashlib.sha256(self.question.prompt.encode()).hexdigest()[:8]}",
            "resolution": f"<={self.settings.side}px {self.settings.image_format}",
            "settings": _digest([about, self._asked()])[:8],
        }

    def report(self) -> Report:
        """Counts, tokens and cost so far."""
        if self.prices is not None:
            spent = self._report.tokens_in * self.prices[0] + self._report.tokens_out * self.prices[1]
            self._report.cost = spent / 1e6
        return self._report

    def ask(
        self,
        pairs: Sequence[tuple[Any, Any]],
        progress: Callable[[int, int], None] | None = None,
        *,
        read: Callable[[Any], Image.Image] = read_image,
    ) -> list[Verdict]:
        """The verdict on each pair; equal pairs are asked about once.

        Args:
            pairs: images of any kind that `read` opens, in threads.
            progress: called with (pairs done, pairs in all).

        Raises:
            ImageReadError: naming an image that cannot be read.
            JudgeError: if no pair can be judged (key, address), or too many failed in a row. Answers so far are kept.
        """
        start, row, found = time.monotonic(), 0, {}
        self._stop.clear()
        pool = ThreadPoolExecutor(self.settings.concurrency)

        try:
            futures = {pool.submit(self._one, a, b, read): k for k, (a, b) in enumerate(pairs)}
            for done, future in enumerate(as_completed(futures), 1):
                verdict = found[futures[future]] = future.result()
                self._report.pairs += 1
                self._report.stored += verdict.stored
                self._report.failed += verdict.similarity is None
                row = row + 1 if verdict.similarity is None else 0
                if row >= self.settings.give_up_after:
                    raise JudgeError(f"{row} pairs in a row had no answer, the last because: {verdict.reason}")
                if progress is not None:
                    progress(done, len(pairs))
        finally:  # wait for requests in flight and keep their answers: they are paid for
            self._stop.set()
            pool.shutdown(cancel_futures=True)
            self._report.seconds += time.monotonic() - start

        return [found[k] for k in range(len(pairs))]

    # One pair

    def _one(self, a: Any, b: Any, read: Callable[[Any], Image.Image]) -> Verdict:
        try:
            images = [read(image) for image in (a, b)]
            about = {"backend": self.backend.about(), "asked": self._asked(), "prompt": self.question.prompt,
                     "images": [_pixels(image) for image in images]}  # fmt: skip
            key = _digest(about)
            with self._lock:
                asking = self._asking.setdefault(key, threading.Lock())

            with asking:
                known = self._answers.load(key, self.question)
                if known is not None:
                    return Verdict(self.question.similarity(known), known, stored=True)
                return self._try(key, about, [encode(image, self.settings) for image in images])
        except BaseException:
            self._stop.set()  # at once: the pool must not send the next request
            raise

    def _try(self, key: str, about: dict[str, Any], pictures: Sequence[Picture]) -> Verdict:
        chance, unread, reason = random.Random(key), 0, "stopped"
        for attempt in range(self.settings.tries):
            if self._stop.is_set():
                break
            wait: float | None = None
            try:
                reply = self._request(pictures, unread)
                answer = self.question.parse(reply.text)
            except AnswerError as error:
                unread, reason = unread + 1, f"unreadable answer: {error}"
            except CallError as error:
                wait, reason, unread = error.wait, str(error), unread + isinstance(error, NoAnswerError)
                if not error.again:
                    self._count(reason)
                    break
            else:
                self._answers.keep(
                    key, {"answer": answer, "by": reply.model, "usage": reply.usage, "tries": attempt + 1, **about}
                )
                return Verdict(self.question.similarity(answer), answer)
            self._count(reason)
            if attempt + 1 < self.settings.tries:
                if wait is None:
                    wait = self.settings.pause * 2**attempt * (1 + chance.random() / 2)
                self._stop.wait(min(wait, self.settings.longest_pause))

        return Verdict(None, reason=reason)

    def _request(self, pictures: Sequence[Picture], unread: int) -> Reply:
        start, usage = time.monotonic(), None
        try:
            reply = self.backend.ask(
                self.question.prompt,
                pictures,
                max_tokens=self.settings.max_tokens or self.question.max_tokens,
                temperature=self.settings.temperature_again if unread else 0.0,
                seed=self.settings.seed + unread,
            )
            usage = reply.usage
            return reply
        except CallError as error:
            usage = error.usage
            raise
        finally:
            with self._lock:
                self._report.requests += 1
                self._report.waiting += time.monotonic() - start
                self._report.unmetered += usage is None
                self._report.tokens_in += usage[0] if usage else 0
                self._report.tokens_out += usage[1] if usage else 0

    def _count(self, reason: str) -> None:
        with self._lock:
            self._report.reasons[reason[:100]] += 1

    def _asked(self) -> dict[str, Any]:
        s = self.settings
        return {"max_tokens": s.max_tokens or self.question.max_tokens, "seed": s.seed, "side": s.side,
                "format": s.image_format, "question": self.question.name}  # fmt: skip


def encode(image: Image.Image, settings: Settings) -> Picture:
    """Encode an RGB image for a request: no larger than `side`, without its file's metadata."""
    if max(image.size) > settings.side:
        scale = settings.side / max(image.size)
        width, height = (max(1, round(length * scale)) for length in image.size)
        image = image.resize((width, height), Image.Resampling.LANCZOS)
    data = io.BytesIO()
    image.save(data, settings.image_format, **_FORMATS[settings.image_format])
    return Picture(data.getvalue(), f"image/{settings.image_format}")


def _pixels(image: Image.Image) -> str:
    """Digest of an image's pixels; its encoding may differ between versions of a library."""
    return hashlib.sha256(f"{image.width}x{image.height};".encode() + image.tobytes()).hexdigest()


def _digest(value: Any) -> str:
    """Digest of a JSON value."""
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()
