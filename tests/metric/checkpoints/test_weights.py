"""Weights of every loader: stored as floats, finite as loaded, an exact fit, from the folder's own files alone."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from idmetric import CheckpointError, VisIDEmbed, load
from idmetric.evaluate.protocols.common.dual_encoder import DualEncoder
from idmetric.metric.checkpoints.pretrained import folder_revision
from idmetric.metric.checkpoints.weights import SCALE
from tests.metric.checkpoints.test_released import VARIANTS, publish
from tests.weight_parts import LOADERS, WEIGHTS, Loader, numbers_of, used_tensor

pytest.importorskip("transformers", reason="pip install 'idmetric[eval]'")
pytestmark = pytest.mark.filterwarnings("ignore::FutureWarning", "ignore::UserWarning")
WHOLE = [name for name, loader in LOADERS.items() if loader.whole]


@pytest.fixture(scope="module")
def originals(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """The folder of each loader, made once."""
    root = tmp_path_factory.mktemp("weights")

    def folder_of(name: str) -> Path:
        folder = root / name.replace(" ", "-")
        if not folder.exists():
            folder.mkdir()
            LOADERS[name].write(folder)
        return folder

    return folder_of


@pytest.fixture
def copy(originals: Callable[[str], Path], tmp_path: Path) -> Callable[[str], tuple[Loader, Path]]:
    """A loader and a copy of its folder."""
    return lambda name: (LOADERS[name], Path(shutil.copytree(originals(name), tmp_path / "copy")))


Copy = Callable[[str], tuple[Loader, Path]]


def change(folder: Path, key: str, value: Tensor | None) -> None:
    """Replace a tensor of a folder's file, or leave it out."""
    state = load_file(folder / WEIGHTS)
    state.pop(key, None)
    if value is not None:
        state[key] = value
    save_file(state, folder / WEIGHTS, {"format": "pt"})


def refusal(loader: Loader, folder: Path) -> str:
    with pytest.raises(CheckpointError) as caught:
        numbers_of(loader, folder)
    return str(caught.value)


# Types, values and shapes


@pytest.mark.parametrize("name", LOADERS)
def test_a_tensor_of_another_type_value_or_shape_is_refused(name: str, copy: Copy) -> None:
    loader, folder = copy(name)
    expected = numbers_of(loader, folder)
    state = load_file(folder / WEIGHTS)
    key = used_tensor(loader, state)
    weight = state[key]
    change(folder, key, weight.double())
    torch.testing.assert_close(numbers_of(loader, folder), expected)

    not_finite = weight.clone()
    not_finite.view(-1)[0] = float("nan")
    for value in (weight.to(torch.int8), weight.bool(), weight.long(), not_finite):
        change(folder, key, value)
        assert ".".join(key.split(".")[-2:]) in refusal(loader, folder)  # transformers may name what is around it
    for wrong in (weight.double() * 1e300, weight[:-1], weight.mT[None], torch.tensor(1.0), torch.zeros(0), None):
        change(folder, key, None if wrong is None else wrong.contiguous())
        refusal(loader, folder)
    change(folder, key, weight)
    change(folder, key.replace("weight", "more"), torch.zeros(3))
    refusal(loader, folder)


@pytest.mark.parametrize(
    ("name", "key", "table"),
    [
        ("dual", "text_model.embeddings.position_ids", torch.arange(12)[None]),
        ("dual", "text_model.embeddings.position_ids", torch.arange(12.0)[None]),
        ("VisID", "visual.rotary_pos_emb.inv_freq", torch.ones(4)),
    ],
)
def test_tables_that_the_class_computes_may_be_in_the_file(name: str, key: str, table: Tensor, copy: Copy) -> None:
    """As in files of older versions of transformers."""
    loader, folder = copy(name)
    expected = numbers_of(loader, folder)
    change(folder, key, table)
    assert numbers_of(loader, folder).equal(expected)
    change(folder, f"{key}.more", table)
    refusal(loader, folder)


@pytest.mark.parametrize("name", ["owlv2", "PerSAM"])
def test_models_of_half_precision_open_in_float32(name: str, copy: Copy) -> None:
    """Their numbers are those of the same weights stored in float32."""
    loader, folder = copy(name)
    state = {key: value.bfloat16() for key, value in load_file(folder / WEIGHTS).items()}
    save_file({key: value.float() for key, value in state.items()}, folder / WEIGHTS, {"format": "pt"})
    expected = numbers_of(loader, folder)
    save_file(state, folder / WEIGHTS, {"format": "pt"})
    set_in(folder / "config.json", "", "dtype", "bfloat16")
    assert numbers_of(loader, folder).equal(expected)


