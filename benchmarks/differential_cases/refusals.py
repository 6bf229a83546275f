"""What is refused: the type of each error, and the file, option or value that its message names.

A refusal is a function that fails, the name of a class of its error (any in its `__mro__`), and a text that the
message holds. `command` errors are `Exit1` and `Exit2`, by the exit status. The sentence itself may change.
"""

from __future__ import annotations

import io
import json
import pickle
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
import torch
from differential_weights import (
    SMALL_VIT,
    write_idsim,
    write_json,
    write_released_idsim,
    write_released_nearid,
    write_trunk,
    write_visid,
)
from PIL import Image
from safetensors.torch import load_file, save_file

from differential_cases import (
    Case,
    Results,
    command,
    examples,
    picture,
    pixels,
    rectangle,
    same,
    tiny,
    workspace,
)

Trigger = Callable[[Path], object]
PICTURE = picture("refusal")


class Exit1(Exception):  # named by the status
    """A command ended with status 1."""


class Exit2(Exception):
    """A command ended with status 2."""


def fails(*words: object) -> NoReturn:
    """Run a command and raise its message."""
    status, out, err = command(*words)
    if status == 1:
        raise Exit1(out + err)  # `data info` prints its findings
    if status == 2:
        raise Exit2(err)
    raise AssertionError(f"status {status}, {out[:200]} {err[:200]}")


def refused(trigger: Trigger, error: str, named: str) -> Results:
    """Run a function that must be refused in an empty folder; AssertionError for another error, or none."""
    with workspace() as folder:
        try:
            trigger(folder)
        except Exception as raised:
            kinds = [kind.__name__ for kind in type(raised).__mro__]
            if error not in kinds or named not in str(raised):
                raise AssertionError(f"{error} that names {named!r} is expected, got {kinds[0]}: {raised}") from raised
            return {"error": error, "named": named}
    raise AssertionError(f"not refused: {error} that names {named!r} is expected")


def refusal(name: str, error: str, named: str, trigger: Trigger, **settings: Any) -> Case:
    """Make the case of a refusal."""
    return same(name, lambda: refused(trigger, error, named), **settings)


# Images


def encoded(image: Image.Image, kind: str = "PNG") -> bytes:
    file = io.BytesIO()
    image.save(file, kind)
    return file.getvalue()


def of_file(name: str, content: bytes) -> Trigger:
    """Compare a file of this content."""

    def trigger(folder: Path) -> object:
        Path(name).write_bytes(content)
        return tiny()(name, PICTURE)

    return trigger


def of_image(image: Any, **options: Any) -> Trigger:
    """Compare this image."""
    return lambda folder: tiny()(image, PICTURE, **options)


def hdr(folder: Path) -> object:
    Image.fromarray(np.full((20, 30), 3.5, np.float32)).save("light.tif")
    return tiny()("light.tif", PICTURE)


def bomb(folder: Path) -> object:
    content = bytearray(encoded(Image.new("1", (8, 8))))
    content[16:24] = (200_000).to_bytes(4, "big") * 2
    Path("bomb.png").write_bytes(content)
    return tiny()("bomb.png", PICTURE)


def folders_of_other_names(folder: Path) -> object:
    for name in ("a/1.png", "a/2.png", "b/2.png", "b/3.png"):
        Path(name).parent.mkdir(exist_ok=True)
        PICTURE.save(name)
    return tiny()("a", "b")


def empty_folder(folder: Path) -> object:
    Path("photos").mkdir()
    return tiny()("photos", PICTURE)


def of_another_model(folder: Path) -> object:
    from idmetric import IDSim

    other = IDSim(write_idsim(folder / "model"), device="cpu")
    return tiny()(other.embed(PICTURE), PICTURE)


