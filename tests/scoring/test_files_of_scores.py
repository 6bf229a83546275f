"""What the command takes: folders, masks, files of pairs; numbers in tables, and that no output replaces an input."""

from __future__ import annotations

import csv
import io
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from idmetric import IDSim, load, score_pairs
from idmetric.cli import score
from idmetric.cli.command import refuse_inputs
from idmetric.cli.data import main as data_main
from idmetric.cli.eval import main as eval_main
from idmetric.cli.gallery import main as gallery_main
from idmetric.gallery import Gallery, GalleryError
from idmetric.gallery.sources import list_images
from idmetric.metric.errors import RequestError
from idmetric.metric.files import OutputError, file_id
from idmetric.metric.paths import mask_of, masks_of
from idmetric.scoring.pairs import COLUMNS, read_pairs
from idmetric.tables import four, rounded
from tests.embed_parts import pictures

Run = Callable[..., tuple[int, str, str]]


def mask(path: Path, box: tuple[int, int, int, int]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    image = Image.new("L", (40, 30))
    image.paste(255, box)
    image.save(path, "PNG")


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory, metric: IDSim) -> Path:
    folder = tmp_path_factory.mktemp("model")
    metric.save_pretrained(folder)
    return folder


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """refs/1.png, refs/2.png, refs/10.png; gen/a/0.png, gen/b/0.png, gen/b/1.png."""
    (tmp_path / "gen").mkdir()
    paths = pictures(tmp_path / "made", 6)
    for path, name in zip(paths, ("refs/1", "refs/2", "refs/10", "gen/a/0", "gen/b/0", "gen/b/1"), strict=True):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        path.rename(tmp_path / f"{name}.png")
    return tmp_path


@pytest.fixture
def run(folder: Path, saved: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Run:
    monkeypatch.chdir(folder)

    def call(*argv: str) -> tuple[int, str, str]:
        capsys.readouterr()
        try:
            status = score.main(["--model", str(saved), "--device", "cpu", *argv])
        except SystemExit as stop:
            status = int(stop.code or 0)
        done = capsys.readouterr()
        return status, done.out, done.err

    return call


def found(run: Run, *argv: str) -> dict[str, Any]:
    status, out, err = run(*argv, "--format", "json")
    assert status in (0, 3), err
    answer: dict[str, Any] = json.loads(out)
    return answer


def lines(run: Run, folder: Path, text: str, *argv: str) -> list[dict[str, str]]:
    (folder / "p.csv").write_text(text)
    status, out, err = run("--pairs", "p.csv", "--format", "csv", *argv)
    assert status == 0, err
    return list(csv.DictReader(io.StringIO(out)))


@pytest.mark.parametrize(
    "header",
    [
        "a,b,mask_a,mask_b",
        "ref,gen,mask_ref,mask_gen",
        "Reference,Image,mask_reference,mask_image",
        "ref;gen;mask_ref;mask_gen",
        " a\tb\tmask_a\tmask_b",
    ],
)
def test_mask_columns_have_the_names_of_image_columns(tmp_path: Path, header: str) -> None:
    separator = next(separator for separator in ",;\t" if separator in header)
    (tmp_path / "p.csv").write_text(f"{header}\n{separator.join(['x.png', 'y.png', 'mx.png', 'my.png'])}\n")
    [pair] = read_pairs(tmp_path / "p.csv").comparisons
    a, b = pair.read
    assert [Path(file).name for file in (a.image, a.mask, b.image, b.mask)] == ["x.png", "mx.png", "y.png", "my.png"]
    assert pair.extra == {}


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("ref,gen,image\nx,y,z\n", ["'gen'", "'image'"]),
        ("a,ref,b\nx,y,z\n", ["'a'", "'ref'"]),
        ("a,b,mask\nx,y,z\n", ["'mask'", "mask_a or mask_b"]),
        ("ref,gen,seed,seed\nx,y,1,2\n", ["'seed'"]),
        ("left,right\nx,y\n", ["'left', 'right'", "ref", "gen"]),
        ("a,b\nx,y,z\n", ["pair 1", "3 cells"]),
        ("a,b\nx,\n", ["pair 1"]),
        ("a,b\n", ["no pairs"]),
        ("", ["no pairs"]),
        (b"ref,gen\ncaf\xe9.png,b.png\n", ["row 2"]),
        (b'ref,gen\na.png,"open\n', ["row 2"]),
        (b"PK\x03\x04workbook", ["workbook"]),
    ],
)
def test_a_file_that_does_not_name_pairs_is_refused(
    run: Run, folder: Path, text: str | bytes, named: list[str]
) -> None:
    (folder / "p.csv").write_bytes(text.encode() if isinstance(text, str) else text)
    status, out, err = run("--pairs", "p.csv")
    assert (status, out) == (2, "")
    for part in ("p.csv", *named):
        assert part in err


