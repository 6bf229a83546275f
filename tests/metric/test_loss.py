from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from packaging.version import Version
from PIL import Image
from torch import Tensor, nn

from idmetric import Embedding, IdentityLoss, IDSim
from idmetric.metric.distance import DISTANCES
from idmetric.metric.embedder import Embedder
from idmetric.metric.idsim import IDSimConfig
from idmetric.metric.visid.visid import VisIDEmbed
from idmetric.train.visme import small_qwen
from tests.conftest import random_model
from tests.train_parts import in_two_processes, launched


def pixels(count: int, height: int = 52, width: int = 44, seed: int = 0, dtype: torch.dtype = torch.float32) -> Tensor:
    coarse = torch.rand(count, 3, 5, 5, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    smooth = nn.functional.interpolate(coarse, (height, width), mode="bilinear")
    return (0.05 + 0.9 * smooth).to(dtype).requires_grad_()


REFERENCES = pixels(3, 60, 40, seed=9).detach()


def masks(count: int = 2, height: int = 52, width: int = 44) -> Tensor:
    found = torch.zeros(count, height, width)
    found[0, 10:37, 5:30] = 1
    found[1, 3:33, 12:41] = 1
    found[1, 20:25, 20:30] = 0.6
    return found


@pytest.fixture(scope="module")
def exact() -> IDSim:
    return random_model("dinov3").to(torch.float64)


# Value


@pytest.mark.parametrize("name", DISTANCES)
def test_the_loss_is_the_mean_of_the_metrics_distances(metric: IDSim, name: str) -> None:
    x = pixels(4)
    matrix = metric.pairwise(x.detach(), REFERENCES, name)
    assert matrix.std() > 1e-3  # the comparisons below would be empty otherwise
    for reduction, expected in (("none", matrix.mean(1)), ("mean", matrix.mean()), ("sum", matrix.mean(1).sum())):
        found = IdentityLoss(metric, REFERENCES, distance=name, reduction=reduction)(x)  # type: ignore[arg-type]
        torch.testing.assert_close(found, expected, rtol=0, atol=1e-5 if reduction == "sum" else 2e-6)


def test_references_are_weighted_or_the_nearest_counts(metric: IDSim) -> None:
    x = pixels(4)
    matrix = metric.pairwise(x.detach(), REFERENCES, "joint", joint_weight=0.3)
    options: dict[str, Any] = {"distance": "joint", "joint_weight": 0.3, "reduction": "none"}
    weighted = IdentityLoss(metric, REFERENCES, weights=[1, 0, 3], **options)(x)
    torch.testing.assert_close(weighted, 0.25 * matrix[:, 0] + 0.75 * matrix[:, 2], rtol=0, atol=2e-6)
    nearest = IdentityLoss(metric, REFERENCES, aggregate="min", **options)(x)
    torch.testing.assert_close(nearest, matrix.amin(1), rtol=0, atol=2e-6)
    assert not torch.allclose(nearest, matrix.mean(1), atol=1e-3)


def test_references_may_be_anything_that_can_be_embedded(metric: IDSim, tmp_path: Path) -> None:
    picture = Image.fromarray((REFERENCES[0] * 255).round().byte().permute(1, 2, 0).numpy())
    picture.save(tmp_path / "ref.png")
    x = pixels(2)
    kinds: list[Any] = [picture, [picture], tmp_path / "ref.png", [str(tmp_path / "ref.png")], metric.embed(picture)]
    values = [IdentityLoss(metric, kind, distance="joint")(x) for kind in kinds]
    assert max((v - values[0]).abs().item() for v in values) < 1e-6


@pytest.mark.parametrize("outside", ["black", "white", "crop", "keep"])
@pytest.mark.parametrize("name", ["cls", "joint"])
def test_masks_choose_the_subject_as_the_metrics_do(metric: IDSim, name: str, outside: Any) -> None:
    x, inside, theirs = pixels(2), masks(), [torch.ones(60, 40).tril(), None, torch.ones(60, 40).triu()]
    loss = IdentityLoss(metric, REFERENCES, distance=name, masks=theirs, outside=outside, reduction="none")
    expected = metric.pairwise(
        x.detach(), REFERENCES, name, masks_a=list(inside), masks_b=theirs, outside=outside
    )  # fmt: skip
    torch.testing.assert_close(loss(x, masks=inside), expected.mean(1), rtol=0, atol=5e-6)
    doubled = inside[:, None].repeat_interleave(2, 2).repeat_interleave(2, 3)  # averaged to the pixels' size
    torch.testing.assert_close(loss(x, masks=doubled), expected.mean(1), rtol=0, atol=5e-6)
    if (name, outside) != ("cls", "keep"):
        assert (loss(x, masks=inside) - loss(x)).abs().max() > 1e-3


def test_decoders_range_is_mapped_and_what_overshoots_is_clamped(metric: IDSim) -> None:
    x = pixels(2)
    unit = IdentityLoss(metric, REFERENCES)
    decoded = IdentityLoss(metric, REFERENCES, value_range=(-1, 1))
    torch.testing.assert_close(decoded(2 * x - 1), unit(x), rtol=0, atol=1e-6)
    over = (1.2 * (2 * x.detach() - 1)).requires_grad_()
    torch.testing.assert_close(decoded(over), unit((over.detach() / 2 + 0.5).clamp(0, 1).requires_grad_()))
    decoded(over).backward()
    assert over.grad is not None
    outside = over.detach().abs() > 1
    assert outside.any()
    assert over.grad[outside].abs().max() == 0
    assert over.grad[~outside].abs().max() > 0


# Gradient


@pytest.mark.parametrize("how", ["whole", "masked", "cropped"])
@pytest.mark.parametrize("name", ["cls", "joint_pooled"])
def test_gradients_are_those_of_finite_differences(exact: IDSim, name: str, how: str) -> None:
    x = pixels(2, dtype=torch.float64)
    inside = (0.1 + 0.8 * masks().double()).requires_grad_()
    loss = IdentityLoss(exact, REFERENCES.double(), distance=name, outside="crop" if how == "cropped" else "black")

    def value(x: Tensor, inside: Tensor) -> Tensor:
        return loss(x, masks=None if how == "whole" else inside)  # type: ignore[no-any-return]

    dice = torch.Generator().manual_seed(1)
    gradients = torch.autograd.grad(value(x, inside), [x, inside], allow_unused=how == "whole")
    for number, gradient in enumerate(gradients if how != "whole" else gradients[:1]):
        for _ in range(3):
            step = torch.randn(gradient.shape, dtype=torch.float64, generator=dice)
            step *= 1e-5 / step.norm()
            ends = []
            for sign in (1, -1):
                moved = [x.detach(), inside.detach()]
                moved[number] = moved[number] + sign * step
                with torch.no_grad():
                    ends.append(value(*moved).item())
            assert (ends[0] - ends[1]) / 2 == pytest.approx((gradient * step).sum().item(), rel=1e-4, abs=1e-13)
            assert ends[0] != ends[1]


@pytest.mark.parametrize("name", DISTANCES)
def test_gradients_are_those_of_the_metric(metric: IDSim, name: str) -> None:
    x = pixels(3)
    found = torch.autograd.grad(IdentityLoss(metric, REFERENCES, distance=name)(x), x)[0]
    expected = torch.autograd.grad(metric.pairwise(x, REFERENCES, name).mean(), x)[0]
    assert expected.abs().max() > 0
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5 * expected.abs().max().item())


