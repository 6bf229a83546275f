"""What operating systems and file managers leave in folders is no image and no data, in every reader of folders."""

from __future__ import annotations

import ast
import json
from collections.abc import Callable
from pathlib import Path

import pytest

import idmetric
from idmetric.data.frames.clips import find_clips
from idmetric.data.frames.footage import open_clip
from idmetric.data.generate.weights import fingerprint
from idmetric.data.importers.run import import_dataset
from idmetric.data.importers.source import open_source
from idmetric.gallery.sources import entries
from idmetric.matching.clips import sources_of
from idmetric.metric.checkpoints.pretrained import folder_revision
from idmetric.metric.files.folders import is_hidden, matching, walk
from idmetric.metric.images.paths import listed
from idmetric.train.run_folder import read as read_run
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
    manifest = import_dataset("folder", root)
    return manifest.column("identity"), manifest.column("path"), manifest.column("mask")


def of_gallery(root: Path) -> object:
    from idmetric.gallery.sources import GallerySource

    return [entry.name for entry in entries([GallerySource(str(root))], masked=False)]


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
    return folder_revision(root), fingerprint(root)


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


def test_importers_of_annotations_leave_them_out(tmp_path: Path) -> None:
    item = {"style": 1, "category_name": "skirt", "segmentation": [[0, 0, 4, 0, 4, 4, 0, 4]]}
    annotation = json.dumps({"pair_id": 7, "source": "shop", "item1": item}).encode()
    put(tmp_path / "df/train/image/1.jpg", png(1))
    put(tmp_path / "df/train/annos/1.json", annotation)
    for name in ("train/annos/._1.json", "@eaDir/annos/1.json", "train/image/._1.jpg"):
        put(tmp_path / "df" / name, b"\0\5\26\7")
    assert len(import_dataset("deepfashion2", tmp_path / "df")) == 1

    put(tmp_path / "db/images/object/00.jpg", png(1))
    put(tmp_path / "samples/way/tgt_image/object_00_mug/0_0.jpg", png(2))
    for name in ("way/tgt_image/object_00_mug/._0_0.jpg", "way/tgt_image/@eaDir/0_0.jpg", "@eaDir/tgt_image/x/0_0.jpg"):
        put(tmp_path / "samples" / name, png(3))
    put(tmp_path / "ratings/group1/way-cp.json", b'{"object_00_mug-0": 3}')
    put(tmp_path / "ratings/group1/._way-cp.json", b"\0\5\26\7")
    options = {"samples": str(tmp_path / "samples"), "ratings": str(tmp_path / "ratings")}
    manifest = import_dataset("dreambench_pp", tmp_path / "db", options=options)
    assert [row.label for row in manifest] == [None, None, 3.0]


def test_a_run_folder_with_files_of_the_file_manager_is_empty(tmp_path: Path) -> None:
    put_all(tmp_path / "run", ".DS_Store", "desktop.ini", "Thumbs.db")
    assert read_run(tmp_path / "run") is None


def test_what_is_named_stays_an_input(tmp_path: Path) -> None:
    """Its file, its folder, or a pattern that has its name in it."""
    put_all(tmp_path, "@eaDir/a.png", "._b.png", "set/c.png")
    assert listed(tmp_path / "._b.png") == [str(tmp_path / "._b.png")]
    assert listed(tmp_path / "@eaDir") == [str(tmp_path / "@eaDir/a.png")]
    assert listed(tmp_path / "@eaDir" / "*.png") == [str(tmp_path / "@eaDir/a.png")]
    assert list(walk(tmp_path)) == matching(tmp_path, "**/*.png") == [tmp_path / "set/c.png"]


@pytest.mark.parametrize("name", ["a.png", "eaDir", "recycle", "thumbs.png", "#1.png", "$1.png", "~a.png", "@a"])
def test_names_of_people_are_kept(name: str) -> None:
    assert not is_hidden(name)


# readers of our own folders and of the package, and a check that must see hidden files too
OTHER_LISTS = {
    "metric/files/folders.py",
    "metric/files/hints.py",  # names that may have been meant
    "metric/images/paths.py",  # names of masks, and patterns, which check the names
    "metric/checkpoints/hub.py",  # the Hub's cache
    "stream/shards.py",  # files with our own names
    "stream/keys.py",
    "gallery/prune.py",
    "train/state.py",
    "train/contention.py",  # threads, in /proc
    "data/generate/weights.py",  # refuses code
    "cli/score.py",  # outputs that would replace an input
    "evaluate/protocols/common/protocol.py",
}


def test_folders_are_listed_by_one_reader() -> None:
    """A new reader uses `walk` or `matching`, or says here why it need not."""
    package = Path(idmetric.__file__).parent
    names = {"glob", "rglob", "iglob", "iterdir", "listdir", "scandir"}
    lists = set()
    for path in package.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            is_listing = isinstance(node, ast.Attribute) and node.attr in names
            if is_listing or (isinstance(node, ast.Attribute) and ast.unparse(node) == "os.walk"):
                lists.add(path.relative_to(package).as_posix())
    assert lists == OTHER_LISTS
