"""The messages of docs/troubleshooting.md are those that the package gives."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import av
import httpx
import huggingface_hub
import numpy as np
import pytest
import torch
from huggingface_hub import constants, errors
from PIL import Image
from safetensors.torch import save_file

import idmetric
from idmetric import IdentityLoss, IDSim, load
from idmetric.cli.main import main
from idmetric.metric.checkpoints import hub
from idmetric.metric.checkpoints.revision import Hub
from idmetric.metric.distance.finite import reason
from idmetric.metric.files.hints import need
from idmetric.metric.images.kinds import MultiFrameWarning
from idmetric.metric.images.read import read_image
from idmetric.train.contention import CoreWatch
from tests.clip_files import picture, write_video
from tests.metric.images.test_read import tiff

ROOT = Path(__file__).resolve().parents[2]
MUG = ROOT / "examples" / "images" / "mug_a.png"
PAGE = (ROOT / "docs" / "troubleshooting.md").read_text(encoding="utf-8")
QUOTED = [line for block in re.findall(r"```text\n(.*?)```", PAGE, flags=re.S) for line in block.splitlines()]
TORCHS = ("CUDA out of memory", "Found no NVIDIA driver", "PyTorch is not linked")  # PyTorch gives these
REPO = "owner/name"


def test_the_page_quotes_every_message_once() -> None:
    assert len(QUOTED) == len(set(QUOTED)) >= 29
    assert all(any(line.startswith(start) for line in QUOTED) for start in TORCHS)


def files(folder: Path) -> dict[str, Path]:
    """Images and masks that are refused or warned of."""
    names = ("cut.jpg", "page.jpg", "new.heic", "gif.gif", "deep.tif", "dark.tif", "white.tif")
    made = {name: folder / name for name in names}
    photo = Image.open(MUG).convert("RGB")
    photo.save(made["cut.jpg"])
    made["cut.jpg"].write_bytes(made["cut.jpg"].read_bytes()[:3000])
    made["page.jpg"].write_text("<html>")
    made["new.heic"].write_bytes(b"\0\0\0\x18ftypheic\0\0\0\0mif1heic")
    photo.save(made["gif.gif"], save_all=True, append_images=[photo.rotate(90)])
    Image.fromarray(np.full((8, 8), -5, np.int32)).save(made["deep.tif"])
    Image.fromarray(np.full((8, 8), 4095, np.uint16)).save(made["dark.tif"])
    made["white.tif"].write_bytes(tiff(np.full((8, 8, 1), 4095, np.uint16), photometric=0))
    labels = np.zeros((256, 256), np.uint8)
    labels[:50], labels[60:90] = 1, 2
    for name, mask in (("labels", labels), ("shape", 255 * (labels[:100] > 0)), ("empty", 0 * labels)):
        made[name] = folder / f"{name}.png"
        Image.fromarray(mask.astype(np.uint8)).save(made[name])
    return made


def refused(error: Exception) -> Callable[..., Any]:
    def raising(*_: Any, **__: Any) -> None:
        raise error

    return raising


@contextmanager
def hub_that(patch: pytest.MonkeyPatch, error: type[Exception], status: int, offline: bool = False) -> Iterator[None]:
    """A Hub that answers by this error."""
    answer = httpx.Response(status, request=httpx.Request("HEAD", constants.ENDPOINT))
    kind: Any = error
    made = kind("no", response=answer) if issubclass(error, errors.HfHubHTTPError) else kind("no")
    with patch.context() as within:
        within.setattr(huggingface_hub, "get_hf_file_metadata", refused(made))
        within.setattr(constants, "HF_HUB_OFFLINE", offline)
        yield


def of_match(metric: IDSim, folder: Path, message: Callable[[Callable[[], Any]], str]) -> Iterator[str]:
    """What `match` says of regions and clips."""
    subjects = {"mug": MUG}
    yield message(lambda: idmetric.match(metric, subjects, MUG, regions={"other.png": [(0, 0, 9, 9)]}))
    yield message(lambda: idmetric.match(metric, subjects, MUG, regions=[(200, 0, 999, 99)]))
    yield idmetric.match(metric, subjects, MUG, distance="patch").to_table()  # without a calibration

    clip = folder / "clip.mp4"
    clip.write_text("no video")
    yield message(lambda: idmetric.match(metric, subjects, clip))
    write_video(clip, [picture(number) for number in range(12)])
    with av.open(str(clip)) as container:
        packets = [(packet.pos, packet.size) for packet in container.demux() if packet.size]
    position, size = packets[6]
    data = bytearray(clip.read_bytes())
    data[position : position + size] = b"\xff" * size
    clip.write_bytes(data)
    yield message(lambda: idmetric.match(metric, subjects, clip, frames="all"))
    yield message(lambda: idmetric.match(metric, {"mug": clip}, MUG))


def given(tmp_path: Path, patch: pytest.MonkeyPatch, said: Callable[[], str]) -> Iterator[str]:
    """What the package says to each mistake."""

    def message(call: Callable[[], Any]) -> str:
        with pytest.raises(Exception) as caught:  # noqa: PT011
            call()
        return str(caught.value)

    metric, made = IDSim("tiny", device="cpu"), files(tmp_path)
    answers: list[tuple[type[Exception], int, bool]] = [
        (errors.GatedRepoError, 403, False),
        (errors.RepositoryNotFoundError, 404, False),
        (ConnectionError, 0, True),
        (ConnectionError, 0, False),
        *((errors.HfHubHTTPError, status, False) for status in (401, 403, 429, 500)),
    ]
    for error, status, offline in answers:
        with hub_that(patch, error, status, offline):
            options = Hub(cache_dir=str(tmp_path), token="hf_old")
            yield message(lambda options=options: hub.fetch(REPO, "config.json", options))  # type: ignore[misc]
    with patch.context() as login_page:
        page = SimpleNamespace(commit_hash=None, etag=None)
        login_page.setattr(huggingface_hub, "get_hf_file_metadata", lambda *_, **__: page)
        yield message(lambda: hub.fetch(REPO, "config.json", Hub(cache_dir=str(tmp_path))))
    with patch.context() as slow:
        slow.setattr(huggingface_hub, "get_hf_file_metadata", refused(TimeoutError("no progress in 30 s")))
        yield message(lambda: hub.fetch(REPO, "config.json", Hub(cache_dir=str(tmp_path))))
    yield message(lambda: load("no model"))
    yield message(lambda: IDSim(str(tmp_path)))
    metric.save_pretrained(tmp_path / "damaged")
    for value in (torch.tensor(1, dtype=torch.int8), torch.tensor(math.nan)):
        save_file({"mlp_cls.beta_logit": value}, tmp_path / "damaged" / "model.safetensors")
        yield message(lambda: IDSim(tmp_path / "damaged"))

    readings = iter([0.0, 9.0, 18.0])  # two threads that wait all the time
    others = iter([0.0, 5.0, 10.0])  # for a core of another program's
    clock = iter([0.0, 5.0, 10.0])
    watch = CoreWatch(2, waited=readings.__next__, others=others.__next__, clock=lambda: next(clock))
    watch.look()
    yield watch.look()

    with patch.context() as full:
        full.setattr("idmetric.cli.gallery._dedupe", refused(MemoryError()))
        assert main(["gallery", "dedupe", str(MUG), "--model", "tiny", "--device", "cpu"]) == 1
        yield said()
    with pytest.raises(SystemExit, match="2"):
        main(["score", "--model", "tiny", "--device", "cpu", str(MUG), str(MUG)])
    yield said()
    with patch.context() as limited:
        limited.setattr("idmetric.metric.images.opening.MAX_PIXELS", 100)
        yield message(lambda: read_image(MUG))
    for name in ("cut.jpg", "page.jpg", "new.heic", "deep.tif", "dark.tif", "white.tif"):
        yield message(lambda name=name: metric.embed(made[name]))  # type: ignore[misc]
    with pytest.warns(MultiFrameWarning) as heard:
        read_image(made["gif.gif"])
    yield str(heard[0].message)
    for pixels in (
        torch.full((1, 3, 8, 8), 200.0),
        torch.full((1, 3, 8, 8), -0.5),
        torch.full((1, 3, 8, 8), torch.nan),
    ):
        yield message(lambda pixels=pixels: metric(pixels, MUG))  # type: ignore[misc]
    for dtype in (torch.float16, torch.float32):
        yield f"{MUG}: {reason(dtype)}"
    loss = IdentityLoss(metric, MUG)
    yield message(lambda: loss(torch.full((1, 3, 8, 8), torch.nan, requires_grad=True)))
    yield message(lambda: loss(torch.rand(1, 3, 8, 8)))
    for name in ("labels", "shape", "empty"):
        yield message(lambda name=name: metric(MUG, MUG, mask_a=made[name]))  # type: ignore[misc]
    (tmp_path / "masks").mkdir()
    yield message(lambda: metric.embed(MUG, masks=tmp_path / "masks"))
    for absent in ("none/*.png", "none.png", "https://example.org/a.png"):
        yield message(lambda absent=absent: metric.embed(absent))  # type: ignore[misc]
    yield from of_match(metric, tmp_path, message)
    yield message(lambda: need("eval", "--html", no_such_module="jinja2"))


def test_every_quoted_message_is_given(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level("WARNING", "idmetric")  # a command run with --quiet leaves it higher

    def said() -> str:
        text = " ".join(record.getMessage() for record in caplog.records) + capsys.readouterr().err
        caplog.clear()
        return text

    messages = [" ".join(message.split()) for message in given(tmp_path, monkeypatch, said)]
    for line in QUOTED:
        if not line.startswith(TORCHS):
            pattern = ".+".join(map(re.escape, line.removesuffix("...").split("...")))
            assert any(re.search(pattern, message) for message in messages), f"{line}\nis not among {messages}"
