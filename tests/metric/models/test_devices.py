"""Models, distances, losses and metrics on a GPU, pretended on the CPU (`tests.pretended`): no tensors of two devices
meet, nothing in float64 reaches MPS, and the host waits for the device in the listed functions alone."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import get_args, get_type_hints

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from idmetric import IdentityLoss, IDSim, NearID
from idmetric.adapters import IdentityRetrieval, IdentitySimilarity
from idmetric.metric.embedder import Embedder
from idmetric.metric.nearid import NearIDConfig
from idmetric.metric.sinkhorn import sinkhorn
from idmetric.train.idsim.loss import compare
from idmetric.train.losses.info_nce import info_nce
from idmetric.train.losses.near_id import Tuples
from idmetric.train.nearid.config import NearIDTraining
from idmetric.train.nearid.recipe import values_of
from tests.conftest import TWO_TRUNKS, random_model
from tests.pretended import Pretended, PretendedDevice

OBJECTIVES = get_args(get_type_hints(NearIDTraining)["objective"])
VIT = {"depth": 2, "embed_dim": 48, "num_heads": 3}


def siglip() -> NearID:
    torch.manual_seed(0)
    return NearID(NearIDConfig("vit_base_patch16_siglip_224", 48, backbone_args=VIT), device="cpu")


def two_trunks() -> IDSim:
    torch.manual_seed(0)
    return IDSim(TWO_TRUNKS, device="cpu")


MODELS: dict[str, Callable[[], Embedder]] = {
    "vit": lambda: random_model("dinov3"), "siglip": siglip, "tiny": two_trunks,
}  # fmt: skip


Values = list[Tensor]

# Functions that wait for the device, by what is called. A model's own pass does not; a step of a loss waits once, for
# the range of its pixels, and `embed` once at its end, and for each tensor of pixels in it.
EMBED = ["metric.embedding.check_finite"]
PIXELS = ["metric.images.check_pixels"]
RANGE = ["metric.loss._to_unit"]
DISTANCES = ["metric.embedding.is_finite"]
WEIGHTS = ["metric.sinkhorn._normalized"]
DIAMETER = ["metric.sinkhorn._diameter"]
WAITS = {
    "embed_pixels": [],
    "forward": PIXELS,
    "embed": EMBED,
    "embed tensors": EMBED + PIXELS,
    "embed masked": EMBED,
    "distance cls": DISTANCES,
    "distance patch": DISTANCES + WEIGHTS,
    "distance joint": DISTANCES + WEIGHTS,
    "distance patch_pooled": DISTANCES,
    "distance patch_biased": DISTANCES + WEIGHTS + DIAMETER,
    "pairwise cls": DISTANCES,
    "pairwise patch": DISTANCES + WEIGHTS,
    "pairwise joint": DISTANCES + WEIGHTS,
    "pairwise joint_pooled": DISTANCES,
    "sinkhorn": [],
    "new loss": ["metric.loss._read_references"],
    "loss": RANGE,
    "loss joint": RANGE,
    "loss joint masked": [*RANGE, *PIXELS, "metric.masks.coverage", "metric.embedder.prepare"],
    "train idsim": [],
    "train nearid": [],
    "similarity": DISTANCES + EMBED + PIXELS,
    "retrieval": EMBED + PIXELS,
}  # fmt: skip
RESIZE = {"metric.images.resize_antialiased", "autograd"}  # on MPS images are resized by the CPU


class Calls:
    """A model on a device, and what is called on it by the names in `WAITS`."""

    def __init__(self, model: Embedder, device: str) -> None:
        self.device, self.model = device, model.to(device)
        self.model.take_revision("abc")  # new weights would be hashed
        coarse = torch.rand(2, 3, 5, 5, generator=torch.Generator().manual_seed(0))
        self.pictures = F.interpolate(coarse, (72, 60), mode="bilinear")
        self.pixels = self.pictures.to(device)
        self.masks = torch.zeros(2, 72, 60)
        self.masks[:, 10:60, 5:50] = 1
        self.plain = self.model.embed(list(self.pictures))
        self.masked = self.model.embed(list(self.pictures.flip(0)), masks=list(self.masks))
        joint = IdentityLoss(self.model, self.masked, distance="joint")
        self.losses = {
            "loss": IdentityLoss(self.model, self.masked), "loss joint": joint, "loss joint masked": joint
        }  # fmt: skip
        self.similarities = IdentitySimilarity(self.model, "joint", reduction="none").to(device)
        self.retrievals = IdentityRetrieval(self.model).to(device)

    def __call__(self, name: str) -> Values:
        first, _, rest = name.partition(" ")
        if first == "distance":
            return [self.model(self.plain, self.masked, rest)]
        if first == "pairwise":
            return [self.model.pairwise(self.plain, self.masked, rest)]
        if first == "loss":
            return self.loss_step(name)
        values: Values = getattr(self, name.replace(" ", "_"))()
        return values

    def embed_pixels(self) -> Values:
        embedding = self.model.embed_pixels(self.model.fit_pixels(self.pixels))
        assert embedding.patches is not None
        return [embedding.cls, embedding.patches]

    def forward(self) -> Values:
        return [self.model(self.pixels).cls]

    def embed(self) -> Values:
        return [self.model.embed(list(self.pictures), batch_size=1).cls]

    def embed_tensors(self) -> Values:
        return [self.model.embed(self.pixels).cls]

    def embed_masked(self) -> Values:
        embedding = self.model.embed(list(self.pictures), masks=list(self.masks))
        assert embedding.weights is not None
        return [embedding.cls, embedding.weights]

    def sinkhorn(self) -> Values:
        tokens = [embedding.patches.detach().requires_grad_() for embedding in (self.plain, self.masked)]  # type: ignore[union-attr]
        distances = sinkhorn(tokens[0], tokens[1], weights_b=self.masked.weights)
        return [distances, *torch.autograd.grad(distances.sum(), tokens)]

    def new_loss(self) -> Values:
        loss = IdentityLoss(self.model, self.masked, distance="joint")
        return [loss.references.cls]

    def loss_step(self, name: str) -> Values:
        pixels = self.pixels.detach().requires_grad_()
        value = self.losses[name](pixels, masks=self.masks.to(self.device) if "masked" in name else None)
        value.backward()
        assert pixels.grad is not None
        return [value, pixels.grad]

    def train(self, loss: Callable[[Tensor, Tensor], Tensor]) -> Values:
        """Weights of the last layers after one step on the global features and patches of six images."""
        model = copy.deepcopy(self.model)
        parameters = list(model.parameters())[-14:]  # two heads of an ID-Sim
        for parameter in parameters:
            parameter.requires_grad_(True)
        optimizer = torch.optim.AdamW(parameters, lr=1e-3, eps=1)
        images = torch.cat([self.pixels, self.pixels.flip(2), self.pixels.flip(3)])
        embedding = model.embed_pixels(model.fit_pixels(images))
        assert embedding.patches is not None
        loss(embedding.cls, embedding.patches).backward()
        optimizer.step()
        return [parameter.detach() for parameter in parameters]

    def train_idsim(self) -> Values:
        identity = torch.arange(6, device=self.device).view(3, 2) % 4

        def loss(cls: Tensor, patches: Tensor) -> Tensor:
            total = torch.zeros((), device=self.device)
            for features in (cls, patches):
                for negatives in ("single", "batch"):
                    anchor, positive, negative = F.normalize(features, dim=-1).chunk(3)
                    similar = compare(anchor, positive, negative, identity, negatives)
                    total = total + info_nce(similar.positive, similar.values, valid=similar.negative)
            return total

        return self.train(loss)

    def train_nearid(self) -> Values:
        oracle = torch.tensor([[0.1], [float("nan")]], device=self.device)

        def loss(cls: Tensor, patches: Tensor) -> Tensor:
            anchor, positive, distractor = cls.chunk(3)
            tuples = Tuples(anchor, positive[:, None], distractor[:, None])
            losses = [
                values_of(NearIDTraining(objective=objective), tuples, oracle)["loss"] for objective in OBJECTIVES
            ]
            return torch.stack(losses).sum()

        return self.train(loss)

    def similarity(self) -> Values:
        self.similarities.reset()
        self.similarities.update(self.pixels, torch.stack([self.pixels, self.pixels.flip(0)], 1))
        return [self.similarities.compute()]

    def retrieval(self) -> Values:
        self.retrievals.reset()
        self.retrievals.update(self.pixels, [1, 1])
        return [self.retrievals.features_black[0]]


def test_the_pretended_device_has_the_rules_of_a_real_one() -> None:
    with PretendedDevice("mps:0") as device:
        x = torch.arange(3.0).to("mps:0")
        with pytest.raises(RuntimeError, match="got tensors on mps:0 and on cpu"):
            x + torch.ones(3)
        with pytest.raises(TypeError, match="float64"):
            x.double()
        y = x * 2 + 1
        assert device.waits == []
        assert y.tolist() == [1, 3, 5]
        assert len(y.nonzero()) == 3
        assert bool((y > 0).all())
        assert device.waits == ["autograd"] * 3


@pytest.fixture(scope="module", params=MODELS)
def on_cpu(request: pytest.FixtureRequest) -> Calls:
    return Calls(MODELS[request.param](), "cpu")


@pytest.fixture(scope="module", params=["cuda:0", "mps:0"])
def device(request: pytest.FixtureRequest) -> PretendedDevice:
    return PretendedDevice(request.param)


@pytest.fixture(scope="module")
def on_device(on_cpu: Calls, device: PretendedDevice) -> Calls:
    model = copy.deepcopy(on_cpu.model)
    with device:
        return Calls(model, str(device.device))


@pytest.mark.parametrize("name", WAITS)
def test_a_device_gives_the_cpus_values_and_is_waited_for_where_listed(
    on_cpu: Calls, on_device: Calls, device: PretendedDevice, name: str
) -> None:
    expected = on_cpu(name)
    with device:
        device.waits.clear()
        values = on_device(name)
        waits = set(device.waits)
    if device.device.type == "mps":
        waits -= RESIZE
    assert sorted(waits) == sorted(WAITS[name])
    assert max(wanted.abs().max() for wanted in expected) > 0
    for value, wanted in zip(values, expected, strict=True):
        assert isinstance(value, Pretended)
        torch.testing.assert_close(value.held, wanted, rtol=1e-3, atol=1e-5)
