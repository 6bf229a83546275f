"""Safetensors files and model folders: headers that lie, settings beyond all bounds, tensors that do not fit."""

from __future__ import annotations

import io
import json
import pickle
import struct
import tempfile
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from random import Random
from typing import Any

import torch
from safetensors.torch import load, save

from idmetric import IDSim, NearID
from idmetric.models.embedding import Embedding
from idmetric.models.idsim import IDSimConfig
from idmetric.models.nearid import NearIDConfig
from tests.fuzz.damage import NUMBERS, WORDS, damage, json_bytes, nested, odd, spoil

_SMALL = {"embed_dim": 24, "depth": 2, "num_heads": 2}
_MODELS = {
    "vit": lambda: IDSim(IDSimConfig("vit_tiny_patch16_224", 32, 8, backbone_args=_SMALL), device="cpu"),
    "cnn": lambda: IDSim(IDSimConfig("resnet18", 32, 8, backbone_args={"channels": [4, 4, 8, 8]}), device="cpu"),
    "map": lambda: NearID(
        NearIDConfig(image_size=28, backbone_args={**_SMALL, "embed_dim": 32, "act_layer": "gelu_tanh"}), device="cpu"
    ),
}
_DTYPES = ("F32", "F64", "F16", "BF16", "I8", "I64", "BOOL", "F8_E4M3", "U8", "C64", "X", "", None, 5)


@cache
def model_files(kind: str) -> Mapping[str, bytes]:
    """config.json and model.safetensors of a small model: "vit", "cnn" or "map"."""
    with tempfile.TemporaryDirectory() as folder:
        torch.manual_seed(0)
        _MODELS[kind]().save_pretrained(folder)
        return {path.name: path.read_bytes() for path in Path(folder).iterdir()}


@cache
def siglip_bytes() -> bytes:
    """The tensors of a small SigLIP vision model under transformers' names."""
    shapes: dict[str, tuple[int, ...]] = {
        "embeddings.patch_embedding.weight": (32, 3, 14, 14), "embeddings.patch_embedding.bias": (32,),
        "embeddings.position_embedding.weight": (4, 32), "head.probe": (1, 1, 32),
        "head.attention.in_proj_weight": (96, 32), "head.attention.in_proj_bias": (96,),
    }  # fmt: skip
    square, norms = ["head.attention.out_proj"], ["post_layernorm", "head.layernorm"]
    for layer in ("encoder.layers.0", "encoder.layers.1"):
        square += [f"{layer}.self_attn.{name}" for name in ("q_proj", "k_proj", "v_proj", "out_proj")]
        norms += [f"{layer}.layer_norm1", f"{layer}.layer_norm2"]
    for place in square:
        shapes |= {f"{place}.weight": (32, 32), f"{place}.bias": (32,)}
    for place in norms:
        shapes |= {f"{place}.weight": (32,), f"{place}.bias": (32,)}
    for part in ("encoder.layers.0.mlp", "encoder.layers.1.mlp", "head.mlp"):
        shapes |= {f"{part}.fc1.weight": (64, 32), f"{part}.fc1.bias": (64,)}
        shapes |= {f"{part}.fc2.weight": (32, 64), f"{part}.fc2.bias": (32,)}
    return save({f"vision_model.{name}": torch.zeros(shape) for name, shape in shapes.items()}, {"format": "pt"})


def model_folder(rng: Random, folder: Path) -> Path:
    """A model folder with one of its two files spoilt."""
    files = dict(model_files(rng.choice(sorted(_MODELS))))
    if rng.random() < 0.6:
        files["config.json"] = config_file(json.loads(files["config.json"]), rng)
    else:
        files["model.safetensors"] = tensors_file(files["model.safetensors"], rng)
    for name, data in files.items():
        (folder / name).write_bytes(data)
    return folder


def config_file(config: dict[str, Any], rng: Random) -> bytes:
    """Settings with numbers beyond all bounds, names of files and addresses, other types, or other JSON."""
    kind = rng.random()
    if kind < 0.35:
        args = config["backbone_args"]
        args[rng.choice([*args, *_ARGUMENTS])] = rng.choice((*NUMBERS, *_VALUES))
    elif kind < 0.55:
        config[rng.choice(list(config))] = rng.choice((*NUMBERS, *WORDS, *_VALUES))
    elif kind < 0.9:
        config = spoil(config, rng)
    return json_bytes(config, rng) if rng.random() < 0.3 else json.dumps(config).encode()


_ARGUMENTS = (
    "embed_dim", "depth", "num_heads", "patch_size", "img_size", "mlp_ratio", "num_classes", "in_chans", "channels",
    "layers", "pretrained", "checkpoint_path", "pretrained_cfg_overlay", "cache_dir", "act_layer", "norm_layer",
    "features_only", "class_token", "global_pool", "reg_tokens", "block_fn", "output_stride", "cardinality",
)  # fmt: skip
_VALUES: tuple[Any, ...] = (
    5000, 10**7, [10**9] * 4, [1] * 999, [0, 0, 0, 0], {"url": "http://127.0.0.1:1/x"}, {"file": "/etc/passwd"},
    "hf-hub:a/b", "vit_huge_patch14_224", "resnet50", "lanczos", [0.5, 0.5], [1e400, 0, 0], 1e9, True, None,
)  # fmt: skip


