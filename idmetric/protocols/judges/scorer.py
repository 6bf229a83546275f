"""A judge as one of a protocol's models; it scores pairs only."""

from __future__ import annotations

import os
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from idmetric.data.embed import Look, UnreadableError
from idmetric.data.manifest.table import Manifest
from idmetric.images.read import ImageReadError, describe, read_image
from idmetric.images.regions import cut_out
from idmetric.protocols.common.arrays import Array
from idmetric.protocols.common.scorers import Progress, Settings
from idmetric.protocols.judges.judge import Judge

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
        if len(a) != len(b):
            raise ValueError(f"{len(a)} rows and {len(b)}: pairs need equally many")
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
