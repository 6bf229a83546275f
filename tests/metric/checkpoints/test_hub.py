"""Downloads, with the real Hub client against a server of our own."""

from __future__ import annotations

import socket
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from PIL import Image

from idmetric import Backbone, CheckpointError, IDSim, NearID, VisIDEmbed, load
from idmetric.cli.list_models import is_cached
from idmetric.metric.checkpoints import released
from idmetric.metric.checkpoints.format import FILES, revision_of
from idmetric.metric.checkpoints.resolve import resolve
from idmetric.scoring.calibration import calibration_of
from tests.hub_server import COMMIT, HubServer
from tests.metric.checkpoints.test_released import VARIANTS, publish
from tests.metric.models.test_nearid import SMALL as SMALL_NEARID
from tests.metric.models.test_nearid import official
from tests.metric.models.test_visid import make_qwen


@pytest.fixture
def hub(metric: IDSim, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[HubServer]:
    """A Hub with one model, and an empty cache."""
    metric.save_pretrained(tmp_path / "repo")
    with HubServer({"owner/model": tmp_path / "repo"}) as server:
        server.stands_in(monkeypatch, tmp_path)
        yield server


def message_of(source: str, **options: object) -> str:
    with pytest.raises(CheckpointError) as caught:
        load(source, device="cpu", **options)
    message = str(caught.value)
    assert "\n" not in message
    return message


def test_a_model_is_downloaded_once_and_its_commit_is_known(
    hub: HubServer, metric: IDSim, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    options = {"device": "cpu", "cache_dir": str(tmp_path / "here")}
    model = load("owner/model", **options)
    assert model.revision == COMMIT
    assert calibration_of(model) is None
    assert (tmp_path / "here" / "models--owner--model").is_dir()
    assert not (tmp_path / "cache").exists()
    x, y = torch.rand(1, 3, 64, 64), torch.rand(1, 3, 64, 64)
    assert model(x, y).equal(metric(x, y))
    load("owner/model", **options)
    load("owner/model", revision=COMMIT, local_files_only=True, **options)
    assert len(hub.downloads("model.safetensors")) == 1
    assert "Fetching" not in capfd.readouterr().err  # no bars of what is there at once


def test_a_gated_repository_and_a_token(hub: HubServer, tmp_path: Path) -> None:
    hub.gated["owner/model"] = "hf_secret"
    message = message_of("owner/model")
    assert f"{hub.endpoint}/owner/model" in message
    assert "token=" in message
    assert load("owner/model", device="cpu", token=" hf_secret\n").revision == COMMIT
    assert "hf_secret" not in message_of("owner/other", token="hf_secret")
    with pytest.raises(ValueError, match="token=") as caught:
        load("owner/model", token="hf_secret\nhf_other")
    assert "hf_" not in str(caught.value)


def test_what_does_not_exist_is_named(hub: HubServer, tmp_path: Path) -> None:
    assert "owner/nothing" in message_of("owner/nothing")
    assert "no revision 'v9'" in message_of("owner/model", revision="v9")
    assert "local_files_only" in message_of("owner/new", local_files_only=True)
    (tmp_path / "repo" / "model.safetensors").unlink()
    assert "model.safetensors" in message_of("owner/model")
    with pytest.raises(CheckpointError, match="'nothing'"):
        resolve("nothing", FILES)


@pytest.mark.parametrize("place", ["cache", "home"])
def test_a_folder_that_is_a_file_is_named(
    place: str, hub: HubServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As cache_dir, or as HF_HOME, in which the folders of the cache and of the token lie."""
    file = tmp_path / place
    file.write_text("")
    if place == "home":
        monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(file / "hub"))
        monkeypatch.setattr("huggingface_hub.constants.HF_TOKEN_PATH", str(file / "token"))
    message = message_of("owner/model", cache_dir=str(file) if place == "cache" else None)
    assert str(file) in message
    assert "did not" not in message


@pytest.mark.parametrize(
    "fault",
    [
        OSError(28, "No space left on device"),
        PermissionError(13, "Permission denied", "/cache/models"),
        ImportError("the 'socksio' package is not installed"),
    ],
    ids=lambda fault: type(fault).__name__,
)
def test_a_fault_of_this_machine_keeps_its_words(
    fault: Exception, hub: HubServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(*_: object, **__: object) -> str:
        raise fault

    monkeypatch.setattr("huggingface_hub.file_download.http_get", fails)
    message = message_of("owner/model")
    assert str(fault) in message
    assert "did not" not in message


def test_without_a_network_one_sentence_at_once_and_no_other_model(
    hub: HubServer, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """For single files the Hub client retries for 24 s on a refused port."""
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))  # nobody listens
        address = f"http://127.0.0.1:{server.getsockname()[1]}"
        monkeypatch.setattr("huggingface_hub.constants.ENDPOINT", address)
        message_of("owner/model")  # imports
        for name in ("dinov3_vitl16", "nearid", "owner/model"):
            start = time.perf_counter()
            message = message_of(name)
            assert time.perf_counter() - start < 1
            assert address in message
            assert "local folder" in message
            assert "--model tiny" in message
    assert not caplog.records


def test_without_a_network_a_model_opens_from_the_cache(hub: HubServer, monkeypatch: pytest.MonkeyPatch) -> None:
    load("owner/model", device="cpu")
    hub.requests.clear()
    load("owner/model", device="cpu", revision=COMMIT)
    assert not hub.requests  # the cache has the pinned commit
    for status in (500, 503):
        hub.refusal = status
        assert load("owner/model", device="cpu").revision == COMMIT
    monkeypatch.setattr("huggingface_hub.constants.ENDPOINT", "http://127.0.0.1:9")
    assert load("owner/model", device="cpu").revision == COMMIT


@pytest.mark.parametrize("status", [401, 403, 404, 429, 500, 503])
def test_a_refusal_without_the_code_of_the_hub_names_its_status(status: int, hub: HubServer) -> None:
    """Mirrors and proxies answer with a status alone."""
    hub.refusal = status
    message = message_of("owner/model", token="hf_old" if status == 401 else None)
    assert str(status) in message
    assert "hf_old" not in message


def test_files_that_match_are_downloaded_and_no_others(hub: HubServer, tmp_path: Path) -> None:
    for name in ("modeling.py", "weights.bin", "tokenizer.json"):
        (tmp_path / "repo" / name).write_text("x")
    folder = resolve("owner/model", ["*.json", "*.safetensors"])
    assert sorted(p.name for p in folder.iterdir()) == ["config.json", "model.safetensors", "tokenizer.json"]
    assert revision_of(folder / "model.safetensors") == COMMIT
    assert resolve("owner/model", ["*.json"], local_files_only=True) == folder
    assert resolve(folder, []) == folder
    with pytest.raises(CheckpointError, match="no revision 'main'"):
        resolve(folder, [], revision="main")


# The published models by their names


@pytest.mark.parametrize("variant", ["dinov3_vitb16", "dinov2_vitb14"])
def test_idsim_by_name(variant: str, hub: HubServer, tmp_path: Path) -> None:
    release = released.IDSIM[variant]
    adapter, trunk, _ = publish(tmp_path, variant)
    timm_repo = tmp_path / "timm"
    timm_repo.mkdir()
    trunk.rename(timm_repo / "model.safetensors")
    hub.repos |= {release.repo: adapter, f"timm/{release.backbone}": timm_repo}
    if release.revision:
        hub.commits[release.repo] = release.revision
    options = {"backbone_args": VARIANTS[variant], "device": "cpu"}
    model = load(variant, **options)
    commit = release.revision or COMMIT
    assert model.revision == f"{commit}+{COMMIT[:12]}"  # of the adapter and of the backbone
    by_repository = load(release.repo, **options)
    x, y = torch.rand(1, 3, 90, 60), torch.rand(1, 3, 90, 60)
    assert by_repository(x, y).equal(model(x, y))
    local = IDSim(adapter, backbone_weights=timm_repo / "model.safetensors", **options)
    assert local(x, y, "joint").equal(model(x, y, "joint"))
    again = load(variant, local_files_only=True, **options)
    assert again(x, y).equal(model(x, y))
    cached = tmp_path / "cache" / f"models--{release.repo.replace('/', '--')}" / "snapshots" / commit
    assert IDSim(cached, **options).label == f"IDSim:{release.repo}"
    assert is_cached(release)
    assert len(hub.downloads("adapter_model.safetensors")) == 1
    assert Backbone(release.backbone, revision="main", **options).revision == COMMIT  # not the branch's name


def test_nearid_by_name(hub: HubServer, tmp_path: Path) -> None:
    official(tmp_path / "nearid", SMALL_NEARID)
    hub.repos["Aleksandar/nearid-siglip2"] = tmp_path / "nearid"
    model, local = NearID(device="cpu"), NearID(tmp_path / "nearid", device="cpu")
    assert model.revision == COMMIT
    x = torch.rand(1, 3, 70, 70)
    for again in (model, load("Aleksandar/nearid-siglip2", device="cpu", local_files_only=True)):
        assert again(x).cls.equal(local(x).cls)
    assert len(hub.downloads("model.safetensors")) == 1


def test_visid_by_name_in_several_files(hub: HubServer, tmp_path: Path) -> None:
    (tmp_path / "qwen").mkdir()
    make_qwen(tmp_path / "qwen", shard="40KB")
    shards = sorted(p.name for p in (tmp_path / "qwen").glob("*.safetensors"))
    assert len(shards) > 1
    hub.repos["HugC/VisME-Qwen25VL-3B"] = tmp_path / "qwen"
    model, local = VisIDEmbed(device="cpu"), VisIDEmbed(tmp_path / "qwen", device="cpu")
    assert model.revision == COMMIT
    image = Image.new("RGB", (60, 40), "green")
    for again in (model, VisIDEmbed("3b", device="cpu", local_files_only=True), load("visid_3b", device="cpu")):
        assert again.embed(image).cls.equal(local.embed(image).cls)
    assert is_cached(released.VISID["visid_3b"])
    assert len(hub.downloads(shards[0])) == 1
