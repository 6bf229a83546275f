"""Distances, inputs, masks and losses of all models."""

from __future__ import annotations

import io
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import timm
import torch
from differential_weights import (
    SMALL_VIT,
    write_idsim,
    write_released_idsim,
    write_released_nearid,
    write_trunk,
    write_visid,
)
from PIL import Image, ImageFilter

from differential_cases import (
    Case,
    Results,
    examples,
    generator,
    gradient,
    picture,
    pixels,
    rectangle,
    same,
    tiny,
    workspace,
)

DISTANCES = ("cls", "patch", "joint", "patch_pooled", "joint_pooled", "patch_biased")
PICTURES = [picture(f"{shape} {number}") for shape in ("box", "mug") for number in range(3)]
PATCHES = 5e-6  # tolerance of distances of patches, and of what a mask cuts


# The packaged model


def tiny_distances() -> Results:
    metric = tiny()
    reference, *others = examples()
    first, rest = metric.embed(reference), metric.embed(others)
    results = {name: metric(first, rest, name) for name in DISTANCES}
    for name in ("cls", "joint"):
        results[f"{name} of files"] = metric(reference, others, name)
    return results


def tiny_pairwise() -> Results:
    metric = tiny()
    files = examples()
    rows, columns = metric.embed(files[:4]), metric.embed(files[3:6])
    results = {name: metric.pairwise(rows, columns, name) for name in DISTANCES}
    results["of files"] = metric.pairwise(files[:2], files[3:6], "joint")
    results["itself"] = metric.pairwise(rows)
    results["weighted"] = metric.pairwise(rows, distance="joint", joint_weight=0.25)
    return results


def tiny_embedding() -> Results:
    metric = tiny()
    embedding = metric.embed(PICTURES[:3], batch_size=2)
    signature = metric.signature("joint")
    return {
        "cls": embedding.cls[:, :32],
        "patches": embedding.patches[:, ::40, :8],
        "shape": list(embedding.patches.shape),
        "grid": list(embedding.grid),
        "label": metric.label,
        "model": embedding.model,
        "signature": [f"{name} {signature[name]}" for name in ("model", "revision", "distance", "resolution", "dtype")],
        "one of them": metric(embedding[1], embedding, "patch"),
        "without patches": metric(embedding.without_patches(), PICTURES[3]),
    }


def tiny_arrangements() -> Results:
    metric = tiny()
    first, second, third = PICTURES[:3]
    tensor = pixels("arrangement", 3, 90)
    with workspace():
        for folder in ("a", "b"):
            Path(folder).mkdir()
        for number in (1, 2, 10):
            picture(f"a{number}").save(f"a/{number}.png")
            picture(f"b{number}").save(f"b/{number}.png")
        return {
            "one and several": metric(first, [second, third]),
            "several and several": metric([first, second], [second, third]),
            "folders": metric("a", "b"),
            "a pattern": metric("a/1.png", "b/*.png"),
            "a batch of pixels": metric(tensor, [first, second, third]),
            "a batch of arrays": metric(tensor.permute(0, 2, 3, 1).numpy(), first),
            "a list of tensors": metric(list(tensor), first),
            "an iterator": metric(first, iter([second, third])),
            "batches": metric.pairwise(PICTURES, batch_size=2, distance="joint")[0],
            "threads": metric.embed(PICTURES, batch_size=2, workers=2).cls[:, :4],
        }


# Inputs


def encoded(image: Image.Image, kind: str, **options: Any) -> bytes:
    file = io.BytesIO()
    image.save(file, kind, **options)
    return file.getvalue()


