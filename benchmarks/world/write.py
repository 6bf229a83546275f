"""Worlds as files: several processes write images, masks and a manifest, and a new run resumes a stopped one.

world.json holds the plan. Identity number N is finished once N/1000/N/rows.jsonl exists. Identities in progress, and
remains of killed runs, have hidden names.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import multiprocessing
import os
import re
import shutil
import signal
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from PIL import Image

from idmetric.data.manifest.table import PATHS, Manifest, Row
from idmetric.metric.files import json_file
from idmetric.metric.files.lock import locked
from idmetric.metric.files.output import OutputError, replacing, writing
from idmetric.metric.files.tables import first_few, json_lines
from idmetric.stream.shards import is_through_link
from world.assets import FILES
from world.structures import LEVELS, STRENGTHS, VERSION, Take, World

ROWS = "rows.jsonl"
_UNFINISHED = re.compile(r"\.\d{6,}-\d+")  # of an identity: its number and that of the process


@dataclass(frozen=True)
class WorldPlan:
    """The pictures to render of each identity.

    Attributes:
        seed: of the world.
        size: side of the pictures in pixels.
        views: number of pictures in different contexts.
        distractors: number for each view, at each strength.
        strengths: of distractors and identity edits, 0..1; see `World.near`.
        mixed: use one of the strengths for each identity, drawn at random, instead of all.
        parts: number of part edits of the first two views.
        context_edits, identity_edits: number for each view.
        grids: context factors to render an edit grid for: background, viewpoint, light.
        quality: of JPEG files; 100 writes PNG, which is lossless.
    """

    seed: int = 0
    size: int = 224
    views: int = 3
    distractors: int = 1
    strengths: tuple[float, ...] = (1.0, 0.5)
    mixed: bool = False
    parts: int = 0
    context_edits: int = 0
    identity_edits: int = 0
    grids: tuple[str, ...] = ()
    quality: int = 95

    def __post_init__(self) -> None:
        names = {f"{strength:.2f}" for strength in self.strengths}  # parts of the pictures' names
        if len(names) < len(self.strengths) or not all(0 < strength <= 1 for strength in self.strengths):
            raise ValueError(f"strengths {self.strengths} must be within (0, 1] and differ by 0.01 at least")
        if len(set(self.grids)) < len(self.grids):
            raise ValueError(f"grids {self.grids}: each at most once")
        if self.size < 16 or self.quality > 100:
            raise ValueError("a world needs pictures of at least 16 pixels, and a quality of 1..100")

    @property
    def pictures(self) -> int:
        """Number of pictures of one identity, if every part edit is visible."""
        grid = len(STRENGTHS) * (1 + (len(LEVELS) - 1) * len(self.grids)) if self.grids else 0
        edits = self.distractors * (1 if self.mixed else len(self.strengths)) + self.context_edits + self.identity_edits
        return self.views * (1 + edits) + self.parts * min(2, self.views) + grid


def takes(world: World, number: int, plan: WorldPlan) -> Iterator[Take]:
    """All pictures of one identity, as the plan asks for."""
    views = list(world.views(number, plan.views))
    yield from views
    strengths = (world.strength(number, plan.strengths),) if plan.mixed else plan.strengths
    for copy in range(plan.distractors):
        for strength in strengths:
            yield from world.near(views, strength, copy)
    for copy in range(plan.parts):
        yield from world.part_edit(views[:2], copy)

    for view in views:
        for copy in range(plan.context_edits):
            yield world.context_edit(view, copy)
        for copy in range(plan.identity_edits):
            yield world.identity_edit(view, strengths[copy % len(strengths)], copy)

    if plan.grids:
        yield from world.grid(number, plan.grids)


def write_world(
    folder: Path,
    plan: WorldPlan,
    count: int,
    assets: Path | None = None,
    start: int = 0,
    workers: int = 1,
    done: Callable[[int], None] = lambda pictures: None,
) -> Manifest:
    """Render identities `start` .. `start + count - 1` into a folder, and write their manifest.parquet.

    Identities that an earlier run finished are kept; a stopped run loses at most the identities in progress.

    Args:
        assets: see `world.Assets`.
        workers: number of processes, which doesn't change the files; 0 = one per core. With several, a script must
            start under `if __name__ == "__main__":`, because each process imports it.
        done: called with the number of pictures of each identity that is finished or found.

    Raises:
        ValueError: if the folder holds a world of another plan, or damaged files, or if another run is using it.
        ChildProcessError: if a process died.
    """
    World(plan.seed, assets, plan.size)  # checks the assets before anything is written
    folder.mkdir(parents=True, exist_ok=True)
    busy = ValueError(f"another run is using {folder}: wait for it to end, or render into another folder")
    with locked(folder / ".world.lock", busy) as held:
        if held:
            _clear(folder)
        _claim(folder / "world.json", {"plan": {**asdict(plan), "version": VERSION}, "assets": _digests(assets)})
        numbers, missing = range(start, start + count), []
        for number in numbers:
            if is_through_link(folder / place_of(number), folder):  # unfinished files there would be deleted
                raise ValueError(f"{folder / place_of(number)} is reached through a link: remove the link")
            if (folder / place_of(number) / ROWS).exists():
                done(len(read_rows(folder, number)))
            else:
                missing.append(number)
        _render_all(missing, min(workers or cores(), len(missing)), (folder, plan, assets), done)
        if held:  # workers of a killed run may have outlived it
            _clear(folder)
        manifest = Manifest.from_rows((row for n in numbers for row in read_rows(folder, n)), folder)
        manifest.write(folder / "manifest.parquet")
        return manifest


def _clear(folder: Path) -> None:
    """Remove what killed runs left unfinished."""
    for left in folder.glob("[0-9]*/.[0-9]*-*"):
        if _UNFINISHED.fullmatch(left.name) and not is_through_link(left, folder):
            shutil.rmtree(left, ignore_errors=True)


def place_of(number: int) -> str:
    """The folder of an identity, relative to the world's folder."""
    return f"{number // 1000:03d}/{number:06d}"


