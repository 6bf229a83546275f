"""The tables of `idmetric score --list-models`."""

from __future__ import annotations

import json

from idmetric.cli.command import check_output, write
from idmetric.metric.checkpoints import released
from idmetric.metric.checkpoints.format import CONFIG, WEIGHTS, read_json
from idmetric.metric.checkpoints.hub import cached_file
from idmetric.metric.checkpoints.revision import Hub
from idmetric.metric.files.tables import aligned
from idmetric.metric.models.named import FROZEN, NAMED
from idmetric.metric.models.tiny import TINY


def print_models() -> int:
    """Print the tables; returns the exit status."""
    check_output(None, "leave it open")
    write(list_models(), instead="direct it to another disk")
    return 0


def list_models() -> str:
    """The tables of --list-models: models, published scores, frozen encoders."""
    size = (TINY / WEIGHTS).stat().st_size / 1e9
    side = json.loads((TINY / CONFIG).read_text(encoding="utf-8"))["image_size"]
    models = [
        ["model", "download", "license", "resolution", "distance", "state", "repository"],
        ["tiny", f"{size:.3f} GB", "apache-2.0", f"{side}x{side}", "cls", "in the package", ""],
    ]
    for name, release in released.models().items():
        state = "cached" if is_cached(release) else "not fetched"
        size_text = f"{release.gigabytes} GB"
        models.append([name, size_text, release.license, release.resolution, "cls", state, release.repo])

    scores = [["score", "encoder", "source"]]
    for name, score in NAMED.items():
        scores.append([name, score.backbone, score.source])

    frozen = [["frozen encoder", "timm's name"]]
    for name, (encoder, _) in FROZEN.items():
        frozen.append([name, encoder])

    return "\n\n".join("\n".join(aligned(table)) for table in (models, scores, frozen)) + "\n"


def is_cached(release: released.Release) -> bool:
    """Whether a release's weights are in the Hub cache, an ID-Sim's backbone as well."""
    hub = Hub(revision=release.revision)
    if release in released.IDSIM.values():
        backbone = cached_file(f"timm/{release.backbone}", WEIGHTS)
        adapter = cached_file(release.repo, released.ADAPTER, hub)
        return backbone is not None and adapter is not None

    index = cached_file(release.repo, f"{WEIGHTS}.index.json", hub)
    if index is None:
        return cached_file(release.repo, WEIGHTS, hub) is not None
    shards = set(read_json(index).get("weight_map", {}).values())
    return bool(shards) and all(cached_file(release.repo, str(shard), hub) for shard in shards)
