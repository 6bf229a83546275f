"""A judge as one of a protocol's models; it scores pairs only.

Reads a judge from a JSON file, for `idmetric eval PROTOCOL --model judge:FILE[@HOST]`.

    {"url": "https://api.openai.com/v1", "model": "gpt-4o", "key": "OPENAI_API_KEY"}
    {"url": "http://127.0.0.1:8000/v1", "model": "Qwen/Qwen3-VL-8B-Instruct", "question": "instance"}

docs/protocols/judge.md lists the fields: arguments of `endpoint.Endpoint` and of `judge.Judge`. Answers are kept in
judge/, next to the embeddings in --out.
"""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from idmetric.data.chat import is_local
from idmetric.data.look import check_masks, mask_of
from idmetric.evaluate.protocols.common.columns import Array
from idmetric.evaluate.protocols.common.scorers import EvalSettings
from idmetric.evaluate.protocols.judges.endpoint import Endpoint
from idmetric.evaluate.protocols.judges.judge import Judge
from idmetric.evaluate.protocols.judges.questions import QUESTIONS
from idmetric.metric.errors import RequestError
from idmetric.metric.files import read_json_file
from idmetric.metric.images import ImageReadError, read_image
from idmetric.metric.masks import cut_out
from idmetric.stream import threads

if TYPE_CHECKING:
    from pandas import DataFrame

Rows = Sequence[int] | NDArray[np.integer]
_JUDGE = ("side", "max_tokens", "concurrency")


@dataclass(frozen=True)
class JudgeModel:
    """A judge as protocols take models: `scorers.bind` binds it to a manifest.

    Similarities are in 0..1, NaN for a pair without an answer, which a protocol counts and leaves out.
    """

    judge: Judge
    manifest: Any = None  # both of `bind`
    settings: Any = None

    def report(self) -> str:
        """Questions so far, and their tokens."""
        return self.judge.report()

    def bind(self, manifest: DataFrame, settings: EvalSettings) -> JudgeModel:
        """The judge for a manifest.

        Raises:
            ValueError: if subjects are to be seen, and no image has a mask.
        """
        if self.judge.store is None and settings.store is not None:
            self.judge.store = settings.store.parent / "judge"
        check_masks(settings.look, manifest)
        return JudgeModel(self.judge, manifest, settings)

    def problems(self, rows: Rows | None = None) -> dict[int, str]:
        """Row -> reason of all images (or some rows) that cannot be used; to be read before anything is asked."""

        def problem(row: int) -> str:
            try:
                self.read(row)
            except (ImageReadError, OSError) as error:
                return str(error)
            return ""

        chosen = list(range(len(self.manifest))) if rows is None else np.unique(rows).tolist()
        with ThreadPoolExecutor(threads(self.settings.workers)) as pool:
            reasons = zip(chosen, pool.map(problem, chosen), strict=True)
            return {row: reason for row, reason in reasons if reason}

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
        """Similarities (P,) of a's rows to b's, one by one; NaN without an answer."""
        pairs = [(int(i), int(j)) for i, j in zip(a, b, strict=True)]
        distinct = list(dict.fromkeys(pairs))
        verdicts = self.judge.ask(distinct, self.settings.pair_progress, read=self.read)
        similarities = dict(zip(distinct, [verdict.similarity for verdict in verdicts], strict=True))
        return np.array([similarities[pair] for pair in pairs], dtype=np.float64)  # None becomes NaN

    def read(self, row: int) -> Image.Image:
        """The image of a row, whole or the subject alone.

        Raises:
            ImageReadError: naming an image or mask that cannot be read, or a row without an image.
        """
        source, look = self.manifest["path"][row], self.settings.look
        if source is None:
            raise ImageReadError(f"row {row + 1}", "it is a text without an image")
        mask = mask_of(look, self.manifest, row)
        if mask is None:
            return read_image(source)
        return read_image(cut_out(source, mask, look.outside)[0])


def open_judge(source: str | Path) -> JudgeModel:
    """The judge described by a file.

    Args:
        source: FILE, or FILE@HOST where its server is another machine. The file may come from a stranger, and the
            server gets the images and the key: so the user names it, not the file alone.

    Raises:
        RequestError: naming the file and the error in it, or the host that has to be named.
    """
    path, host = str(source), ""
    if not Path(path).is_file() and "@" in path:
        path, _, host = path.rpartition("@")
    try:
        options = read_json_file(path)
        if not isinstance(options, dict) or "url" not in options:
            raise ValueError('give {"url": ..., "model": ...}, the address of a server and the name of its model')
        question = options.pop("question", "evidence")
        if question not in QUESTIONS:
            raise ValueError(f"unknown question {question!r}: choose {', '.join(QUESTIONS)}")
        judge_options = {key: options.pop(key) for key in _JUDGE if key in options}
        endpoint = Endpoint(**options)
        _check_server(endpoint, path, host)
        return JudgeModel(Judge(endpoint, QUESTIONS[question], **judge_options))
    except (OSError, ValueError, TypeError, AttributeError) as error:
        raise RequestError(f"{path}: {error}") from error


def _check_server(endpoint: Endpoint, path: str, host: str) -> None:
    """Refuse a server that the user has not named, and a key that cannot be one of an API."""
    if host.lower() != endpoint.host and (host or not is_local(endpoint.url)):
        raise ValueError(
            f"its server {endpoint.host} gets all images and the key: if you trust it, name it, as in "
            f"judge:{path}@{endpoint.host}"
        )
    if endpoint.key is not None and not endpoint.key.endswith("API_KEY"):
        raise ValueError(
            f"the variable {endpoint.key!r} is not sent, as it may hold another secret: put the key in a variable "
            "with a name that ends in API_KEY"
        )
