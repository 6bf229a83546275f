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

from tests.fuzz import images, tables, texts, weights

Make = Callable[[Random, Path], Any]
Read = Callable[[Any], object]


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
    read: Read
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
        return (
            "typed"
            if str(error).strip() or isinstance(error, SystemExit)
            else f"{type(error).__name__} without a message"
        )
    except Exception as error:
        if reader.plain and type(error) is ValueError:
            return "typed" if str(target) in str(error) else f"ValueError that does not name the file: {error}"[:300]
        return f"{type(error).__name__}: {error}"[:300]
    return "accepted"


def _file(name: str, make: Callable[[Random], bytes]) -> Make:
    def write(rng: Random, folder: Path) -> Path:
        (folder / name).write_bytes(make(rng))
        return folder / name

    return write


def all_readers() -> dict[str, Reader]:
    """Every reader by name."""
    return {**_images(), **_tables(), **_models(), **_texts(), **_scale(), **_commands()}


# Images


def _images() -> dict[str, Reader]:
    from idmetric.images.masks import read_indices, read_mask
    from idmetric.images.read import ImageReadError, load_batch, read_image

    make = _file("image.bin", images.malformed)
    in_memory: Make = lambda rng, _: images.malformed(rng)  # noqa: E731
    batch: Read = lambda data: load_batch(data, (16, 16))  # noqa: E731
    return {
        "image file": Reader(make, read_image, (ImageReadError,), 24),
        "image in memory": Reader(in_memory, batch, (ImageReadError,), 10),
        "mask": Reader(make, lambda path: read_mask(path, (16, 16)), (ImageReadError,), 12),
        "indexed mask": Reader(make, read_indices, (ImageReadError,), 6),
        "masked image": Reader(lambda rng, _: (images.malformed(rng), images.malformed(rng)), _cut,
        (ImageReadError,), 4),
    }  # fmt: skip


def _cut(pair: tuple[bytes, bytes]) -> None:
    from idmetric.images.masks import cut_out

    cut_out(*pair, "crop")


# Tables


def _tables() -> dict[str, Reader]:
    from idmetric.data.manifest.table import ManifestError
    from idmetric.scoring.pairs import PairsFile
    from idmetric.scoring.scores import RequestError

    return {
        "manifest CSV": Reader(_file("m.csv", tables.csv_file), _manifest, (ManifestError,), 14),
        "manifest JSON lines": Reader(_file("m.jsonl", tables.lines_file), _manifest, (ManifestError,), 14),
        "manifest Parquet": Reader(_file("m.parquet", tables.parquet_file), _manifest, (ManifestError,), 14),
        "pairs CSV": Reader(
            _file("pairs.csv", tables.pairs_file), lambda path: list(PairsFile(path)), (RequestError,), 8
        ),
    }


def _manifest(path: Path) -> None:
    """Read, and do all that a manifest promises; what it accepts it can also write and read again."""
    from idmetric.data.manifest.table import read

    manifest = read(path)
    repr(manifest)
    rows = list(manifest)
    manifest.sources()
    manifest.at(path.parent / "elsewhere")
    manifest.write(path.with_name("again.parquet"))
    assert len(read(path.with_name("again.parquet"))) == len(rows)


# Models


def _models() -> dict[str, Reader]:
    from idmetric.checkpoints.errors import CheckpointError
    from idmetric.distance.finite import NonFiniteError
    from idmetric.models.embedding import Embedding
    from idmetric.store.store import DamagedShardError
    from idmetric.train.state import TrainError

    return {
        "model folder": Reader(weights.model_folder, _load, (CheckpointError,), 16),
        "SigLIP folder": Reader(_siglip_folder, _load, (CheckpointError,), 4),
        "ID-Sim head": Reader(_file("mlp_cls.pth", weights.pickle_file), _head, (CheckpointError,), 3),
        "adapter settings": Reader(_adapter, _fold, (CheckpointError,), 3),
        "embedding file": Reader(_file("e.safetensors", weights.embedding_file), Embedding.load, (NonFiniteError,), 8,
        plain=True),
        "shard": Reader(_file("s.safetensors", lambda rng: weights.embedding_file(rng, True)), _shards,
        (DamagedShardError,), 8),
        "training checkpoint": Reader(_checkpoint, _resume, (TrainError,), 6),
    }  # fmt: skip


