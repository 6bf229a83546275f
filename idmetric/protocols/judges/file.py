"""Reads a judge from a JSON file, for `idmetric eval PROTOCOL --model judge:FILE`.

    {"url": "https://api.openai.com/v1", "model": "gpt-4o", "key": "OPENAI_API_KEY", "prices": [2.5, 10]}
    {"local": "Qwen/Qwen3-VL-8B-Instruct", "question": "instance"}

`url`, `model`, `key`, `timeout` and `extra` are arguments of `endpoint.Endpoint`; `local` and `revision` of
`local.LocalModel`; `question` is a name in `prompts.QUESTIONS` (default "evidence") or a file next to this one (see
`own_question`); `prices` are per million tokens in and out; `store` is the folder of answers (default: judge/ next to
the embeddings in --out); all other names are fields of `judge.Settings`. The file names the environment variable that
holds the key, never the key itself.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from idmetric.io import json_file
from idmetric.protocols.judges.endpoint import Endpoint
from idmetric.protocols.judges.judge import Backend, Judge, Settings
from idmetric.protocols.judges.own_question import read_question
from idmetric.protocols.judges.prompts import QUESTIONS, Question
from idmetric.protocols.judges.reply import JudgeError
from idmetric.protocols.judges.scorer import JudgeModel

_ENDPOINT = tuple(f.name for f in dataclasses.fields(Endpoint))
_LOCAL = ("local", "revision")
_SETTINGS = tuple(f.name for f in dataclasses.fields(Settings))
_REST = ("question", "prices", "store")


def open_judge(
    path: str | Path, *, device: torch.device | str | None = None, dtype: torch.dtype | None = None
) -> JudgeModel:
    """The judge described by a file; device and dtype apply to local models.

    Raises:
        JudgeError: naming the file and the error in it.
    """
    path = Path(path)
    try:
        given = json_file.read(path)
    except (OSError, ValueError) as error:
        raise JudgeError(f"{path}: not readable as JSON: {error}") from error

    if not isinstance(given, dict) or ("url" in given) == ("local" in given):
        raise JudgeError(
            f'{path}: give {{"url": ..., "model": ...}} for a server, or {{"local": ...}} for a model here'
        )

    known = (*(_LOCAL if "local" in given else _ENDPOINT), *_SETTINGS, *_REST)
    unknown = [name for name in given if name not in known]
    if unknown:
        raise JudgeError(f"{path}: unknown {unknown[0]!r}; there are {', '.join(known)}")

    question = _question(path, given.get("question", "evidence"))

    try:
        settings = Settings(**_chosen(given, _SETTINGS))
        prices = None if given.get("prices") is None else (float(given["prices"][0]), float(given["prices"][1]))
        store = None if given.get("store") is None else path.parent / given["store"]
        backend: Backend
        if "url" in given:
            backend = Endpoint(**_chosen(given, _ENDPOINT))
        else:
            from idmetric.protocols.judges.local import LocalModel

            backend = LocalModel(given["local"], revision=given.get("revision"), device=device, dtype=dtype)
        return JudgeModel(Judge(backend, question, settings, store=store, prices=prices))
    except JudgeError:
        raise
    except (TypeError, ValueError, LookupError, OverflowError, AttributeError) as error:
        raise JudgeError(f"{path}: {error}") from error


def _question(path: Path, given: Any) -> Question:
    if isinstance(given, str) and given in QUESTIONS:
        return QUESTIONS[given]
    if isinstance(given, str) and given.endswith((".toml", ".json")):
        return read_question(path.parent / given)
    names = ", ".join(QUESTIONS)
    raise JudgeError(f"{path}: unknown question {given!r}: choose {names}, or give a .toml or .json file")


def _chosen(given: Mapping[str, Any], names: tuple[str, ...]) -> dict[str, Any]:
    return {name: given[name] for name in names if name in given}