def kinds_of_input() -> dict[str, Any]:
    image = picture("input", 150, 100)
    rgba = image.copy()
    rgba.putalpha(Image.linear_gradient("L").resize(image.size))
    colors = np.asarray(image)
    sixteen = np.asarray(image.convert("L")).astype(np.uint16) * 257
    channels_first = torch.from_numpy(colors.copy()).permute(2, 0, 1)
    palette = image.quantize(32)
    kinds: dict[str, Any] = {
        "PNG": encoded(image, "PNG"),
        "gray": encoded(image.convert("L"), "PNG"),
        "alpha": encoded(rgba, "PNG"),
        "gray and alpha": encoded(rgba.convert("LA"), "PNG"),
        "palette": encoded(palette, "PNG"),
        "palette with a transparent color": encoded(palette, "PNG", transparency=3),
        "one bit": encoded(image.convert("1"), "PNG"),
        "16 bits": encoded(Image.fromarray(sixteen), "PNG"),
        "JPEG": encoded(image, "JPEG", quality=95),
        "CMYK": encoded(image.convert("CMYK"), "JPEG", quality=95),
        "WebP": encoded(image, "WEBP", lossless=True),
        "TIFF": encoded(image, "TIFF"),
        "GIF": encoded(palette, "GIF"),
        "BMP": encoded(image, "BMP"),
        "file object": io.BytesIO(encoded(image, "PNG")),
        "Pillow": image,
        "Pillow with alpha": rgba,
        "uint8 array": colors,
        "uint16 array": sixteen,
        "float array": colors / np.float32(255),
        "double array": colors / 255,
        "gray array": colors[..., 0],
        "array with alpha": np.asarray(rgba),
        "uint8 tensor": channels_first,
        "float tensor": channels_first.float() / 255,
        "half tensor": (channels_first.float() / 255).half(),
        "boolean array": colors[..., 0] > 127,
        "strided array": colors[::2, ::-1],
    }
    for turn in (2, 3, 6, 7):
        exif = Image.Exif()
        exif[0x0112] = turn
        kinds[f"EXIF {turn}"] = encoded(image, "PNG", exif=exif)
    return kinds


def inputs() -> Results:
    metric = tiny()
    reference = metric.embed(PICTURES[0], patches=False)
    return {name: metric(image, reference) for name, image in kinds_of_input().items()}


def inputs_on_black() -> Results:
    from idmetric import IDSim

    metric = IDSim("tiny", device="cpu", background=(0, 10, 20))
    kinds = kinds_of_input()
    names = ("alpha", "gray and alpha", "palette with a transparent color", "Pillow with alpha", "array with alpha")
    return {name: metric(kinds[name], PICTURES[0]) for name in names} | {"label": metric.label}


def inputs_as_released() -> Results:
    from idmetric import IDSim

    metric = IDSim("tiny", device="cpu", preprocessing="release")
    kinds = kinds_of_input()
    names = ("PNG", "gray", "alpha", "palette", "EXIF 6", "CMYK", "16 bits", "uint8 array", "float tensor")
    return {name: metric(kinds[name], PICTURES[0]) for name in names} | {"label": metric.label}


def odd_shapes() -> Results:
    metric = tiny()
    sizes = {"wide": (400, 20), "tall": (13, 300), "large": (900, 700), "one pixel": (1, 1)}
    return {name: metric(picture(name, *size), PICTURES[1], "joint") for name, size in sizes.items()}


# Masks


def kinds_of_mask() -> dict[str, tuple[Any, dict[str, Any]]]:
    """Masks of a picture of 120 x 90 pixels, and further arguments of the call."""
    square = rectangle(120, 90, (30, 20, 90, 70))
    labels = rectangle(120, 90, (30, 20, 60, 70), 1) + rectangle(120, 90, (60, 20, 90, 70), 2)
    palette = Image.fromarray(labels).convert("P")
    palette.putpalette([0, 0, 0, 255, 0, 0, 0, 0, 255] + [0] * 759)
    transparent = Image.fromarray(square).convert("RGBA")
    transparent.putalpha(Image.fromarray(square))
    soft = Image.fromarray(square).filter(ImageFilter.GaussianBlur(9))
    colored = palette.convert("RGB")
    return {
        "gray": (square, {}),
        "boolean": (square > 0, {}),
        "zeros and ones": ((square > 0).astype(np.uint8), {}),
        "soft": (soft, {}),
        "float": (torch.from_numpy(np.asarray(soft) / np.float32(255)), {}),
        "larger": (Image.fromarray(square).resize((240, 180)), {}),
        "PNG": (encoded(Image.fromarray(square), "PNG"), {}),
        "alpha": (transparent, {}),
        "one bit": (Image.fromarray(square).convert("1"), {}),
        "a label": (labels, {"mask_id": 2}),
        "a palette's index": (palette, {"mask_id": 1}),
        "a color": (colored, {"mask_id": "#0000ff"}),
    }


