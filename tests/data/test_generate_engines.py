"""The real pipelines of diffusers with tiny random weights, loaded as published weights are."""

from __future__ import annotations

import json
import math
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from idmetric.data.generate.engine import Engine, Request, with_settings
from idmetric.data.generate.engines import ENGINES, open_engine
from idmetric.data.generate.masks import CleanBackground
from idmetric.data.generate.weights import Place
from idmetric.metric.errors import CheckpointError
from tests import diffusion_parts as parts
from tests.hub_server import COMMIT, HubServer

pytestmark = pytest.mark.filterwarnings("ignore::FutureWarning", "ignore::UserWarning")
CPU = Place("cpu", "float32")
WEIGHTS = {
    "sdxl_inpaint": {"base": "sdxl_inpaint"},
    "flux_fill": {"base": "flux_fill"},
    "flux_canny": {"base": "flux_canny"},
    "qwen_inpaint": {"base": "qwen_image", "controlnet": "qwen_image-controlnet", "lora": "lora.safetensors"},
    "qwen_edit": {"base": "qwen_edit", "lora": "lora.safetensors"},
    "qwen_edit_inpaint": {"base": "qwen_edit"},
    "sd_turbo": {"base": "stable_diffusion"},
    "iclight": {"base": "stable_diffusion", "offset": "offset.safetensors"},
}
QUICK: dict[str, dict[str, Any]] = {name: {"steps": 2} for name in WEIGHTS}
QUICK |= {"sd_turbo": {"side": 32}, "iclight": {"steps": 4}}


@pytest.fixture(scope="session")
def folder() -> Path:
    """All pipelines, saved."""
    return parts.saved()


