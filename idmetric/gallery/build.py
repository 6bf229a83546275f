"""Read the images of a gallery's sources, embed new content, and report what has changed."""

from __future__ import annotations

import io
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from idmetric.gallery.files import FACTS, norms_of, read_images, stamp_of
from idmetric.metric.images import ImageReadError, Named, is_animated, open_file, read_file, small_picture
from idmetric.store import Parts, Store
from idmetric.stream import Item, Look, embedded, problem_of

if TYPE_CHECKING:
    import pandas as pd
    from PIL import Image

    from idmetric.metric.embedder import Embedder

Progress = Callable[[int, int], None]
PRINT = "print"  # column of small pictures


@dataclass(frozen=True)
class Update:
    """The result of a build, by the images' paths as given.

    Attributes:
        images: usable images in the gallery now. embedded: how many of them were embedded by this build.
        new, changed, deleted: compared with the build before.
        unreadable: path -> why the image cannot be used.
    """

    images: int
    embedded: int
    new: list[str] = field(default_factory=list)
    changed: list[str] = field(default_factory=list)
    deleted: list[str] = field(default_factory=list)
    unreadable: Mapping[str, str] = field(default_factory=dict)

    def __str__(self) -> str:
        text = f"{self.images} images, {self.embedded} embedded"
        for name in ("new", "changed", "deleted", "unreadable"):
            count = len(getattr(self, name))
            if count:
                text += f", {count} {name}"
        return text


def before_build(path: Path) -> pd.DataFrame:
    """The paths and facts of the images of the build before; none if there was none."""
    import pandas as pd

    names = ["path", *FACTS]
    if not path.is_file():
        return pd.DataFrame(columns=names)
    _, images = read_images(path)
    rows = images.select(names).to_pylist()
    return pd.DataFrame(rows, columns=names, dtype=object)


def prints_of(folder: Path) -> Parts:
    """The small pictures of images in a model's folder, by content."""
    return Parts(folder / "prints", [PRINT], is_needed=False)


def take_print(_: Item, picture: Image.Image) -> dict[str, Any]:
    """The small picture of an image; an `Also` of the stream."""
    return {PRINT: small_picture(picture)}


def embed_images(
    images: pd.DataFrame,
    before: pd.DataFrame,
    metric: Embedder,
    store: Store,
    look: Look,
    *,
    prints: Parts | None,
    progress: Progress | None,
    batch_size: int,
    workers: int | None,
) -> tuple[pd.DataFrame, dict[str, str]]:
    """Embed what the store lacks.

    Args:
        images: from `list_images`. before: the rows of the build before. Files of which size and time are as they were
            are not read.
        prints: keeps the small pictures of the files that are read.

    Returns:
        The images that can be used, with all of `FACTS`; and path -> why it cannot, of the others.
    """
    import pandas as pd

    facts = _unchanged(images, before, store)
    problems: dict[str, str] = {}
    items = _items(images, facts)
    stream = embedded(
        items,
        metric,
        look,
        store=store,
        also=take_print if prints is not None else None,
        patches=store.all_columns > {"cls"},
        batch_size=batch_size,
        workers=workers,
        on_error="skip",
    )
    with closing(stream):
        for result in stream:
            number = result.item.source
            if result.problem is not None:
                problems[result.item.name] = problem_of(result.problem, result.item.name)
                facts.pop(number, None)
            else:
                facts[number]["_key"] = result.key
                if prints is not None:
                    keep_print(prints, result.key, result.also[PRINT])
            if progress is not None:
                progress(number + 1, len(images))
    if prints is not None:
        prints.save()

    usable = images.loc[sorted(facts)].reset_index(drop=True)
    types = {
        "_key": object,
        "_size": "int64",
        "_time": "int64",
        "_width": "int32",
        "_height": "int32",
        "_animated": bool,
    }
    for column, dtype in types.items():
        values = [facts[number][column] for number in sorted(facts)]
        usable[column] = pd.Series(values, dtype=dtype)
    locations = [store.place(key) for key in usable["_key"]]
    usable["_part"] = [name for name, _ in locations]
    usable["_part"] = usable["_part"].astype("category")
    usable["_row"] = np.array([row for _, row in locations], np.int32)
    usable["_norm"] = norms_of(store.folder, locations)
    return usable, problems


def _unchanged(images: pd.DataFrame, before: pd.DataFrame, store: Store) -> dict[int, dict[str, Any]]:
    """The facts of the images that are as they were, by the number of their row."""
    rows = before.to_dict("records")
    known = {(row["_file"], row["_mask"]): row for row in rows}
    facts = {}
    pairs = zip(images["_file"], images["_mask"], strict=True)
    for number, (file, mask) in enumerate(pairs):
        row = known.get((file, mask))
        if row is None or row["_key"] not in store:
            continue
        with suppress(OSError):  # it will be read, which reports why it cannot be
            if stamp_of(file, mask) == (row["_size"], row["_time"]):
                facts[number] = row
    return facts


def _items(images: pd.DataFrame, facts: dict[int, dict[str, Any]]) -> Iterator[Item]:
    """The images without facts; reading one, in a thread, notes its facts."""
    columns = zip(images["path"], images["_file"], images["_mask"], strict=True)
    for number, (path, file, mask) in enumerate(columns):
        if number not in facts:
            facts_of_image: dict[str, Any] = {}
            facts[number] = facts_of_image
            read = partial(_read, path, file, mask, facts_of_image)
            yield Item(path, read, mask, source=number)


def _read(path: str, file: str, mask: str | None, facts: dict[str, Any]) -> Named:
    """The bytes of an image under the name that it was given, with the facts about its file."""
    try:
        facts["_size"], facts["_time"] = stamp_of(file, mask)  # before it is read
        data = read_file(file).getvalue()
    except ImageReadError as error:
        raise ImageReadError(path, error.reason) from error
    except OSError as error:
        absent = "" if error.filename == file else f"{error.filename}: "
        raise ImageReadError(path, f"{absent}{error.strerror or error}") from error
    facts |= {"_width": 0, "_height": 0, "_animated": False}
    with suppress(Exception), open_file(io.BytesIO(data)) as head:  # decoding reports the reason
        facts["_width"], facts["_height"] = head.size
        facts["_animated"] = is_animated(head)
    return Named(data, path)


def keep_print(prints: Parts, key: str, picture: NDArray[np.uint8]) -> None:
    """Add the small picture of a content, unless it is there."""
    import torch

    if key not in prints:
        prints.add_rows([key], {PRINT: torch.tensor(picture)[None]})


def update_of(before: pd.DataFrame, after: pd.DataFrame, embedded: int, problems: Mapping[str, str]) -> Update:
    """Compare the images before and after a build by their paths."""
    old = dict(zip(before["path"], before["_key"], strict=True))
    now = dict(zip(after["path"], after["_key"], strict=True))
    return Update(
        images=len(after),
        embedded=embedded,
        new=[path for path in now if path not in old],
        changed=[path for path, key in now.items() if old.get(path, key) != key],
        deleted=[path for path in old if path not in now],
        unreadable=problems,
    )