COLORS = np.asarray(PICTURE)
JPEG = encoded(picture("photo", 600, 400), "JPEG")
IMAGES = [
    refusal("images/missing", "ImageReadError", "absent.png", of_image("absent.png")),
    refusal("images/empty", "ImageReadError", "empty.png", of_file("empty.png", b"")),
    refusal("images/cut JPEG", "ImageReadError", "cut.jpg", of_file("cut.jpg", JPEG[: len(JPEG) // 2])),
    refusal("images/cut PNG", "ImageReadError", "cut.png", of_file("cut.png", encoded(PICTURE)[:900])),
    refusal("images/text", "ImageReadError", "notes.jpg", of_file("notes.jpg", b"not an image")),
    refusal("images/SVG", "ImageReadError", "a.svg", of_file("a.svg", b"<svg xmlns='http://www.w3.org/2000/svg'/>")),
    refusal("images/HDR", "ImageReadError", "light.tif", hdr),
    refusal("images/bomb", "ImageReadError", "bomb.png", bomb),
    refusal("images/bytes", "ImageReadError", "bytes", of_image(b"not an image")),
    refusal("images/0 to 255 as floats", "ImageReadError", "divide by 255", of_image(COLORS.astype(np.float32))),
    refusal("images/normalized", "ImageReadError", "[", of_image((pixels("normalized", 1, 20)[0] - 0.5) / 0.2)),
    refusal("images/NaN", "ImageReadError", "NaN", of_image(np.full((9, 9, 3), np.nan, np.float32))),
    refusal("images/five channels", "ImageReadError", "5", of_image(np.repeat(COLORS[..., :1], 5, -1))),
    refusal("images/12 bits", "ImageReadError", "65535", of_image(COLORS[..., 0].astype(np.uint16) * 16)),
    refusal("images/signed", "ImageReadError", "int16", of_image(-COLORS.astype(np.int16))),
    refusal("images/complex", "ImageReadError", "complex", of_image(COLORS.astype(np.complex64))),
    refusal("images/a number", "TypeError", "int", of_image(5)),
    refusal("images/a number in a list", "TypeError", "int", of_image([PICTURE, 5])),
    refusal("images/other counts", "ValueError", "3", lambda folder: tiny()([PICTURE] * 2, [PICTURE] * 3)),
    refusal("images/other names", "ValueError", "pairwise", folders_of_other_names),
    refusal("images/empty folder", "ImageReadError", "photos", empty_folder),
    refusal("images/none", "ValueError", "no images", lambda folder: tiny().embed([])),
    refusal("images/text in a file", "ImageReadError", "rb", lambda folder: tiny()(io.StringIO("x"), PICTURE)),
    refusal("images/distance", "RequestError", "lpips", of_image(PICTURE, distance="lpips")),
    refusal(
        "images/joint weight", "ValueError", "joint_weight", of_image(PICTURE, distance="joint", joint_weight=-1.0)
    ),
    refusal("images/another model's", "ValueError", "IDSim:model", of_another_model),
    refusal(
        "images/no patches",
        "ValueError",
        "patches=True",
        lambda folder: tiny()(tiny().embed(PICTURE, patches=False), PICTURE, "patch"),
    ),
    refusal("images/pixels alone", "ImageReadError", "[", lambda folder: tiny()(pixels("out", 1, 20) * 2)),
]

# Masks


def of_mask(mask: Any, **options: Any) -> Trigger:
    """Compare a picture of 120 x 90 pixels with this mask."""
    return lambda folder: tiny()(PICTURE, PICTURE, mask_a=mask, **options)


def of_mask_file(name: str, content: bytes) -> Trigger:
    def trigger(folder: Path) -> object:
        Path(name).write_bytes(content)
        return tiny()(PICTURE, PICTURE, mask_a=name)

    return trigger


def mask_not_in_folder(folder: Path) -> object:
    Path("masks").mkdir()
    Path("photos").mkdir()
    PICTURE.save("photos/a.png")
    return tiny()("photos/a.png", PICTURE, mask_a="masks")


def masks_as_released(folder: Path) -> object:
    from idmetric import IDSim

    metric = IDSim("tiny", device="cpu", preprocessing="release")
    return metric(PICTURE, PICTURE, mask_a=rectangle(120, 90, (10, 10, 50, 50)))


SQUARE = rectangle(120, 90, (10, 10, 50, 50))
LABELS = np.where(SQUARE > 0, 2, 0).astype(np.uint8) + rectangle(120, 90, (60, 10, 80, 50), 9)
MASKS = [
    refusal("masks/shape", "ImageReadError", "50x90", of_mask(SQUARE[:, :50])),
    refusal("masks/empty", "ImageReadError", "empty", of_mask(SQUARE * 0)),
    refusal("masks/several labels", "ImageReadError", "mask_id", of_mask(LABELS)),
    refusal("masks/absent label", "ImageReadError", "4", of_mask(LABELS, mask_id=4)),
    refusal("masks/background", "ImageReadError", "0", of_mask(LABELS, mask_id=0)),
    refusal("masks/color", "ImageReadError", "red", of_mask(Image.fromarray(LABELS).convert("RGB"), mask_id="red")),
    refusal("masks/range", "ImageReadError", "[0, 1]", of_mask(torch.full((90, 120), 7.0))),
    refusal("masks/NaN", "ImageReadError", "NaN", of_mask(torch.full((90, 120), float("nan")))),
    refusal("masks/cut", "ImageReadError", "cut.png", of_mask_file("cut.png", encoded(Image.fromarray(LABELS))[:60])),
    refusal("masks/number", "ValueError", "2 masks", of_mask([SQUARE, SQUARE])),
    refusal("masks/not in the folder", "ImageReadError", "a.png", mask_not_in_folder),
    refusal("masks/outside", "ValueError", "blur", of_mask(SQUARE, outside="blur")),
    refusal("masks/released preprocessing", "ImageReadError", "preprocessing", masks_as_released),
    refusal(
        "masks/embedding",
        "ValueError",
        "mask",
        lambda folder: tiny()(tiny().embed(PICTURE), PICTURE, mask_a=SQUARE),
    ),
]

# Weights


def changed_model(change: Callable[[Path], object], kind: str = "dinov3") -> Trigger:
    """Open a small ID-Sim whose folder was changed."""

    def trigger(folder: Path) -> object:
        from idmetric import load

        model = write_idsim(folder / "model", kind)
        change(model)
        return load(model, device="cpu")

    return trigger


def with_tensor(key: str, value: Callable[[torch.Tensor], torch.Tensor] | None) -> Trigger:
    """Open a small ID-Sim with a tensor that was changed, or left out."""

    def change(model: Path) -> object:
        file = model / "model.safetensors"
        state = load_file(file)
        old = state.pop(key, torch.zeros(1))
        if value is not None:
            state[key] = value(old)
        return save_file(state, file, {"format": "pt"})

    return changed_model(change)


def with_settings(**settings: Any) -> Trigger:
    """Open a small ID-Sim with other settings in its config.json."""

    def change(model: Path) -> object:
        file = model / "config.json"
        return write_json(file, json.loads(file.read_text()) | settings)

    return changed_model(change)


class Code:
    """Runs code where it is unpickled."""

    def __reduce__(self) -> Any:
        return Path.touch, (Path("ran"),)


def of_release(change: Callable[[Path], object], **adapter_config: Any) -> Trigger:
    """Open a small released ID-Sim whose folder was changed."""

    def trigger(folder: Path) -> object:
        from idmetric import IDSim

        adapter, backbone = write_released_idsim(folder, **adapter_config)
        change(adapter)
        return IDSim(adapter, backbone_weights=backbone, backbone_args=SMALL_VIT, device="cpu")

    return trigger


def half_adapter(adapter: Path) -> object:
    file = adapter / "adapter_model.safetensors"
    state = load_file(file)
    del state["base_model.model.extractor.model.blocks.0.attn.qkv.lora_B.weight"]
    return save_file(state, file)


def hostile_head(adapter: Path) -> object:
    return (adapter / "mlp_cls.pth").write_bytes(pickle.dumps({"fc1.weight": Code()}))


def renamed_release(folder: Path) -> object:
    from idmetric import IDSim

    adapter, backbone = write_released_idsim(folder)
    return IDSim(adapter.rename(folder / "mine"), backbone_weights=backbone, backbone_args=SMALL_VIT, device="cpu")


def backbone_file(content: object) -> Trigger:
    """Open an encoder with weights from a pickled file."""

    def trigger(folder: Path) -> object:
        from idmetric import Backbone

        torch.save(content, "weights.pth")
        return Backbone("vit_tiny_patch16_224", weights="weights.pth", backbone_args=SMALL_VIT, device="cpu")

    return trigger


def other_encoder(folder: Path) -> object:
    from idmetric import Backbone

    file = write_trunk(folder / "resnet.safetensors", "resnet18", channels=[8, 16, 24, 32])
    return Backbone("vit_tiny_patch16_224", weights=file, backbone_args=SMALL_VIT, device="cpu")


def opened(source: str, **options: Any) -> Trigger:
    def trigger(folder: Path) -> object:
        from idmetric import load

        return load(source, **options)

    return trigger


def nearid_of_idsim(folder: Path) -> object:
    from idmetric import NearID

    return NearID(write_idsim(folder / "model"), device="cpu")


def nearid_without_processor(folder: Path) -> object:
    from idmetric import NearID

    model = write_released_nearid(folder / "model")
    (model / "preprocessor_config.json").unlink()
    return NearID(model, device="cpu")


def changed_visid(change: Callable[[Path], object], **settings: Any) -> Trigger:
    def trigger(folder: Path) -> object:
        from idmetric import VisIDEmbed

        model = write_visid(folder / "model", **settings)
        change(model)
        return VisIDEmbed(model, device="cpu").embed(PICTURE)

    return trigger


def visid_of_llama(model: Path) -> object:
    config = json.loads((model / "config.json").read_text())
    return write_json(model / "config.json", config | {"model_type": "llama"})


def tensor_by_two_names(model: Path) -> object:
    """Add a layer under the name that older versions of transformers gave it, or newer ones."""
    file = model / "model.safetensors"
    state = load_file(file)
    [key] = [key for key in state if key.endswith("layers.1.self_attn.q_proj.weight")]
    layer = key.partition("layers.")[2]
    other = "model.layers." if "language_model" in key else "model.language_model.layers."
    return save_file({**state, other + layer: 2 * state[key]}, file, {"format": "pt"})


def float16(folder: Path) -> object:
    from idmetric import load

    model = write_idsim(folder / "model")
    state = load_file(model / "model.safetensors")
    state["mlp_cls.fc1.weight"] *= 1e6
    save_file(state, model / "model.safetensors", {"format": "pt"})
    return load(model, device="cpu", dtype=torch.float16)


NEEDS_TRANSFORMERS: dict[str, Any] = {"needs": ("transformers",)}
HEAD = "mlp_cls.fc1.weight"
WEIGHTS = [
    refusal(
        "weights/no config", "CheckpointError", "config.json", changed_model(lambda m: (m / "config.json").unlink())
    ),
    refusal(
        "weights/no weights",
        "CheckpointError",
        "model.safetensors",
        changed_model(lambda model: (model / "model.safetensors").unlink()),
    ),
    refusal(
        "weights/cut",
        "CheckpointError",
        "model.safetensors",
        changed_model(lambda m: (m / "model.safetensors").write_bytes((m / "model.safetensors").read_bytes()[:5000])),
    ),
    refusal(
        "weights/text",
        "CheckpointError",
        "model.safetensors",
        changed_model(lambda m: (m / "model.safetensors").write_text("version https://git-lfs.github.com/spec/v1\n")),
    ),
    refusal("weights/missing tensor", "CheckpointError", HEAD, with_tensor(HEAD, None)),
    refusal("weights/unexpected tensor", "CheckpointError", "extra.weight", with_tensor("extra.weight", torch.clone)),
    refusal("weights/shape", "CheckpointError", HEAD, with_tensor(HEAD, lambda value: value[:5].clone())),
    refusal("weights/NaN", "CheckpointError", HEAD, with_tensor(HEAD, lambda value: value * float("nan"))),
    refusal("weights/infinite", "CheckpointError", HEAD, with_tensor(HEAD, lambda value: value * float("inf"))),
    refusal("weights/integers", "CheckpointError", HEAD, with_tensor(HEAD, lambda value: value.to(torch.int64))),
    refusal("weights/too large for float16", "CheckpointError", HEAD, float16),
    refusal("weights/unknown setting", "CheckpointError", "sharpness", with_settings(sharpness=1)),
    refusal("weights/newer format", "CheckpointError", "99", with_settings(format=99)),
    refusal("weights/type of a setting", "CheckpointError", "image_size", with_settings(image_size="64")),
    refusal("weights/size", "CheckpointError", "16384", with_settings(image_size=2_000_000_000)),
    refusal("weights/unknown kind", "CheckpointError", "sift", with_settings(model_type="sift")),
    refusal("weights/unknown encoder", "CheckpointError", "vit_nothing", with_settings(backbone="vit_nothing")),
    *(
        refusal(
            f"weights/code by {name}",
            "CheckpointError",
            name,
            with_settings(backbone_args={**SMALL_VIT, name: {"file": "/etc/passwd"}}),
        )
        for name in ("checkpoint_path", "pretrained_cfg", "pretrained_cfg_overlay")
    ),
    refusal("weights/another class", "CheckpointError", "idsim", nearid_of_idsim),
    refusal("weights/unknown name", "CheckpointError", "tyni", opened("tyni")),
    refusal("weights/no folder", "CheckpointError", "./nowhere", opened("./nowhere")),
    refusal(
        "weights/not downloaded", "CheckpointError", "someone/model", opened("someone/model", local_files_only=True)
    ),
    refusal("weights/preprocessing", "ValueError", "published", opened("tiny", preprocessing="published")),
    refusal("weights/release of others", "ValueError", "release", opened("timm:resnet18", preprocessing="release")),
    refusal(
        "weights/missing head", "CheckpointError", "mlp_patch.pth", of_release(lambda a: (a / "mlp_patch.pth").unlink())
    ),
    refusal("weights/code in a head", "CheckpointError", "mlp_cls.pth", of_release(hostile_head)),
    refusal("weights/half an adapter", "CheckpointError", "adapter_model.safetensors", of_release(half_adapter)),
    refusal("weights/DoRA", "CheckpointError", "use_dora", of_release(lambda adapter: None, use_dora=True)),
    refusal("weights/IA3", "CheckpointError", "IA3", of_release(lambda adapter: None, peft_type="IA3")),
    refusal("weights/variant", "CheckpointError", "variant=", renamed_release),
    refusal("weights/code in a backbone", "CheckpointError", "weights.pth", backbone_file({"a": Path("x")})),
    refusal("weights/no table", "CheckpointError", "weights.pth", backbone_file([torch.ones(2)])),
    refusal("weights/another encoder", "CheckpointError", "resnet.safetensors", other_encoder),
    refusal("weights/unknown option", "TypeError", "sharpness", opened("tiny", sharpness=1)),
    refusal(
        "weights/no processor",
        "CheckpointError",
        "preprocessor_config.json",
        nearid_without_processor,
        **NEEDS_TRANSFORMERS,
    ),
    refusal("weights/two names", "CheckpointError", "model", changed_visid(tensor_by_two_names), **NEEDS_TRANSFORMERS),
    refusal("weights/llama", "CheckpointError", "llama", changed_visid(visid_of_llama), **NEEDS_TRANSFORMERS),
    refusal(
        "weights/prompt style",
        "CheckpointError",
        "visid.json",
        changed_visid(lambda model: None, prompt_style="x"),
        **NEEDS_TRANSFORMERS,
    ),
    refusal(
        "weights/room for an image",
        "ValueError",
        "max_length",
        changed_visid(lambda model: None, max_length=3),
        **NEEDS_TRANSFORMERS,
    ),
]

# Losses


def of_loss(
    x: torch.Tensor, references: Any = PICTURE, call: Mapping[str, Any] | None = None, **options: Any
) -> Trigger:
    """Compute a loss of these pixels; call: further arguments of the call."""

    def trigger(folder: Path) -> object:
        from idmetric import IdentityLoss

        return IdentityLoss(tiny(), references, **options)(x, **(call or {}))

    return trigger


def references_of_another_model(folder: Path) -> object:
    from idmetric import IdentityLoss, IDSim

    other = IDSim(write_idsim(folder / "model"), device="cpu")
    return IdentityLoss(tiny(), other.embed(PICTURE))


def references_of_nan(folder: Path) -> object:
    from dataclasses import replace

    from idmetric import IdentityLoss

    embedding = tiny().embed(PICTURE)
    return IdentityLoss(tiny(), replace(embedding, cls=embedding.cls * float("nan")))


X = pixels("loss", 2, 40).requires_grad_()
EMPTY_MASK = torch.stack([torch.ones(40, 40), torch.zeros(40, 40)])
LOSSES = [
    refusal("losses/no graph", "ValueError", "graph", of_loss(X.detach())),
    refusal("losses/range", "ValueError", "value_range", of_loss(2 * X - 1)),
    refusal("losses/0 to 255", "ValueError", "255", of_loss(255 * X)),
    refusal("losses/NaN", "ValueError", "NaN", of_loss(X / 0 * 0)),
    refusal("losses/one image", "ValueError", "(B, 3, H, W)", of_loss(X[0])),
    refusal("losses/latents", "ValueError", "(B, 3, H, W)", of_loss(torch.cat([X, X[:, :1]], 1))),
    refusal("losses/bytes", "ValueError", "floating", of_loss((255 * X).byte())),
    refusal("losses/masks' shape", "ValueError", "(2, h, w)", of_loss(X, call={"masks": torch.ones(3, 8, 8)})),
    refusal("losses/masks' range", "ValueError", "255", of_loss(X, call={"masks": torch.ones(2, 8, 8) * 255})),
    refusal("losses/empty mask", "ValueError", "[1]", of_loss(X, call={"masks": EMPTY_MASK})),
    refusal("losses/no references", "ValueError", "no images", of_loss(X, [])),
    refusal("losses/missing reference", "ImageReadError", "absent.png", of_loss(X, ["absent.png"])),
    refusal("losses/another model's references", "ValueError", "IDSim:model", references_of_another_model),
    refusal("losses/references of NaN", "NonFiniteError", "NaN", references_of_nan),
    refusal("losses/distance", "RequestError", "l2", of_loss(X, distance="l2")),
    refusal("losses/reduction", "ValueError", "avg", of_loss(X, reduction="avg")),
    refusal("losses/aggregate", "ValueError", "max", of_loss(X, aggregate="max")),
    refusal("losses/outside", "ValueError", "gray", of_loss(X, outside="gray")),
    refusal("losses/empty range", "ValueError", "value_range", of_loss(X, value_range=(1, 0))),
    refusal("losses/negative weight", "ValueError", "weights", of_loss(X, [PICTURE, PICTURE], weights=[1, -2])),
    refusal("losses/weights of the nearest", "ValueError", "aggregate", of_loss(X, weights=[1], aggregate="min")),
    refusal("losses/masks of references", "ValueError", "2 masks", of_loss(X, masks=[SQUARE, SQUARE])),
]

# Scores


def scored(*arguments: Any, **options: Any) -> Trigger:
    def trigger(folder: Path) -> object:
        import idmetric

        return idmetric.score(tiny(), *arguments, **options)

    return trigger


def of_pairs(text: str, **options: Any) -> Trigger:
    """Score a file of pairs."""

    def trigger(folder: Path) -> object:
        import idmetric

        for name in ("a.png", "b.png"):
            PICTURE.save(name)
        Path("pairs.csv").write_text(text)
        return idmetric.score_pairs(tiny(), "pairs.csv", **options)

    return trigger


def with_calibration(revision: str = "875b8d1adda5", **changes: Any) -> Trigger:
    """Score with the packaged model's calibration, changed."""

    def trigger(folder: Path) -> object:
        import idmetric

        [source] = Path(idmetric.__file__).parent.rglob("calibration.json")
        content = json.loads(source.read_text().replace("875b8d1adda5", revision)) | changes
        write_json(Path("edited.json"), content)
        return idmetric.score(tiny(), PICTURE, [picture("other")], calibration="edited.json")

    return trigger


def score_by_name(folder: Path) -> object:
    import idmetric

    return idmetric.score("tiny", PICTURE, [picture("other")])  # type: ignore[arg-type]


def damaged_calibration(folder: Path) -> object:
    import idmetric

    Path("damaged.json").write_text('{"kind": "idmetric-calibration"')
    return idmetric.score(tiny(), PICTURE, [picture("other")], calibration="damaged.json")


def over_an_input(folder: Path) -> object:
    PICTURE.save("a.png")
    PICTURE.save("b.png")
    fails("score --model tiny --device cpu a.png b.png --output b.png")


SCORE = "score --model tiny --device cpu"
MUG = examples()[4]
SCORES = [
    refusal("score/a model's name", "RequestError", "tiny", score_by_name),
    refusal("score/missing", "ImageReadError", "absent.png", scored(PICTURE, ["absent.png"])),
    refusal("score/missing reference", "RequestError", "absent.png", scored("absent.png", [PICTURE])),
    refusal("score/nothing but references", "RequestError", "reference", scored([str(MUG)], [str(MUG)])),
    refusal("score/pattern", "RequestError", "none*.png", scored(str(MUG), ["none*.png"])),
    refusal("score/aggregate", "RequestError", "median", scored(PICTURE, [PICTURE], aggregate="median")),
    refusal("score/on_error", "RequestError", "ignore", scored(PICTURE, [PICTURE], on_error="ignore")),
    refusal("score/threshold", "RequestError", "threshold", scored(PICTURE, [PICTURE], threshold=float("nan"))),
    refusal("score/mask folder", "RequestError", "nowhere", scored(str(MUG), examples()[:2], mask_dir="nowhere")),
    refusal("score/pairs' columns", "RequestError", "pairs.csv", of_pairs("first,second\na.png,b.png\n")),
    refusal("score/a pair's cells", "RequestError", "pairs.csv", of_pairs("a,b\na.png,b.png\na.png,b.png,zzz\n")),
    refusal("score/half a pair", "RequestError", "pairs.csv", of_pairs("a,b\na.png,b.png\na.png,\n")),
    refusal("score/no pairs", "RequestError", "pairs.csv", of_pairs("a,b\n")),
    refusal("score/a pair's image", "ImageReadError", "c.png", of_pairs("a,b\na.png,c.png\n")),
    refusal("score/damaged calibration", "CalibrationError", "damaged.json", damaged_calibration),
    refusal(
        "score/another model's calibration",
        "CalibrationError",
        "0123456789ab",
        with_calibration("0123456789ab"),
    ),
    refusal("score/another distance's calibration", "CalibrationError", "patch", with_calibration(distance="patch")),
    refusal("score/calibration of masks", "CalibrationError", "crop", with_calibration(outside="crop")),
    refusal(
        "score/falling calibration",
        "CalibrationError",
        "edited.json",
        with_calibration(curve={"scores": [0.0, 1.0], "probabilities": [0.9, 0.1]}),
    ),
    refusal(
        "score/absent calibration",
        "CalibrationError",
        "no.json",
        scored(PICTURE, [picture("other")], calibration="no.json"),
    ),
    refusal("score/unknown option", "Exit2", "--distence", lambda folder: fails(SCORE, MUG, MUG, "--distence", "cls")),
    refusal("score/one image", "Exit2", "reference", lambda folder: fails(SCORE, MUG)),
    refusal("score/unknown distance", "Exit2", "--distance", lambda folder: fails(SCORE, MUG, MUG, "--distance", "l2")),
    refusal("score/unknown model", "Exit1", "tyni", lambda folder: fails("score --model tyni", MUG, examples()[0])),
    refusal("score/output over an input", "Exit2", "b.png", over_an_input),
    refusal(
        "score/output's folder", "Exit2", "no/out.csv", lambda f: fails(SCORE, MUG, examples()[0], "-o", "no/out.csv")
    ),
    refusal(
        "score/batch size", "Exit2", "--batch-size", lambda f: fails(SCORE, MUG, examples()[0], "--batch-size", "0")
    ),
]

# Regions, casts and clips


def matched(regions: Any = None, subjects: Any = None, images: Any = None, **options: Any) -> Trigger:
    """Match subjects with regions of a picture of 120 x 90 pixels, "scene.png"; a text is a file of regions."""

    def trigger(folder: Path) -> object:
        import idmetric

        picture("scene").save("scene.png")
        picture("cup").save("cup.png")
        given = regions
        if isinstance(regions, tuple):
            name, content = regions
            Path(name).write_text(content if isinstance(content, str) else json.dumps(content))
            given = name
        return idmetric.match(tiny(), subjects or {"cup": "cup.png"}, images or ["scene.png"], regions=given, **options)

    return trigger


def coco(width: int = 120, **annotation: Any) -> tuple[str, dict[str, Any]]:
    annotations = [{"id": 7, "image_id": 1, "category_id": 1, "bbox": [10, 10, 40, 40], "iscrowd": 0, **annotation}]
    return "regions.json", {
        "images": [{"id": 1, "file_name": "scene.png", "width": width, "height": 90}],
        "annotations": annotations,
        "categories": [{"id": 1, "name": "cup"}],
    }


def clip(content: bytes, name: str = "x.mp4") -> Trigger:
    def trigger(folder: Path) -> object:
        import idmetric

        Path(name).write_bytes(content)
        picture("cup").save("cup.png")
        return idmetric.match(tiny(), {"cup": "cup.png"}, [name])

    return trigger


NEEDS_VIDEO: dict[str, Any] = {"needs": ("av",)}
NEEDS_REGIONS: dict[str, Any] = {"needs": ("pycocotools", "pandas")}
MATCHES = [
    refusal("match/box outside", "ImageReadError", "scene.png", matched({"scene.png": [(200, 10, 300, 60)]})),
    refusal("match/empty box", "ValueError", "scene.png", matched({"scene.png": [(20, 10, 20, 60)]})),
    refusal("match/another size", "ImageReadError", "scene.png", matched(coco(width=300)), **NEEDS_REGIONS),
    refusal("match/box in the file", "ValueError", "annotation 7", matched(coco(bbox=[1, 2])), **NEEDS_REGIONS),
    refusal("match/damaged file", "RequestError", "regions.json", matched(("regions.json", "{")), **NEEDS_REGIONS),
    refusal("match/not COCO", "RequestError", "regions.json", matched(("regions.json", "{}")), **NEEDS_REGIONS),
    refusal(
        "match/columns of the file",
        "RequestError",
        "regions.csv",
        matched(("regions.csv", "file,left\nscene.png,3\n")),
    ),
    refusal(
        "match/number in the file",
        "Exception",
        "regions.csv",
        matched(("regions.csv", "path,x,y,w,h\nscene.png,a,1,5,5\n")),
    ),
    refusal("match/absent file", "RequestError", "absent.json", matched("absent.json")),
    refusal("match/no subjects", "RequestError", "subjects", matched(subjects={"": []})),
    refusal("match/no references", "RequestError", "rex", matched(subjects={"rex": []})),
    refusal("match/missing reference", "ImageReadError", "absent.png", matched(subjects={"rex": "absent.png"})),
    refusal("match/aggregate", "RequestError", "median", matched(aggregate="median")),
    refusal("match/threshold", "RequestError", "distance", matched(threshold=-1.0)),
    refusal("match/threshold of a stranger", "RequestError", "ann", matched(threshold={"ann": 0.5})),
    refusal("match/cast of a stranger", "RequestError", "ann", matched(cast={"scene.png": ["ann"]})),
    refusal("match/cast of another image", "RequestError", "other.png", matched(cast={"other.png": ["cup"]})),
    refusal(
        "match/text as a clip", "ClipError", "x.mp4", clip(b"ffconcat version 1.0\nfile other.mp4\n"), **NEEDS_VIDEO
    ),
    refusal("match/damaged clip", "ClipError", "x.mp4", clip(b"\x00\x00\x00\x18ftypmp42" + bytes(300)), **NEEDS_VIDEO),
    refusal("match/subject twice", "Exit2", "cup", lambda folder: twice()),
]


def twice() -> NoReturn:
    for name in ("cup", "scene"):
        picture(name).save(f"{name}.png")
    fails("match --model tiny --device cpu --subject cup=cup.png --subject cup=scene.png scene.png")


# Galleries


def gallery(*words: object) -> Trigger:
    """Run a command on a gallery of two photos, "pets"."""

    def trigger(folder: Path) -> object:
        for name in ("photos/a/1.png", "photos/b/1.png"):
            Path(name).parent.mkdir(parents=True)
            picture(name).save(name)
        status, _, err = command("gallery build photos --gallery pets --model tiny --device cpu --quiet")
        assert status == 0, err
        write_idsim(folder / "model")
        fails(*words)

    return trigger


def no_gallery(folder: Path) -> object:
    Path("pets").mkdir()
    Path("pets/notes.txt").write_text("mine")
    picture("a").save("a.png")
    fails("gallery query a.png --gallery pets --device cpu")


def gallery_of_nothing(folder: Path) -> object:
    Path("photos").mkdir()
    fails("gallery build photos --gallery pets --model tiny --device cpu")


GALLERIES = [
    refusal(
        "gallery/another model",
        "Exit1",
        "pets",
        gallery("gallery query photos/a/1.png -g pets --model model --device cpu"),
    ),
    refusal("gallery/none", "Exit1", "pets", no_gallery),
    refusal("gallery/no images", "Exit1", "photos", gallery_of_nothing),
    refusal("gallery/missing query", "Exit2", "absent.png", gallery("gallery query absent.png -g pets --device cpu")),
    refusal("gallery/missing source", "Exit2", "nowhere", gallery("gallery build nowhere -g pets --device cpu")),
]

# Manifests


def table(text: str, name: str = "m.csv") -> Trigger:
    """Check a manifest."""

    def trigger(folder: Path) -> object:
        Path(name).write_text(text)
        fails("data info --strict", name)

    return trigger


def of_table(text: str, *words: object) -> Trigger:
    """Run a command on a manifest, "m.csv", whose images exist: 0.png to 9.png."""

    def trigger(folder: Path) -> object:
        for number in range(10):
            picture(str(number)).save(f"{number}.png")
        Path("m.csv").write_text(text)
        fails(*words)

    return trigger


def merged(folder: Path) -> object:
    Path("a.csv").write_text("identity,path,id\nx,1.png,one\n")
    Path("b.csv").write_text("identity,path,id\nx,2.png,two\n")
    fails("data merge a.csv b.csv -o both.csv")


TEN = "identity,path\n" + "".join(f"thing {number // 2},{number}.png\n" for number in range(10))
OUT = "-o out.csv"
DATA = [
    refusal("data/no identity", "Exit1", "identity", table("path,color\n1.png,red\n")),
    refusal("data/no path", "Exit1", "path", table("identity,path\na,\n")),
    refusal("data/role", "Exit1", "role", table("identity,path,role\na,1.png,fake\n")),
    refusal("data/number", "Exit1", "oracle", table("identity,path,oracle\na,1.png,x\n")),
    refusal("data/parameters", "Exit1", "parameters", table("identity,path,parameters\na,1.png,{x\n")),
    refusal("data/cells", "Exit1", "m.csv", table("identity,path\na,1.png,zzz\n")),
    refusal("data/an id twice", "Exit1", "one", table("identity,path,id\na,1.png,one\nb,2.png,one\n")),
    refusal(
        "data/JSON lines", "Exit1", "line 2", table('{"identity": "a", "path": "1.png"}\n{"identity"\n', "m.jsonl")
    ),
    refusal("data/Parquet", "Exit1", "m.parquet", table("identity", "m.parquet")),
    refusal("data/ending", "Exit1", "m.xlsx", table("identity,path\na,1.png\n", "m.xlsx")),
    refusal("data/missing", "Exit1", "absent.csv", lambda folder: fails("data info absent.csv")),
    refusal(
        "data/leak",
        "Exit1",
        "thing 0",
        of_table("identity,path,split\nthing 0,0.png,train\nthing 0,1.png,test\n", "data info m.csv --strict"),
    ),
    refusal("data/identities twice", "Exit1", "identity", merged),
    refusal(
        "data/shares", "Exit1", "1.1", of_table(TEN, "data split m.csv --part train=0.8 --part test=0.3", *OUT.split())
    ),
    refusal(
        "data/too few identities",
        "Exit1",
        "15",
        of_table(TEN, "data split m.csv --part train=7 --part test=8", *OUT.split()),
    ),
    refusal("data/a part's name", "Exit1", "--part", of_table(TEN, "data split m.csv --part train", *OUT.split())),
    refusal("data/output over the input", "Exit1", "m.csv", of_table(TEN, "data split m.csv --part a=1 -o m.csv")),
    refusal(
        "data/splits twice",
        "Exit1",
        "split",
        of_table(
            "identity,path,split\na,0.png,train\nb,1.png,test\n",
            "data split m.csv --part a=0.5 --part b=0.5",
            *OUT.split(),
        ),
    ),
    refusal(
        "data/missing column",
        "Exit1",
        "label",
        of_table(TEN, "data import table m.csv --map identity=label", *OUT.split()),
    ),
    refusal("data/unknown kind", "Exit2", "coco9", of_table(TEN, "data import coco9 m.csv", *OUT.split())),
    refusal(
        "data/missing image",
        "Exit1",
        "99.png",
        of_table("identity,path\na,99.png\n", "data import table m.csv", *OUT.split()),
    ),
    refusal(
        "data/unknown engine",
        "Exit2",
        "dalle",
        of_table(TEN, "data generate --engine dalle --data m.csv", *OUT.split()),
    ),
]

# Evaluations


EVALUATIONS = [
    refusal("eval/no data", "Exit1", "absent.csv", lambda folder: fails("eval folder --data absent.csv --model tiny")),
    refusal(
        "eval/one image each",
        "Exit1",
        "identity",
        of_table("identity,path\na,0.png\nb,1.png\n", "eval folder --data m.csv --model tiny"),
    ),
    refusal(
        "eval/missing image",
        "Exit1",
        "77.png",
        of_table("identity,path\na,0.png\na,77.png\n", "eval folder --data m.csv --model tiny --device cpu"),
    ),
    refusal(
        "eval/unknown split",
        "Exit1",
        "val",
        of_table(
            "identity,path,split\na,0.png,test\na,1.png,test\n", "eval folder --data m.csv --model tiny --split val"
        ),
    ),
    refusal("eval/unknown protocol", "Exit2", "foldr", lambda folder: fails("eval foldr --data m.csv")),
    refusal("eval/unknown model", "Exit1", "tyni", of_table(TEN, "eval folder --data m.csv --model tyni")),
    refusal(
        "eval/no positive",
        "Exit1",
        "gallery",
        of_table(
            "identity,path,split\na,0.png,query\nb,1.png,gallery\nb,2.png,gallery\n",
            "eval retrieval --data m.csv --model tiny --device cpu",
        ),
    ),
    refusal("eval/pattern", "Exit1", "--pattern", of_table(TEN, "eval generator --data . --model tiny --references .")),
    refusal(
        "eval/stranger of the gallery",
        "Exit1",
        "Galerie",
        of_table("identity,path,split\na,0.png,Galerie\na,1.png,query\n", "eval openset --data m.csv --model tiny"),
    ),
    refusal(
        "eval/one identity",
        "Exit1",
        "identit",
        of_table(
            "identity,path\na,0.png\na,1.png\na,2.png\n",
            "eval calibrate --data m.csv --model tiny --device cpu --out out",
        ),
    ),
]

# Training

SMOKE = "train ilgen --smoke --cpu --out run"
TRAINING = [
    refusal("train/unknown recipe", "Exit2", "ilgn", lambda folder: fails("train ilgn --out run")),
    refusal("train/loss", "Exit2", "--loss", lambda folder: fails(SMOKE, "--loss", "hinge")),
    refusal("train/no data", "Exit1", "--data", lambda folder: fails("train ilgen --out run")),
    refusal(
        "train/missing data", "Exit1", "absent.csv", lambda folder: fails("train ilgen --data absent.csv --out run")
    ),
    refusal("train/unknown setting", "Exit1", "sharpness", lambda folder: with_config({"sharpness": 1})),
    refusal("train/type of a setting", "Exit1", "lr", lambda folder: with_config({"lr": "fast"})),
]


def with_config(settings: Mapping[str, Any]) -> NoReturn:
    write_json(Path("mine.json"), settings)
    fails(SMOKE, "--config", "mine.json")


CASES: list[Case] = [*IMAGES, *MASKS, *WEIGHTS, *LOSSES, *SCORES, *MATCHES, *GALLERIES, *DATA, *EVALUATIONS, *TRAINING]