@pytest.fixture(autouse=True, scope="module")
def one_thread() -> Iterator[None]:
    """So small models are quicker on one thread."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="session")
def engine(folder: Path) -> Callable[[str], Engine]:
    """Opens an engine with its tiny weights, once."""
    opened: dict[str, Engine] = {}

    def get(name: str) -> Engine:
        if name not in opened:
            weights = {part: str(folder / place) for part, place in WEIGHTS[name].items()}
            opened[name] = open_engine(name, {**weights, **QUICK[name]}, CPU)
        return opened[name]

    return get


@pytest.fixture(autouse=True)
def small_edits(monkeypatch: pytest.MonkeyPatch) -> None:
    """Qwen-Image-Edit works at the area of 1024 x 1024 whatever it is given: of 64 x 64 here."""
    from diffusers.pipelines.qwenimage import pipeline_qwenimage_edit as module
    from diffusers.pipelines.qwenimage import pipeline_qwenimage_edit_inpaint as inpaint

    original = module.calculate_dimensions
    for place in (module, inpaint):
        monkeypatch.setattr(place, "calculate_dimensions", lambda area, ratio: original(area / 256, ratio))


def request(seed: int = 3, prompt: str = "a red mug", size: tuple[int, int] = (48, 32)) -> Request:
    rng = np.random.default_rng(0)
    image = Image.fromarray(rng.integers(0, 256, (size[1], size[0], 3), dtype=np.uint8))
    mask = np.zeros((size[1], size[0]), np.uint8)
    mask[8:24, 16:40] = 255
    return Request(prompt, seed, image, Image.fromarray(mask))


def same(a: Image.Image, b: Image.Image) -> bool:
    return bool(np.array_equal(np.asarray(a), np.asarray(b)))


@pytest.mark.parametrize("name", sorted(ENGINES))
def test_images_depend_on_the_request_alone(engine: Callable[[str], Engine], name: str) -> None:
    made = engine(name).edit(request())
    assert (made.size, made.mode) == ((48, 32), "RGB")
    torch.manual_seed(99)  # some pipelines draw from the global generator too
    expected = torch.rand(1)
    torch.manual_seed(99)
    assert same(engine(name).edit(request()), made)
    assert torch.rand(1).equal(expected)  # which is restored
    assert not same(engine(name).edit(request(seed=4)), made)
    assert not same(engine(name).edit(request(prompt="two blue cats")), made)
    if name != "sd_turbo":
        asked = request()
        assert asked.image is not None
        other = Image.fromarray(255 - np.asarray(asked.image))
        assert not same(engine(name).edit(replace(asked, image=other)), made)
    if name in ("sdxl_inpaint", "flux_fill", "flux_canny", "qwen_inpaint", "iclight"):
        everything = Image.new("L", made.size, 255)
        assert not same(engine(name).edit(replace(request(), mask=everything)), made)


def test_settings_are_the_papers() -> None:
    expected = {
        "sdxl_inpaint": {"num_inference_steps": 30, "guidance_scale": 8.0, "strength": 0.99, "negative_prompt": "text"},
        "flux_fill": {"num_inference_steps": 50, "guidance_scale": 30.0, "strength": 1.0},  # NearID, 0.B.1
        "flux_canny": {"num_inference_steps": 28, "guidance_scale": 7.0, "strength": 0.99},
        "qwen_inpaint": {"num_inference_steps": 8, "true_cfg_scale": 1.0, "controlnet_conditioning_scale": 1.0},
        "qwen_edit": {"num_inference_steps": 8, "true_cfg_scale": 1.0},  # ID-Sim, A.2.1
        "sd_turbo": {"num_inference_steps": 1, "guidance_scale": 0.0},  # ILGen, 4.1
    }
    for name, settings in expected.items():
        assert open_engine(name).options(replace(request(), negative="text")).items() >= settings.items(), name
        assert open_engine(name).settings["dtype"] == "bfloat16"
    assert open_engine("flux_canny").settings.items() >= {"low": 50, "high": 200}.items()
    light = {"steps": 25, "guidance": 2.0, "highres_scale": 1.5, "highres_strength": 0.5}
    assert open_engine("iclight").settings.items() >= light.items()
    assert open_engine("qwen_inpaint").weights["lora"].file == "Qwen-Image-Lightning-8steps-V1.1-bf16.safetensors"


def test_lightning_is_fused_and_scheduled(engine: Callable[[str], Engine], folder: Path) -> None:
    from diffusers import QwenImageTransformer2DModel
    from safetensors.torch import load_file

    lora = load_file(folder / "lora.safetensors")
    for name, base in (("qwen_edit", "qwen_edit"), ("qwen_inpaint", "qwen_image")):
        pipe = engine(name).pipe
        plain = QwenImageTransformer2DModel.from_pretrained(folder / base, subfolder="transformer").state_dict()
        fused = pipe.transformer.state_dict()
        assert fused.keys() == plain.keys()
        changed = 0
        for key, weight in plain.items():
            stem = key.removesuffix(".weight")
            expected = weight
            if f"{stem}.lora_up.weight" in lora:  # W + alpha / rank * up @ down
                change = lora[f"{stem}.lora_up.weight"] @ lora[f"{stem}.lora_down.weight"]
                expected = weight + lora[f"{stem}.alpha"] / 2 * change
                changed += 1
            torch.testing.assert_close(fused[key], expected, atol=1e-5, rtol=1e-5)
        assert changed == 3
        config = pipe.scheduler.config
        assert config.base_shift == config.max_shift == math.log(3)
        assert config.shift_terminal is None
        pipe.scheduler.set_timesteps(sigmas=np.linspace(1, 1 / 8, 8), mu=math.log(3))
        sigma = np.linspace(1, 1 / 8, 8)
        shifted = 3 * sigma / (1 + 2 * sigma)  # a shift of 3, whatever the resolution
        np.testing.assert_allclose(pipe.scheduler.sigmas[:8], shifted, rtol=1e-6)


def test_iclight_adds_its_file_to_a_wider_unet(engine: Callable[[str], Engine], folder: Path) -> None:
    from diffusers import UNet2DConditionModel
    from safetensors.torch import load_file

    light: Any = engine("iclight")
    offset = load_file(folder / "offset.safetensors")
    plain = UNet2DConditionModel.from_pretrained(folder / "stable_diffusion", subfolder="unet").state_dict()
    found = light.pipe.unet.state_dict()
    assert found["conv_in.weight"].shape[1] == 8
    for key, value in plain.items():
        if key == "conv_in.weight":
            torch.testing.assert_close(found[key][:, :4], value + offset[key][:, :4])
            torch.testing.assert_close(found[key][:, 4:], offset[key][:, 4:])
        else:
            torch.testing.assert_close(found[key], value + offset[key])


def _with_nan(file: Path, folder: Path) -> Path:
    from safetensors.torch import load_file, save_file

    state = load_file(file)
    state[min(state)] *= float("nan")
    save_file(state, folder / "nan.safetensors")
    return folder / "nan.safetensors"


def test_weights_of_another_kind_are_refused(folder: Path, tmp_path: Path) -> None:
    sd = folder / "stable_diffusion"
    damaged = _with_nan(folder / "offset.safetensors", tmp_path)
    cases = [
        ("flux_fill", {"base": str(folder / "sam2")}, "sam2 as FluxFillPipeline"),
        ("iclight", {"base": str(sd), "offset": str(folder / "lora.safetensors")}, "missing|unexpected"),
        ("qwen_edit", {"base": str(folder / "qwen_edit"), "lora": str(folder / "offset.safetensors")}, "does not fit"),
        ("sdxl_inpaint", {"base": str(tmp_path / "absent")}, "is not a folder"),
        ("sdxl_inpaint", {"base": str(folder / "lora.safetensors")}, "is not a folder"),
        ("iclight", {"base": str(sd), "offset": str(tmp_path)}, "cannot read .*iclight_sd15"),
        ("iclight", {"base": str(sd), "offset": str(damaged)}, "not finite"),
    ]  # fmt: skip
    for name, weights, message in cases:
        with pytest.raises(CheckpointError, match=message):
            open_engine(name, weights, CPU).edit(request())


@pytest.mark.parametrize("part", ["unet", "text_encoder"])
def test_components_are_filled_by_finite_floats_of_their_own_folder(folder: Path, tmp_path: Path, part: str) -> None:
    """diffusers draws what is missing, with a warning, and casts whatever it reads."""
    from safetensors.torch import load_file, save_file

    place = tmp_path / "sd"
    shutil.copytree(folder / "stable_diffusion", place)
    [path] = (place / part).glob("*.safetensors")
    state = load_file(path)
    key = max(name for name, value in state.items() if value.ndim > 1)
    rest = {name: value for name, value in state.items() if name != key}
    cases = {
        f"missing {key}": rest,
        f"wrong type {key} torch.int8": {**state, key: state[key].to(torch.int8)},
        "not finite": {**state, key: state[key] * float("nan")},
        "not finite in float32": {**state, key: state[key].double() * 1e300},
        "shape": {**state, key: state[key][:1].clone()},
    }
    for message, changed in cases.items():
        save_file(changed, path, {"format": "pt"})
        with pytest.raises(CheckpointError, match=f"sd as .*{message}"):
            _ = open_engine("sd_turbo", {"base": str(place)}, CPU).pipe

    save_file(state, tmp_path / "outside.safetensors", {"format": "pt"})
    path.unlink()
    weight_map = {"weight_map": dict.fromkeys(state, "../../outside.safetensors")}
    path.with_name(path.name + ".index.json").write_text(json.dumps(weight_map))
    with pytest.raises(CheckpointError, match="which is not in its folder"):
        _ = open_engine("sd_turbo", {"base": str(place)}, CPU).pipe


def test_pickled_weights_are_not_opened(folder: Path, tmp_path: Path) -> None:
    shutil.copytree(folder / "stable_diffusion", tmp_path / "sd")
    path = tmp_path / "sd" / "unet" / "diffusion_pytorch_model.safetensors"
    torch.save({}, path.with_suffix(".bin"))
    path.unlink()
    with pytest.raises(CheckpointError, match=r"sd as .*safetensors"):
        _ = open_engine("sd_turbo", {"base": str(tmp_path / "sd")}, CPU).pipe


def test_numbers_that_overflow_are_told(engine: Callable[[str], Engine], monkeypatch: pytest.MonkeyPatch) -> None:
    turbo = engine("sd_turbo")
    vae = turbo.pipe.vae
    decode = vae.decode
    monkeypatch.setattr(vae, "decode", lambda *a, **k: tuple(x * float("nan") for x in decode(*a, **k)))
    with np.errstate(invalid="ignore"), pytest.raises(FloatingPointError, match="--dtype float32"):
        turbo.edit(Request("a mug", 1))


def test_image_tokens_get_rows_and_columns(engine: Callable[[str], Engine]) -> None:
    """As transformers' own `get_rope_index` numbers them, not in a line."""
    pipe = engine("qwen_edit").pipe
    seen: list[dict[str, Any]] = []
    model = pipe.text_encoder.model
    hooks = [
        module.register_forward_pre_hook(lambda _, args, kwargs: seen.append(kwargs), with_kwargs=True)
        for module in (pipe.text_encoder, model.language_model)
    ]
    engine("qwen_edit").edit(request(seed=8))
    for hook in hooks:
        hook.remove()
    outer, inner = seen[:2]
    ids = outer["input_ids"]
    image = (ids == pipe.text_encoder.config.image_token_id).int()
    assert image.sum() > 1
    expected, _ = model.get_rope_index(
        ids, mm_token_type_ids=image, image_grid_thw=outer["image_grid_thw"], attention_mask=outer["attention_mask"]
    )
    assert (expected[1] != expected[2]).any()  # rows differ from columns
    assert torch.equal(inner["position_ids"][-3:], expected)


