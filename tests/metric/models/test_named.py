"""Published scores, encoders of other Hub repositories and of users, with small encoders of the same architecture."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import timm
import torch
import torch.nn.functional as F
from PIL import Image
from safetensors.torch import save_file

import idmetric
from idmetric import Backbone, CheckpointError, Embedding, load
from idmetric.cli.gallery import main as gallery_main
from idmetric.cli.score import main
from idmetric.metric.custom import Custom
from idmetric.metric.load import check_name
from idmetric.metric.named import FROZEN, NAMED, NamedScore
from tests.hub_server import COMMIT, HubServer

transforms = pytest.importorskip("torchvision.transforms")

SMALL = {"embed_dim": 24, "depth": 2, "num_heads": 2}
IMAGENET = ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[HubServer]:
    with HubServer({}) as server:
        server.stands_in(monkeypatch, tmp_path)
        yield server


@pytest.fixture
def photos(tmp_path: Path) -> dict[str, list[Path]]:
    """Two references and three images, of odd sizes."""
    rng = np.random.default_rng(0)
    found: dict[str, list[Path]] = {"ref": [], "gen": []}
    for name, sizes in {"ref": [(301, 223), (256, 375)], "gen": [(512, 512), (300, 225), (224, 224)]}.items():
        (tmp_path / name).mkdir()
        for k, size in enumerate(sizes):
            small = Image.fromarray(rng.integers(0, 256, (9, 9, 3), dtype=np.uint8))
            found[name].append(tmp_path / name / f"{k}.png")
            small.resize(size, Image.Resampling.BICUBIC).save(found[name][-1], compress_level=1)
    return found


def small_weights(architecture: str, **args: Any) -> dict[str, torch.Tensor]:
    torch.manual_seed(1)
    model = timm.create_model(architecture, **{"num_classes": 0, **SMALL, **args})
    return {name: value + 0.1 * torch.randn(value.shape) for name, value in model.state_dict().items()}


def save(state: dict[str, torch.Tensor], path: Path) -> Path:
    save_file(state, path)
    return path


def serve(hub: HubServer, repo: str, folder: Path, state: dict[str, torch.Tensor], config: Any = None) -> None:
    folder.mkdir()
    save_file(state, folder / "model.safetensors")
    (folder / "config.json").write_text(json.dumps(config or {}))
    hub.repos[repo] = folder


# Scores


@pytest.mark.parametrize(
    ("name", "repo", "patch", "side"),
    [
        ("dino-i:dreambooth", "timm/vit_small_patch16_224.dino", 16, 224),
        ("dino-i:dreambench++", "timm/vit_small_patch8_224.dino", 8, 224),
        ("dinov2-i:dreambench++", "timm/vit_small_patch14_dinov2.lvd142m", 14, 518),
    ],
)
def test_dino_scores_are_the_class_token_of_the_cropped_image(
    hub: HubServer, tmp_path: Path, photos: dict[str, list[Path]], name: str, repo: str, patch: int, side: int
) -> None:
    architecture = NAMED[name].backbone.split(".")[0]
    state = small_weights(architecture)
    serve(hub, repo, tmp_path / "repo", state)
    metric = load(name, device="cpu", backbone_args=SMALL)
    assert metric.revision == COMMIT  # of that repository
    crop = "hub-crop" if side == 518 else "crop"  # DINOv2 by transformers
    assert metric.signature()["model"] == f"Backbone:{name}[{crop} 0.875, bicubic]"
    assert f"@{COMMIT}/" in metric.model_id  # no change since

    model = timm.create_model(architecture, num_classes=0, img_size=224, **SMALL).eval()
    if side != 224:
        grid = state["pos_embed"][:, 1:].reshape(1, side // patch, side // patch, -1).permute(0, 3, 1, 2)
        grid = F.interpolate(grid, (224 // patch, 224 // patch), mode="bicubic").flatten(2).mT
        state["pos_embed"] = torch.cat([state["pos_embed"][:, :1], grid], 1)
    model.load_state_dict(state)
    seen = transforms.Compose([
        transforms.Resize(256, interpolation=transforms.InterpolationMode.BICUBIC),
        floored_center if crop == "hub-crop" else transforms.CenterCrop(224),
        transforms.ToTensor(), transforms.Normalize(*IMAGENET),
    ])  # fmt: skip
    files = [*photos["ref"], *photos["gen"]]
    with torch.no_grad():
        expected = model.forward_features(torch.stack([seen(Image.open(file)) for file in files]))[:, 0]
    torch.testing.assert_close(metric.embed([str(f) for f in files]).cls, expected, rtol=1e-4, atol=1e-4)


def floored_center(image: Image.Image) -> Image.Image:
    """The center crop of transformers' image processors."""
    left, top = (image.width - 224) // 2, (image.height - 224) // 2
    return image.crop((left, top, left + 224, top + 224))


