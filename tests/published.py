"""The published models, written from their descriptions in plain torch, for the tests to compare ours with.

ID-Sim's backbone, heads, preprocessing and distances are written out here: nothing of idmetric or timm takes part, so
that an error in either shows as a difference. Parameters carry the names of the published files.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

import geomloss
import peft
import torch
import torch.nn.functional as F
from PIL import Image
from safetensors.torch import save_file
from torch import Tensor, nn
from torchvision import transforms

IMAGENET = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
SIDE = 448


class Shape(NamedTuple):
    """Size of a backbone, and how the two families differ."""

    dim: int
    depth: int
    heads: int
    patch: int
    registers: int
    epsilon: float  # of the blocks' layer norms
    pretrained_grid: int  # side of DINOv2's table of positions; 0 for DINOv3, which rotates queries and keys


def shape_of(variant: str, dim: int, depth: int, heads: int) -> Shape:
    """The shape of an ID-Sim variant's backbone, such as "dinov3_vitb16", at any width and depth."""
    if variant.startswith("dinov3"):
        return Shape(dim, depth, heads, 16, 4, 1e-5, 0)
    return Shape(dim, depth, heads, 14, 0, 1e-6, 37)


class MaskedBias(nn.Linear):
    """DINOv3's layer of queries, keys and values in one; a mask keeps the keys' bias at zero."""

    def __init__(self, dim: int) -> None:
        super().__init__(dim, 3 * dim)
        self.register_buffer("bias_mask", torch.cat([torch.ones(dim), torch.zeros(dim), torch.ones(dim)]))

    def forward(self, x: Tensor) -> Tensor:
        return F.linear(x, self.weight, self.bias * self.bias_mask)


class Attention(nn.Module):
    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.heads = shape.heads
        self.qkv = MaskedBias(shape.dim) if shape.registers else nn.Linear(shape.dim, 3 * shape.dim)
        self.proj = nn.Linear(shape.dim, shape.dim)

    def forward(self, x: Tensor, turn: tuple[Tensor, Tensor] | None) -> Tensor:
        images, tokens, dim = x.shape
        parts = self.qkv(x).split(dim, dim=-1)
        q, k, v = (part.reshape(images, tokens, self.heads, -1).transpose(1, 2) for part in parts)
        if turn is not None:
            q, k = rotated(q, *turn), rotated(k, *turn)
        weights = (q @ k.transpose(-1, -2) * q.shape[-1] ** -0.5).softmax(-1)
        return self.proj((weights @ v).transpose(1, 2).reshape(images, tokens, dim))


def rotated(x: Tensor, cosine: Tensor, sine: Tensor) -> Tensor:
    """Rotate the patch tokens, which come last; class and register tokens have no position."""
    prefix, patches = x[:, :, : -len(cosine)], x[:, :, -len(cosine) :]
    half = x.shape[-1] // 2
    first, second = patches[..., :half], patches[..., half:]
    turned = patches * cosine + torch.cat([-second, first], -1) * sine
    return torch.cat([prefix, turned], 2)


class Mlp(nn.Module):
    def __init__(self, dim: int) -> None:
        super().__init__()
        self.fc1, self.fc2 = nn.Linear(dim, 4 * dim), nn.Linear(4 * dim, dim)

    def forward(self, x: Tensor) -> Tensor:
        x = self.fc1(x)
        return self.fc2(x * (1 + torch.erf(x / 2**0.5)) / 2)  # the exact GELU


class Scale(nn.Module):
    def __init__(self, dim: int) -> None:
        super().__init__()
        self.gamma = nn.Parameter(torch.ones(dim))


class Block(nn.Module):
    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.norm1, self.norm2 = (nn.LayerNorm(shape.dim, eps=shape.epsilon) for _ in range(2))
        self.attn, self.mlp = Attention(shape), Mlp(shape.dim)
        self.ls1, self.ls2 = Scale(shape.dim), Scale(shape.dim)

    def forward(self, x: Tensor, turn: tuple[Tensor, Tensor] | None) -> Tensor:
        x = x + self.ls1.gamma * self.attn(self.norm1(x), turn)
        return x + self.ls2.gamma * self.mlp(self.norm2(x))


class PatchEmbed(nn.Module):
    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.patch_size = (shape.patch, shape.patch)
        self.proj = nn.Conv2d(3, shape.dim, shape.patch, shape.patch)


