"""Worlds as files: several processes write images, masks and a manifest, and a new run resumes a stopped one.

world.json holds the plan. Identity number N is finished once N/1000/N/rows.jsonl exists. Identities in progress, and
remains of killed runs, have hidden names.
"""

from __future__ import annotations

import hashlib
import json
import multiprocessing
import os
import secrets
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

from idmetric.data.manifest.table import PATHS, Manifest, Row, read
from idmetric.data.world.structures import FACTORS, LEVELS, STRENGTHS, VERSION, Take, World
from idmetric.io import json_file
from idmetric.io.lock import locked
from idmetric.io.output import OutputError, replacing, writing

ROWS = "rows.jsonl"
MANIFEST = "manifest.parquet"
_STRAY = (".DS_Store", "Thumbs.db", "desktop.ini")  # files that systems leave in folders


@dataclass(frozen=True)
class Plan:
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
        if len(set(self.grids)) < len(self.grids) or set(self.grids) - set(FACTORS):
            raise ValueError(f"grids {self.grids}: each of {', '.join(FACTORS)} at most once")
        for strength in self.strengths:
            if not 0 < strength <= 1:
                raise ValueError(f"strength {strength} is not within (0, 1]")
        if len({f"{s:.2f}" for s in self.strengths}) < len(self.strengths):
            raise ValueError(f"strengths {self.strengths} must differ by 0.01 at least: names tell them apart")
        if self.size < 16 or self.quality > 100:
            raise ValueError("a world needs pictures of at least 16 pixels, and a quality of 1..100")

    @property
    def pictures(self) -> int:
        """Number of pictures of one identity, if every part edit is visible."""
        grid = len(STRENGTHS) * (1 + (len(LEVELS) - 1) * len(self.grids)) if self.grids else 0
        edits = self.distractors * (1 if self.mixed else len(self.strengths)) + self.context_edits + self.identity_edits
        return self.views * (1 + edits) + self.parts * min(2, self.views) + grid


def takes(world: World, number: int, plan: Plan) -> Iterator[Take]:
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


def write_world(folder: Path, plan: Plan, count: int, **options: Any) -> Manifest:
    """Render identities as `render_world` does, and read the manifest of the whole folder.

    The manifest includes identities that earlier runs rendered with the same plan.
    """
    render_world(folder, plan, count, **options)
    return read(folder / MANIFEST)


def render_world(
    folder: Path,
    plan: Plan,
    count: int,
    assets: Path | None = None,
    start: int = 0,
    workers: int = 1,
    done: Callable[[int], None] = lambda pictures: None,
) -> tuple[int, int]:
    """Render identities `start` .. `start + count - 1` into a folder and write its manifest.parquet.

    Identities that an earlier run finished are kept; a stopped run loses at most the identities in progress.

    Args:
        assets: see `idmetric.data.world.Assets`.
        workers: number of processes, which doesn't change the files; 0 = one per core. With several, a script must
            start under `if __name__ == "__main__":`, because each process imports it.
        done: called with the number of pictures of each identity that is finished or found.

    Returns:
        The number of images and the number of identities (including edited ones) in the manifest.

    Raises:
        ValueError: if the folder holds a world of another plan, or damaged files, or if another run is using it.
        ChildProcessError: if a process died.
    """
    if assets is not None and not assets.is_dir():
        raise ValueError(f"{assets} is not a folder of assets")

    World(plan.seed, assets, plan.size)  # checks the assets before anything is written
    workers = workers or cores()
    if folder.exists() and not folder.is_dir():
        raise ValueError(f"{folder} is a file; a world needs a folder")
    folder.mkdir(parents=True, exist_ok=True)
    busy = ValueError(
        f"another run is using {folder}: wait for it to end, or render into another folder "
        "(other identities of the same world can be merged with these)"
    )
    with locked(folder / ".world.lock", busy) as held:
        for left in folder.glob("[0-9]*/.[0-9]*-*") if held else ():  # of killed runs
            shutil.rmtree(left, ignore_errors=True)
        _claim(folder, {"plan": {**asdict(plan), "version": VERSION}, "assets": _digests(assets)})
        missing = []
        for number in range(start, start + count):
            if (folder / place_of(number) / ROWS).exists():
                done(len(read_rows(folder, number)))
            else:
                missing.append(number)

        if workers == 1 or len(missing) < 2:
            _prepare(folder, plan, assets)
            for number in missing:
                done(_render(number))
        else:
            _in_processes(missing, min(workers, len(missing)), (folder, plan, assets), done)

        # with identities that earlier runs rendered
        manifest = Manifest.from_rows((row for n in finished(folder) for row in read_rows(folder, n)), folder)
        manifest.write(folder / MANIFEST)
        return len(manifest), len(set(manifest.column("identity")))


def place_of(number: int) -> str:
    """The folder of an identity, relative to the world's folder."""
    return f"{number // 1000:03d}/{number:06d}"


