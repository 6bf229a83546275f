"""Groups of identities and their twins: from a manifest to the images of a step."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from hashlib import blake2b
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from idmetric.data.manifest.table import Manifest, ManifestError, Row
from idmetric.io.lock import locked
from idmetric.io.output import clear_leftovers, replacing, take_space, writing
from idmetric.io.threads import in_order
from idmetric.train.batches import Pictures, batch_rows
from idmetric.train.state import TrainError
from idmetric.train.tiny.config import RENDERED, Config, sources
from idmetric.train.tiny.photos import photo_files

Images = NDArray[np.uint8]
Groups = NDArray[np.int64]  # (G, 2, V) rows of the manifest: views of an identity, and of its twin in the same contexts

CACHE = "groups.npy"


def smoke_data(folder: Path) -> Manifest:
    """A few rendered identities with their twins, some of them to validate."""
    from idmetric.data.world.write import Plan, write_world

    found = write_world(folder, Plan(size=48, strengths=(0.5, 1.0), mixed=True), 10)
    number = [int(name.split("~")[0].rsplit("-", 1)[1]) for name in found.column("identity")]
    return found.replace(split=["val" if n >= 8 else "train" for n in number])


def groups_of(data: Manifest, views: int) -> Groups:
    """Identities and their twins: rows of the first `views` views that have a distractor, and of these distractors.

    Of several distractors of a view, the n-th of all views belong together, each n a group of its own.

    Raises:
        ManifestError: if there is no such group.
    """
    place = {name: row for row, name in enumerate(data.column("id"))}
    identity, role, parent = (data.column(name) for name in ("identity", "role", "parent"))
    twins: dict[str, dict[str, list[int]]] = {}  # identity -> twin -> its rows
    for row in range(len(data)):
        if role[row] == "distractor" and parent[row] in place:
            owner = identity[place[parent[row]]]
            twins.setdefault(owner, {}).setdefault(identity[row], []).append(row)
    found = []
    for alike in twins.values():
        for rows in alike.values():
            rows = rows[:views]
            if len(rows) == views:
                found.append([[place[parent[row]] for row in rows], rows])
    if not found:
        raise ManifestError(
            f"no identity has {views} views with a distractor each (role distractor, parent = the view): "
            "`idmetric data world` renders such data"
        )
    return np.asarray(found, dtype=np.int64)


def checked(config: Config, check: Callable[[Manifest], Manifest]) -> Config:
    """The settings with the photos that `check` (`idmetric.train.batches.check`) leaves, file by file."""
    left: dict[str, Any] = {}
    for name, folders in (("photos", config.photos), ("labelled", config.labelled)):
        files = photo_files(folders, f"--{name}")
        if files:
            rows = [Row(None, str(path.absolute()), id=f"{name} {k}") for k, path in enumerate(files, 1)]
            left[name] = tuple(check(Manifest.from_rows(rows)).column("path"))
    return replace(config, **left)


def store(path: Path, data: Manifest, groups: Groups, config: Config) -> None:
    """Write all groups' images, (G, 2, V, size, size, 3) uint8, identity and twin, atomically."""
    with replacing(path) as part:
        _fill(part, data, groups, config)


def _fill(part: Path, data: Manifest, groups: Groups, config: Config) -> None:
    size = config.stored_size
    out = np.lib.format.open_memmap(part, "w+", np.uint8, (len(groups), 2, config.views, size, size, 3))
    take_space(part)
    pictures = Pictures(data, (size, size))

    def images(index: int) -> Images:
        rows = groups[index].ravel()
        found = torch.stack([pictures.read_bytes(int(row)) for row in rows]).permute(0, 2, 3, 1)
        return found.view(2, config.views, size, size, 3).numpy()

    threads = min(8, os.cpu_count() or 1)
    for index, made in enumerate(in_order(images, range(len(groups)), threads=threads, waiting=2 * threads)):
        out[index] = made
    out.flush()


def drawn(count: int, step: int, config: Config) -> NDArray[np.int64]:
    """The rendered groups of a step, in the order of the file."""
    return np.sort(batch_rows(step, count, int((sources(config) == RENDERED).sum()), config.seed))


def contexts_drawn(rows: NDArray[np.int64], step: int, config: Config) -> NDArray[np.int64]:
    """In which of their contexts a step shows its rendered groups, (len(rows), shown)."""
    rng = np.random.default_rng([config.seed, 2, step])
    return np.stack([rng.permutation(config.views)[: config.shown] for _ in rows])


def identity_numbers(data: Manifest, groups: Groups) -> NDArray[np.int64]:
    """A number for the identity that each group and its twin show, (G, 2)."""
    names = data.column("identity")
    number = {name: k for k, name in enumerate(dict.fromkeys(names))}
    return np.asarray([[number[names[row]] for row in group[:, 0]] for group in groups], dtype=np.int64)


def photo_digest(files: Sequence[Path], families: Sequence[Sequence[int]]) -> str:
    """Of the photos' contents, and of which are in a folder together."""
    lines = [
        f"{family[0]} {blake2b(file.read_bytes()).hexdigest()}" for file, family in zip(files, families, strict=True)
    ]
    return digest(lines)


def digest(names: Sequence[str]) -> str:
    return blake2b("\n".join(names).encode(), digest_size=8).hexdigest()


@contextlib.contextmanager
def sole_maker(path: Path) -> Iterator[None]:
    """While a file is made no other run makes it; what killed runs left of it goes, for it may be gigabytes."""
    place = path.with_name(f".{path.name}.lock")
    busy = TrainError(f"another run is making {path}: start when it is there, or name another --cache")
    with contextlib.ExitStack() as stack:
        with writing(path, place):
            held = stack.enter_context(locked(place, busy))
        if held:  # where there are no locks, its maker may be alive
            clear_leftovers(path)
        yield