def test_a_pair_without_an_image_is_skipped_where_unreadable_images_are(run: Run, folder: Path, metric: IDSim) -> None:
    (folder / "p.csv").write_text("ref,gen,seed\nrefs/1.png,gen/a/0.png,1\nrefs/1.png,,2\n,gen/a/0.png,3\n")
    status, out, err = run("--pairs", "p.csv", "--on-error", "skip", "--format", "json")
    assert (status, [row["seed"] for row in json.loads(out)["rows"]]) == (4, ["1"])
    assert [line.partition(": ")[2][:22] for line in err.splitlines()] == [f"skipped p.csv, pair {k}:" for k in (2, 3)]
    assert len(score_pairs(metric, "p.csv", on_error="skip").skipped) == 2


def test_pairs_keep_their_order_and_their_other_columns(run: Run, folder: Path) -> None:
    text = 'refs/1.png,"a mug, blue",gen/a/0.png,7, 03\nrefs/1.png,,refs/1.png,8,4\nrefs/1.png,x,gen/b/0.png,9,5\n'
    text = f"ref,prompt,gen,distance,seed\n{text}"
    rows = lines(run, folder, text)
    assert [row["image"] for row in rows] == ["gen/a/0.png", "refs/1.png", "gen/b/0.png"]
    assert [row["rank"] for row in rows].index("1") == 1  # by distance all the same
    assert [(row["prompt"], row["input_distance"], row["seed"]) for row in rows] == [
        ("a mug, blue", "7", "03"), ("", "8", "4"), ("x", "9", "5")
    ]  # fmt: skip
    assert rows[1]["distance"] == "0.0000"
    assert [row["image"] for row in found(run, "--pairs", "p.csv")["rows"]] == [row["image"] for row in rows]
    assert [json.loads(x)["prompt"] for x in run("--pairs", "p.csv", "--format", "jsonl")[1].splitlines()] == [
        "a mug, blue", "", "x"
    ]  # fmt: skip
    table = run("--pairs", "p.csv")[1].splitlines()
    assert [line.split()[2] for line in table[1:4]] == [row["image"] for row in rows]
    short = lines(run, folder, "ref,gen,note\nrefs/1.png,gen/a/0.png,first\n\nrefs/1.png,gen/b/0.png\n")
    assert [row["note"] for row in short] == ["first", ""]


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16"])
def test_tables_of_spreadsheets_are_read(tmp_path: Path, encoding: str) -> None:
    (tmp_path / "p.csv").write_bytes('ref\tgen\r\n"café 1.png"\t b.png\r\n\t\r\n'.encode(encoding))
    [pair] = read_pairs(tmp_path / "p.csv").comparisons
    assert [Path(image.name).name for image in pair.read] == ["café 1.png", "b.png"]


def test_other_columns_cannot_have_the_name_of_a_column_of_scores(run: Run, folder: Path) -> None:
    names = [name for name in COLUMNS if name not in ("image", "reference")]  # these are the pair's
    (folder / "p.csv").write_text(f"a,b,{','.join(names)}\nrefs/1.png,gen/a/0.png{',mine' * len(names)}\n")
    [row] = found(run, "--pairs", "p.csv")["rows"]
    assert [row.pop(f"input_{name}") for name in names] == ["mine"] * len(names)
    assert "mine" not in row.values()
    assert set(row) | set(found(run, "refs", "gen")["rows"][0]) <= set(COLUMNS)