def test_loras_that_do_not_fit_are_refused(folder: Path, tmp_path: Path) -> None:
    from safetensors.torch import load_file, save_file

    state = load_file(folder / "lora.safetensors")
    elsewhere = {k.replace("blocks.0", "blocks.7"): v for k, v in state.items()}
    half = {k.replace("blocks.0", "blocks.7") if "to_q" in k else k: v for k, v in state.items()}
    for number, (given, found) in enumerate(((elsewhere, 0), (half, 2))):
        file = tmp_path / f"{number}.safetensors"
        save_file(given, file)
        with pytest.raises(CheckpointError, match=f"does not fit .*{found} of its 3 layers" if found else "not fit"):
            _ = open_engine("qwen_edit", {"base": str(folder / "qwen_edit"), "lora": str(file)}, CPU).pipe


@pytest.mark.parametrize("file", ["unet/mine.py", "mine.py", None])
def test_code_in_a_folder_of_weights_is_not_run(folder: Path, tmp_path: Path, file: str | None) -> None:
    place = tmp_path / "own"
    shutil.copytree(folder / "stable_diffusion", place)
    index = json.loads((place / "model_index.json").read_text())
    index["unet"] = ["mine", "UNet"] if file else ["os", "system"]
    (place / "model_index.json").write_text(json.dumps(index))
    if file:
        (place / file).write_text(f"open({str(tmp_path / 'ran')!r}, 'w')\n")
    with pytest.raises(CheckpointError, match=file or "sd|own"):
        _ = open_engine("sd_turbo", {"base": str(place)}, CPU).pipe
    assert not (tmp_path / "ran").exists()


