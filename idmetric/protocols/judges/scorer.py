"""A judge as one of a protocol's models; it scores pairs only.

Reads a judge from a JSON file, for `idmetric eval PROTOCOL --model judge:FILE`.

    {"url": "https://api.openai.com/v1", "model": "gpt-4o", "key": "OPENAI_API_KEY", "prices": [2.5, 10]}
    {"local": "Qwen/Qwen3-VL-8B-Instruct", "question": "instance"}

`url`, `model`, `key`, `timeout` and `extra` are arguments of `endpoint.Endpoint`; `local` and `revision` of
`local.LocalModel`; `question` is a name in `questions.QUESTIONS` (default "evidence") or a file next to this one (see
`questions.read_question`); `prices` are per million tokens in and out; `store` is the folder of answers (default:
judge/ next to the embeddings in --out); all other names are fields of `judge.Settings`. The file names the environment
variable that holds the key, never the key itself.
"""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image

from idmetric.data.embed import Look, UnreadableError
from idmetric.data.manifest.table import Manifest
from idmetric.images.read import ImageReadError, describe, read_image
from idmetric.images.regions import cut_out
from idmetric.io import json_file
from idmetric.protocols.common.columns import Array
from idmetric.protocols.common.scorers import Progress, Settings
from idmetric.protocols.judges.endpoint import Endpoint
from idmetric.protocols.judges.judge import Backend, Judge
from idmetric.protocols.judges.judge import Settings as RequestSettings
from idmetric.protocols.judges.questions import QUESTIONS, Question, read_question
from idmetric.protocols.judges.reply import JudgeError

Rows = Sequence[int] | NDArray[np.integer]


class JudgeScorer:
    """A judge bound to a manifest.

    Similarities are in 0..1, NaN for a pair without an answer, which a protocol counts and leaves out.
    """

    def __init__(self, judge: Judge, manifest: Manifest, look: Look, progress: Progress | None = None) -> None:
        self.judge, self.manifest, self.look, self.progress = judge, manifest, look, progress

    def signature(self) -> dict[str, str]:
        """See `scorers.Scorer`."""
        return {**self.judge.signature(), "distance": "1 - similarity"}

    def matrix(self, rows: Rows, columns: Rows) -> Array:
        """Refuse: a matrix of a thousand images would take a million questions.

        Raises:
            ValueError: always.
        """
        raise ValueError(
            f"a judge compares pairs, and this protocol ranks {len(rows)} x {len(columns)} of them: leave the judge out"
        )

    def pairs(self, a: Rows, b: Rows) -> Array:
        """Similarities (P,) of a's rows to b's, one by one, asked in this order; NaN without an answer."""
        verdicts = self.judge.ask([(int(i), int(j)) for i, j in zip(a, b, strict=True)], self.progress, read=self.read)
        return np.array([np.nan if v.similarity is None else v.similarity for v in verdicts], dtype=np.float64)

    def notes(self) -> list[str]:
        """A line on failures, cost and time, to print with the numbers."""
        return [str(self.judge.report())]

    def read(self, row: int) -> Image.Image:
        """The image of a row, whole or the subject alone.

        Raises:
            ImageReadError: naming an image or mask that cannot be read, or a row without a mask.
        """
        source = self.manifest.source(row)
        if source is None:
            raise ImageReadError(f"row {row + 1}", "it is a text without an image")
        if not self.look.masked:
            return read_image(source)

        mask = self.look.mask_of(self.manifest, row)
        if mask is None:
            raise ImageReadError(
                describe(source), "it has no mask in the manifest, and the subject alone is to be seen"
            )
        return read_image(cut_out(source, mask, self.look.outside)[0])


class JudgeModel:
    """A judge as protocols take models: `scorers.bind` binds it to a manifest."""

    def __init__(self, judge: Judge) -> None:
        self.judge = judge

    def report(self) -> str:
        """Questions so far, and their cost."""
        return str(self.judge.report())

    def bind(self, manifest: Manifest, settings: Settings, rows: Rows | None = None) -> JudgeScorer:
        """The judge for a manifest's rows (default all).

        Raises:
            UnreadableError: naming all images that cannot be used, before anything is asked.
        """
        if self.judge.store is None and settings.store is not None:
            self.judge.store = settings.store.parent / "judge"
        scorer = JudgeScorer(self.judge, manifest, settings.look, settings.pair_progress)

        def problem(row: int) -> str | None:
            try:
                scorer.read(row)
            except (ImageReadError, OSError) as error:
                return str(error)
            return None

        chosen = range(len(manifest)) if rows is None else sorted({int(row) for row in rows})
        with ThreadPoolExecutor(settings.workers or min(8, os.cpu_count() or 1)) as pool:
            problems = {row: text for row, text in zip(chosen, pool.map(problem, chosen), strict=True) if text}
        if problems:
            raise UnreadableError(manifest, problems)

        return scorer


# Files


_ENDPOINT = tuple(f.name for f in dataclasses.fields(Endpoint))
_LOCAL = ("local", "revision")
_SETTINGS = tuple(f.name for f in dataclasses.fields(RequestSettings))
_REST = ("question", "prices", "store")


def open_judge(
    path: str | Path, *, device: torch.device | str | None = None, dtype: torch.dtype | None = None
) -> JudgeModel:
    """The judge described by a file; device and dtype apply to local models.

    Raises:
        JudgeError: naming the file and the error in it.
    """
    path = Path(path)
    try:
        given = json_file.read(path)
    except (OSError, ValueError) as error:
        raise JudgeError(f"{path}: not readable as JSON: {error}") from error

    if not isinstance(given, dict) or ("url" in given) == ("local" in given):
        raise JudgeError(
            f'{path}: give {{"url": ..., "model": ...}} for a server, or {{"local": ...}} for a model here'
        )

    known = (*(_LOCAL if "local" in given else _ENDPOINT), *_SETTINGS, *_REST)
    unknown = [name for name in given if name not in known]
    if unknown:
        raise JudgeError(f"{path}: unknown {unknown[0]!r}; there are {', '.join(known)}")

    question = _question(path, given.get("question", "evidence"))

    try:
        settings = RequestSettings(**_chosen(given, _SETTINGS))
        prices = None if given.get("prices") is None else (float(given["prices"][0]), float(given["prices"][1]))
        store = None if given.get("store") is None else path.parent / given["store"]
        backend: Backend
        if "url" in given:
            backend = Endpoint(**_chosen(given, _ENDPOINT))
        else:
            from idmetric.protocols.judges.local import LocalModel

            backend = LocalModel(given["local"], revision=given.get("revision"), device=device, dtype=dtype)
        return JudgeModel(Judge(backend, question, settings, store=store, prices=prices))
    except JudgeError:
        raise
    except (TypeError, ValueError, LookupError, OverflowError, AttributeError) as error:
        raise JudgeError(f"{path}: {error}") from error


def _question(path: Path, given: Any) -> Question:
    if isinstance(given, str) and given in QUESTIONS:
        return QUESTIONS[given]
    if isinstance(given, str) and given.endswith((".toml", ".json")):
        return read_question(path.parent / given)
    names = ", ".join(QUESTIONS)
    raise JudgeError(f"{path}: unknown question {given!r}: choose {names}, or give a .toml or .json file")


def _chosen(given: Mapping[str, Any], names: tuple[str, ...]) -> dict[str, Any]:
    return {name: given[name] for name in names if name in given}
