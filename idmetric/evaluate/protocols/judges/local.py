"""A vision-language model on this machine, through transformers, as a judge (`pip install 'idmetric[eval]'`)."""

from __future__ import annotations

import hashlib
import io
import os
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image

from idmetric.evaluate.protocols.judges.judge import CUT_OFF, JudgeError, Reply
from idmetric.metric.checkpoints.hub import Files, Hub, fetch_folder
from idmetric.metric.files.hints import need
from idmetric.metric.models.devices import auto_device

_FILES = ["*.json", "*.safetensors", "*.txt", "*.model", "*.jinja"]  # of a Hub repository: no code, no pickles


class LocalModel:
    """Any image-text-to-text model of transformers with a chat template (Qwen-VL, InternVL, LLaVA, ...).

    Only safetensors are read and no code of a repository is run. NearID runs Qwen3-VL in bfloat16.

    Args:
        source: folder or Hub repository. revision: commit on the Hub.
        device: default CUDA, else MPS, else CPU. dtype: default the weights' own.

    Raises:
        ImportError: if transformers is missing.
        JudgeError: if the model cannot be opened. CheckpointError: if it cannot be fetched from the Hub.
    """

    def __init__(
        self,
        source: str | os.PathLike[str],
        *,
        revision: str | None = None,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        need("eval", "a local judge", transformers="transformers")
        import transformers

        self.name = os.fspath(source)
        files = Files(self.name, Hub(revision))
        folder = fetch_folder(files, _FILES)
        self.commit = files.hub.revision
        options = {"local_files_only": True, "trust_remote_code": False}
        try:
            self.processor = transformers.AutoProcessor.from_pretrained(folder, **options)
            self.model = transformers.AutoModelForImageTextToText.from_pretrained(
                folder, dtype=dtype or "auto", use_safetensors=True, **options
            )
        except (OSError, ValueError, ImportError) as error:
            raise JudgeError(f"{self.name!r} cannot be opened as a judge: {error}") from error

        self.model.to(auto_device() if device is None else torch.device(device)).eval()
        self._turn = threading.Lock()

    def about(self) -> dict[str, Any]:
        """See `judge.Backend`."""
        commit = self.commit or _state(Path(self.name))
        return {"model": self.name, "revision": commit, "dtype": str(self.model.dtype).removeprefix("torch.")}

    def ask(self, prompt: str, images: Sequence[bytes], *, max_tokens: int, temperature: float, seed: int) -> Reply:
        """See `judge.Backend`; greedy at temperature 0, and one question at a time."""
        content: list[dict[str, Any]] = [{"type": "text", "text": prompt}]
        for name, data in zip("AB", images, strict=True):
            picture = Image.open(io.BytesIO(data)).convert("RGB")
            content += [{"type": "text", "text": f"Image {name}:"}, {"type": "image", "image": picture}]
        messages = [{"role": "user", "content": content}]
        sampling: dict[str, Any] = {"do_sample": temperature > 0}
        if temperature:
            sampling["temperature"] = temperature

        devices = [self.model.device] if self.model.device.type == "cuda" else []
        with self._turn, torch.inference_mode(), torch.random.fork_rng(devices):
            torch.manual_seed(seed)
            inputs = self.processor.apply_chat_template(
                messages, add_generation_prompt=True, tokenize=True, return_dict=True, return_tensors="pt"
            ).to(self.model.device)
            prompt_length = int(inputs["input_ids"].shape[1])
            tokens = self.model.generate(**inputs, max_new_tokens=max_tokens, **sampling)[0, prompt_length:]

        problem = ""
        ends = np.atleast_1d(self.model.generation_config.eos_token_id)  # some models have several
        if len(tokens) >= max_tokens and int(tokens[-1]) not in ends:
            problem = CUT_OFF
        [text] = self.processor.batch_decode([tokens], skip_special_tokens=True)
        return Reply(text, problem, (prompt_length, len(tokens)), self.name)


def _state(folder: Path) -> str:
    """A digest that changes with any file of a local model."""
    facts = []
    for path in sorted(folder.glob("*")):
        if path.is_file():
            state = path.stat()
            facts.append(f"{path.name},{state.st_size},{state.st_mtime_ns}")
    return hashlib.sha256(";".join(facts).encode()).hexdigest()[:16]
