"""Grids of identity edits x background, light and viewpoint of real photos (ID-Sim, appendix F.1).

An identity's first photo is the anchor. Qwen-Image-Edit repaints its foreground in seven strengths; the anchor and each
of these images then get every background and every light of `prompts/grid.json`. `grid_sources` adds group, slot and
changes to the photos; the edits continue them, and `idmetric eval sensitivity --data` reads the result.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from PIL import Image

from idmetric.data.generate.compose import WHITE, Parameters, paste
from idmetric.data.generate.engine import Engine, Request
from idmetric.data.generate.jobs import GenerateTask, Job, Made, job_from, read_source, require
from idmetric.data.generate.wording import Wording
from idmetric.data.manifest import checked, merge
from idmetric.metric.errors import RequestError

if TYPE_CHECKING:
    import pandas as pd

STRENGTHS = (0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0)  # F.1
NONE, VIEWPOINT = "none", "viewpoint"  # factors of edits without a change of background or light


def grid_sources(table: pd.DataFrame, views: bool = False) -> pd.DataFrame:
    """The anchors of all grids; with `views`, all other photos of their identities too.

    The anchor is the first row of its identity. The n-th of N other photos changes the viewpoint by n / N: rows of a
    turntable video in their order, as MVImgNet's in the paper. A photo's other edits are those of its group.
    """

    require(table, "mask", "identity")
    photos = table.groupby("identity", sort=False).indices
    if views and len(photos) == len(table):
        raise RequestError("every identity has one photo, so there are no views: leave --views out")

    rows = []
    for identity, members in photos.items():
        for number, index in enumerate(members if views else members[:1]):
            changes = _changes(NONE, 0.0, 0.0)
            if number:
                changes = _changes(VIEWPOINT, number / (len(members) - 1), 0.0)
            row = table.iloc[index].to_dict()
            row["group"] = f"grid/{identity}"
            row["slot"] = "candidate" if number else "anchor"
            row["parameters"] = {**_parameters(row), **changes}
            rows.append(row)
    return checked(rows)


def grid_identity_task(
    table: pd.DataFrame,
    engine: Engine,
    words: Wording,
    seed: int = 0,
    views: bool = False,
) -> GenerateTask:
    """Plan the identity edits of all photos of `grid_sources`: the foreground repainted, once in each strength.

    Pixels outside the mask stay exactly the same. All edits have one seed ("a fixed seed is used"). The result holds
    the photos, too.
    """
    sources = grid_sources(table, views)
    jobs = []
    for index, row in enumerate(sources.to_dict("records")):
        prompt = words.prompt("grid_identity", row["category"])
        changes = _parameters(row)
        for strength in STRENGTHS:
            change = _changes(changes["factor"], changes["factor_change"], strength)
            settings = {"task": "grid-identity", **change}
            more = {"group": row["group"], "slot": "candidate"}
            jobs.append(job_from(row, index, engine, prompt, seed, settings, "identity-edit", **more))

    def make(job: Job) -> Made:
        image, mask = read_source(sources, job)
        strength = job.settings["identity_change"]
        request = Request(job.prompt, job.seed, image, mask, strength)
        edited = engine.edit(request)
        pasted = paste(edited, image, mask)
        return Made(pasted, mask, mask, oracle=0.0)

    return GenerateTask(jobs, make, engine, lambda new_rows: merge([sources, new_rows], shared=True))


def grid_context_task(table: pd.DataFrame, engine: Engine, words: Wording, seed: int = 0) -> GenerateTask:
    """Plan each background and each light of the result of `grid_identity_task`: of anchors and their identity edits.

    Backgrounds: everything outside the mask becomes white, the object stays in place, and the engine fills the white.
    Lights: the engine edits the whole image, without a mask. Nothing is pasted back, because the object's shading
    follows. Other views get none. The result holds all rows of the table, too.
    """
    jobs = []
    for index, row in enumerate(table.to_dict("records")):
        changes = _parameters(row)
        if not {"factor", "identity_change"} <= changes.keys():
            raise RequestError(
                f"row {index + 1} is not of a grid: make its identity edits first (--task grid-identity)"
            )
        if changes["factor"] != NONE:
            continue
        for factor, levels in words.grid.items():
            for text, change in levels.items():
                prompt = words.prompt(f"grid_{factor}", background=text, lighting=text)
                settings = {
                    "task": f"grid-{factor}",
                    "words": text,
                    **_changes(factor, change, changes["identity_change"]),
                }
                more = {"group": row["group"], "slot": "candidate"}
                jobs.append(job_from(row, index, engine, prompt, seed, settings, "context-edit", **more))

    def make(job: Job) -> Made:
        image, mask = read_source(table, job)
        if job.settings["factor"] == "background":
            white = Image.new("RGB", image.size, WHITE)
            image = Image.composite(image, white, mask)
        request = Request(job.prompt, job.seed, image)
        edited = engine.edit(request)
        return Made(edited, mask)

    return GenerateTask(jobs, make, engine, lambda new_rows: merge([table, new_rows], shared=True))


def _parameters(row: Parameters) -> Parameters:
    parameters: Parameters = json.loads(row["parameters"] or "{}")
    return parameters


def _changes(factor: str, change: float, identity_change: float) -> Parameters:
    """The parameters that `idmetric.evaluate.protocols.sensitivity_idsim_fig6` reads."""
    return {"factor": factor, "factor_change": float(change), "identity_change": float(identity_change)}
