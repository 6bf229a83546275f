"""Worlds as files: images, masks and a manifest, by several processes, picked up where a run stopped."""

from __future__ import annotations

import json
import multiprocessing
import os
import shutil
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from PIL import Image

from idmetric.data.manifest import PATHS, Manifest, Row
from idmetric.data.world.structures import FACTORS, LEVELS, STRENGTHS, Take, World

_SETTINGS = "world.json"
_ROWS = "[0-9]*/[0-9]*/rows.jsonl"  # of finished identities; those in the making have hidden folders


@dataclass(frozen=True)
class Plan:
    """What is rendered of each identity.

    Attributes:
        views: pictures in different contexts. distractors: of each view, at each strength.
        strengths: of distractors and identity edits, 0..1; see `World.near`.
        parts: part edits of the first two views. context_edits, identity_edits: of each view.
        grids: context factors whose edit grid is rendered: background, viewpoint, light.
        size: side in pixels. quality: of JPEG files; 100 writes PNG, without loss.
    """

    seed: int = 0
    size: int = 224
    views: int = 3
    distractors: int = 1
    strengths: tuple[float, ...] = (1.0, 0.5)
    parts: int = 0
    context_edits: int = 0
    identity_edits: int = 0
    grids: tuple[str, ...] = ()
    quality: int = 95

    def __post_init__(self) -> None:
        if min(self.distractors, self.parts, self.context_edits, self.identity_edits, self.seed) < 0:
            raise ValueError("numbers of edits and the seed are 0 or more")
        if len(set(self.grids)) < len(self.grids):
            raise ValueError(f"grids {self.grids} name a factor twice")
        for name in self.grids:
            if name not in FACTORS:
                raise ValueError(f"no grid {name!r}; there are {', '.join(FACTORS)}")
        for strength in self.strengths:
            if not 0 < strength <= 1:
                raise ValueError(f"strength {strength} is not within (0, 1]")
        if len({f"{s:.2f}" for s in self.strengths}) < len(self.strengths):
            raise ValueError(f"strengths {self.strengths} must differ by 0.01 at least: names tell them apart")
        if self.size < 16 or self.views < 1 or not 1 <= self.quality <= 100:
            raise ValueError("a world needs pictures of at least 16 pixels, at least one view, and a quality of 1..100")

    @property
    def pictures(self) -> int:
        """Pictures of one identity, where every part edit can be seen."""
        grid = len(LEVELS) * len(STRENGTHS) * len(self.grids)
        edits = self.distractors * len(self.strengths) + self.context_edits + self.identity_edits
        return self.views * (1 + edits) + self.parts * min(2, self.views) + grid


def takes(world: World, number: int, plan: Plan) -> Iterator[Take]:
    """All pictures of one identity."""
    views = list(world.views(number, plan.views))
    yield from views
    for copy in range(plan.distractors):
        for strength in plan.strengths:
            for view in views:
                yield world.near(view, number, strength, copy)
    for copy in range(plan.parts):
        yield from world.part_edit(views[:2], number, copy)
    for view in views:
        for copy in range(plan.context_edits):
            yield world.context_edit(view, number, copy)
        for copy in range(plan.identity_edits):
            yield world.identity_edit(view, number, plan.strengths[copy % len(plan.strengths)], copy)
    for factor in plan.grids:
        yield from world.grid(number, factor)


def write_world(
    folder: Path,
    plan: Plan,
    count: int,
    assets: Path | None = None,
    start: int = 0,
    workers: int = 1,
    done: Callable[[int], None] = lambda pictures: None,
) -> Manifest:
    """Render identities `start` .. `start + count - 1` into a folder and write its manifest.parquet.

    Identities that an earlier run finished are kept; a stopped run loses at most those in the making.

    Args:
        assets: see `idmetric.data.world.Assets`.
        workers: processes. The files are the same for any number of them.
        done: called with the number of pictures of each identity, as they are finished or found.

    Returns:
        The manifest of the whole folder: what earlier runs rendered with the same plan counts too.

    Raises:
        ValueError: if the folder holds a world of another plan.
    """
    folder.mkdir(parents=True, exist_ok=True)
    _claim(folder, plan, assets)
    missing = []
    for number in range(start, start + count):
        rows = folder / _place(number) / "rows.jsonl"
        if rows.is_file():
            done(sum(1 for _ in rows.open(encoding="utf-8")))
        else:
            missing.append(number)
    if workers <= 1 or len(missing) < 2:
        _prepare(folder, plan, assets)
        for number in missing:
            done(_render(number))
    else:
        context = multiprocessing.get_context("spawn")  # an OpenGL context doesn't survive a fork
        with ProcessPoolExecutor(min(workers, len(missing)), context, _prepare, (folder, plan, assets)) as pool:
            try:
                for future in as_completed([pool.submit(_render, number) for number in missing]):
                    done(future.result())
            except BrokenProcessPool as error:
                text = "a rendering process died; what is finished is kept: run again, perhaps with fewer workers"
                raise ChildProcessError(text) from error
            except BaseException:
                pool.shutdown(cancel_futures=True)
                raise
    manifest = collect(folder)
    manifest.write(folder / "manifest.parquet")
    return manifest


