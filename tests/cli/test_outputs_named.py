"""Commands say on stderr which files they wrote, each once, unless --quiet."""

from __future__ import annotations

from pathlib import Path

import pytest
from PIL import Image

from idmetric.cli.main import main
from tests.runner import Runner

EVAL = "eval folder --data . --model hsv --bootstrap 0 --device cpu --out out --html out/page.html --plots png"


@pytest.mark.parametrize(
    ("words", "reader"),
    [
        ("score 0/0.png 1/0.png --model tiny --device cpu --output scores.json --html page.html", None),
        (EVAL, "sklearn"),
        ("gallery build . --gallery index --model tiny --device cpu --parquet index.parquet", "pyarrow"),
        ("gallery dedupe . --model tiny --output copies.csv", None),
    ],
)
def test_each_written_file_is_named_once(
    words: str, reader: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    if reader:
        pytest.importorskip(reader)
    monkeypatch.chdir(tmp_path)
    for k in range(6):
        path = Path(f"{k % 2}/{k // 2}.png")
        path.parent.mkdir(exist_ok=True)
        Image.effect_noise((40, 40), 50).save(path)
    before = set(Path().rglob("*"))
    status, _, said = Runner(main, capsys).all(words)
    assert status == 0, said
    index = Path("index")
    written = {
        path
        for path in set(Path().rglob("*")) - before
        if path.is_file() and index not in path.parents and "embeddings" not in path.parts
    }
    named = [line.partition(": wrote ")[2].partition(":")[0] for line in said.splitlines() if ": wrote " in line]
    assert sorted(named) == sorted(map(str, written))

    status, _, said = Runner(main, capsys).all(f"{words} --quiet")
    assert status == 0
    assert "wrote" not in said