def test_the_number_of_each_source() -> None:
    cosines = [[0.5, 0.1], [-0.2, 0.4]]
    assert NamedScore("", "", {}, references="all").value(cosines) == pytest.approx(0.2)
    assert NamedScore("", "", {}, scale=100).value([[0.5], [-0.7]]) == pytest.approx(-10)
    assert NamedScore("", "", {}, scale=100, clamp=True).value([[0.5], [-0.7]]) == 0
    assert NamedScore("", "", {}, scale=100, clamp=True).value([[0.5], [-0.1]]) == pytest.approx(20)
    with pytest.raises(ValueError, match="own reference"):
        NamedScore("", "", {}).value(cosines)


def test_the_command_prints_the_published_number_and_plain_distances(
    photos: dict[str, list[Path]], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def small(source: str, **options: Any) -> Any:
        torch.manual_seed(2)
        return Backbone(source, pretrained=False, backbone_args=SMALL, device="cpu")

    monkeypatch.setattr("idmetric.metric.load.load", small)
    folders = [str(photos["ref"][0].parent), str(photos["gen"][0].parent)]
    cosines = 1 - small("dino-i:dreambooth").pairwise(folders[1], folders[0])
    arguments = ["--ref", *folders, "--quiet", "--model", "dino-i:dreambooth"]
    assert main(arguments) == 0
    line = capsys.readouterr().out.splitlines()[-1]
    assert line.startswith(f"dino-i:dreambooth: {float(cosines.mean()):.4f} (from 3 x 2 cosines")
    assert main([*arguments, "--format", "json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["summary"]["named"]["value"] == pytest.approx(float(cosines.mean()), abs=1e-5)
    nearest = (1 - cosines).min(1).values
    assert [r["distance"] for r in found["rows"]] == pytest.approx(sorted(nearest.tolist()), abs=1e-5)

    # a score that compares an image with its own reference has no number of several references
    assert main(["--ref", *folders, "--quiet", "--model", "dino-i:dreambench++"]) == 0
    assert "dino-i:dreambench++: none (" in capsys.readouterr().out
    metric = small("dino-i:dreambench++")
    pairs = [(str(photos["ref"][k % 2]), str(image)) for k, image in enumerate(photos["gen"])]
    own = idmetric.score_pairs(metric, pairs).named
    assert own is not None
    assert own["value"] == pytest.approx(
        100 * float(metric.similarity(*map(list, zip(*pairs, strict=True))).mean()), abs=1e-3
    )
    patch = idmetric.score(metric, folders[0], folders[1], distance="patch").named
    assert patch is not None
    assert patch["value"] is None


def test_a_score_sets_its_own_transform() -> None:
    with pytest.raises(ValueError, match="dino-i:dreambooth"):
        Backbone("dino-i:dreambooth", pretrained=False, resize="squash")
    with pytest.raises(CheckpointError, match="dreamboth"):
        load("dino-i:dreamboth")


# Other repositories


ANIMALS = {
    "architecture": "vit_small_patch16_224",
    "num_classes": 0,
    "pretrained_cfg": {"input_size": [3, 224, 224], "mean": [0.5] * 3, "std": [0.25] * 3, "interpolation": "bilinear",
                       "crop_pct": 0.9, "num_classes": 0},
    "model_args": SMALL,
}  # fmt: skip


def test_a_hub_repository_in_timms_format_opens_at_a_pinned_revision(
    hub: HubServer, tmp_path: Path, photos: dict[str, list[Path]]
) -> None:
    state = small_weights("vit_small_patch16_224")
    serve(hub, "owner/animals", tmp_path / "repo", state, ANIMALS)
    model = timm.create_model("vit_small_patch16_224", num_classes=0, **SMALL).eval()
    model.load_state_dict(state)
    pixels = transforms.Resize((224, 224))(Image.open(photos["gen"][0]))
    x = transforms.Normalize([0.5] * 3, [0.25] * 3)(transforms.ToTensor()(pixels))
    for name in ("hf-hub:owner/animals", f"timm:hf-hub:owner/animals@{COMMIT}"):
        metric = load(name, device="cpu")
        assert (metric.name, metric.revision) == ("hf-hub:owner/animals", COMMIT)
        with torch.no_grad():
            torch.testing.assert_close(metric.embed(str(photos["gen"][0])).cls, model(x[None]), rtol=1e-4, atol=1e-5)
    with pytest.raises(CheckpointError, match="9999"):
        load("hf-hub:owner/animals@" + "9" * 40, device="cpu")


def test_a_repository_with_other_tensors_or_pickles_alone_is_refused(hub: HubServer, tmp_path: Path) -> None:
    state = small_weights("vit_small_patch16_224")
    whole = save(state, tmp_path / "mine.safetensors")
    del state["norm.bias"]
    serve(hub, "owner/partial", tmp_path / "partial", state, ANIMALS)
    with pytest.raises(CheckpointError, match=r"missing norm\.bias"):
        load("hf-hub:owner/partial", device="cpu")

    serve(hub, "owner/old", tmp_path / "old", state, ANIMALS)
    (tmp_path / "old/model.safetensors").unlink()
    torch.save(state, tmp_path / "old/pytorch_model.bin")
    with pytest.raises(CheckpointError, match="owner/old"):
        load("hf-hub:owner/old", device="cpu")
    assert load("hf-hub:owner/old", device="cpu", weights=whole).config()["image_size"] == 224


@pytest.mark.parametrize(
    "config",
    [
        {}, {"architecture": "no_such_model"}, {"architecture": "vit_small_patch16_224", "pretrained_cfg": {}},
        {**ANIMALS, "model_args": {"checkpoint_path": "/etc/passwd"}}, {**ANIMALS, "pretrained_cfg": []},
    ],
)  # fmt: skip
def test_a_strangers_config_is_checked(hub: HubServer, tmp_path: Path, config: Any) -> None:
    serve(hub, "owner/odd", tmp_path / "repo", {"x": torch.zeros(1)}, config)
    with pytest.raises(CheckpointError, match="owner/odd"):
        load("hf-hub:owner/odd", device="cpu")


# A user's own

MODULE = """
import numpy as np, torch
from idmetric import Backbone
class Colors:
    label = "mean color, v1"
    def embed(self, images):
        assert all(image.mode == "RGB" for image in images)
        return torch.stack([torch.from_numpy(np.asarray(x, float)).mean((0, 1)) for x in images])
class Nameless:
    def embed(self, images): return torch.zeros(len(images), 2)
class Deaf:
    label = "x"
class Flat(Colors):
    def embed(self, images): return torch.zeros(3)
class Own(Backbone):
    def __init__(self, **options): super().__init__("resnet18", pretrained=False, **options)
"""


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    (tmp_path / "my_embedders.py").write_text(MODULE)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "my_embedders", raising=False)
    return "my_embedders"


def test_a_users_class_is_scored_cached_and_named(
    module: str, photos: dict[str, list[Path]], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    metric = load(f"{module}:Colors")
    assert isinstance(metric, Custom)
    colors = torch.stack([torch.from_numpy(np.asarray(Image.open(f), float)).mean((0, 1)) for f in photos["gen"]])
    torch.testing.assert_close(metric.embed([str(f) for f in photos["gen"]]).cls, colors)
    assert isinstance(metric.embed(str(photos["gen"][0])), Embedding)

    reference, folder = str(photos["ref"][0]), str(photos["gen"][0].parent)
    arguments = [reference, folder, "--model", f"{module}:Colors", "--format", "json", "--cache", str(tmp_path / "c")]
    answers = []
    for _ in range(2):  # the second time from the cache
        assert main(arguments) == 0
        answers.append(json.loads(capsys.readouterr().out))
    assert answers[0] == answers[1]
    assert answers[0]["signature"]["model"] == "Custom:my_embedders:Colors[mean color, v1]"
    far = (1 - F.cosine_similarity(metric.embed(reference).cls, colors)).tolist()
    assert [row["distance"] for row in answers[0]["rows"]] == pytest.approx(sorted(far), abs=1e-6)


def test_a_gallery_imports_no_module_by_itself(
    module: str, photos: dict[str, list[Path]], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    where = ["--gallery", str(tmp_path / "index"), "--quiet"]
    folder = str(photos["gen"][0].parent)
    assert gallery_main(["build", folder, *where, "--model", f"{module}:Colors"]) == 0
    sys.modules.pop(module)
    with pytest.raises(SystemExit, match="2"):
        gallery_main(["query", str(photos["ref"][0]), *where])
    assert "made with the class my_embedders:Colors: name it with --model" in capsys.readouterr().err
    assert module not in sys.modules
    assert gallery_main(["query", str(photos["ref"][0]), *where, "--model", f"{module}:Colors"]) == 0


def test_only_a_class_of_a_module_is_imported() -> None:
    names = ("a.b:C", "timm:resnet18", "hf-hub:a/b", "tiny", *NAMED, *FROZEN)
    assert [name for name in names if check_name(name) == "class"] == ["a.b:C"]


def test_a_users_embedder_is_checked(module: str, photos: dict[str, list[Path]]) -> None:
    assert type(load(f"{module}:Own", device="cpu")).__name__ == "Own"
    for name, reason in {
        "Nameless": "label", "Deaf": "embed", "Missing": "Missing",
    }.items():  # fmt: skip
        with pytest.raises(CheckpointError, match=reason):
            load(f"{module}:{name}")
    with pytest.raises(CheckpointError, match="PYTHONPATH"):
        load("no_such_package.models:Net")
    with pytest.raises(CheckpointError, match="with the options"):
        load(f"{module}:Colors", device="cpu")
    with pytest.raises(ValueError, match="shape"):
        load(f"{module}:Flat").embed(str(photos["ref"][0]))