def read_rows(folder: Path, number: int) -> list[Row]:
    """The rows of a finished identity, with paths relative to the world's folder; ValueError if they are damaged."""
    place = place_of(number)
    file = folder / place / ROWS
    try:
        given = [values for _, values in json_lines(file)]
        return [Row(**values | {c: f"{place}/{values[c]}" for c in PATHS if c in values}) for values in given]
    except (ValueError, TypeError) as error:
        says = f"{file} is damaged ({error}): delete its folder and run the same command again to render it"
        raise ValueError(says) from error


def _claim(note: Path, settings: dict[str, dict[str, Any]]) -> None:
    """Write the plan and the hashes of the assets to world.json; ValueError if it holds those of another world."""
    if not note.exists():
        with replacing(note) as making:
            making.write_text(json.dumps(settings, indent=1) + "\n", encoding="utf-8")
        return

    noted, now = json_file.read(note), json.loads(json.dumps(settings))  # tuples are lists in the file
    pairs = [(noted[kind], now[kind]) for kind in ("plan", "assets")]
    changed = [name for old, new in pairs for name in sorted({*old, *new}) if old.get(name) != new.get(name)]
    if changed:
        listed = ", ".join(first_few(changed))
        raise ValueError(f"{note.parent} holds a world with other settings ({listed}); take another folder")


def _digests(assets: Path | None) -> dict[str, str]:
    """SHA-256 of every file that is read as an asset, by its path."""
    found = [] if assets is None else sorted(p for pattern in ("*/*", "*/*/*") for p in assets.glob(pattern))
    files = {p.relative_to(assets).as_posix(): p for p in found if assets and p.suffix.lower() in FILES}
    return {name: hashlib.sha256(file.read_bytes()).hexdigest() for name, file in files.items()}


