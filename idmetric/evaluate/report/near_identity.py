"""NearID's figures of embeddings and attention, for one model or several.

models = {"SigLIP2": Backbone("siglip2:nearid"), "NearID": NearID()}
draw_near_identity(models, read("val.parquet"), "separation.svg")  # Fig. 5
draw_attention(models, {"anchor": "a.png", "positive": "b.png", "distractor": "c.png"}, "attention.png")  # Fig. 3
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import chain
from typing import Any

import numpy as np

from idmetric.data.manifest.lineage import VIEW_ROLES, parent_rows
from idmetric.data.manifest.table import Manifest
from idmetric.evaluate.report.figure import new_figure, save_figure
from idmetric.evaluate.report.heatmap import overlay
from idmetric.metric.files import StrPath
from idmetric.metric.files.hints import need
from idmetric.metric.images.read import ImageLike, read_image
from idmetric.metric.models.embedder import Embedder
from idmetric.metric.scoring.attention import attention_maps

IDENTITIES = 7  # NearID, Fig. 5
_NEAR = ("distractor", "identity-edit", "part-edit")


def draw_near_identity(
    metrics: Mapping[str, Embedder],
    manifest: Manifest,
    path: StrPath,
    *,
    identities: int = IDENTITIES,
    **kernel: Any,
) -> None:
    """Draw views and distractors of the manifest's first identities by kernel PCA, a panel per model (NearID, Fig. 5).

    Args:
        metrics: name -> model.
        manifest: identities with two views or more, and distractors made from them.
        identities: number of identities.
        kernel: settings of scikit-learn's KernelPCA, the same for all models, each of which has a projection of its own
            (default: kernel="cosine"). The paper says "identical settings" and gives none.

    Raises:
        ValueError: if the manifest has fewer such identities.
    """
    need("eval", "the figure of near-identities", sklearn="scikit-learn")
    from sklearn.decomposition import KernelPCA

    groups = _choose(manifest, identities)
    images = [manifest.image(row) for row in chain(*(members for _, members in groups))]

    figure, axes = new_figure(1, len(metrics))
    for panel, (name, metric) in zip(axes, metrics.items(), strict=True):
        vectors = metric.embed(images, patches=False).cls.double().cpu().numpy()
        points = KernelPCA(2, **{"kernel": "cosine", **kernel}).fit_transform(vectors)
        for index, (is_view, members) in enumerate(groups):
            x, y = points[: len(members)].T
            points = points[len(members) :]
            number = index // 2
            color = f"C{number % 10}"
            if is_view:
                panel.scatter(x, y, s=28, marker="o", color=color, label=f"S{number + 1}")
            else:
                panel.scatter(x, y, s=28, marker="x", color=color)
        panel.set(title=name, xticks=[], yticks=[])
    save_figure(figure, path)


def _choose(manifest: Manifest, count: int) -> list[tuple[bool, list[int]]]:
    """The rows of the first `count` identities: of each the views (True), then their distractors (False)."""
    names = manifest.column("identity")
    roles = manifest.column("role")
    parents = parent_rows(manifest)
    views: dict[str | None, list[int]] = {}
    distractors: dict[str | None, list[int]] = {}
    for row, role in enumerate(roles):
        if role in VIEW_ROLES and names[row] is not None:
            views.setdefault(names[row], []).append(row)
        elif role in _NEAR and parents[row] >= 0:
            distractors.setdefault(names[parents[row]], []).append(row)

    groups: list[tuple[bool, list[int]]] = []
    for name, rows in views.items():
        if len(rows) > 1 and name in distractors:
            groups.append((True, rows))
            groups.append((False, distractors[name]))
    if len(groups) < 2 * count:
        raise ValueError(f"the manifest has {len(groups) // 2} identities with two views and a distractor, not {count}")
    return groups[: 2 * count]


def draw_attention(metrics: Mapping[str, Embedder], images: Mapping[str, ImageLike], path: StrPath) -> None:
    """Draw images, and over them the attention of each model's pooling head (NearID, Fig. 3, left).

    Each picture has its own scale, from its least to its greatest attention.

    Args:
        metrics: name -> model that pools by attention; a row each.
        images: title -> image; a column each.
    """
    pictures = [read_image(image) for image in images.values()]
    shown = [*pictures]  # row by row
    for metric in metrics.values():
        maps = attention_maps(metric, [*pictures])
        for picture, heat in zip(pictures, maps, strict=True):
            shown.append(overlay(picture, heat.double().cpu()))

    figure, axes = new_figure(1 + len(metrics), len(images), width=2.4)
    for panel, picture in zip(axes, shown, strict=True):
        panel.imshow(np.asarray(picture))
        panel.set(xticks=[], yticks=[])
        panel.grid(False)
    for panel, title in zip(axes, images, strict=False):
        panel.set(title=title)
    for panel, name in zip(axes[len(images) :: len(images)], metrics, strict=True):
        panel.set(ylabel=name)
    save_figure(figure, path)