def test_numbers_have_four_decimals_and_no_negative_zero(run: Run, folder: Path) -> None:
    assert [four(x) for x in (-1e-9, 0.12345, -0.00005001, 2)] == ["0.0000", "0.1235", "-0.0001", "2.0000"]
    assert rounded({"x": [-0.0, 0.0934123471379280], "n": 3}) == {"x": [0.0, 0.0934123471], "n": 3}
    assert str(rounded(-0.0)) == "0.0"
    single = np.random.default_rng(0).random(1000, dtype=np.float32)
    assert [np.float32(rounded(float(x))) for x in single] == list(single)  # nothing of a float32 is lost
    out = run("refs", "gen", "--format", "csv")[1]
    for row in csv.DictReader(io.StringIO(out)):
        assert row["distance"] == f"{abs(float(row['distance'])):.4f}"
    text = run("refs", "gen", "--format", "json")[1]
    assert max(len(x.rstrip(",").rpartition(".")[2]) for x in text.split() if "." in x and x[0].isdigit()) < 13


def test_an_input_is_known_by_all_its_names(tmp_path: Path) -> None:
    for name in ("a.csv", "other.csv"):
        (tmp_path / name).write_text(name)
    (tmp_path / "link.csv").symlink_to("a.csv")
    os.link(tmp_path / "a.csv", tmp_path / "hard.csv")
    (tmp_path / "sub").symlink_to(tmp_path)
    for name in ("a.csv", "link.csv", "hard.csv", "sub/a.csv"):
        with pytest.raises(OutputError, match=r"--output .* is an input"):
            refuse_inputs({"--html": None, "--output": tmp_path / name}, [tmp_path / "other.csv", tmp_path / "a.csv"])
    refuse_inputs({"--output": tmp_path / "new.csv"}, [tmp_path / "a.csv"])
    refuse_inputs({"--output": tmp_path / "other.csv"}, [tmp_path / "a.csv"])
    assert file_id("/dev/null") is file_id(tmp_path) is file_id(tmp_path / "absent") is None


def test_score_never_writes_over_what_it_reads(run: Run, folder: Path, saved: Path) -> None:
    (folder / "p.csv").write_text("a,b\nrefs/1.png,gen/a/0.png\n")
    (folder / "q.csv").symlink_to("p.csv")
    mask(folder / "masks/1.png", (2, 2, 20, 20))
    mask(folder / "masks/0.png", (2, 2, 20, 20))
    before = {path: path.read_bytes() for path in (*folder.rglob("*"), *saved.iterdir()) if path.is_file()}
    cross = ("refs/1.png", "gen/a", "--mask-dir", "masks")
    for given in (
        ("--pairs", "p.csv", "--output", "p.csv"), ("--pairs", "p.csv", "--output", "q.csv"),
        ("--pairs", "p.csv", "--html", "./p.csv"), ("--pairs", "p.csv", "--output", "gen/a/0.png"),
        (*cross, "--output", "refs/1.png"), (*cross, "--html", "gen/a/0.png"), (*cross, "--output", "masks/1.png"),
    ):  # fmt: skip
        status, out, err = run(*given)
        assert (status, out) == (2, ""), given
        assert "is an input" in err
    assert {path: path.read_bytes() for path in before} == before
    status, _, err = run("refs/1.png", "gen", "--html", "gen/../x.html", "--output", "x.html")
    assert (status, "name one file" in err) == (2, True)


