"""What operating systems and file managers leave in folders is no image and no data, in every reader of folders."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from idmetric.data.frames.clips import find_clips
from idmetric.data.frames.footage import open_clip
from idmetric.data.generate.weights import Repository, version
from idmetric.data.importers.run import import_dataset
from idmetric.data.importers.source import open_source
from idmetric.gallery.sources import list_images
from idmetric.matching.clips import sources_of
from idmetric.metric.checkpoints.pretrained import folder_revision
from idmetric.metric.paths import listed, matching, walk
from tests.import_parts import png, put, put_all

LEFT = (
    "._1.png", ".DS_Store", "Thumbs.db", "desktop.ini", "@eaDir/2.png", "@eaDir/1.png/SYNOPHOTO_THUMB_M.jpg",
    "#recycle/1.png", "$RECYCLE.BIN/S-1-5-21/1.png", ".ipynb_checkpoints/1-checkpoint.png", "__MACOSX/._1.png",
    "System Volume Information/1.png", ".Trash-1000/files/1.png", "lost+found/1.png", "@Recycle/1.png",
)  # fmt: skip


def litter(folder: Path) -> None:
    """Everything of `LEFT` in a folder and in each folder below."""
    for path in [folder, *filter(Path.is_dir, folder.rglob("*"))]:
        for name in LEFT:
            put(path / name, png(99))


def photos(root: Path) -> Path:
    """Two identities of two photos each, with their masks."""
    for number, name in enumerate(("mug/1", "mug/2", "cup/1", "cup/2")):
        put(root / f"{name}.png", png(number))
        put(root / "masks" / f"{name}.png", png(255, (6, 4)))
    return root


def of_listed(root: Path) -> object:
    return listed(root)


def of_pattern(root: Path) -> object:
    return listed(root / "*" / "*.*"), listed(root / "**" / "*.png")


def of_importer(root: Path) -> object:
    table = import_dataset("folder", root)
    return [table[name].tolist() for name in ("identity", "path", "mask")]


def of_gallery(root: Path) -> object:
    images = list_images([root], masked=False, mask_dir=None)
    return [Path(file).relative_to(root.absolute()).as_posix() for file in images["_file"]]


def of_match(root: Path) -> object:
    return [str(source) for source in sources_of(root)]


def of_clips(root: Path) -> object:
    clips = find_clips(root / "cup", root / "masks" / "cup")
    return [(clip.name, len(open_clip(clip, 10).times)) for clip in clips]


def of_tables(root: Path) -> object:
    put(root / "table.csv", b"image,identity\n1.png,a\n")
    return [shard.path for shard in open_source(root).shards]


def of_model_folder(root: Path) -> object:
    for name in ("config.json", "model.safetensors", "tokenizer.json"):
        put(root / name, name.encode())
    return folder_revision(root), version(Repository(str(root), "mit"))


READERS = (of_listed, of_pattern, of_importer, of_gallery, of_match, of_clips, of_tables, of_model_folder)


@pytest.mark.parametrize("reader", READERS, ids=lambda reader: reader.__name__)
def test_every_reader_leaves_out_what_file_managers_leave(tmp_path: Path, reader: Callable[[Path], object]) -> None:
    root = photos(tmp_path / "toys")
    expected = reader(root)
    assert expected
    litter(root)
    for name in ("._config.json", "._model.safetensors", "._tokenizer.json", "._table.csv", "@eaDir/table.csv"):
        put(root / name, b"\0\5\26\7")
    assert reader(root) == expected


def test_what_is_named_stays_an_input(tmp_path: Path) -> None:
    """Its file, its folder, or a pattern that has its name in it."""
    put_all(tmp_path, "@eaDir/a.png", "._b.png", "set/c.png")
    assert listed(tmp_path / "._b.png") == [str(tmp_path / "._b.png")]
    assert listed(tmp_path / "@eaDir") == [str(tmp_path / "@eaDir/a.png")]
    assert listed(tmp_path / "@eaDir" / "*.png") == [str(tmp_path / "@eaDir/a.png")]
    assert list(walk(tmp_path)) == matching(tmp_path, "**/*.png") == [tmp_path / "set/c.png"]