@pytest.mark.parametrize("outside", ["black", "white", "crop"])
def test_pixels_outside_a_mask_get_no_gradient(metric: IDSim, outside: Any) -> None:
    x, inside = pixels(2), masks()
    loss = IdentityLoss(metric, REFERENCES, distance="joint", outside=outside)
    gradient = torch.autograd.grad(loss(x, masks=inside), x)[0].abs().sum(1)
    assert gradient[inside == 0].max() == 0
    assert (gradient[inside > 0] > 0).float().mean() > 0.9
    kept = IdentityLoss(metric, REFERENCES, distance="joint", outside="keep")
    assert torch.autograd.grad(kept(x, masks=inside), x)[0].abs().sum(1)[inside == 0].max() > 0


# Memory


def kept_bytes(run: Callable[[], Tensor], ignored: nn.Module) -> tuple[Tensor, int]:
    """What `run` gives, and the bytes that its graph holds on to; weights don't count."""
    weights, seen = {p.data_ptr() for p in ignored.parameters()}, {}

    def note(x: Tensor) -> Tensor:
        if x.data_ptr() not in weights:
            seen[x.data_ptr()] = x.untyped_storage().nbytes()
        return x

    with torch.autograd.graph.saved_tensors_hooks(note, lambda x: x):
        return run(), sum(seen.values())


