"""What reads malformed inputs, and the errors that it may raise.

An error counts as typed if it is of one of the package's own classes that the reader names, or, where the reader says
so, a plain ValueError (not a subclass that some library raised) that names the file. All else is a crash.
"""

from __future__ import annotations

import json
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any

import torch
from safetensors.torch import save

from idmetric import load
from idmetric.calibration import apply as calibration
from idmetric.calibration.apply import CalibrationError
from idmetric.checkpoints import format as checkpoint
from idmetric.checkpoints.errors import CheckpointError, understanding
from idmetric.checkpoints.lora import merge_lora
from idmetric.checkpoints.released_idsim import read_head
from idmetric.data.curate.filters import read_rules
from idmetric.data.frames.clips import Clip, ClipError
from idmetric.data.frames.footage import read_boxes
from idmetric.data.manifest.table import Manifest, ManifestError, Row, read
from idmetric.distance.finite import NonFiniteError
from idmetric.gallery.errors import GalleryError
from idmetric.gallery.index import read_index
from idmetric.images.masks import read_indices, read_mask
from idmetric.images.read import ImageReadError, load_batch, read_image
from idmetric.images.regions import cut_out
from idmetric.io import json_file
from idmetric.io.settings import from_file
from idmetric.models.embedding import Embedding
from idmetric.protocols.judges.endpoint import CallError, JudgeError
from idmetric.protocols.judges.questions import QUESTIONS, AnswerError
from idmetric.protocols.judges.reply import reply_of
from idmetric.protocols.judges.scorer import open_judge
from idmetric.protocols.nearid_table2_dreambench.ratings import _read_lists
from idmetric.protocols.study.study import Study
from idmetric.protocols.study.votes import AnswersError, read_answers
from idmetric.scoring.pairs import PairsFile
from idmetric.scoring.scores import RequestError
from idmetric.train import state
from idmetric.train.loop import Settings
from idmetric.train.run_folder import read as read_record
from idmetric.train.state import TrainError
from tests.fuzz import images, tables, texts, weights

Make = Callable[[Random, Path], Any]


@dataclass(frozen=True)
class Reader:
    """One way into the package.

    Args:
        make: write a malformed input into an empty folder; returns what `read` takes.
        read: read it.
        typed: the errors it may raise. plain: also a plain ValueError that names the file.
        share: of all inputs, in relation to the other readers.
    """

    make: Make
    read: Callable[[Any], object]
    typed: tuple[type[BaseException], ...]
    share: int
    plain: bool = False


def outcome(reader: Reader, seed: str, folder: Path) -> str:
    """ "typed", "accepted", or what went wrong, of the input with this seed; `folder` is empty."""
    target = reader.make(Random(seed), folder)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            reader.read(target)
    except reader.typed as error:
        return "typed" if str(error).strip() else f"{type(error).__name__} without a message"
    except Exception as error:
        if reader.plain and type(error) is ValueError and str(target) in str(error):
            return "typed"
        return f"{type(error).__name__}: {error}"[:300]
    return "accepted"


def file(name: str, make: Callable[[Random], bytes]) -> Make:
    """What writes a malformed file of this name."""

    def write(rng: Random, folder: Path) -> Path:
        (folder / name).write_bytes(make(rng))
        return folder / name

    return write


def all_readers() -> dict[str, Reader]:
    """Every reader by name."""

    def of(name: str, value: Any) -> Make:
        return file(name, lambda rng: texts.one(value, rng))

    image = file("image.bin", images.malformed)
    return {
        "image file": Reader(image, read_image, (ImageReadError,), 24),
        "image in memory": Reader(
            lambda rng, _: images.malformed(rng), lambda x: load_batch(x, (16, 16)), (ImageReadError,), 10
        ),
        "mask": Reader(image, lambda path: read_mask(path, (16, 16)), (ImageReadError,), 12),
        "indexed mask": Reader(image, read_indices, (ImageReadError,), 6),
        "masked image": Reader(
            lambda rng, _: [images.malformed(rng) for _ in "ab"], lambda x: cut_out(*x, "crop"), (ImageReadError,), 4
        ),
        "manifest CSV": Reader(file("m.csv", tables.csv_file), _manifest, (ManifestError,), 14),
        "manifest JSON lines": Reader(file("m.jsonl", tables.lines_file), _manifest, (ManifestError,), 14),
        "manifest Parquet": Reader(file("m.parquet", tables.parquet_file), _manifest, (ManifestError,), 14),
        "pairs CSV": Reader(file("p.csv", tables.pairs_file), lambda path: list(PairsFile(path)), (RequestError,), 8),
        "model folder": Reader(weights.model_folder, _load, (CheckpointError,), 16),
        "SigLIP folder": Reader(_siglip_folder, _load, (CheckpointError,), 4),
        "ID-Sim head": Reader(file("mlp_cls.pth", weights.pickle_file), _head, (CheckpointError,), 3),
        "adapter settings": Reader(of("adapter_config.json", texts.ADAPTER), _fold, (CheckpointError,), 3),
        "embedding file": Reader(
            file("e.safetensors", weights.embedding_file), Embedding.load, (NonFiniteError,), 8, plain=True
        ),
        "training checkpoint": Reader(_checkpoint, _resume, (TrainError,), 6),
        "calibration": Reader(of("c.json", texts.CALIBRATION), _calibration, (CalibrationError,), 8),
        "judge file": Reader(of("j.json", texts.JUDGE), open_judge, (JudgeError,), 6),
        "judge's reply": Reader(of("r.json", texts.REPLY), _reply, (CallError,), 4),
        "judge's answer": Reader(file("a.json", texts.answer), _answer, (AnswerError,), 4),
        "gallery": Reader(
            file("images.jsonl", lambda rng: texts.lines(texts.GALLERY, rng)),
            lambda path: read_index(path.parent),
            (GalleryError,),
            6,
        ),
        "rules": Reader(of("rules.json", texts.RULES), read_rules, (), 4, plain=True),
        "rules TOML": Reader(file("rules.toml", texts.toml), read_rules, (), 2, plain=True),
        "training settings": Reader(of("t.json", texts.SETTINGS), _settings, (), 4, plain=True),
        "training settings TOML": Reader(file("t.toml", texts.toml), _settings, (), 2, plain=True),
        "run folder": Reader(of("recipe.json", texts.RECORD), lambda path: read_record(path.parent), (TrainError,), 4),
        "boxes": Reader(file("groundtruth.txt", texts.boxes), _boxes, (ClipError,), 3),
        "ratings": Reader(of("ratings.json", texts.RATINGS), _read_lists, (), 3, plain=True),
        "participant's answers": Reader(of("answers.json", texts.ANSWERS), _answers, (AnswersError,), 3),
    }