def _load(folder: Path) -> None:
    from idmetric import load

    load(folder, device="cpu")


def _siglip_folder(rng: Random, folder: Path) -> Path:
    """A model in the form of NearID's authors, with spoilt settings."""
    vision = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 2,
    "image_size": 28,
              "patch_size": 14, "hidden_act": "gelu_pytorch_tanh"}  # fmt: skip
    config = {"model_type": "nearid", "embed_dim": 32, "vision_config": vision}
    processor = {"size": {"height": 28, "width": 28}, "resample": 2, "image_mean": [0.5] * 3, "image_std": [0.5] * 3,
                 "do_resize": True, "rescale_factor": 1 / 255}  # fmt: skip
    data, bad = weights.siglip_bytes(), rng.randrange(3)
    for k, (name, value) in enumerate((("config.json", config), ("preprocessor_config.json", processor))):
        (folder / name).write_bytes(texts.one(value, rng) if bad == k else json.dumps(value).encode())
    (folder / "model.safetensors").write_bytes(weights.tensors_file(data, rng) if bad == 2 else data)
    return folder


def _head(path: Path) -> None:
    from idmetric.checkpoints.released_idsim import read_head

    read_head(path, {"lora_alpha": 8})
    assert not Path("/tmp/idmetric-fuzz-ran").exists(), "a pickle ran code"


def _adapter(rng: Random, folder: Path) -> Path:
    config = {
        "peft_type": "LORA",
        "lora_alpha": 8,
        "r": 4,
        "alpha_pattern": {"b": 4, "(a+)+$": 2, "blocks.*": 1},
        "use_rslora": True,
    }
    (folder / "adapter_config.json").write_bytes(texts.one(config, rng))
    return folder / "adapter_config.json"


def _fold(path: Path) -> None:
    import torch

    from idmetric.checkpoints import format as checkpoint
    from idmetric.checkpoints.errors import understanding
    from idmetric.checkpoints.lora import merge_lora

    state = {f"blocks.{'a' * 30}.weight": torch.zeros(4, 4)}
    adapter = {
        f"blocks.{'a' * 30}.lora_A.weight": torch.zeros(2, 4),
        f"blocks.{'a' * 30}.lora_B.weight": torch.zeros(4, 2),
    }
    config = checkpoint.read_json(path)
    with understanding(path):
        merge_lora(state, adapter, config)


def _shards(path: Path) -> None:
    from idmetric.store.store import Store

    found = Store(path.parent, patches=True)
    keys = [key for key in ("a", "b", "c") if key in found]
    found.vectors(keys)
    if keys:
        found.embedding(keys[::-1])
    found.check()


def _checkpoint(rng: Random, folder: Path) -> Path:
    import torch
    from safetensors.torch import save

    place = folder / "checkpoints" / "step-000100"
    place.mkdir(parents=True)
    data = save({"model/weight": torch.zeros(2, 2), "optimizer/0/exp_avg": torch.zeros(2, 2)})
    (place / "state.safetensors").write_bytes(weights.tensors_file(data, rng) if rng.random() < 0.5 else data)
    (place / "state.json").write_bytes(texts.one(texts.STATE, rng))
    return place


def _resume(folder: Path) -> None:
    import torch

    from idmetric.train import state

    module = torch.nn.Linear(2, 2, bias=False)
    state.load(
        folder, {"model": module}, torch.optim.SGD(module.parameters(), 0.1), torch.amp.GradScaler("cpu", enabled=False)
    )