def masks_of(distance: str) -> Results:
    metric = tiny()
    partner = metric.embed(PICTURES[1])
    results = {}
    for name, (mask, options) in kinds_of_mask().items():
        for outside in ("black", "white", "crop", "keep"):
            if outside != "black" and name not in ("gray", "soft", "a label"):
                continue  # how a mask is read does not depend on what is done outside of it
            value = metric(PICTURES[0], partner, distance, mask_a=mask, outside=outside, **options)
            results[f"{name}, {outside}"] = value
    return results


def masks_of_both() -> Results:
    metric = tiny()
    first, second = rectangle(120, 90, (30, 20, 90, 70)), rectangle(120, 90, (10, 5, 70, 80))
    results: dict[str, Any] = {}
    for name in ("cls", "patch", "joint", "patch_pooled", "patch_biased"):
        results[name] = metric(PICTURES[0], PICTURES[1], name, mask_a=first, mask_b=second)
    results["pairwise"] = metric.pairwise(
        PICTURES[:2], PICTURES[2:4], "joint", masks_a=[first, None], masks_b=[second, first]
    )
    embedding = metric.embed(PICTURES[:3], masks=[first, None, second])
    results["weights"] = embedding.weights[:, ::5]
    results["of an embedding"] = metric(embedding, PICTURES[3], "joint")
    with workspace():
        for folder in ("photos/a", "masks/a"):
            Path(folder).mkdir(parents=True)
        PICTURES[0].save("photos/a/0.png")
        PICTURES[1].save("photos/a/1.jpg")
        Image.fromarray(first).save("masks/a/0.png")
        Image.fromarray(second).save("masks/a/1.png")
        results["a folder"] = metric("photos/a", PICTURES[4], "joint", mask_a="masks")
    return results


def masks_of_turned_photos() -> Results:
    metric = tiny()
    exif = Image.Exif()
    exif[0x0112] = 6
    turned = encoded(PICTURES[0], "PNG", exif=exif)
    upright = rectangle(90, 120, (20, 30, 70, 90))
    mask = encoded(Image.fromarray(rectangle(120, 90, (30, 20, 90, 70))), "PNG", exif=exif)
    return {
        "upright mask": metric(turned, PICTURES[1], "joint", mask_a=upright),
        "turned mask": metric(turned, PICTURES[1], "joint", mask_a=mask),
        "turned and cut": metric(turned, PICTURES[1], "joint", mask_a=mask, outside="crop"),
    }


# Other models


def numbers_of(metric: Any, masked: bool = True, patches: bool = True) -> dict[str, Any]:
    """Distances of a model: between pictures, of pixels of its own size, and under a mask."""
    names = DISTANCES if patches else ("cls",)
    results: dict[str, Any] = {name: metric(PICTURES[0], PICTURES[1:4], name) for name in names}
    results["pairwise"] = metric.pairwise(PICTURES[:4])
    results["features"] = metric.embed(PICTURES[:2]).cls[:, :8]
    if masked:
        mask = rectangle(120, 90, (30, 20, 90, 70))
        masked_distance = "joint" if patches else "cls"
        for outside in ("black", "crop", "keep"):
            results[outside] = metric(PICTURES[0], PICTURES[1], masked_distance, mask_a=mask, outside=outside)
    return results


def small_idsim(kind: str) -> Results:
    from idmetric import IDSim, load

    with workspace() as folder:
        metric = IDSim(write_idsim(folder / "model", kind), device="cpu")
        results = numbers_of(metric)
        results["label"] = metric.label
        results["pixels"] = metric(pixels("own size", 2, metric.image_size[0])).cls[:, :8]
        results["of other sizes"] = metric(pixels("other size", 2, 41)).cls[:, :8]
        metric.save_pretrained(folder / "copy")
        again = load(folder / "copy", device="cpu")
        results["saved"] = again(PICTURES[0], PICTURES[1], "joint")
    return results