def cores() -> int:
    """Cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


# Processes

_job: dict[str, Any] = {}  # the world that this process renders


def _render_all(
    numbers: Sequence[int], workers: int, job: tuple[Path, WorldPlan, Path | None], done: Callable[[int], None]
) -> None:
    """Render identities, in several processes if there are several workers."""
    if workers < 2:
        _prepare(*job)
        for number in numbers:
            done(_render(number))
        return
    context = multiprocessing.get_context("spawn")  # an OpenGL context doesn't survive a fork
    with ProcessPoolExecutor(workers, context, _prepare_worker, job) as pool:
        try:
            with _interrupts_held():
                rendered = pool.map(_render, numbers)  # starts the workers
            for pictures in rendered:
                done(pictures)
        except BrokenProcessPool as error:
            text = "a rendering process died; finished identities are kept: run again, perhaps with fewer workers"
            raise ChildProcessError(text) from error
        except BaseException:
            pool.shutdown(cancel_futures=True)
            raise


@contextlib.contextmanager
def _interrupts_held() -> Iterator[None]:
    """Hold back Ctrl-C within the block, also in processes that start there, until `_prepare_worker` ignores it."""
    if not hasattr(signal, "pthread_sigmask"):  # Windows
        yield
        return
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _prepare(folder: Path, plan: WorldPlan, assets: Path | None) -> None:
    _job.update(folder=folder, plan=plan, world=World(plan.seed, assets, plan.size))


def _prepare_worker(folder: Path, plan: WorldPlan, assets: Path | None) -> None:
    """Prepare a worker that ends with its parent process and finishes its identity on Ctrl-C."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=_end_with_parent, daemon=True).start()
    _prepare(folder, plan, assets)


def _end_with_parent() -> None:
    parent = multiprocessing.parent_process()
    assert parent is not None
    parent.join()
    os._exit(1)


def _render(number: int) -> int:
    """Render one identity; its folder gets its final name once it is complete. Returns the number of pictures."""
    folder, plan, world = _job["folder"], _job["plan"], _job["world"]
    final = folder / place_of(number)
    making = final.with_name(f".{final.name}-{os.getpid()}")

    try:
        with writing(final, making):
            making.mkdir(parents=True)
            rows = [_saved(take, world, plan.quality, making) for take in takes(world, number, plan)]
            with (making / ROWS).open("w", encoding="utf-8") as file:
                file.writelines(json.dumps({k: v for k, v in asdict(r).items() if v is not None}) + "\n" for r in rows)
            shutil.rmtree(final, ignore_errors=True)  # unfinished, or by a worker that outlived its killed run
            making.rename(final)
    except OutputError as error:
        kept = "finished identities are kept, and the same command renders the rest"
        raise OutputError(error.errno, f"{error}; {kept}", error.filename) from error
    finally:
        shutil.rmtree(making, ignore_errors=True)

    return len(rows)


def _saved(take: Take, world: World, quality: int, folder: Path) -> Row:
    """Write a picture and its masks; returns its row."""
    files: dict[str, Any] = {"path": f"{take.name}.{'png' if quality == 100 else 'jpg'}"}
    options: dict[str, Any] = {} if quality == 100 else {"quality": quality, "subsampling": 0}
    Image.fromarray(take.shot.picture).save(folder / files["path"], **options)
    for column, mask in (("mask", take.shot.mask), ("part_mask", take.shot.part_mask)):
        if mask is not None:
            files[column] = f"{take.name}-{column.removesuffix('_mask')}.png"
            Image.fromarray(mask).convert("1").save(folder / files[column])

    key = world.key(take.number)
    in_grid = "factor" in (take.about or {})
    return Row(
        identity=take.key, id=f"{key}/{take.name}", dataset=f"world-{world.seed}", domain=world.domain(take.number),
        category=take.identity.kind, role=take.role, background=take.context.background.id,
        engine="world", oracle=take.oracle, group=f"{key}/grid" if in_grid else None,
        slot=("candidate" if take.parent else "anchor") if in_grid else None,
        parent=f"{key}/{take.parent}" if take.parent else None, seed=world.seed, parameters=take.parameters, **files,
    )  # fmt: skip
