"""`idmetric models`, and the page with its tables."""

from __future__ import annotations

import runpy
from pathlib import Path

import pytest

from idmetric.cli.list_models import facts, fitting_model, states
from idmetric.cli.main import main
from idmetric.metric.checkpoints import released

ROOT = Path(__file__).parents[2]


def test_each_model_has_facts_and_a_state() -> None:
    names = [row[0] for row in facts()[1:]]
    assert names == ["tiny", "efficientnet-lite0", *released.MODELS]
    assert len(states()) == len(names)


def test_the_page_has_the_table_of_the_command() -> None:
    script = "docs/scripts/which_model.py"
    module = runpy.run_path(str(ROOT / script))
    text = (ROOT / "docs/models/which.md").read_text(encoding="utf-8")
    assert text == module["page"](), f"run: python {script}"
    for row in facts():
        assert f"| {' | '.join(row)} |\n" in text


@pytest.mark.parametrize(
    ("device", "gigabytes", "name"),
    [
        ("cuda", 80, "dinov3_vitl16"),
        ("cuda", 5.0, "dinov3_vitl16"),  # passes of 32 need 2.47 GB, half of 4.95
        ("cuda", 4.9, "dinov3_vitb16"),  # 1.29 GB, half of 2.59
        ("cuda", 2.6, "dinov3_vitb16"),
        ("cuda", 2.5, "tiny"),
        ("mps", 16, "dinov3_vitl16"),
        ("cpu", 64, "dinov3_vitb16"),
        ("cpu", 2.5, "tiny"),
        ("cpu", None, "dinov3_vitb16"),
        ("cpu", 137, "dinov3_vitb16"),
    ],
)
def test_the_fitting_model_needs_at_most_half_of_the_memory(device: str, gigabytes: float | None, name: str) -> None:
    chosen, reason = fitting_model(device, None if gigabytes is None else gigabytes * 1e9)
    assert chosen == name
    assert "\n" not in reason
    assert ("of unknown memory" if gigabytes is None else f"of {gigabytes:.3g} GB") in reason
    assert ("without a GPU" in reason) == (device == "cpu" and name != "tiny")


def test_models_are_listed_with_license_size_and_cache_state(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from huggingface_hub import constants

    from idmetric.metric.checkpoints import released

    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path))

    def state_of() -> dict[str, str]:
        assert main(["models"]) == 0
        models, scores, frozen, _, machine = capsys.readouterr().out.split("\n\n")
        assert machine.startswith("this machine: ")
        assert "dreambench_plus/metrics/dino_score.py" in scores
        assert "frozen:dinov3-l16" in frozen
        lines = models.splitlines()
        assert lines[0].split()[:3] == ["model", "download", "parameters"]
        return {line.split()[0]: line for line in lines[1:]}

    lines = state_of()
    assert list(lines) == ["tiny", "efficientnet-lite0", *released.MODELS]
    assert "dinov3-license" in lines["dinov3_vitl16"]
    assert "448x448" in lines["dinov3_vitl16"]
    assert "0.9 GB" in lines["nearid"]
    assert all(lines[name].endswith("not fetched") for name in released.MODELS)

    release = released.IDSIM["dinov2_vitb14"]
    assert release.revision is not None
    wanted = {"Aleksandar/nearid-siglip2": ("main", "config.json", "preprocessor_config.json", "model.safetensors"),
              release.repo: (release.revision, "adapter_config.json", "adapter_model.safetensors", "mlp_cls.pth",
                             "mlp_patch.pth"),
              "timm/vit_base_patch14_dinov2.lvd142m": ("main", "model.safetensors")}  # fmt: skip
    for repo, (revision, *files) in wanted.items():
        root, commit = tmp_path / f"models--{repo.replace('/', '--')}", "1" * 40 if revision == "main" else revision
        (root / "snapshots" / commit).mkdir(parents=True)
        (root / "refs").mkdir()
        (root / "refs" / "main").write_text(commit)
        for file in files:
            (root / "snapshots" / commit / file).write_text("{}")
    lines = state_of()
    assert " cached" in lines["nearid"]
    assert " cached" in lines["dinov2_vitb14"]
    assert "not fetched" in lines["visid_3b"]