@pytest.mark.parametrize("file", ["adapter_model.safetensors", "mlp_cls.pth", "trunk.safetensors"])
def test_each_file_of_the_release_is_checked_before_it_is_merged(file: str, tmp_path: Path) -> None:
    """Merging would turn int8 into floats, and hide where NaN comes from."""
    adapter, trunk, _ = publish(tmp_path, "dinov3_vitb16")
    path = trunk if file == "trunk.safetensors" else adapter / file
    is_pickled = path.suffix == ".pth"
    state = torch.load(path, weights_only=True) if is_pickled else load_file(path)
    key = max(name for name, value in state.items() if value.ndim > 1)
    for value in (state[key].to(torch.int8), state[key] * float("nan")):
        changed = state | {key: value}
        torch.save(changed, path) if is_pickled else save_file(changed, path)
        with pytest.raises(CheckpointError, match=f"{file}.*{key}"):
            load(adapter, backbone_weights=trunk, backbone_args=VARIANTS["dinov3_vitb16"], device="cpu")


@pytest.mark.parametrize("kind", [DualEncoder, VisIDEmbed])
def test_float32_beyond_float16_is_refused_in_float16_alone(kind: Any, copy: Copy) -> None:
    loader, folder = copy("dual" if kind is DualEncoder else "VisID")
    state = load_file(folder / WEIGHTS)
    key = used_tensor(loader, state)
    state[key].view(-1)[0] = 3e38
    change(folder, key, state[key])
    with pytest.raises(CheckpointError, match="float16"):
        kind(str(folder), device="cpu", dtype=torch.float16)


# names of two releases, that transformers maps to one tensor
TWO_NAMES = {
    "VisID": ("model.layers.1.self_attn.q_proj.weight", "model.language_model.layers.1.self_attn.q_proj.weight"),
    "dual": ("text_model.encoder.layers.1.mlp.fc1.weight", "clip.text_model.encoder.layers.1.mlp.fc1.weight"),
}


@pytest.mark.parametrize("name", TWO_NAMES)
def test_a_tensor_by_two_names_is_refused(name: str, copy: Copy) -> None:
    loader, folder = copy(name)
    state = load_file(folder / WEIGHTS)
    [first, second] = TWO_NAMES[name]
    if first not in state:
        first, second = second, first
    for value in (state[first].clone(), state[first] + 1):
        change(folder, second, value)
        refusal(loader, folder)