def test_settings_and_weights_are_checked(folder: Path) -> None:
    assert open_engine("sdxl_inpaint", {"guidance": "30"}).settings["guidance"] == 30.0
    assert with_settings(CleanBackground(), {"tolerance": "20"}).tolerance == 20.0
    opened = open_engine("sd_turbo", {"base": str(folder / "stable_diffusion")}, CPU)
    assert opened.settings["base"] == f"stable_diffusion#{opened.versions['base']}"
    for name, value in (("steps", "many"), ("guidance", "nan"), ("positions", "line"), ("lora", "a/b")):
        with pytest.raises(ValueError, match=name):
            open_engine("sdxl_inpaint", {name: value})


FETCH = """
import json
from idmetric.metric.errors import CheckpointError
from idmetric.data.generate.engines import open_engine
from idmetric.data.generate.weights import Place
from tests.data.test_generate_engines import request
place = Place("cpu", "float32")
said = []
for name, repo in {"sd_turbo": "owner/gated", "flux_fill": "owner/absent"}.items():
    try:
        open_engine(name, {"base": repo}, place).pipe
    except CheckpointError as error:
        said.append(str(error))
weights = {"base": "owner/qwen@main", "controlnet": "owner/controlnet", "lora": "owner/lora"}
inpaint = open_engine("qwen_inpaint", {**weights, "steps": 2}, place)
print(json.dumps([inpaint.edit(request()).size, inpaint.versions, said]))
"""


@pytest.mark.slow
def test_weights_are_fetched_from_the_hub(folder: Path, tmp_path: Path) -> None:
    for name, source in {"qwen": "qwen_image", "controlnet": "qwen_image-controlnet"}.items():
        shutil.copytree(folder / source, tmp_path / name)
    (tmp_path / "qwen" / "transformer" / "diffusion_pytorch_model.bin").write_bytes(b"pickle")
    (tmp_path / "qwen" / "qwen.safetensors").write_bytes(b"all in one, as older programs want it")
    (tmp_path / "lora").mkdir()
    shutil.copy(folder / "lora.safetensors", tmp_path / "lora" / str(open_engine("qwen_inpaint").weights["lora"].file))
    repos = {f"owner/{name}": tmp_path / name for name in ("qwen", "controlnet", "lora")}
    with HubServer({**repos, "owner/gated": tmp_path / "qwen"}, gated={"owner/gated": "token"}) as server:
        home = {"HF_ENDPOINT": server.endpoint, "HF_HOME": str(tmp_path / "home"), "HF_HUB_OFFLINE": "0"}
        done = subprocess.run(
            [sys.executable, "-W", "ignore", "-c", FETCH], cwd=Path(__file__).resolve().parents[2], text=True,
            capture_output=True, env={**os.environ, **home},
        )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    size, versions, said = json.loads(done.stdout.splitlines()[-1])
    assert size == [48, 32]
    assert versions == dict.fromkeys(("base", "controlnet", "lora"), COMMIT)
    assert "https://huggingface.co/owner/gated" in said[0]
    assert "owner/absent" in said[1]
    assert not server.downloads(".bin")
    assert not server.downloads("qwen.safetensors")