def test_galleries_and_data_commands_never_write_over_what_they_read(
    folder: Path, metric: IDSim, saved: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("pyarrow")
    monkeypatch.chdir(folder)
    assert data_main(["import", "folder", "gen", "-o", "m.parquet", "--quiet"]) == 0
    Gallery("index", metric).build("m.parquet")
    before = {path: path.read_bytes() for path in folder.rglob("*") if path.is_file() and "index" not in path.parts}
    shared = ("--model", str(saved), "--device", "cpu", "--quiet")
    for given in (("dedupe", "gen", "--output", "gen/a/0.png"),
                  ("query", "refs/1.png", "--gallery", "index", "--output", "refs/1.png")):  # fmt: skip
        capsys.readouterr()
        with pytest.raises(SystemExit) as stop:
            gallery_main([*given, *shared])
        assert (stop.value.code, "is an input" in capsys.readouterr().err) == (2, True), given
    for given in (("split", "m.parquet", "-o", "m.parquet", "--part", "train=rest"),
                  ("merge", "m.parquet", "-o", "./m.parquet"),
                  ("import", "table", str(folder), "-o", "m.parquet")):  # fmt: skip
        assert data_main(list(given)) == 1
        assert "-o 'm.parquet' is an input" in capsys.readouterr().err.replace("./", "")
    assert eval_main(["folder", "--data", "m.parquet", "--html", "m.parquet", "--model", "hsv", "--quiet"]) == 1
    assert "--html 'm.parquet' is an input" in capsys.readouterr().err
    for source in ("m.parquet", "gen"):
        assert eval_main(["folder", "--data", source, "--html", "gen/a/0.png", "--model", "hsv", "--quiet"]) == 1
        assert "--html 'gen/a/0.png' is an input" in capsys.readouterr().err
    assert {path: path.read_bytes() for path in before} == before
    (folder / "gen" / "found.csv").write_text("of the last run")
    assert gallery_main(["dedupe", "gen", "--output", "gen/found.csv", *shared]) == 0


def test_a_folder_or_pattern_is_a_reference_in_the_command(run: Run, folder: Path) -> None:
    by_files = found(run, "--ref", "refs/1.png", "--ref", "refs/2.png", "--ref", "refs/10.png", "gen")
    assert list(by_files["real"]) == ["refs/1.png", "refs/2.png", "refs/10.png"]
    for given in (("--ref", "refs", "gen"), ("refs", "gen"), ("refs/*.png", "gen"), ("--ref", "refs/**", "gen/*")):
        assert found(run, *given) == by_files, given
    assert run("--ref", "made", "gen")[0] == run("--ref", "no*", "gen")[0] == 2


def test_references_among_the_candidates_are_left_out(run: Run, folder: Path) -> None:
    (folder / "gen" / "link.png").symlink_to(folder / "refs" / "2.png")
    alone = found(run, "refs", "gen/a", "gen/b")
    both = found(run, "refs", "gen", "refs")
    assert both.pop("references_left_out") == ["gen/link.png", "refs/1.png", "refs/2.png", "refs/10.png"]
    alone.pop("references_left_out")
    assert both == alone
    assert "left out, as references: gen/link.png" in run("refs", "gen")[1]
    status, _, err = run("refs", "refs/2.png")
    assert (status, "all images are references" in err) == (2, True)


def test_masks_are_found_by_the_images_own_path(run: Run, folder: Path, saved: Path) -> None:
    boxes = {"a/0.png": (2, 2, 20, 20), "b/0.png": (15, 5, 35, 28), "1.png": (0, 0, 30, 12)}
    for name, box in boxes.items():
        mask(folder / "masks" / name, box)
    assert mask_of("masks", "gen/b/0.png") == str(Path("masks/b/0.png"))
    rows = found(run, "refs/1.png", "gen/a", "gen/b/0.png", "--mask-dir", "masks", "--distance", "patch")["rows"]
    model = load(saved, device="cpu")
    for row in rows:
        own = folder / "masks" / Path(row["image"]).relative_to("gen")
        expected = model(
            folder / "refs/1.png", folder / row["image"], "patch", mask_a=folder / "masks/1.png", mask_b=own
        )
        assert row["distance"] == pytest.approx(expected.item(), abs=1e-6)
    masks = [folder / "masks" / name for name in ("a/0.png", "b/0.png")]
    given = [folder / "gen" / name for name in ("a/0.png", "b/0.png")]
    by_folder = model.embed(given, masks=folder / "masks")
    assert by_folder.cls.equal(model.embed(given, masks=masks).cls)


def test_one_mask_for_two_images_is_refused(run: Run, folder: Path, saved: Path) -> None:
    mask(folder / "masks/0.png", (2, 2, 20, 20))
    mask(folder / "masks/1.png", (2, 2, 20, 20))
    images = ("gen/a/0.png", "gen/b/0.png")
    status, out, err = run("refs/1.png", *images, "--mask-dir", "masks")
    assert (status, out) == (2, "")
    for name in (*images, "masks/0.png", "masks/a", "masks/b"):
        assert name in err
    (folder / "p.csv").write_text("refs/1.png,gen/a/0.png\nrefs/1.png,gen/b/0.png\n")
    assert run("--pairs", "p.csv", "--mask-dir", "masks")[0] == 2
    with pytest.raises(GalleryError, match="would be the mask of both"):
        list_images([folder / "gen"], masked=True, mask_dir=folder / "masks")
    with pytest.raises(RequestError, match="would be the mask of both"):
        load(saved, device="cpu").embed([str(folder / name) for name in images], masks=folder / "masks")
    os.link(folder / "gen/a/0.png", folder / "gen/again.png")
    (folder / "masks/again.png").symlink_to("0.png")
    masks_of(folder / "masks", [str(folder / "gen/a/0.png"), str(folder / "gen/again.png")])  # one image