def collect(folder: Path) -> Manifest:
    """The manifest of all finished identities of a folder, in order of their numbers."""
    rows = []
    for path in sorted(folder.glob(_ROWS)):
        place = path.parent.relative_to(folder).as_posix()
        for line in path.read_text(encoding="utf-8").splitlines():
            values = json.loads(line)
            rows.append(Row(**values | {c: f"{place}/{values[c]}" for c in PATHS if c in values}))
    return Manifest.from_rows(rows, folder, str(folder))


_job: dict[str, Any] = {}  # of this process


def _prepare(folder: Path, plan: Plan, assets: Path | None) -> None:
    _job.update(folder=folder, plan=plan, world=World(plan.seed, assets, plan.size))


def _render(number: int) -> int:
    """One identity's files; the folder appears under its name when it is whole."""
    folder, plan, world = _job["folder"], _job["plan"], _job["world"]
    final = folder / _place(number)
    making = final.with_name(f".{final.name}-{os.getpid()}")
    for stale in final.parent.glob(f".{final.name}-*"):  # of a run that was killed
        shutil.rmtree(stale, ignore_errors=True)
    making.mkdir(parents=True)
    rows = [_store(take, world, number, making) for take in takes(world, number, plan)]
    with (making / "rows.jsonl").open("w", encoding="utf-8") as file:
        file.writelines(json.dumps({k: v for k, v in asdict(r).items() if v is not None}) + "\n" for r in rows)
    shutil.rmtree(final, ignore_errors=True)
    making.rename(final)
    return len(rows)


def _store(take: Take, world: World, number: int, making: Path) -> Row:
    quality = _job["plan"].quality
    name = f"{take.name}.{'png' if quality == 100 else 'jpg'}"
    options = {} if quality == 100 else {"quality": quality, "subsampling": 0}
    Image.fromarray(take.shot.picture).save(making / name, **options)
    masks: list[str | None] = []
    for kind, mask in (("mask", take.shot.mask), ("part", take.shot.part_mask)):
        masks.append(None if mask is None else f"{take.name}-{kind}.png")
        if mask is not None:
            Image.fromarray(mask).convert("1").save(making / f"{take.name}-{kind}.png")
    about = dict(take.about or {})
    group = f"{world.key(number)}/grid-{about['factor']}" if "factor" in about else None
    return Row(
        identity=take.key, path=name, id=f"{world.key(number)}/{take.name}", dataset=f"world-{world.seed}",
        domain=world.domain(number), category=take.identity.kind, mask=masks[0],
        part_mask=masks[1], role=take.role,
        background=take.context.background.id, engine="idmetric.data.world", oracle=take.oracle,
        group=group, slot=None if group is None else "candidate" if take.parent else "anchor",
        parent=f"{world.key(number)}/{take.parent}" if take.parent else None, seed=world.seed,
        parameters=take.parameters,
    )  # fmt: skip


def _place(number: int) -> str:
    return f"{number // 1000:03d}/{number:06d}"


def _claim(folder: Path, plan: Plan, assets: Path | None) -> None:
    """Note the plan in the folder, or compare it with the note."""
    found = [] if assets is None else [p for p in sorted(assets.rglob("*")) if p.is_file()]
    files = [[p.relative_to(assets).as_posix(), p.stat().st_size] for p in found if assets is not None]
    settings = json.loads(json.dumps({"plan": asdict(plan), "assets": files}))
    note = folder / _SETTINGS
    if note.is_file():
        noted = json.loads(note.read_text(encoding="utf-8"))
        if noted != settings:
            changed = [k for k, v in settings["plan"].items() if noted.get("plan", {}).get(k) != v] or ["assets"]
            raise ValueError(f"{folder} holds a world with other settings ({', '.join(changed)}); take another folder")
        return
    if any(folder.glob(_ROWS)):
        raise ValueError(f"{folder} holds images but no {_SETTINGS}; take another folder")
    making = note.with_name(f".{note.name}-{os.getpid()}")
    making.write_text(json.dumps(settings, indent=1) + "\n", encoding="utf-8")
    os.replace(making, note)