def _manifest(path: Path) -> None:
    """Read, and do all that a manifest promises; what it accepts it can also write and read again."""
    manifest = read(path)
    repr(manifest)
    rows = list(manifest)
    manifest.sources()
    manifest.at(path.parent / "elsewhere")
    manifest.write(path.with_name("again.parquet"))
    assert len(read(path.with_name("again.parquet"))) == len(rows)


def _load(folder: Path) -> None:
    load(folder, device="cpu")


def _siglip_folder(rng: Random, folder: Path) -> Path:
    """A model in the form of NearID's authors, with spoilt settings."""
    vision = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 2,
              "image_size": 28, "patch_size": 14, "hidden_act": "gelu_pytorch_tanh"}  # fmt: skip
    processor = {"size": {"height": 28, "width": 28}, "resample": 2, "image_mean": [0.5] * 3, "image_std": [0.5] * 3,
                 "do_resize": True, "rescale_factor": 1 / 255}  # fmt: skip
    files: dict[str, Any] = {
        "config.json": {"model_type": "nearid", "embed_dim": 32, "vision_config": vision},
        "preprocessor_config.json": processor,
    }
    bad = rng.choice(sorted(files))
    for name, value in files.items():
        (folder / name).write_bytes(texts.one(value, rng) if name == bad else json.dumps(value).encode())
    (folder / "model.safetensors").write_bytes(weights.siglip_bytes())
    return folder


def _head(path: Path) -> None:
    read_head(path, {"lora_alpha": 8})
    assert not Path("/tmp/idmetric-fuzz-ran").exists(), "a pickle ran code"


def _fold(path: Path) -> None:
    name = f"blocks.{'a' * 30}"
    adapter = {f"{name}.lora_A.weight": torch.zeros(2, 4), f"{name}.lora_B.weight": torch.zeros(4, 2)}
    config = checkpoint.read_json(path)
    with understanding(path):
        merge_lora({f"{name}.weight": torch.zeros(4, 4)}, adapter, config)


def _checkpoint(rng: Random, folder: Path) -> Path:
    data = save({"model/weight": torch.zeros(2, 2), "optimizer/0/exp_avg": torch.zeros(2, 2)})
    (folder / "state.safetensors").write_bytes(weights.tensors_file(data, rng) if rng.random() < 0.5 else data)
    (folder / "state.json").write_bytes(texts.one(texts.STATE, rng))
    return folder


def _resume(folder: Path) -> None:
    module = torch.nn.Linear(2, 2, bias=False)
    scaler = torch.amp.GradScaler("cpu", enabled=False)
    state.load(folder, {"model": module}, torch.optim.SGD(module.parameters(), 0.1), scaler)


def _calibration(path: Path) -> None:
    calibration.read(path).probability([0.0, 0.5, 1.0])


def _reply(path: Path) -> None:
    try:
        found = json_file.read(path)
    except ValueError as error:  # as a request does
        raise CallError(str(error)) from error
    reply_of(found, "m")


def _answer(path: Path) -> None:
    text = path.read_bytes().decode("utf-8", "replace")
    question = QUESTIONS["instance" if "same_instance" in text else "evidence"]
    assert 0 <= question.similarity(question.parse(text)) <= 1


def _settings(path: Path) -> None:
    from_file(path, Settings)


def _boxes(path: Path) -> None:
    read_boxes(Clip("c", path.parent, boxes=path), 5)


def _answers(path: Path) -> None:
    rows = [Row("a", "a.png", group=k * 12, slot=slot) for k in "01" for slot in ("anchor", "candidate")]
    items = Manifest.from_rows(rows).replace(x_page=1, x_sentinel="")
    read_answers(path, {"0" * 16: Study("0" * 16, "pairs", "t", 9, "0" * 16, items)})
