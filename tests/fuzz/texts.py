"""JSON, JSON lines and small texts that the package reads: calibrations, judges, galleries, runs, rules, ratings."""

from __future__ import annotations

import json
from random import Random
from typing import Any

from tests.fuzz.damage import damage, json_bytes, odd, spoil

ADAPTER = {"peft_type": "LORA", "lora_alpha": 8, "r": 4, "alpha_pattern": {"b": 4, "blocks": 1}, "use_rslora": True}
CALIBRATION: dict[str, Any] = {
    "kind": "idmetric-calibration", "format": 1, "name": "tiny", "distance": "cls", "outside": "all",
    "score": "1 - distance", "method": "platt", "curve": {"slope": 2.0, "intercept": -1.0}, "prior": 0.5,
    "model": {"kind": "IDSim", "settings": "", "revision": "abc", "files": None, "resolution": "144x144"},
    "thresholds": [{"false_accept_rate": 0.01, "distance": 0.3}], "held_out": {}, "data": {}, "versions": {},
}  # fmt: skip
JUDGE: dict[str, Any] = {
    "url": "http://127.0.0.1:9/v1", "model": "m", "timeout": 1.0, "extra": {"a": 1}, "question": "evidence",
    "prices": [2.5, 10], "side": 64, "tries": 2, "pause": 0.1, "concurrency": 2, "image_format": "png",
    "store": "answers",
}  # fmt: skip
REPLY: dict[str, Any] = {
    "model": "m", "choices": [{"message": {"content": '{"similarity": 0.5}'}, "finish_reason": "stop"}],
    "usage": {"prompt_tokens": 3, "completion_tokens": 4},
}  # fmt: skip
RULES: list[dict[str, Any]] = [
    {"min_images": 2, "why": "pairs"}, {"keep": {"role": "real", "dataset": ["A", "B"]}}, {"drop": {"category": "x"}},
]  # fmt: skip
SETTINGS: dict[str, Any] = {"seed": 1, "save_every": 10, "precision": "no", "workers": 0, "lr": 1e-4}
RECORD: dict[str, Any] = {"recipe": "tiny", "settings": {"a": {"b": 1}}, "versions": {}, "finished": False}
STATE: dict[str, Any] = {
    "format": 1, "step": 100, "optimizer": {"state": {"0": {"step": 3}}, "groups": [{"lr": 0.1}]}, "scaler": {},
}  # fmt: skip
GALLERY: list[dict[str, Any]] = [
    {"kind": "idmetric-gallery", "format": 1, "about": {"model": "m"}, "opened": "tiny", "images": 2,
     "sources": [{"path": "/x", "mask_dir": None}]},
    *({"name": f"{k}.png", "place": f"/x/{k}.png", "files": [f"/x/{k}.png"], "key": f"k{k}", "identity": None,
       "width": 8, "height": 8, "size": 100, "stamp": [[1, 2, 3, 4]], "hashed": 5, "problem": ""} for k in range(2)),
]  # fmt: skip
RATINGS = {"method": "emu2", "prompts": "object", "human_group1": [1, 2, 3] * 9, "human_group2": [1.5] * 27}
ANSWERS: dict[str, Any] = {
    "study": "0" * 16, "page": 1, "participant": "f" * 16, "revision": 1,
    "answers": {"0" * 12: "same", "1" * 12: "different"},
}  # fmt: skip
EVIDENCE = {"match_cues": ["a"], "conflict_cues": [], "background_used": False, "confidence": "high", "score": 7}
INSTANCE = {"same_instance": 1, "confidence": 0.5, "similarity": 0.5}


def answer(rng: Random) -> bytes:
    """What a judge says: an object, alone, in a fence, or after thoughts."""
    data = one(rng.choice((EVIDENCE, INSTANCE)), rng)
    before, after = rng.choice(((b"", b""), (b"```json\n", b"\n```"), (b"<think>" + b"<" * 5000, b"")))
    return before + data + after


def one(value: Any, rng: Random) -> bytes:
    """A JSON text of a spoilt value."""
    return json_bytes(spoil(value, rng) if rng.random() < 0.8 else value, rng)


def lines(values: list[Any], rng: Random) -> bytes:
    """JSON lines, some of them spoilt, cut off, in another order, or no JSON."""
    parts = [one(value, rng) if rng.random() < 0.4 else json.dumps(value).encode() for value in values]
    if rng.random() < 0.2:
        rng.shuffle(parts)
    data = b"\n".join(parts) + rng.choice((b"\n", b"", b"\n\n", b"\0"))
    return damage(data, rng) if rng.random() < 0.3 else data


def toml(rng: Random) -> bytes:
    """Settings as TOML."""
    text = "seed = 1\nsave-every = 10\n[[rule]]\nmin_images = 2\nwhy = 'pairs'\n"
    deep = ("x = " + "[" * 50_000, ".".join(["a"] * 20_000) + " = 1\n")
    if rng.random() < 0.5:
        return (text + rng.choice(deep)).encode()
    return damage((text + f"y = {json.dumps(odd(rng))}\n").encode("utf-8", "surrogatepass"), rng)


def boxes(rng: Random) -> bytes:
    """Boxes of a clip, as trackers' data sets write them."""
    text = "".join(f"{k},{k + 1},20,30\n" for k in range(5))
    if rng.random() < 0.5:
        text = text.replace("20", rng.choice(("nan", "-1", "1e400", "", "x", "inf", "9" * 5000, "\u0662")), 1)
        return text.encode()
    return damage(text.encode(), rng)