# Texts


def _texts() -> dict[str, Reader]:
    from idmetric.calibration import apply as calibration
    from idmetric.calibration.apply import CalibrationError
    from idmetric.data.curate.filters import read_rules
    from idmetric.data.frames.clips import ClipError
    from idmetric.data.generate.categories import read_categories
    from idmetric.data.generate.errors import GenerateError
    from idmetric.gallery.errors import GalleryError
    from idmetric.gallery.index import read_index
    from idmetric.protocols.judges.endpoint import CallError, JudgeError
    from idmetric.protocols.judges.file import open_judge
    from idmetric.protocols.judges.prompts import AnswerError
    from idmetric.protocols.study.votes import AnswersError
    from idmetric.train import log
    from idmetric.train.run_folder import read as read_record
    from idmetric.train.state import TrainError

    def of(name: str, value: Any) -> Make:
        return _file(name, lambda rng: texts.one(value, rng))

    platt = {**texts.CALIBRATION, "curve": {"slope": 2.0, "intercept": -1.0}}
    steps = {**texts.CALIBRATION, "method": "isotonic", "curve": {"scores": [0.1, 0.5], "probabilities": [0.2, 0.9]}}
    return {
        "calibration": Reader(
            _file("c.json", lambda rng: texts.one(rng.choice((platt, steps)), rng)),
            lambda path: calibration.read(path).probability([0.0, 0.5, 1.0]), (CalibrationError,), 8,
        ),
        "judge file": Reader(of("j.json", texts.JUDGE), open_judge, (JudgeError,), 6),
        "judge's reply": Reader(of("r.json", texts.REPLY), _reply, (CallError,), 4),
        "judge's answer": Reader(_file("a.json", texts.answer), _answer, (AnswerError,), 4),
        "judge's store": Reader(of("a.json", {"answer": texts.EVIDENCE}), _stored, (), 2),
        "gallery": Reader(
            lambda rng, folder: (_file("images.jsonl", lambda r: texts.lines(texts.GALLERY, r))(rng, folder)).parent,
            read_index, (GalleryError,), 6,
        ),
        "rules": Reader(of("rules.json", texts.RULES), read_rules, (), 4, plain=True),
        "rules TOML": Reader(_file("rules.toml", texts.toml), read_rules, (), 2, plain=True),
        "training settings": Reader(of("t.json", texts.SETTINGS), _settings, (), 4, plain=True),
        "training settings TOML": Reader(_file("t.toml", texts.toml), _settings, (), 2, plain=True),
        "run folder": Reader(_run_folder, lambda folder: read_record(folder), (TrainError,), 4),
        "training log": Reader(_file("log.jsonl", lambda rng: texts.lines(texts.LOG, rng)), lambda p: log.truncate(p,
        3), (), 3),
        "categories": Reader(_file("c.txt", texts.boxes), read_categories, (GenerateError,), 2),
        "boxes": Reader(_file("groundtruth.txt", texts.boxes), _boxes, (ClipError,), 3),
        "ratings": Reader(of("ratings.json", texts.RATINGS), _ratings, (), 3, plain=True),
        "participant's answers": Reader(of("answers.json", texts.ANSWERS), _answers, (AnswersError,), 3),
        "journal": Reader(_journal, _journals, (), 3),
        "world's rows": Reader(_world, _world_rows, (), 3, plain=True),
        "weights' fingerprint": Reader(_file("w.safetensors", weights.embedding_file), _fingerprint, (), 2),
    }  # fmt: skip


def _reply(path: Path) -> None:
    from idmetric.io import json_file
    from idmetric.protocols.judges.reply import CallError, reply_of

    try:
        found = json_file.read(path)
    except ValueError as error:  # as a request does
        raise CallError(str(error)) from error
    reply_of(found, "m")