class Trunk(nn.Module):
    """DINOv2 or DINOv3 under Meta's names; calling it runs the blocks, to be read by a hook, and the final norm."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.shape = shape
        self.patch_embed = PatchEmbed(shape)
        self.cls_token = nn.Parameter(torch.zeros(1, 1, shape.dim))
        self.mask_token = nn.Parameter(torch.zeros(1, shape.dim))  # of the pretraining; the files hold it
        if shape.registers:
            self.storage_tokens = nn.Parameter(torch.zeros(1, shape.registers, shape.dim))
        if shape.pretrained_grid:
            self.pos_embed = nn.Parameter(torch.zeros(1, 1 + shape.pretrained_grid**2, shape.dim))
        self.blocks = nn.ModuleList(Block(shape) for _ in range(shape.depth))
        self.norm = nn.LayerNorm(shape.dim, eps=shape.epsilon)

    def forward(self, x: Tensor) -> Tensor:
        x = self.patch_embed.proj(x)
        grid = x.shape[-1]
        x = torch.cat([self.cls_token.expand(len(x), -1, -1), x.flatten(2).transpose(1, 2)], 1)
        if self.shape.pretrained_grid:
            x = x + self.positions(grid)
        if self.shape.registers:
            x = torch.cat([x[:, :1], self.storage_tokens.expand(len(x), -1, -1), x[:, 1:]], 1)
        turn = None if self.shape.pretrained_grid else self.turn(grid)
        for block in self.blocks:
            x = block(x, turn)
        return self.norm(x)[:, 0]

    def positions(self, grid: int) -> Tensor:
        """DINOv2's table for another grid: bicubic without antialiasing, at the scale (grid + 0.1) / its own side.

        Meta's code does this in single precision whatever the model's.
        """
        side, dim = self.shape.pretrained_grid, self.shape.dim
        table = self.pos_embed[:, 1:].float().reshape(1, side, side, dim).permute(0, 3, 1, 2)
        scale = (grid + 0.1) / side
        table = F.interpolate(table, scale_factor=(scale, scale), mode="bicubic", antialias=False)
        table = table.permute(0, 2, 3, 1).reshape(1, grid * grid, dim)
        return torch.cat([self.pos_embed[:, :1], table.to(self.pos_embed)], 1)

    def periods(self) -> Tensor:
        """Periods of DINOv3's rotations, 100^(k / n) for k < n = a quarter of a head, as bfloat16 holds them."""
        count = self.shape.dim // self.shape.heads // 4
        return (100.0 ** (torch.arange(count) / count)).to(torch.bfloat16)

    def turn(self, grid: int) -> tuple[Tensor, Tensor]:
        """Cosines and sines (grid * grid, head) of the angles 2 pi position / period; rows first, then columns.

        Positions are the patches' centers, in [-1, 1], computed in single precision.
        """
        center = (torch.arange(0.5, grid) / grid * 2 - 1).to(self.cls_token)
        rows, columns = torch.meshgrid(center, center, indexing="ij")
        places = torch.stack([rows.flatten(), columns.flatten()], 1)
        angles = (2 * torch.pi * places[:, :, None] / self.periods().to(places)).flatten(1).repeat(1, 2)
        return angles.cos(), angles.sin()

    def published_state(self) -> dict[str, Tensor]:
        """The tensors of Meta's file: the parameters, and DINOv3's constants."""
        state = {name: value.detach().clone() for name, value in self.state_dict().items()}
        return {**state, "rope_embed.periods": self.periods()} if self.shape.registers else state


class Head(nn.Module):
    """fc2(silu(fc1(ln(x)))) + sigmoid(beta_logit) x."""

    def __init__(self, dim: int, hidden: int) -> None:
        super().__init__()
        self.ln = nn.LayerNorm(dim, eps=1e-5)
        self.fc1, self.fc2 = nn.Linear(dim, hidden), nn.Linear(hidden, dim)
        self.beta_logit = nn.Parameter(torch.tensor(-4.0))

    def forward(self, x: Tensor) -> Tensor:
        hidden = self.fc1(self.ln(x))
        return self.fc2(hidden / (1 + (-hidden).exp())) + x / (1 + (-self.beta_logit).exp())


class Extractor(nn.Module):
    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model


class PublishedIDSim(nn.Module):
    """The module that the release wraps by PEFT: a trunk and two heads."""

    def __init__(self, shape: Shape, hidden: int) -> None:
        super().__init__()
        self.extractor = Extractor(Trunk(shape))
        self.mlp_cls, self.mlp_patch = Head(shape.dim, hidden), Head(shape.dim, hidden)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Pixels (B, 3, 448, 448) in [0, 1] to global features (B, D) and patches (B, P, D)."""
        seen: list[Tensor] = []
        trunk = self.extractor.model
        handle = trunk.blocks[-1].register_forward_hook(lambda module, args, out: seen.append(out))
        mean, std = (x.new_tensor(value).view(3, 1, 1) for value in IMAGENET)
        trunk((x - mean) / std)
        handle.remove()
        tokens = seen[0]
        return unit(self.mlp_cls(tokens[:, 0])), unit(self.mlp_patch(tokens[:, 1 + trunk.shape.registers :]))


def unit(x: Tensor) -> Tensor:
    """Each vector less the mean of its components, at length 1."""
    x = x - x.mean(-1, keepdim=True)
    return x / x.square().sum(-1, keepdim=True).sqrt()


def preprocess(source: Path | Image.Image, side: int = SIDE, filter: str = "bicubic") -> Tensor:
    """An image as the releases see it, (1, 3, side, side) in [0, 1]: squashed, not cropped."""
    image = Image.open(source) if isinstance(source, Path) else source
    steps = [transforms.Resize((side, side), transforms.InterpolationMode(filter)), transforms.ToTensor()]
    return transforms.Compose(steps)(image.convert("RGB"))[None]


def cosine(a: Tensor, b: Tensor) -> Tensor:
    """1 - cos of each pair of rows."""
    return 1 - (a * b).sum(-1) / (a.square().sum(-1) * b.square().sum(-1)).sqrt()


def distances(a: tuple[Tensor, Tensor], b: tuple[Tensor, Tensor]) -> dict[str, Tensor]:
    """Every distance of pairs of embeddings under our names: the release's, and ours by geomloss."""
    cls, pooled = cosine(a[0], b[0]), cosine(a[1].mean(1), b[1].mean(1))

    def sinkhorn(**options: Any) -> Tensor:
        loss = geomloss.SamplesLoss("sinkhorn", p=2, blur=0.05, backend="tensorized", **options)
        return torch.stack([loss(x, y) for x, y in zip(a[1], b[1], strict=True)])

    debiased = sinkhorn(scaling=0.5, diameter=2.0, debias=True)
    return {
        "cls": cls,
        "patch_pooled": pooled,
        "joint_pooled": cls + pooled,
        "patch_biased": sinkhorn(scaling=0.05, reach=None, debias=False),
        "patch": debiased,
        "joint": cls + debiased,
    }