def settings_of_idsim() -> Results:
    from idmetric import IDSim

    variants: dict[str, dict[str, Any]] = {
        "final features": {"features": "final"},
        "not centered": {"center": False},
        "bilinear": {"interpolation": "bilinear"},
        "other colors": {"mean": [0.4, 0.5, 0.6], "std": [0.2, 0.3, 0.4]},
        "release": {"preprocessing": "release"},
    }
    results: dict[str, Any] = {}
    with workspace() as folder:
        for name, settings in variants.items():
            metric = IDSim(write_idsim(folder / name.replace(" ", "-"), **settings), device="cpu")
            results[name] = metric(PICTURES[0], PICTURES[1:3], "joint")
            results[f"label, {name}"] = metric.label
    return results


def changed_weights() -> Results:
    from idmetric import IDSim

    with workspace() as folder:
        metric = IDSim(write_idsim(folder / "model"), device="cpu")
        with torch.no_grad():
            metric.mlp_cls.fc2.weight.mul_(2)
        return {"distance": metric(PICTURES[0], PICTURES[1]), "is marked": metric.revision.endswith("+changed")}


def released_idsim(variant: str, **adapter_config: Any) -> Results:
    from idmetric import IDSim

    with workspace() as folder:
        adapter, backbone = write_released_idsim(folder, variant, **adapter_config)
        metric = IDSim(adapter, backbone_weights=backbone, backbone_args=SMALL_VIT, device="cpu")
        results = {name: metric(PICTURES[0], PICTURES[1:3], name) for name in ("cls", "patch_pooled", "joint_pooled")}
        return results | {"label": metric.label, "grid": list(metric.embed(PICTURES[0]).grid)}


def nearid() -> Results:
    from idmetric import NearID, load

    with workspace() as folder:
        metric = NearID(write_released_nearid(folder / "model"), device="cpu")
        results = numbers_of(metric)
        results["label"] = metric.label
        metric.save_pretrained(folder / "copy")
        results["saved"] = load(folder / "copy", device="cpu")(PICTURES[0], PICTURES[1])
        released = NearID(folder / "model", device="cpu", preprocessing="release")
        results["release"] = released(kinds_of_input()["alpha"], PICTURES[1])
        other = NearID(write_released_nearid(folder / "other", "vision_model."), device="cpu")
        results["other prefix"] = other(PICTURES[0], PICTURES[1])
    return results


VISID = {"max_pixels": 16 * 28 * 28, "max_length": 128}
NEEDS_TRANSFORMERS = {"needs": ("transformers",)}


def visid(**settings: Any) -> Results:
    from idmetric import VisIDEmbed

    with workspace() as folder:
        metric = VisIDEmbed(write_visid(folder / "model", **VISID, **settings), device="cpu", dtype=torch.float32)
        results = numbers_of(metric)
        results["label"] = metric.label
        query = metric.embed(PICTURES[0], task="reidentification")
        results["a task"] = metric(query, PICTURES[1])
        results["an instruction"] = metric(metric.embed(PICTURES[0], instruction="Find the hat."), PICTURES[1])
        results["a text"] = metric(metric.embed(texts="a red hat in the sun"), PICTURES[:2])
        results["an edit"] = metric(metric.embed(PICTURES[0], texts="on the beach"), PICTURES[1])
    return results


