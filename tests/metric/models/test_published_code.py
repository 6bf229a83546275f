"""ID-Sim's published code, with random weights, against ours: embeddings and all modes at full size.

The code is the copy of the release that the package ayase carries, of which nothing else is imported:

    pip install --no-deps ayase==0.2.1 && pytest -q tests/metric/models/test_published_code.py

Meta's backbones, which it takes from torch.hub, are those of tests/published.py.
"""

from __future__ import annotations

import importlib.util
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from PIL import Image
from safetensors.torch import load_file
from torch import Tensor

from idmetric import IDSim
from idmetric.metric.distance import distance_matrix
from tests.published import Shape, Trunk, publish, shape_of

EXAMPLES = Path(__file__).parents[3] / "examples" / "images"
NAMES = ("mug_a.png", "box_b.png")
SIZES = {"b": (768, 12, 12), "l": (1024, 24, 16)}  # width, depth, heads
# where the release keeps Meta's files
BACKBONES = {
    "dinov2_vitb14": "dinov2_vitb14_pretrain.pth",
    "dinov2_vitl14": "dinov2_vitl14_pretrain.pth",
    "dinov3_vitb16": "dinov3_vitb16_pretrain_lvd1689m-73cec8be.pth",
    "dinov3_vitl16": "dinov3_vitl16_pretrain_lvd1689m-8aa4cbdd.pth",
}
PEFT_TARGETS = ["qkv", "proj", "fc1", "fc2"]


@pytest.fixture(scope="module")
def release() -> Iterator[ModuleType]:
    """The release's package, imported by its path: ayase's own modules need many others."""
    found = importlib.util.find_spec("ayase")
    if found is None or not found.submodule_search_locations:
        pytest.skip("ID-Sim's published code is not here: pip install --no-deps ayase==0.2.1")
    folder = Path(found.submodule_search_locations[0], "third_party", "id_sim")
    if not (folder / "__init__.py").is_file():
        pytest.skip(f"this ayase holds no ID-Sim in {folder}: pip install --no-deps ayase==0.2.1")
    name = "published_id_sim"
    spec = importlib.util.spec_from_file_location(
        name, folder / "__init__.py", submodule_search_locations=[str(folder)]
    )
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    yield module
    for known in [known for known in sys.modules if known.partition(".")[0] == name]:
        del sys.modules[known]


def serve_backbone(monkeypatch: pytest.MonkeyPatch, shape: Shape) -> None:
    """Let torch.hub give a local model instead of downloading Meta's code."""

    def hub_load(repository: str, name: str, weights: str | None = None, **options: Any) -> Trunk:
        assert repository in ("facebookresearch/dinov2", "facebookresearch/dinov3")
        trunk = Trunk(shape)
        if weights is not None:  # DINOv3's loader fills it, DINOv2's is filled afterwards
            state = torch.load(weights, weights_only=True)
            state.pop("rope_embed.periods", None)  # which it computes
            trunk.load_state_dict(state)
        return trunk

    monkeypatch.setattr(torch.hub, "load", hub_load)
    monkeypatch.setattr(torch.hub, "set_dir", lambda folder: None)


def remember_features(monkeypatch: pytest.MonkeyPatch, extractor: Any) -> None:
    """Run the release's backbone once for each image, as all modes read the same features."""
    compute, seen = extractor.extract_descriptors, {}

    def extract(batch: Tensor, layer: int) -> Tensor:
        rows = []
        for image in batch:
            key = layer, image.numpy().tobytes()
            if key not in seen:
                seen[key] = compute(image[None], layer)
            rows.append(seen[key])
        return torch.cat(rows)

    monkeypatch.setattr(extractor, "extract_descriptors", extract)


@pytest.mark.slow
@pytest.mark.parametrize("variant", ["dinov3_vitb16", "dinov2_vitb14", "dinov3_vitl16"])
def test_embeddings_and_all_modes_are_those_of_the_published_code(
    variant: str, release: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    # the folders that the release's loader fills; ours reads the adapter's folder by its path
    shape = shape_of(variant, *SIZES[variant[10]])
    adapter, trunk = publish(tmp_path, variant, shape, 512, PEFT_TARGETS, torch.float32, r=16, lora_alpha=32)[:2]
    adapter.rename(tmp_path / f"{variant}_cls_patch")
    (tmp_path / "checkpoints").mkdir()
    torch.save(load_file(trunk), tmp_path / "checkpoints" / BACKBONES[variant])
    weights = trunk.rename(tmp_path / "backbone.safetensors")

    serve_backbone(monkeypatch, shape)
    official, preprocess = release.id_sim(device="cpu", cache_dir=str(tmp_path), id_sim_type=f"{variant}_cls_patch")
    inner, policy = official.model, sys.modules[type(official).__module__].ScoringPolicy
    remember_features(monkeypatch, inner.base_model.model.extractor)
    pictures = [EXAMPLES / name for name in NAMES]
    a, b = (preprocess(Image.open(path)) for path in pictures)
    theirs = official.embed(torch.cat([a, b]))
    modes: dict[str, Tensor] = {
        "cls": official(a, b, mode="cls"),
        "patch_pooled": official(a, b, mode="patch"),
        "joint_pooled": official(a, b, mode="joint"),
    }
    assert official(a, b).equal(modes["joint_pooled"])  # its default
    vectors = [{f"{key}_embed": value[part : part + 1] for key, value in theirs.items()} for part in (0, 1)]
    sinkhorn = inner.compute_distance_from_embeddings(*vectors, policy=policy(patch_mode="sinkhorn"))
    modes["patch_biased"] = sinkhorn["patch"]
    tokens = torch.cat([theirs["cls"][:, None], theirs["patch"]], 1)
    matrices = {mode: inner.compute_pairwise_distances(tokens, tokens, policy=policy(patch_mode=mode))
                for mode in ("pooled_cosine", "sinkhorn")}  # fmt: skip

    ours = IDSim(tmp_path / f"{variant}_cls_patch", backbone_weights=weights, device="cpu")
    found = ours.embed(pictures)
    assert found.patches is not None
    assert (found.cls - theirs["cls"]).abs().max() <= 1e-5
    assert (found.patches - theirs["patch"]).abs().max() <= 1e-5
    for name, value in modes.items():
        assert (ours(found[0], found[1], name) - value).abs().max() <= 1e-5, name
        assert value.min() > 1e-3, name  # or the comparison would show nothing
    for mode, names in (("pooled_cosine", ["joint_pooled"]), ("sinkhorn", ["cls", "patch_biased"])):
        expected = torch.stack([distance_matrix(found, name=name) for name in names]).sum(0)
        assert (matrices[mode] - expected).abs().max() <= 1e-5, mode
    shutil.rmtree(tmp_path)  # gigabytes