def attention_pool(tokens: Tensor, weights: dict[str, Tensor], heads: int, epsilon: float = 1e-6) -> Tensor:
    """SigLIP's MAP head, (B, P, D) to (B, D): a learned probe attends to the tokens, then a residual MLP.

    The residual starts at the attention's output: the probe is not added back. `weights` are those of `head.*`.
    """
    images, _, dim = tokens.shape
    q = F.linear(weights["probe"], weights["attention.in_proj_weight"][:dim], weights["attention.in_proj_bias"][:dim])
    k, v = F.linear(tokens, weights["attention.in_proj_weight"][dim:], weights["attention.in_proj_bias"][dim:]).split(
        dim, -1
    )
    q, k, v = (x.expand(images, -1, -1).reshape(images, x.shape[1], heads, -1).transpose(1, 2) for x in (q, k, v))
    seen = ((q @ k.transpose(-1, -2) * q.shape[-1] ** -0.5).softmax(-1) @ v).transpose(1, 2).reshape(images, dim)
    seen = F.linear(seen, weights["attention.out_proj.weight"], weights["attention.out_proj.bias"])
    hidden = F.layer_norm(seen, (dim,), weights["layernorm.weight"], weights["layernorm.bias"], epsilon)
    hidden = F.linear(hidden, weights["mlp.fc1.weight"], weights["mlp.fc1.bias"])
    hidden = hidden * (1 + torch.tanh((2 / torch.pi) ** 0.5 * (hidden + 0.044715 * hidden**3))) / 2
    return seen + F.linear(hidden, weights["mlp.fc2.weight"], weights["mlp.fc2.bias"])


def randomize(module: nn.Module, only: str = "") -> None:
    """Weights of such a size that every part of the computation shows in the result."""
    with torch.no_grad():
        for name, parameter in module.named_parameters():
            if only not in name:
                continue
            parameter.normal_(std=parameter[0].numel() ** -0.5 if parameter.ndim > 1 else 0.2)
            if "norm" in name or ".ln." in name or "gamma" in name or "magnitude" in name:
                parameter.add_(1 if name.endswith(("weight", "gamma")) else 0)
            elif "token" in name or "pos_embed" in name:
                parameter.normal_(std=0.5)
            elif "beta_logit" in name:
                parameter.fill_(0.7)


def publish(
    folder: Path, variant: str, shape: Shape, hidden: int, targets: Any, dtype: torch.dtype, **options: Any
) -> tuple[Path, Path, PublishedIDSim]:
    """A release with random weights: the folder with the adapter and heads, Meta's backbone file, and its model.

    `targets` and `options` are PEFT's.
    """
    torch.manual_seed(0)
    twin = PublishedIDSim(shape, hidden)
    randomize(twin)
    if variant.startswith("dinov3"):  # as in the published files
        for block in twin.extractor.model.blocks:
            nn.init.zeros_(block.attn.qkv.bias)
    twin = twin.to(dtype)
    save_file(twin.extractor.model.published_state(), folder / "trunk.safetensors")

    options = {"r": 4, "lora_alpha": 12, "lora_dropout": 0.05, **options}
    wrapped = peft.get_peft_model(twin, peft.LoraConfig(target_modules=targets, **options)).eval().to(dtype)
    randomize(wrapped, "lora_")
    adapter = folder / f"id-sim_{variant}_cls_patch"
    wrapped.save_pretrained(adapter)
    inner: PublishedIDSim = wrapped.base_model.model
    for name in ("mlp_cls", "mlp_patch"):
        torch.save(getattr(inner, name).state_dict(), adapter / f"{name}.pth")
    return adapter, folder / "trunk.safetensors", inner
