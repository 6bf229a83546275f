"""ID-Sim's published format, in folders that peft writes here, against the published forward written in plain torch."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import timm
import torch
from PIL import Image

from idmetric import CheckpointError, IDSim, load
from idmetric.metric.idsim_release import read_head
from tests import published
from tests.conftest import SMALL
from tests.published import PublishedIDSim, distances, preprocess, shape_of

VARIANTS: dict[str, dict[str, Any]] = {
    "dinov3_vitl16": {"depth": 3, "embed_dim": 64, "num_heads": 4},
    "dinov3_vitb16": {"depth": 2, "embed_dim": 48, "num_heads": 3},
    "dinov2_vitl14": {"depth": 3, "embed_dim": 64, "num_heads": 4},
    "dinov2_vitb14": {"depth": 2, "embed_dim": 48, "num_heads": 3},
}
SUFFIXES = ["qkv", "proj", "fc1", "fc2"]  # these hit the patch embedding and the heads as well
EXAMPLES = Path(__file__).parents[3] / "examples" / "images"

# Against the published forward


def publish(
    folder: Path, variant: str, targets: Any = SUFFIXES, dtype: torch.dtype = torch.float32, **options: Any
) -> tuple[Path, Path, PublishedIDSim]:
    """An adapter with heads in the release's files, the trunk's file under Meta's names, and the model they are of."""
    size = VARIANTS[variant]
    shape = shape_of(variant, size["embed_dim"], size["depth"], size["num_heads"])
    return published.publish(folder, variant, shape, 16, targets, dtype, **options)


def open_release(
    folder: Path, variant: str, *args: Any, dtype: torch.dtype = torch.float32, **options: Any
) -> tuple[IDSim, PublishedIDSim]:
    adapter, trunk, inner = publish(folder, variant, *args, dtype=dtype, **options)
    model = load(adapter, backbone_weights=trunk, backbone_args=VARIANTS[variant], device="cpu", dtype=dtype)
    assert isinstance(model, IDSim)
    return model, inner


@pytest.fixture(scope="module")
def pictures(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Photographs' kinds of files: larger and smaller than the model's input, wide and tall, color and gray."""
    folder = tmp_path_factory.mktemp("pictures")
    mug, box = (Image.open(EXAMPLES / name) for name in ("mug_a.png", "box_b.png"))
    box.resize((700, 520), Image.Resampling.LANCZOS).save(folder / "wide.jpg", quality=90)
    mug.crop((30, 0, 200, 256)).convert("L").save(folder / "gray.png")
    mug.quantize(64).save(folder / "palette.png")
    return [EXAMPLES / "mug_a.png", folder / "wide.jpg", folder / "gray.png", folder / "palette.png"]


@pytest.mark.parametrize("variant", sorted(VARIANTS))
def test_pictures_get_the_embeddings_and_distances_of_the_published_forward(
    variant: str, pictures: list[Path], tmp_path: Path
) -> None:
    # in double precision, so that an epsilon, an activation or a rounding of another kind cannot hide
    model, inner = open_release(tmp_path, variant, dtype=torch.float64)
    with torch.no_grad():
        cls, patches = inner(torch.cat([preprocess(path) for path in pictures]).double())
    found = model.embed(pictures)
    assert found.patches is not None
    assert found.cls.dtype == torch.float64
    side = 28 if "dinov3" in variant else 32
    assert found.grid == (side, side)
    assert (found.cls - cls).abs().max() <= 1e-9
    assert (found.patches - patches).abs().max() <= 1e-9
    first, others = (cls[:1], patches[:1]), (cls[1:], patches[1:])
    expected = distances((first[0].expand(3, -1), first[1].expand(3, -1, -1)), others)
    for name, value in expected.items():
        assert (model(found[0], found[1:], name) - value).abs().max() <= 1e-9, name
        assert value.max() > 1e-2, name  # or the comparison would show nothing
    assert (model(pictures[0], pictures[1:]) - expected["cls"]).abs().max() <= 1e-9


def test_the_release_is_recognised_and_saved_in_our_format(tmp_path: Path) -> None:
    adapter, trunk, _ = publish(tmp_path, "dinov3_vitb16")
    options: dict[str, Any] = {"backbone_weights": trunk, "backbone_args": VARIANTS["dinov3_vitb16"], "device": "cpu"}
    model = IDSim(adapter, **options)
    renamed = adapter.rename(tmp_path / "mine")
    with pytest.raises(CheckpointError, match="variant="):
        IDSim(renamed, **options)
    again = IDSim(renamed, variant="dinov3_vitb16", **options)
    again.save_pretrained(tmp_path / "ours")
    assert model.revision == again.revision
    head = torch.load(renamed / "mlp_cls.pth", weights_only=True)
    torch.save({k: v * 2 for k, v in head.items()}, renamed / "mlp_cls.pth")
    other = IDSim(renamed, variant="dinov3_vitb16", **options)
    config = json.loads((renamed / "adapter_config.json").read_text())
    (renamed / "adapter_config.json").write_text(json.dumps({**config, "lora_alpha": 80}))
    third = IDSim(renamed, variant="dinov3_vitb16", **options)
    assert len({again.revision, other.revision, third.revision}) == 3  # every file counts
    x, y = torch.rand(1, 3, 50, 50), torch.rand(1, 3, 50, 50)
    assert load(tmp_path / "ours", device="cpu")(x, y, "joint").equal(model(x, y, "joint"))
    (renamed / "mlp_patch.pth").unlink()
    with pytest.raises(CheckpointError, match=r"mlp_patch\.pth"):
        IDSim(renamed, variant="dinov3_vitb16", **options)


def test_heads_are_read_without_running_code(tmp_path: Path) -> None:
    class Evil:
        def __reduce__(self) -> tuple[Any, ...]:
            return (Path.touch, (tmp_path / "ran",))

    torch.save({"fc1.weight": Evil()}, tmp_path / "mlp_cls.pth")
    with pytest.raises(CheckpointError, match=r"mlp_cls\.pth"):
        read_head(tmp_path / "mlp_cls.pth", {})
    assert not (tmp_path / "ran").exists()
    for damaged in (b"", b"(((.", b"]q\x00q", b"\x80\x02}q\x00K", b"PK\x03\x04"):
        (tmp_path / "mlp_cls.pth").write_bytes(damaged)
        with pytest.raises(CheckpointError, match=r"mlp_cls\.pth"):
            read_head(tmp_path / "mlp_cls.pth", {})
    torch.save({"ln.weight": torch.ones(3)}, tmp_path / "mlp_cls.pth")
    with pytest.raises(CheckpointError, match=r"mlp_cls\.pth.*fc1"):
        read_head(tmp_path / "mlp_cls.pth", {})


def test_rope_periods_are_rounded_as_metas_and_stay_so() -> None:
    model = IDSim(SMALL["dinov3"], device="cpu")
    periods = model.backbone.rope.periods
    assert periods.equal(periods.bfloat16().float())
    unrounded = timm.create_model("vit_small_patch16_dinov3", **SMALL["dinov3"].backbone_args).rope.periods
    assert not periods.equal(unrounded)
    after = model.half().float().backbone.rope.periods
    assert after.equal(periods)
