"""Downloads, with the real Hub client against a server of our own."""

from __future__ import annotations

import socket
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image

from idmetric import Backbone, CheckpointError, IDSim, NearID, VisIDEmbed, load
from idmetric.cli.list_models import is_cached
from idmetric.metric.checkpoints import format as checkpoint
from idmetric.metric.checkpoints import released
from idmetric.metric.checkpoints.resolve import Files, Hub, fetch_folder, revision_of
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


@pytest.fixture
def attempts(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Connections that are tried and pauses before further ones: what is waited for, however busy the machine is."""
    made: list[str] = []
    connect, sleep = socket.create_connection, time.sleep

    def create_connection(*words: Any, **options: Any) -> socket.socket:
        made.append("connection")
        return connect(*words, **options)

    def pause(seconds: float) -> None:
        made.append("pause")
        sleep(seconds)

    # the Hub client asks for names of agents once a process
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_DISABLE_TELEMETRY", True)
    monkeypatch.setattr(socket, "create_connection", create_connection)
    monkeypatch.setattr(time, "sleep", pause)
    return made


def message_of(source: str, **options: object) -> str:
    with pytest.raises(CheckpointError) as caught:
        load(source, device="cpu", **options)
    message = str(caught.value)
    assert "\n" not in message
    return message


def test_a_model_is_downloaded_once_and_its_commit_is_known(hub: HubServer, metric: IDSim, tmp_path: Path) -> None:
    options = {"device": "cpu", "cache_dir": str(tmp_path / "here")}
    model = load("owner/model", **options)
    assert model.revision == COMMIT
    assert (tmp_path / "here" / "models--owner--model").is_dir()
    assert not (tmp_path / "cache").exists()
    x, y = torch.rand(1, 3, 64, 64), torch.rand(1, 3, 64, 64)
    assert model(x, y).equal(metric(x, y))
    assert len(hub.downloads("model.safetensors")) == 1
    load("owner/model", **options)
    load("owner/model", revision=COMMIT, local_files_only=True, **options)
    assert len(hub.downloads("model.safetensors")) == 1


def test_a_gated_repository_says_where_to_ask_and_how_to_pass_a_token(hub: HubServer) -> None:
    hub.gated["owner/model"] = "hf_secret"
    message = message_of("owner/model")
    assert f"accept its license at {hub.endpoint}/owner/model" in message
    assert "token=" in message
    assert "HF_TOKEN" in message
    assert "hf auth login" in message
    assert load("owner/model", device="cpu", token="hf_secret").revision == COMMIT
    assert "hf_secret" not in message_of("owner/other", token="hf_secret")


def test_a_token_is_stripped_and_never_shown(hub: HubServer, tmp_path: Path) -> None:
    hub.gated["owner/model"] = "hf_secret"
    assert load("owner/model", device="cpu", token=" hf_secret\n").revision == COMMIT
    with pytest.raises(ValueError, match="token=") as caught:
        load("owner/model", token="hf_secret\nhf_other")
    assert "hf_" not in str(caught.value)
    assert "hf_" not in repr(Hub(token="hf_secret"))


def test_a_fault_of_this_machine_is_not_blamed_on_the_network(
    hub: HubServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("")
    message = message_of("owner/model", cache_dir=str(tmp_path / "file"))
    assert str(tmp_path / "file") in message
    assert "did not answer" not in message

    def lacks_a_package(*words: object, **options: object) -> None:
        raise ImportError("the 'socksio' package is not installed")

    monkeypatch.setattr("huggingface_hub.get_hf_file_metadata", lacks_a_package)
    message = message_of("owner/model")
    assert "'socksio' package is not installed" in message
    assert "did not answer" not in message


def test_what_does_not_exist_is_named(hub: HubServer, tmp_path: Path) -> None:
    assert "the repository does not exist" in message_of("owner/nothing")
    assert "no revision 'v9'" in message_of("owner/model", revision="v9")
    (tmp_path / "repo" / "model.safetensors").unlink()
    message = message_of("owner/model")
    assert "cannot fetch model.safetensors of owner/model" in message
    assert "no such file" in message
    assert "local_files_only" in message_of("owner/new", local_files_only=True)


@pytest.mark.parametrize("port", ["refused", "silent"])
def test_without_a_network_one_line_at_once_and_no_other_model(
    port: str,
    hub: HubServer,
    attempts: list[str],
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """The Hub client alone retries for 24 s on a refused port and for 399 s on a server that never answers."""
    from huggingface_hub import constants

    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        if port == "silent":
            server.listen()
        address = f"http://127.0.0.1:{server.getsockname()[1]}"
        monkeypatch.setattr(constants, "ENDPOINT", address)
        monkeypatch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", address + "/{repo_id}/{revision}/{filename}")
        monkeypatch.setattr(constants, "HF_HUB_ETAG_TIMEOUT", 0.3)
        caplog.set_level("WARNING")
        for name in ("dinov3_vitl16", "nearid", "owner/model"):
            attempts.clear()
            message = message_of(name)
            assert attempts == ["connection"]
            assert f"{address} did not answer (" in message
            assert "check the network" in message
            assert "local folder" in message
            assert "--model tiny" in message
    assert not caplog.records


def test_without_a_network_a_model_opens_from_the_cache_at_once(
    hub: HubServer,
    metric: IDSim,
    attempts: list[str],
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    from huggingface_hub import constants

    load("owner/model", device="cpu")
    caplog.set_level("WARNING")
    hub.requests.clear()
    load("owner/model", device="cpu", revision=COMMIT)
    assert not hub.requests  # the cache has the pinned commit

    monkeypatch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", "http://127.0.0.1:9/{repo_id}/{revision}/{filename}")
    attempts.clear()
    model = load("owner/model", device="cpu")
    assert attempts == ["connection"] * 2  # for config.json and calibration.json
    assert model.revision == COMMIT
    assert model.calibration is None  # calibration.json is neither in the cache nor to be had
    assert not caplog.records


@pytest.mark.parametrize(
    ("status", "token", "happened", "advice"),
    [
        (401, "hf_old", "is private, or refuses the token", "hf auth login"),
        (403, None, "access is refused", "give the token the right"),
        (404, None, "HTTP 404", "check the name, the revision and HF_ENDPOINT"),
        (429, None, "too many requests", "wait some minutes"),
        (500, None, "an error of the server", "try again later"),
        (503, None, "an error of the server", "try again later"),
    ],
)
def test_a_refusal_without_the_code_of_the_hub_is_explained_by_its_status(
    status: int, token: str | None, happened: str, advice: str, hub: HubServer, caplog: pytest.LogCaptureFixture
) -> None:
    """Mirrors and proxies answer with a status alone; all of them were called "did not answer", some after 24 s."""
    caplog.set_level("WARNING")
    hub.refusal = status
    message = message_of("owner/model", token=token)
    assert happened in message
    assert advice in message
    assert "did not answer" not in message
    assert len(hub.requests) == 1
    assert not caplog.records


@pytest.mark.parametrize("etag", ["../../../escaped", "..", "/escaped", "a/b", "a\\b"])
def test_a_server_cannot_write_outside_the_cache_by_an_etag(etag: str, hub: HubServer, tmp_path: Path) -> None:
    """The Hub client uses the ETag, unchecked, as the name of a file in its cache."""
    hub.etag = etag
    for attempt in (lambda: load("owner/model"), lambda: fetch_folder(Files("owner/model"), ["*.safetensors"])):
        with pytest.raises(CheckpointError, match="does not answer as a Hub does"):
            attempt()
    assert not hub.downloads("")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["repo"]


def test_all_files_come_from_the_commit_of_the_first(hub: HubServer) -> None:
    files = Files("owner/model", Hub())
    _ = files["config.json"], files["model.safetensors"]
    assert [path for method, path, _ in hub.requests if method == "GET"] == [
        "/owner/model/resolve/main/config.json",
        f"/owner/model/resolve/{COMMIT}/model.safetensors",
    ]
    assert checkpoint.read(files).revision == COMMIT


def test_a_folder_of_files_is_downloaded_once_and_without_code(hub: HubServer, tmp_path: Path) -> None:
    for name in ("modeling.py", "weights.bin", "tokenizer.json"):
        (tmp_path / "repo" / name).write_text("x")
    patterns = ["*.json", "*.safetensors"]
    folder = fetch_folder(Files("owner/model"), patterns)
    assert sorted(p.name for p in folder.iterdir()) == ["config.json", "model.safetensors", "tokenizer.json"]
    assert revision_of(folder / "model.safetensors") == COMMIT
    assert fetch_folder(Files("owner/model", Hub(local_files_only=True)), patterns) == folder
    assert len(hub.downloads("model.safetensors")) == 1
    hub.refusal = 500
    assert fetch_folder(Files("owner/model"), patterns) == folder
    hub.refusal = 0
    for name, message in (
        ("owner/nothing", "the repository does not exist"),
        ("nothing", "neither an existing folder"),
    ):
        with pytest.raises(CheckpointError, match=message):
            fetch_folder(Files(name), patterns)
    hub.gated["owner/model"] = "hf_secret"
    with pytest.raises(CheckpointError, match="accept its license"):
        fetch_folder(Files("owner/model", Hub(cache_dir=str(tmp_path / "new"))), patterns)


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
    asked = [path for _, path, _ in hub.requests if release.repo in path]
    assert asked[0].startswith(f"/{release.repo}/resolve/{release.revision or 'main'}/")
    by_repository = load(release.repo, **options)
    x, y = torch.rand(1, 3, 90, 60), torch.rand(1, 3, 90, 60)
    assert by_repository(x, y).equal(model(x, y))
    local = IDSim(adapter, backbone_weights=timm_repo / "model.safetensors", **options)
    assert local(x, y, "joint").equal(model(x, y, "joint"))
    again = load(variant, local_files_only=True, **options)
    assert again(x, y).equal(model(x, y))
    assert is_cached(release)
    assert len(hub.downloads("adapter_model.safetensors")) == 1
    assert Backbone(release.backbone, revision="main", **options).revision == COMMIT  # not the branch's name


def test_nearid_by_name(hub: HubServer, tmp_path: Path) -> None:
    official(tmp_path / "nearid", SMALL_NEARID)
    hub.repos["Aleksandar/nearid-siglip2"] = tmp_path / "nearid"
    model, local = NearID(device="cpu"), NearID(tmp_path / "nearid", device="cpu")
    assert model.revision == COMMIT
    x = torch.rand(1, 3, 70, 70)
    assert model(x).cls.equal(local(x).cls)
    for again in (load("nearid", device="cpu"), load("Aleksandar/nearid-siglip2", device="cpu", local_files_only=True)):
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
    assert model.embed(image).cls.equal(local.embed(image).cls)
    for again in (VisIDEmbed("3b", device="cpu", local_files_only=True), load("visid_3b", device="cpu")):
        assert again.embed(image).cls.equal(local.embed(image).cls)
    assert is_cached(released.VISID["visid_3b"])
    assert len(hub.downloads(shards[0])) == 1