def finished(folder: Path) -> list[int]:
    """The numbers of the finished identities, in ascending order."""
    names = [path.parent.relative_to(folder).as_posix() for path in folder.glob(f"[0-9]*/[0-9]*/{ROWS}")]
    numbers = [(name, int(name.rpartition("/")[2])) for name in names if name.rpartition("/")[2].isdecimal()]
    return sorted(number for name, number in numbers if place_of(number) == name)


def read_rows(folder: Path, number: int) -> list[Row]:
    """The rows of a finished identity, with paths relative to the world's folder.

    Raises:
        ValueError: naming the damaged file.
    """
    place = place_of(number)
    file = folder / place / ROWS
    try:
        given = [json_file.parse(line) for line in file.read_text(encoding="utf-8").splitlines()]
        return [Row(**values | {c: f"{place}/{values[c]}" for c in PATHS if c in values}) for values in given]
    except (ValueError, TypeError) as error:
        says = f"{file} is damaged ({error}): delete its folder and run the same command again to render it"
        raise ValueError(says) from error


def _claim(folder: Path, settings: dict[str, dict[str, Any]]) -> None:
    """Write the plan and the hashes of the assets to world.json, or compare them with an existing world.json.

    Raises:
        ValueError: if the folder holds another world, or its world.json is unreadable.
    """
    note = folder / "world.json"
    if not note.exists():
        if finished(folder):
            raise ValueError(f"{folder} holds images but no {note.name}: restore it, or take another folder")
        with replacing(note) as making:
            making.write_text(json.dumps(settings, indent=1) + "\n", encoding="utf-8")
        return

    try:
        noted = json_file.read(note)
        (plan, now), (assets, files) = ((noted[kind], settings[kind]) for kind in ("plan", "assets"))
        now = json.loads(json.dumps(now))
        changed = [name for name in sorted({*plan, *now}) if plan.get(name) != now.get(name)]
        changed += [f"asset {name}" for name in sorted({*assets, *files}) if assets.get(name) != files.get(name)][:1]
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise ValueError(f"{note} is damaged: restore it, or take another folder ({error})") from error
    if changed:
        raise ValueError(f"{folder} holds a world with other settings ({', '.join(changed)}); take another folder")


def _digests(assets: Path | None) -> dict[str, str]:
    """SHA-256 of every file that is read as an asset, by its path."""
    if assets is None:
        return {}
    found = sorted(p for pattern in ("*/*", "*/*/*") for p in assets.glob(pattern) if p.is_file())
    files = {p.relative_to(assets).as_posix(): p for p in found if p.name not in _STRAY}
    return {name: hashlib.sha256(file.read_bytes()).hexdigest() for name, file in files.items()}


def cores() -> int:
    """Cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


_job: dict[str, Any] = {}  # the world that this process renders


def _prepare(folder: Path, plan: Plan, assets: Path | None) -> None:
    _job.update(folder=folder, plan=plan, world=World(plan.seed, assets, plan.size))


def _in_processes(
    numbers: Sequence[int], workers: int, job: tuple[Path, Plan, Path | None], done: Callable[[int], None]
) -> None:
    """Render identities in several processes."""
    context = multiprocessing.get_context("spawn")  # an OpenGL context doesn't survive a fork
    with ProcessPoolExecutor(workers, context, _prepare_worker, job) as pool:
        try:
            for pictures in pool.map(_render, numbers):
                done(pictures)
        except BrokenProcessPool as error:
            text = "a rendering process died; finished identities are kept: run again, perhaps with fewer workers"
            raise ChildProcessError(text) from error
        except BaseException:
            pool.shutdown(cancel_futures=True)
            raise


def _prepare_worker(folder: Path, plan: Plan, assets: Path | None) -> None:
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
    making = final.with_name(f".{final.name}-{os.getpid()}-{secrets.token_hex(4)}")

    try:
        with writing(final, making):
            making.mkdir(parents=True)
            rows = [_store(take, world, number, making) for take in takes(world, number, plan)]
            with (making / ROWS).open("w", encoding="utf-8") as file:
                file.writelines(json.dumps({k: v for k, v in asdict(r).items() if v is not None}) + "\n" for r in rows)
            shutil.rmtree(final, ignore_errors=True)  # an unfinished folder
            making.rename(final)
    except OutputError as error:
        kept = "finished identities are kept, and the same command renders the rest"
        raise OutputError(error.errno, f"{error}; {kept}", error.filename) from error
    finally:
        shutil.rmtree(making, ignore_errors=True)

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
    group = f"{world.key(number)}/grid" if "factor" in about else None
    return Row(
        identity=take.key, path=name, id=f"{world.key(number)}/{take.name}", dataset=f"world-{world.seed}",
        domain=world.domain(number), category=take.identity.kind, mask=masks[0],
        part_mask=masks[1], role=take.role,
        background=take.context.background.id, engine="idmetric.data.world", oracle=take.oracle,
        group=group, slot=None if group is None else "candidate" if take.parent else "anchor",
        parent=f"{world.key(number)}/{take.parent}" if take.parent else None, seed=world.seed,
        parameters=take.parameters,
    )  # fmt: skip