TINY_VIT = {"depth": 2, "embed_dim": 24, "num_heads": 2}
BACKBONES: dict[str, tuple[str, dict[str, Any], dict[str, Any]]] = {
    "vit": ("vit_tiny_patch16_224", TINY_VIT, {}),
    "vit at another size": ("vit_tiny_patch16_224", TINY_VIT, {"image_size": 96}),
    "vit, mean of tokens": ("vit_tiny_patch16_224", TINY_VIT, {"pool": "avg"}),
    "vit, cropped": (
        "vit_tiny_patch16_224",
        TINY_VIT,
        {"resize": "crop", "crop_pct": 0.875},
    ),
    "vit, bilinear": (
        "vit_tiny_patch16_224",
        TINY_VIT,
        {"interpolation": "bilinear"},
    ),
    "siglip": ("vit_base_patch16_siglip_224", TINY_VIT, {}),
    "dinov3": ("vit_small_patch16_dinov3", SMALL_VIT, {"image_size": 96}),
    "dinov2": ("vit_small_patch14_dinov2", SMALL_VIT, {"image_size": 98}),
    "resnet": ("resnet18", {"channels": [8, 16, 24, 32]}, {"image_size": 96}),
}


def backbone(name: str) -> Results:
    from idmetric import Backbone, load

    encoder, arguments, options = BACKBONES[name]
    with workspace() as folder:
        weights = write_trunk(folder / "trunk.safetensors", encoder, **arguments)
        metric = Backbone(encoder, weights=weights, backbone_args=arguments, device="cpu", **options)
        results = numbers_of(metric)
        results["label"] = metric.label
        metric.save_pretrained(folder / "copy")
        results["saved"] = load(folder / "copy", device="cpu")(PICTURES[0], PICTURES[1], "joint")
    return results


def named(name: str, encoder: str) -> Results:
    """Compare an encoder that a paper's row names, with its transform, small and with random weights."""
    from idmetric import load

    arguments: dict[str, Any] = dict(SMALL_VIT)
    outputs = timm.get_pretrained_cfg(encoder).num_classes if "clip" in name else 0  # CLIP's head is a projection
    with workspace() as folder:
        weights = write_trunk(folder / "trunk.safetensors", encoder, num_classes=outputs, **arguments)
        metric = load(name, weights=weights, backbone_args=arguments, device="cpu")
        results = {"cls": metric.pairwise(PICTURES[:2], PICTURES[2:4]), "label": metric.label}
        results["tall"] = metric(picture("tall", 60, 150), PICTURES[0])
    return results


# Sinkhorn


def random_embeddings(count: int, grid: tuple[int, int], name: str, weighted: bool = False) -> Any:
    from idmetric import Embedding

    rng = generator(name)
    tokens = torch.from_numpy(rng.standard_normal((count, grid[0] * grid[1], 12)).astype(np.float32))
    tokens = torch.nn.functional.normalize(tokens + 0.5, dim=-1)
    weights = None
    if weighted:
        weights = torch.from_numpy(rng.random((count, grid[0] * grid[1])).astype(np.float32))
        weights[:, ::3] = 0
    return Embedding(tokens[:, 0], tokens, grid, weights)


def sinkhorn() -> Results:
    metric = tiny()
    results: dict[str, Any] = {}
    for size in ((1, 1), (2, 3), (6, 6), (9, 9), (14, 14), (20, 20)):
        a, b = random_embeddings(3, size, "a"), random_embeddings(3, size, "b")
        c, d = random_embeddings(3, size, "c", True), random_embeddings(3, (4, 5), "d", True)
        for name in ("patch", "patch_biased"):
            results[f"{size}, {name}"] = metric(a, b, name)
            if size != (1, 1):
                results[f"{size}, {name}, weights"] = metric(c, d, name)
                results[f"{size}, {name}, one side"] = metric(a, c, name)
        results[f"{size}, pooled"] = metric(a, b, "joint_pooled")
        results[f"{size}, matrix"] = metric.pairwise(a, b, "patch")
    results["equal"] = metric(a, a, "patch")
    return results


def sinkhorn_gradients() -> Results:
    from dataclasses import replace

    metric = tiny()
    results: dict[str, Any] = {}
    for weighted in (False, True):
        for name in ("patch", "patch_biased", "joint", "patch_pooled"):
            a, b = random_embeddings(2, (6, 6), "a", weighted), random_embeddings(2, (6, 6), "b", weighted)
            tokens = a.patches.double().requires_grad_()
            features = a.cls.double().requires_grad_()
            distance = metric(replace(a, cls=features, patches=tokens), b, name)
            distance.sum().backward()
            key = f"{name}, weights" if weighted else name
            results[key] = tokens.grad.flatten()[::17]
            results[f"{key}, norm"] = tokens.grad.norm()
    return results