def test_open_models_do_not_change_with_their_files(copy: Copy) -> None:
    _, folder = copy("dual")
    model = DualEncoder(str(folder), device="cpu")
    expected = model.texts(["a mug"])
    with (folder / WEIGHTS).open("r+b") as file:
        file.seek(-(file.seek(0, 2) // 2), 2)
        file.write(bytes(4096))
    assert model.texts(["a mug"]).equal(expected)


def test_scales_of_int8_belong_to_an_int8_tensor_of_their_length(copy: Copy) -> None:
    loader, folder = copy("IDSim in int8")
    state = load_file(folder / WEIGHTS)
    key = "backbone.blocks.1.attn.qkv.weight"
    assert state[key].dtype is torch.int8
    scale = state[key + SCALE]
    cases: list[dict[str, Tensor | None]] = [
        {f"absent{SCALE}": scale.clone()},
        {key + SCALE: scale[:1]},
        {key + SCALE: torch.tensor(1.0)},
        {key + SCALE: scale.long()},
        {key + SCALE: None},
        {key + SCALE: scale * 0 + 3e38},
        {key: state[key].float()},
        {f"backbone.patch_embed.proj.weight{SCALE}": torch.ones(48)},
    ]
    for changes in cases:
        changed = {name: value for name, value in (state | changes).items() if value is not None}
        save_file(changed, folder / WEIGHTS)
        assert min(changes).removesuffix(SCALE) in refusal(loader, folder)


# Shards


def shard(folder: Path, second: str) -> dict[str, Tensor]:
    """Split a folder's weights in two files, the second of that name in the index; returns its tensors."""
    state = load_file(folder / WEIGHTS)
    (folder / WEIGHTS).unlink()
    names = sorted(state)
    halves = {"model-1.safetensors": names[::2], second: names[1::2]}
    weight_map = {}
    for file, keys in halves.items():
        path = folder / file
        path.parent.mkdir(exist_ok=True)
        save_file({key: state[key] for key in keys}, path, {"format": "pt"})
        weight_map |= dict.fromkeys(keys, file)
    (folder / f"{WEIGHTS}.index.json").write_text(json.dumps({"metadata": {}, "weight_map": weight_map}))
    return {key: state[key] for key in names[1::2]}


@pytest.mark.parametrize("name", WHOLE)
def test_shards_give_the_same_numbers_and_count_in_the_revision(name: str, copy: Copy) -> None:
    loader, folder = copy(name)
    expected = numbers_of(loader, folder)
    tensors = shard(folder, "part/model-2.safetensors")
    torch.testing.assert_close(numbers_of(loader, folder), expected)
    before = folder_revision(folder)
    changed = {key: value * 0.5 for key, value in tensors.items()}
    save_file(changed, folder / "part/model-2.safetensors", {"format": "pt"})
    assert folder_revision(folder) != before
    numbers_of(loader, folder)


@pytest.mark.parametrize("kind", ["up", "absolute", "link", "linked folder"])
@pytest.mark.parametrize("name", ["dual", "VisID"])
def test_an_index_cannot_lead_out_of_its_folder(name: str, kind: str, copy: Copy, tmp_path: Path) -> None:
    loader, folder = copy(name)
    (tmp_path / "outside").mkdir()
    second = {
        "up": "../outside/model-2.safetensors",
        "absolute": str(tmp_path / "outside" / "model-2.safetensors"),
        "link": "model-2.safetensors",
        "linked folder": "part/model-2.safetensors",
    }[kind]
    if kind == "linked folder":
        (folder / "part").symlink_to(tmp_path / "outside")
    shard(folder, second)
    if kind == "link":
        path = folder / "model-2.safetensors"
        path.rename(tmp_path / "outside" / "model-2.safetensors")
        path.symlink_to(tmp_path / "outside" / "model-2.safetensors")
    assert second in refusal(loader, folder)


def test_a_damaged_index_and_a_tensor_in_two_shards_are_named(copy: Copy) -> None:
    loader, folder = copy("dual")
    tensors = shard(folder, "model-2.safetensors")
    index = folder / f"{WEIGHTS}.index.json"
    first = load_file(folder / "model-1.safetensors")
    save_file(first | {min(tensors): tensors[min(tensors)]}, folder / "model-1.safetensors", {"format": "pt"})
    assert min(tensors) in refusal(loader, folder)
    for text in ("{}", "[]", '{"weight_map": {"a": 5}}', '{"weight_map": ["a"]}', '{"weight_map": {}}', "{"):
        index.write_text(text)
        assert refusal(loader, folder)


# Settings


def set_in(path: Path, place: str, setting: str, value: Any) -> None:
    """Add a setting to a JSON file, at the top or in the object `place`."""
    config = json.loads(path.read_text())
    target = config[place] if place else config
    target[setting] = value
    path.write_text(json.dumps(config))


SETTINGS: list[tuple[str, Any]] = [
    ("_attn_implementation", "owner/kernel"),
    ("attn_implementation", {"text_config": "owner/kernel"}),
    ("experts_implementation", "owner/kernel"),
    ("auto_map", {"AutoModel": "owner/code--modeling.Model"}),
    ("custom_pipelines", {"x": {"impl": "code.Pipeline"}}),
    ("quantization_config", {"quant_method": "gptq", "bits": 4}),
    ("use_timm_backbone", True),
    ("backbone", "hf-hub:owner/name"),
    ("backbone_config", {"model_type": "timm_backbone", "backbone": None}),
    ("configuration_files", ["config.1.0.0.json"]),
    ("transformers_weights", "other.safetensors"),
]


@pytest.mark.parametrize(("setting", "value"), SETTINGS, ids=str)
def test_a_config_that_would_fetch_or_import_is_refused(
    setting: str, value: Any, copy: Copy, monkeypatch: pytest.MonkeyPatch
) -> None:
    loader, folder = copy("dual")
    monkeypatch.setattr("transformers.CLIPModel.from_pretrained", lambda *_, **__: pytest.fail("it was opened"))
    original = (folder / "config.json").read_text()
    for place in ("", "text_config"):
        set_in(folder / "config.json", place, setting, value)
        assert "config.json" in refusal(loader, folder)
        (folder / "config.json").write_text(original)


@pytest.mark.parametrize("name", WHOLE)
def test_every_loader_refuses_code_adapters_and_other_kinds(name: str, copy: Copy) -> None:
    loader, folder = copy(name)
    original = (folder / "config.json").read_text()
    for setting, value in (("_attn_implementation", "owner/kernel"), ("model_type", "vit")):
        set_in(folder / "config.json", "", setting, value)
        assert value in refusal(loader, folder)
        (folder / "config.json").write_text(original)
    (folder / "adapter_config.json").write_text('{"peft_type": "LORA", "base_model_name_or_path": "owner/base"}')
    assert "adapter_config.json" in refusal(loader, folder)


@pytest.mark.parametrize(
    ("file", "setting", "value"),
    [
        ("tokenizer_config.json", "auto_map", {"AutoTokenizer": ["code.Tokenizer", None]}),
        ("preprocessor_config.json", "auto_map", {"AutoImageProcessor": "code.Processor"}),
        ("processor_config.json", "audio_tokenizer", {"audio_tokenizer_name_or_path": "owner/name"}),
        ("audio_tokenizer_config.json", "audio_tokenizer_name_or_path", "owner/name"),
    ],
)
def test_settings_of_tokenizers_and_processors_bring_no_code(file: str, setting: str, value: Any, copy: Copy) -> None:
    loader, folder = copy("dual")
    if not (folder / file).is_file():
        (folder / file).write_text("{}")
    set_in(folder / file, "", setting, value)
    assert file in refusal(loader, folder)