def recomputing(kind: str, folder: Path) -> Embedder:
    if kind == "tiny":
        return IDSim("tiny", device="cpu")
    if kind == "qwen":
        pytest.importorskip("transformers")
        small_qwen.write(folder)
        return VisIDEmbed(folder, device="cpu", dtype=torch.float32)
    if kind == "dinov3":
        torch.manual_seed(0)
        depth = {"depth": 8, "embed_dim": 48, "num_heads": 3, "init_values": 0.3}
        return IDSim(IDSimConfig("vit_small_patch16_dinov3", 64, 24, backbone_args=depth), device="cpu")
    return random_model(kind)


@pytest.mark.parametrize(("kind", "share"), [("dinov3", 0.4), ("tiny", 0.2), ("qwen", 0.8)])
def test_checkpointing_keeps_less_and_changes_nothing(kind: str, share: float, tmp_path: Path) -> None:
    model = recomputing(kind, tmp_path)
    distance, size = ("patch", (140, 112)) if kind == "qwen" else ("joint", (64, 64))
    results = []
    for checkpoint in (False, True):
        x = pixels(2, *size)
        loss = IdentityLoss(model, REFERENCES, distance=distance, checkpoint=checkpoint)
        value, held = kept_bytes(lambda loss=loss, x=x: loss(x), loss.metric)  # type: ignore[misc]
        value.backward()
        results.append((value, x.grad, held))
    (plain, gradient, much), (again, same, little) = results
    expected = model.pairwise(pixels(2, *size).detach(), REFERENCES, distance).mean()
    torch.testing.assert_close(plain, expected, rtol=0, atol=1e-5)
    assert plain.equal(again)
    torch.testing.assert_close(gradient, same, rtol=1e-5, atol=1e-7)
    assert gradient.abs().max() > 0
    assert little <= share * much
    assert not any(layer.training for layer in model.modules())  # the caller's
    assert not getattr(model.backbone, "grad_checkpointing", False)


# The caller's metric


def test_the_callers_flags_stay_and_do_not_matter() -> None:
    torch.manual_seed(0)
    config = IDSimConfig(
        "vit_small_patch16_dinov3", 64, 24,
        backbone_args={"depth": 2, "embed_dim": 48, "num_heads": 3, "proj_drop_rate": 0.5},
    )  # fmt: skip
    model = IDSim(config, device="cpu")
    x = pixels(2)
    expected = IdentityLoss(model, REFERENCES)(x)
    model.requires_grad_(True).train()
    assert not torch.equal(model(x.detach()).cls, model(x.detach()).cls)  # dropout is on
    loss = IdentityLoss(model, REFERENCES, checkpoint=True)
    nn.ModuleList([loss]).train()
    loss(x).backward()
    torch.testing.assert_close(loss(x), expected)
    assert all(p.requires_grad and p.grad is None for p in model.parameters())
    assert all(module.training for module in model.modules())


def test_the_weights_are_shared_until_the_loss_is_moved(metric: IDSim) -> None:
    loss = IdentityLoss(metric, REFERENCES, distance="joint")
    theirs, own = dict(metric.named_parameters()), dict(loss.metric.named_parameters())
    assert all(own[k].data_ptr() == p.data_ptr() for k, p in theirs.items())
    before = loss(pixels(2))
    loss.to(torch.float64)
    assert loss.metric.dtype == torch.float64
    assert metric.dtype == torch.float32
    torch.testing.assert_close(loss(pixels(2, dtype=torch.float64)).float(), before, rtol=0, atol=1e-5)
    loss = IdentityLoss(metric, REFERENCES, distance="joint").to(torch.bfloat16)
    assert loss.metric.dtype == torch.bfloat16
    assert loss.references.cls.dtype == torch.float32  # references stay as precise as they were
    assert loss(pixels(2)).item() == pytest.approx(before.item(), abs=0.05)


def test_a_module_that_holds_the_loss_is_saved_emptied_and_loaded_without_it(metric: IDSim) -> None:
    """Diffusers and accelerate build models without memory, and fill them by a strict load_state_dict."""
    loss = IdentityLoss(metric, REFERENCES)
    with torch.device("meta"):
        module = nn.ModuleDict({"layer": nn.Linear(2, 2), "identity": IdentityLoss(metric, REFERENCES)})
    assert set(module.state_dict()) == {"layer.weight", "layer.bias"}
    assert len(list(module.parameters())) == 2
    module.to_empty(device="meta").to_empty(device="cpu")
    module.load_state_dict(nn.ModuleDict({"layer": nn.Linear(2, 2)}).state_dict())
    assert module["identity"](pixels(2)).equal(loss(pixels(2)))
    assert module["identity"].metric.revision == metric.revision


