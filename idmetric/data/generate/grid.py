"""Grids of identity edits x background, light and viewpoint of real photos (ID-Sim, appendix F.1).

An identity's first photo is the anchor. Qwen-Image-Edit repaints its foreground in seven strengths; the anchor and each
of these images then get every background and every light of `prompts/grid.json`. `grid_sources` adds group, slot and
changes to the photos; the edits continue them, and `idmetric eval sensitivity --data` reads the result.
"""

from __future__ import annotations

from PIL import Image

from idmetric.data.generate.compose import WHITE, Parameters, paste
from idmetric.data.generate.engine import Engine, Request
from idmetric.data.generate.jobs import GenerateTask, Job, Made, job_from, read_source, require
from idmetric.data.generate.weights import Rejection
from idmetric.data.generate.wording import Wording
from idmetric.data.old_manifest.table import Manifest
from idmetric.metric.errors import RequestError

STRENGTHS = (0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0)  # F.1
NONE, VIEWPOINT = "none", "viewpoint"  # factors of edits without a change of background or light


def grid_sources(manifest: Manifest, views: bool = False) -> Manifest:
    """The anchors of all grids; with `views`, all other photos of their identities too.

    The anchor is the first row of its identity. The n-th of N other photos changes the viewpoint by n / N: rows of a
    turntable video in their order, as MVImgNet's in the paper. A photo's other edits are those of its group.
    """
    require(manifest, "mask", "identity")
    photos: dict[str, list[int]] = {}
    for index, identity in enumerate(manifest.column("identity")):
        photos.setdefault(identity, []).append(index)
    if views and len(photos) == len(manifest):
        raise RequestError("every identity has one photo, so there are no views: leave --views out")

    rows, groups, slots, parameters = [], [], [], []
    for identity, members in photos.items():
        for number, index in enumerate(members if views else members[:1]):
            changes = _changes(NONE, 0.0, 0.0)
            if number:
                changes = _changes(VIEWPOINT, number / (len(members) - 1), 0.0)
            rows.append(index)
            groups.append(f"grid/{identity}")
            slots.append("candidate" if number else "anchor")
            parameters.append({**(manifest[index].parameters or {}), **changes})
    photos_of_grids = manifest.take(rows)
    return photos_of_grids.replace(group=groups, slot=slots, parameters=parameters)


def grid_identity_task(
    sources: Manifest,
    engine: Engine,
    words: Wording,
    seed: int = 0,
) -> GenerateTask:
    """Plan the identity edits of all rows of `grid_sources`: the foreground repainted, once in each strength.

    Pixels outside the mask stay exactly the same. All edits have one seed ("a fixed seed is used").
    """
    jobs = []
    for index, row in enumerate(sources):
        prompt = words.prompt("grid_identity", row.category)
        changes = row.parameters or {}
        for strength in STRENGTHS:
            change = _changes(changes["factor"], changes["factor_change"], strength)
            settings = {"task": "grid-identity", **change}
            jobs.append(
                job_from(
                    row,
                    index,
                    engine,
                    prompt,
                    seed,
                    settings,
                    "identity-edit",
                    is_new=True,
                    group=row.group,
                    slot="candidate",
                )
            )

    def make(job: Job) -> Made | Rejection:
        image, mask = read_source(sources, job)
        strength = job.settings["identity_change"]
        request = Request(job.prompt, job.seed, image, mask, strength)
        edited = engine.edit(request)
        if isinstance(edited, Rejection):
            return edited
        pasted = paste(edited, image, mask)
        return Made(pasted, mask, mask, oracle=0.0)

    return GenerateTask(jobs, make, [engine])


def plain(photos: Manifest) -> Manifest:
    """The photos and edits that get other backgrounds and lights: anchors and their identity edits, not other views."""
    return photos.filter(lambda row: (row.parameters or {})["factor"] == NONE)


def grid_context_task(
    photos: Manifest,
    engine: Engine,
    words: Wording,
    seed: int = 0,
) -> GenerateTask:
    """Plan each background and each light of every row: anchors and their finished identity edits (`plain`).

    Backgrounds: everything outside the mask becomes white, the object stays in place, and the engine fills the white.
    Lights: the engine edits the whole image, without a mask. Nothing is pasted back, because the object's shading
    follows.
    """
    jobs = []
    for index, row in enumerate(photos):
        identity_change = (row.parameters or {})["identity_change"]
        for factor, levels in words.grid.items():
            for text, change in levels.items():
                prompt = words.prompt(f"grid_{factor}", background=text, lighting=text)
                settings = {"task": f"grid-{factor}", "words": text, **_changes(factor, change, identity_change)}
                jobs.append(
                    job_from(
                        row,
                        index,
                        engine,
                        prompt,
                        seed,
                        settings,
                        "context-edit",
                        group=row.group,
                        slot="candidate",
                    )
                )

    def make(job: Job) -> Made | Rejection:
        image, mask = read_source(photos, job)
        if job.settings["factor"] == "background":
            white = Image.new("RGB", image.size, WHITE)
            image = Image.composite(image, white, mask)
        request = Request(job.prompt, job.seed, image)
        edited = engine.edit(request)
        if isinstance(edited, Rejection):
            return edited
        return Made(edited, mask)

    return GenerateTask(jobs, make, [engine])


def _changes(
    factor: str,
    change: float,
    identity_change: float,
) -> Parameters:
    """The parameters that `idmetric.evaluate.protocols.sensitivity_idsim_fig6` reads."""
    return {"factor": factor, "factor_change": float(change), "identity_change": float(identity_change)}