def _answer(path: Path) -> None:
    from idmetric.protocols.judges.prompts import QUESTIONS

    text = path.read_bytes().decode("utf-8", "replace")
    question = QUESTIONS["instance" if "same_instance" in text else "evidence"]
    assert 0 <= question.similarity(question.parse(text)) <= 1


def _stored(path: Path) -> None:
    from idmetric.protocols.judges.prompts import EVIDENCE
    from idmetric.protocols.judges.records import Answers

    (path.parent / "aa").mkdir()
    path.rename(path.parent / "aa" / "aa11.json")
    Answers(path.parent).load("aa11", EVIDENCE)


def _settings(path: Path) -> None:
    from idmetric.io.settings import from_file
    from idmetric.train.loop import Settings

    from_file(path, Settings)


def _run_folder(rng: Random, folder: Path) -> Path:
    if rng.random() < 0.9:
        (folder / "recipe.json").write_bytes(texts.one(texts.RECORD, rng))
    if rng.random() < 0.3:
        (folder / rng.choice(("x", "log.jsonl", "checkpoints"))).write_bytes(b"")
    return folder


def _boxes(path: Path) -> None:
    from idmetric.data.frames.clips import Clip
    from idmetric.data.frames.footage import read_boxes

    read_boxes(Clip("c", path.parent, boxes=path), 5)


def _ratings(path: Path) -> None:
    from idmetric.protocols.nearid_table2_dreambench.ratings import _read_lists

    _read_lists(path)


def _answers(path: Path) -> None:
    from idmetric.data.manifest.table import Manifest, Row
    from idmetric.protocols.study.study import Study
    from idmetric.protocols.study.votes import read_answers

    rows = [Row("a", "a.png", group=k * 12, slot=slot) for k in "01" for slot in ("anchor", "candidate")]
    items = Manifest.from_rows(rows).replace(x_page=1, x_sentinel="")
    read_answers(path, {"0" * 16: Study("0" * 16, "pairs", "t", 9, "0" * 16, items)})


def _journal(rng: Random, folder: Path) -> Path:
    entries = [{"name": f"n{k}", "files": ["a.png"], "seed": k} for k in range(4)]
    (folder / "journal-1-of-1.jsonl").write_bytes(texts.lines(entries, rng))
    return folder


def _journals(folder: Path) -> None:
    from idmetric.data.generate.journal import Journals

    with Journals(folder) as journals:
        for k in range(4):
            list(journals.entries(f"n{k}"))


def _world(rng: Random, folder: Path) -> Path:
    from idmetric.data.world.folder import ROWS, place_of

    place = folder / place_of(0)
    place.mkdir(parents=True)
    for name in ("0.png", "m.png"):
        (place / name).write_bytes(b"x")
    (place / ROWS).write_bytes(texts.lines([texts.WORLD, {**texts.WORLD, "id": "w-000000/1"}], rng))
    return folder


def _world_rows(folder: Path) -> None:
    from idmetric.data.world.folder import read_rows

    read_rows(folder, 0)


def _fingerprint(path: Path) -> None:
    from idmetric.data.generate.fingerprint import fingerprint

    fingerprint(path)


# Folders of embeddings


def _scale() -> dict[str, Reader]:
    from idmetric.scale import ScaleError
    from tests.fuzz import scale

    return {
        "embeddings part": Reader(scale.part, scale.read_part, (ScaleError,), 6),
        "embeddings head": Reader(scale.head, scale.open_folder, (ScaleError,), 4),
        "list of images": Reader(scale.listing, scale.read_list, (ScaleError,), 4),
        "table of images": Reader(_file("m.parquet", tables.parquet_file), scale.read_table, (ScaleError,), 6),
    }


# Command lines


def _commands() -> dict[str, Reader]:
    from tests.fuzz import commands

    return {
        f"idmetric-{name}": Reader(commands.line(name), commands.run(name), (SystemExit,), 4) for name in commands.NAMES
    }