# Losses


@cache
def double(kind: str = "dinov3") -> Any:
    """Return a small ID-Sim in double precision, in which gradients hardly depend on the kernels."""
    from idmetric import IDSim

    with workspace() as folder:
        return IDSim(write_idsim(folder / kind, kind), device="cpu", dtype=torch.float64)


def losses(
    metric: Any = None,
    references: Any = None,
    shape: tuple[int, int] = (3, 72),
    masks_of_pixels: Any = None,
    **settings: Any,
) -> Results:
    """Compute a loss and its gradient; settings: those of the loss. Default: `double`, and two pictures.

    Args:
        shape: number of images, and their side.
    """
    from idmetric import IdentityLoss

    loss = IdentityLoss(metric or double(), PICTURES[:2] if references is None else references, **settings)
    low, high = settings.get("value_range", (0.0, 1.0))
    x = (pixels("loss", *shape).double() * (high - low) + low).requires_grad_()
    value = loss(x, masks=masks_of_pixels)
    value.sum().backward()
    assert x.grad is not None
    return {"loss": value, **gradient(x.grad)}


def several_losses(variants: dict[str, dict[str, Any]]) -> Results:
    results: dict[str, Any] = {}
    for name, settings in variants.items():
        for key, value in losses(**settings).items():
            results[f"{name}: {key}"] = value
    return results


def losses_of_tiny() -> Results:
    """Compare losses of the packaged model in single precision, without gradients: its kinks make them jump."""
    from idmetric import IdentityLoss

    results: dict[str, Any] = {}
    masks = torch.zeros(3, 96, 96)
    masks[:, 20:70, 25:80] = 1
    for name in DISTANCES:
        loss = IdentityLoss(tiny(), examples()[4:6], distance=name, reduction="none")
        with torch.no_grad():
            results[name] = loss(pixels("loss", 3, 96))
            results[f"{name}, masks"] = loss(pixels("loss", 3, 96), masks=masks)
    return results


def gradients_of_tiny() -> Results:
    from idmetric import IDSim

    metric = IDSim("tiny", device="cpu", dtype=torch.float64)
    return several_losses({name: {"metric": metric, "distance": name, "shape": (1, 96)} for name in ("cls", "joint")})


def losses_of_distances() -> Results:
    return several_losses({name: {"distance": name} for name in DISTANCES})


def losses_of_settings() -> Results:
    return several_losses(
        {
            "range": {"value_range": (-1.0, 1.0)},
            "bytes": {"value_range": (0.0, 255.0)},
            "nearest": {"aggregate": "min", "reduction": "none"},
            "sum": {"reduction": "sum", "weights": [1.0, 3.0]},
            "joint weight": {"distance": "joint", "joint_weight": 0.3},
            "checkpoint": {"checkpoint": True},
            "paths": {"references": [str(path) for path in examples()[:2]]},
            "pixels": {"references": pixels("references", 2, 80)},
            "own size": {"shape": (3, 64), "reduction": "sum"},
        }
    )


def losses_of_masks() -> Results:
    masks = torch.zeros(3, 72, 72)
    masks[:, 15:50, 20:60] = 1
    soft = torch.nn.functional.avg_pool2d(masks[:, None], 4)
    of_references = [rectangle(120, 90, (30, 20, 90, 70)), None]
    return several_losses(
        {
            "cls": {"masks_of_pixels": masks},
            "joint": {"masks_of_pixels": masks, "distance": "joint"},
            "boolean": {"masks_of_pixels": masks > 0, "distance": "patch"},
            "soft": {"masks_of_pixels": soft, "distance": "joint"},
            "white": {"masks_of_pixels": masks, "outside": "white"},
            "keep": {"masks_of_pixels": masks, "outside": "keep", "distance": "joint"},
            "references": {"masks": of_references, "masks_of_pixels": masks, "distance": "joint"},
        }
    )


