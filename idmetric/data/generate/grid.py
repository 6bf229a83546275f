"""Grids of identity edits x background, light and viewpoint of real photos (ID-Sim, appendix F.1).

An identity's first photo is the anchor. Qwen-Image-Edit repaints its foreground in seven strengths; the anchor and each
of these images then get every background and every light of `prompts/grid.json`. `grid_sources` adds group, slot and
changes to the photos; the edits continue them, and `idmetric eval sensitivity --data` reads the result.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from PIL import Image

from idmetric.data.generate.compose import paste
from idmetric.data.generate.engine import Engine, Request
from idmetric.data.generate.jobs import Job, Made, Task, job_from, provenance, read_source, require
from idmetric.data.generate.weights import GenerateError
from idmetric.data.generate.wording import Wording

if TYPE_CHECKING:
    from idmetric.data.manifest.table import Manifest

STRENGTHS = (0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0)  # F.1
NONE, VIEWPOINT = "none", "viewpoint"  # factors of edits without a change of background or light
_SLOTS = {"background": "background", "light": "lighting"}  # of the templates grid_...


def grid_sources(manifest: Manifest, views: bool = False) -> Manifest:
    """The anchors of all grids; with `views`, all other photos of their identities too.

    The anchor is the first row of its identity. The n-th of N other photos changes the viewpoint by n / N: rows of a
    turntable video in their order, as MVImgNet's in the paper. A photo's other edits are those of its group.
    """
    require(manifest, "mask", "identity")
    members: dict[str, list[int]] = {}
    for index, name in enumerate(manifest.column("identity")):
        members.setdefault(name, []).append(index)
    if views and all(len(rows) < 2 for rows in members.values()):
        raise GenerateError("every identity has one photo, so there are no views: leave --views out")

    rows = [row for own in members.values() for row in (own if views else own[:1])]
    chosen = manifest.take(rows)
    place = {row: n / max(len(own) - 1, 1) for own in members.values() for n, row in enumerate(own)}
    parameters = [
        {**(row.parameters or {}), **_changes(VIEWPOINT if place[at] else NONE, place[at], 0.0)}
        for row, at in zip(chosen, rows, strict=True)
    ]
    return chosen.replace(
        group=[f"grid/{name}" for name in chosen.column("identity")],
        slot=["candidate" if place[at] else "anchor" for at in rows],
        parameters=parameters,
    )


def grid_identity_task(
    sources: Manifest, engine: Engine, words: Wording, seed: int = 0, class_column: str = "category"
) -> Task:
    """Plan the identity edits of all rows of `grid_sources`: the foreground repainted, once in each strength.

    Pixels outside the mask stay exactly the same. All edits have one seed ("a fixed seed is used").
    """
    jobs = []
    for index, row in enumerate(sources):
        prompt = words.prompt("grid_identity", **{"class": str(getattr(row, class_column) or "object")})
        changes = row.parameters or {}
        for strength in STRENGTHS:
            change = _changes(changes["factor"], changes["factor_change"], strength)
            settings, cell = {"task": "grid-identity", **change}, {"group": row.group, "slot": "candidate"}
            jobs.append(job_from(row, index, "identity-edit", engine, prompt, seed, settings, True, **cell))

    def make(job: Job) -> Made:
        image, mask = read_source(sources, job)
        made = engine.edit(Request(job.prompt, job.seed, image, mask, float(job.settings["identity_change"])))
        return Made(paste(made, image, mask), mask, mask, provenance(engine), 0.0)

    return Task(jobs, make, engine.load)


def plain(photos: Manifest) -> Manifest:
    """The photos and edits that get other backgrounds and lights: anchors and their identity edits, not other views."""
    return photos.take([k for k, row in enumerate(photos) if (row.parameters or {})["factor"] == NONE])


def grid_context_task(photos: Manifest, engine: Engine, words: Wording, seed: int = 0) -> Task:
    """Plan each background and each light of every row: anchors and their finished identity edits (`plain`).

    Backgrounds: everything outside the mask becomes white, the object stays in place, and the engine fills the white.
    Lights: the engine edits the whole image, without a mask. Nothing is pasted back, because the object's shading
    follows.
    """
    jobs = []
    for index, row in enumerate(photos):
        identity, cell = float((row.parameters or {})["identity_change"]), {"group": row.group, "slot": "candidate"}
        for factor, slot in _SLOTS.items():
            for text, change in words.grid[factor].items():
                prompt = words.prompt(f"grid_{factor}", **{slot: text})
                settings = {"task": f"grid-{factor}", "words": text, **_changes(factor, float(change), identity)}
                jobs.append(job_from(row, index, "context-edit", engine, prompt, seed, settings, False, **cell))

    def make(job: Job) -> Made:
        image, mask = read_source(photos, job)
        if job.settings["factor"] == "background":
            image = Image.composite(image, Image.new("RGB", image.size, (255, 255, 255)), mask)
        return Made(engine.edit(Request(job.prompt, job.seed, image)), mask, parameters=provenance(engine))

    return Task(jobs, make, engine.load)


def _changes(factor: str, change: float, identity: float) -> dict[str, Any]:
    """The parameters that `idmetric.evaluate.protocols.sensitivity_idsim_fig6` reads."""
    return {"factor": factor, "factor_change": change, "identity_change": identity}