def tensors_file(data: bytes, rng: Random) -> bytes:
    """A safetensors file that is damaged, whose header lies, or whose tensors are others."""
    kind = rng.random()
    if kind < 0.65:
        return damage(data, rng) if kind < 0.35 else lying(data, rng)
    tensors = load(data)
    name = rng.choice(sorted(tensors))
    value = tensors[name]
    changes: tuple[dict[str, Any], ...] = (
        {name: None},
        {rng.choice(("more", "", "a" * 5000, "backbone.", "\u202e")): torch.zeros(2)},
        {name: value[None]},
        {name: torch.zeros(rng.choice(((0,), (), (1, 0, 3), (10_000, 10))))},
        {name: value.to(rng.choice((torch.int64, torch.float16, torch.bool, torch.float64)))},
        {name: torch.full(value.shape, float(rng.choice(("nan", "inf", "1e38"))))},
    )
    tensors |= rng.choice(changes)
    return save({name: value for name, value in tensors.items() if value is not None}, {"format": "pt"})


def lying(data: bytes, rng: Random) -> bytes:
    """A safetensors file whose header says other offsets, shapes, types or lengths than are so."""
    head, body = _parts(data)
    entry = head[rng.choice([name for name in head if name != "__metadata__"])]
    kind = rng.randrange(8)
    if kind == 0:
        entry["data_offsets"] = rng.choice(([0, 2**63], [-1, 4], [8, 4], [0], None, ["0", "4"], [0, 10**30]))
    elif kind == 1:
        entry["shape"] = rng.choice(([2**62], [2**32, 2**32], [-1], [0], [], [1.5], None, ["3"], [1] * 10_000))
    elif kind == 2:
        entry["dtype"] = rng.choice(_DTYPES)
    elif kind == 3:
        head["__metadata__"] = rng.choice((None, 5, {"a": 1}, {"keys": "x " * 1000}, [], {"grid": "9999999x9999999"}))
    elif kind == 4:
        head[rng.choice(("x", ""))] = odd(rng)
    elif kind == 5:
        return struct.pack("<Q", 200_000) + b"[" * 200_000 + body
    elif kind == 6:
        return struct.pack("<Q", rng.choice((0, 1, 2**62, 2**64 - 1, 10**9, len(data)))) + data[8:]
    else:
        head = rng.choice(([], {}, None, 0, "x", nested(500)))
    return _joined(head, body)


def _parts(data: bytes) -> tuple[Any, bytes]:
    """The header and the values of a safetensors file."""
    length = struct.unpack("<Q", data[:8])[0]
    return json.loads(data[8 : 8 + length]), data[8 + length :]


def _joined(head: Any, body: bytes) -> bytes:
    text = json.dumps(head).encode()
    return struct.pack("<Q", len(text)) + text + body


@cache
def embedding_bytes() -> bytes:
    """An Embedding's file with patches."""
    torch.manual_seed(0)
    found = Embedding(torch.randn(3, 4), torch.randn(3, 6, 4), (2, 3), torch.rand(3, 6), "m")
    with tempfile.TemporaryDirectory() as folder:
        found.save(Path(folder, "x.safetensors"))
        data = Path(folder, "x.safetensors").read_bytes()
    head, body = _parts(data)
    return _joined(dict(sorted(head.items())), body)  # safetensors writes metadata in any order


def embedding_file(rng: Random) -> bytes:
    """An Embedding's file that is spoilt, its own metadata too."""
    data = embedding_bytes()
    if rng.random() < 0.7:
        return tensors_file(data, rng)
    head, body = _parts(data)
    about = head["__metadata__"]
    about[rng.choice(sorted(about))] = rng.choice((*WORDS, "2x", "-2x-3", "1x6", "a b c d", "9" * 5000 + "x1", "a a a"))
    return _joined(head, body)


def pickle_file(rng: Random) -> bytes:
    """A head of a release as torch saves it: damaged, with other tensors, or with code that must not run."""
    if rng.random() < 0.2:
        return pickle.dumps(_Code())
    head = {f"{x}.weight": torch.zeros(4, 4) for x in ("fc1", "fc2")}
    data = io.BytesIO()
    torch.save(rng.choice((odd(rng), {"fc1.weight": odd(rng), "ln.weight": torch.zeros(3)}, head)), data)
    return damage(data.getvalue(), rng) if rng.random() < 0.3 else data.getvalue()


class _Code:
    """What a pickle runs when it is read by pickle itself."""

    def __reduce__(self) -> tuple[Any, ...]:
        return exec, ("open('/tmp/idmetric-fuzz-ran', 'w').close()",)