# Precision


@pytest.mark.parametrize("name", ["cls", "joint"])
def test_distances_stay_in_float32_under_autocast(metric: IDSim, name: str) -> None:
    x = pixels(2)
    plain = IdentityLoss(metric, REFERENCES, distance=name)
    expected = plain(x)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        half = plain(x)
        low = metric(x.detach())
        assert IdentityLoss(metric, REFERENCES, distance=name, autocast="off")(x).equal(expected)
    by_hand = metric.pairwise(low.to(dtype=torch.float32), metric.embed(REFERENCES), name).mean()
    torch.testing.assert_close(half, by_hand, rtol=0, atol=2e-6)
    own = IdentityLoss(metric, REFERENCES, distance=name, autocast=torch.bfloat16)(x)
    for found in (half, own):
        assert found.dtype == torch.float32
        assert not found.equal(expected)  # the encoder was in bfloat16
        assert found.item() == pytest.approx(expected.item(), abs=0.03)


# torch.compile and processes


def check_alike(compiled: Any, loss: IdentityLoss, x: Tensor, **extra: Any) -> None:
    """Check that both give one value and one gradient."""
    value, expected = compiled(x, **extra), loss(x, **extra)
    torch.testing.assert_close(value, expected, rtol=0, atol=1e-6)
    (found,), (plain,) = torch.autograd.grad(value, x), torch.autograd.grad(expected, x)
    assert plain.abs().max() > 0
    torch.testing.assert_close(found, plain, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize(
    ("name", "whole"), [("joint_pooled", True), pytest.param("joint", False, marks=pytest.mark.slow)]
)
@pytest.mark.skipif(
    Version(torch.__version__) < Version("2.10"), reason="docs/limits.md: older versions compile in parts"
)
def test_compiled_losses_give_the_same(metric: IDSim, name: str, whole: bool) -> None:
    torch.compiler.reset()
    loss = IdentityLoss(metric, REFERENCES, distance=name, value_range=(-1, 1))
    compiled = torch.compile(loss, backend="aot_eager", fullgraph=whole)
    check_alike(compiled, loss, (2 * pixels(2) - 1).detach().requires_grad_())


def test_a_loss_made_under_inference_mode_trains_all_the_same(metric: IDSim) -> None:
    x = pixels(2)
    for references in (REFERENCES, metric.embed(REFERENCES)):
        with torch.inference_mode():
            loss = IdentityLoss(metric, references, distance="joint", weights=[1, 2, 3])
        (found,) = torch.autograd.grad(loss(x), x)
        expected = IdentityLoss(metric, references, distance="joint", weights=[1, 2, 3])
        torch.testing.assert_close(found, torch.autograd.grad(expected(x), x)[0])


def generator() -> nn.Module:
    torch.manual_seed(3)
    return nn.Sequential(nn.Conv2d(3, 8, 3, padding=1), nn.SiLU(), nn.Conv2d(8, 3, 3, padding=1), nn.Sigmoid())


def batch() -> Tensor:
    return torch.rand(4, 3, 32, 32, generator=torch.Generator().manual_seed(4))


def gradients(model: nn.Module) -> list[Tensor]:
    return [p.grad.clone() for p in model.parameters() if p.grad is not None]


def train_in_each_process(rank: int, port: str) -> None:
    """What each process of the test below runs: DDP around the generator, and around all."""
    import torch.distributed as dist

    launched(rank, port)
    dist.init_process_group("gloo")
    metric = random_model("dinov3")
    loss = IdentityLoss(metric, REFERENCES, distance="joint", checkpoint=True)
    single = generator()
    loss(single(batch())).backward()
    expected = gradients(single)
    assert max(g.abs().max() for g in expected) > 1e-4

    part = batch()[2 * rank : 2 * rank + 2]
    model = generator()
    around_model = nn.parallel.DistributedDataParallel(model)
    loss(around_model(part)).backward()
    inner = generator()
    around_all = nn.parallel.DistributedDataParallel(nn.Sequential(inner, loss))
    around_all(part).backward()
    for found in (gradients(model), gradients(inner)):
        for a, b in zip(found, expected, strict=True):
            torch.testing.assert_close(a, b, rtol=1e-3, atol=1e-6)

    # a subject for each process, here with three references and with two
    own = IdentityLoss(metric, REFERENCES[rank:], distance="joint", weights=[2, 1, 3][rank:])
    whole = nn.Sequential(generator(), own)
    value = whole(batch())
    wrapped = nn.parallel.DistributedDataParallel(whole)
    for _ in range(2):  # DDP copies buffers at its start and before each step
        assert wrapped(batch()).equal(value)
    dist.destroy_process_group()


def test_two_processes_give_the_gradients_of_one_and_keep_their_own_references() -> None:
    assert in_two_processes(train_in_each_process) == [0, 0]


def test_blocks_of_a_metric_may_be_sharded_by_fsdp() -> None:
    """A user spreads a large metric over GPUs as docs/use/loss.md says."""
    import torch.distributed as dist
    from torch.distributed.device_mesh import init_device_mesh

    fsdp = pytest.importorskip("torch.distributed.fsdp")
    if not hasattr(fsdp, "fully_shard"):
        pytest.skip("torch 2.6 shards by fully_shard")

    model = random_model("dinov3")
    model.take_revision("abc")
    plain, sharded = (IdentityLoss(model, REFERENCES, distance="joint") for _ in range(2))
    policy = fsdp.CPUOffloadPolicy(pin_memory=False)
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    try:
        mesh = init_device_mesh("cpu", (1,))
        for block in sharded.metric.backbone.blocks:  # type: ignore[union-attr]
            fsdp.fully_shard(block, mesh=mesh, offload_policy=policy)
        for seed in range(2):
            x = pixels(2, seed=seed)
            (expected,) = torch.autograd.grad(plain(x), x)
            value = sharded(x)
            (found,) = torch.autograd.grad(value, x)
            assert value.equal(plain(x))
            assert found.equal(expected)
            assert found.abs().max() > 0
        assert sharded.signature() == plain.signature()
    finally:
        dist.destroy_process_group()


def test_a_loss_names_metric_references_and_distance(metric: IDSim) -> None:
    loss = IdentityLoss(metric, REFERENCES, distance="joint", aggregate="min")
    own = metric.signature("joint")
    assert loss.signature() == {**own, "references": "3", "aggregate": "min", "outside": "black"}
    assert repr(loss) == f"IdentityLoss({metric.label}, references=3, distance='joint')"


# Errors; most are in benchmarks/differential_cases/refusals.py


def test_pixels_without_a_graph_are_refused_where_gradients_are_on(metric: IDSim) -> None:
    loss = IdentityLoss(metric, REFERENCES)
    x = pixels(2)
    with pytest.raises(ValueError, match="graph"):
        loss(x.detach())
    with torch.no_grad():
        assert loss(x.detach()).item() == pytest.approx(loss(x).item())


@pytest.mark.parametrize(
    ("wrong", "named"),
    [(lambda x: x + 0.2, "value_range"), (lambda x: x / 0, "value_range"), (lambda x: x[:0], "pixels")],
)
def test_wrong_pixels_are_refused(metric: IDSim, wrong: Callable[[Tensor], Tensor], named: str) -> None:
    with pytest.raises(ValueError, match=named):
        IdentityLoss(metric, REFERENCES)(wrong(pixels(2)))


def test_nan_is_refused_and_pixels_on_the_bounds_keep_their_gradient(metric: IDSim) -> None:
    loss = IdentityLoss(metric, REFERENCES)
    x = torch.rand(2, 3, 64, 64, dtype=torch.float64)
    x[0, 0, 3, 4] = 0
    x[0, 0, 5, 6] = 1
    x.requires_grad_()
    loss(x).backward()
    assert x.grad is not None
    assert x.grad[0, 0, 3, 4] != 0
    assert x.grad[0, 0, 5, 6] != 0
    with pytest.raises(ValueError, match="NaN"):
        loss(x * torch.nan)


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"references": Embedding(torch.rand(2, 48))}, "patches"),
        ({"autocast": "half"}, "autocast"),
        ({"value_range": (0, torch.inf)}, "value_range"),
        ({"value_range": (1,)}, "value_range"),
        ({"weights": [1, 2]}, "weights"),
        ({"weights": [0, 0, 0]}, "weights"),
    ],
)
def test_options_that_do_not_fit_are_named(metric: IDSim, options: dict[str, Any], named: str) -> None:
    given = {"references": REFERENCES, "distance": "joint", **options}
    with pytest.raises(ValueError, match=named):
        IdentityLoss(metric, given.pop("references"), **given)


def test_a_compiled_metric_is_refused(metric: IDSim) -> None:
    with pytest.raises(TypeError, match="metric must be"):
        IdentityLoss(torch.compile(metric, backend="eager"), REFERENCES)  # type: ignore[arg-type]