def losses_of_small_models() -> Results:
    variants = {}
    for kind in ("dinov3", "dinov2", "cnn"):
        for distance in ("cls", "joint"):
            variants[f"{kind}, {distance}"] = {"metric": double(kind), "distance": distance}
    return several_losses(variants)


def gradients_of_distances() -> Results:
    metric = double()
    results: dict[str, Any] = {}
    mask = rectangle(80, 80, (10, 10, 60, 70))
    for name in DISTANCES:
        x = pixels("gradient", 2, 80).double().requires_grad_()
        metric(x, PICTURES[0], name, mask_a=[mask, None]).sum().backward()
        assert x.grad is not None
        for key, value in gradient(x.grad).items():
            results[f"{name}: {key}"] = value
    return results


RELATIVE: dict[str, Any] = {"tolerance": 1e-5, "relative": True}
NAMED = {
    "dino-i:dreambooth": "vit_small_patch16_224.dino",
    "clip-i:dreambooth": "vit_base_patch32_clip_quickgelu_224.openai",
    "dinov2-i:dreambench++": "vit_small_patch14_dinov2.lvd142m",
    "clip-i:dreambench++": "vit_base_patch32_clip_quickgelu_224.openai",
    "dinov2:nearid": "vit_large_patch14_dinov2.lvd142m",
    "clip:nearid": "vit_large_patch14_clip_quickgelu_224.openai",
}
ADAPTERS: dict[str, dict[str, Any]] = {
    "plain": {},
    "rank-stabilized": {"use_rslora": True},
    "alphas": {"alpha_pattern": {"fc1": 2, "attn.qkv": 16}},
}

CASES: list[Case] = [
    same("tiny/distances", tiny_distances, PATCHES),
    same("tiny/pairwise", tiny_pairwise, PATCHES),
    same("tiny/embedding", tiny_embedding, PATCHES),
    same("tiny/arrangements", tiny_arrangements, PATCHES),
    same("inputs/kinds", inputs),
    same("inputs/background", inputs_on_black),
    same("inputs/release", inputs_as_released),
    same("inputs/shapes", odd_shapes, PATCHES),
    same("masks/cls", lambda: masks_of("cls"), PATCHES),
    same("masks/joint", lambda: masks_of("joint"), PATCHES),
    same("masks/both", masks_of_both, PATCHES),
    same("masks/turned", masks_of_turned_photos, PATCHES),
    *(same(f"idsim/{kind}", lambda kind=kind: small_idsim(kind), PATCHES) for kind in ("dinov3", "dinov2", "cnn")),
    same("idsim/settings", settings_of_idsim, PATCHES),
    same("idsim/changed", changed_weights),
    *(
        same(f"idsim/released {name}", lambda name=name: released_idsim("dinov2_vitb14", **ADAPTERS[name]), PATCHES)
        for name in ADAPTERS
    ),
    same("idsim/released dinov3", lambda: released_idsim("dinov3_vitb16"), PATCHES),
    same("nearid", nearid, PATCHES, **NEEDS_TRANSFORMERS),
    same("visid/plain", visid, PATCHES, **NEEDS_TRANSFORMERS),
    same("visid/chat", lambda: visid(prompt_style="chat", pooling="mean"), PATCHES, **NEEDS_TRANSFORMERS),
    *(same(f"backbone/{name}", lambda name=name: backbone(name), PATCHES) for name in BACKBONES),
    *(same(f"named/{name}", lambda name=name: named(name, NAMED[name])) for name in NAMED),
    same("sinkhorn/distances", sinkhorn),
    same("sinkhorn/gradients", sinkhorn_gradients, **RELATIVE),
    same("losses/tiny", losses_of_tiny, PATCHES),
    same("losses/gradients of tiny", gradients_of_tiny, **RELATIVE),
    same("losses/distances", losses_of_distances, **RELATIVE),
    same("losses/settings", losses_of_settings, **RELATIVE),
    same("losses/masks", losses_of_masks, **RELATIVE),
    same("losses/small models", losses_of_small_models, **RELATIVE),
    same("losses/gradients", gradients_of_distances, **RELATIVE),
]
