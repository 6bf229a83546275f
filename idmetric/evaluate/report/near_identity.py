"""NearID's figures of embeddings and attention, for one model or several.

models = {"SigLIP2": Backbone("siglip2:nearid"), "NearID": NearID()}
draw_near_identity(models, read("val.parquet"), "separation.svg")  # Fig. 5
draw_attention(models, {"anchor": "a.png", "positive": "b.png", "distractor": "c.png"}, "attention.png")  # Fig. 3
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from idmetric.data.manifest.lineage import VIEW_ROLES, parent_rows
from idmetric.data.manifest.table import Manifest
from idmetric.evaluate.report.figure import Place, new_figure, save_figure
from idmetric.evaluate.report.heatmap import overlay
from idmetric.metric.files.hints import need
from idmetric.metric.images.read import ImageLike, read_image
from idmetric.metric.models.embedder import Embedder
from idmetric.metric.scoring.attention import attention_maps

IDENTITIES = 7  # NearID, Fig. 5
_NEAR = ("distractor", "identity-edit", "part-edit")


def draw_near_identity(
    metrics: Mapping[str, Embedder],
    manifest: Manifest,
    path: Place,
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

    chosen = _choose(manifest, identities)
    images = [manifest.image(row) for row, _, _ in chosen]
    owner, view = np.array([k for _, k, _ in chosen]), np.array([is_view for *_, is_view in chosen])
    figure, axes = new_figure(1, len(metrics))
    for panel, (name, metric) in zip(axes, metrics.items(), strict=True):
        vectors = metric.embed(images, patches=False).cls
        places = KernelPCA(2, **{"kernel": "cosine", **kernel}).fit_transform(vectors.double().cpu().numpy())
        for k in range(identities):
            for shown, marker in ((owner == k) & view, "o"), ((owner == k) & ~view, "x"):
                x, y = places[shown].T
                panel.scatter(x, y, s=28, marker=marker, color=f"C{k % 10}", label=f"S{k + 1}" * (marker == "o"))
        panel.set(title=name, xticks=[], yticks=[])
    save_figure(figure, path)


def _choose(manifest: Manifest, count: int) -> list[tuple[int, int, bool]]:
    """Rows of the first `count` identities: row, number of the identity, and whether it is a view, no distractor."""
    names, roles, parents = manifest.column("identity"), manifest.column("role"), parent_rows(manifest)
    views: dict[str, list[int]] = {}
    near: dict[str, list[int]] = {}
    for row, (name, role) in enumerate(zip(names, roles, strict=True)):
        if name is not None and role in VIEW_ROLES:
            views.setdefault(name, []).append(row)
    for row, role in enumerate(roles):
        parent = parents[row]
        if role in _NEAR and parent >= 0 and row not in views.get(names[parent] or "", []):
            near.setdefault(str(names[parent]), []).append(row)

    found = [name for name, own in views.items() if len(own) > 1 and name in near][:count]
    if len(found) < count:
        raise ValueError(f"the manifest has {len(found)} identities with two views and a distractor, not {count}")
    return [(row, k, own is views) for k, name in enumerate(found) for own in (views, near) for row in own[name]]


def draw_attention(metrics: Mapping[str, Embedder], images: Mapping[str, ImageLike], path: Place) -> None:
    """Draw images, and over them the attention of each model's pooling head (NearID, Fig. 3, left).

    Each picture has its own scale, from its least to its greatest attention.

    Args:
        metrics: name -> model that pools by attention; a row each.
        images: title -> image; a column each.
    """
    figure, axes = new_figure(1 + len(metrics), len(images), width=2.4)
    pictures = [read_image(image) for image in images.values()]
    for panel, title, picture in zip(axes, images, pictures, strict=False):
        panel.imshow(np.asarray(picture))
        panel.set(title=title)
    for row, (name, metric) in enumerate(metrics.items(), 1):
        maps = attention_maps(metric, list(pictures))
        for column, (picture, heat) in enumerate(zip(pictures, maps, strict=True)):
            panel = axes[row * len(images) + column]
            panel.imshow(np.asarray(overlay(picture, heat.double().cpu())))
            panel.set_ylabel(name if column == 0 else "")
    for panel in axes:
        panel.set(xticks=[], yticks=[])
        panel.grid(False)
    save_figure(figure, path)
