"""NearID's figures of embeddings and attention, for one model or several.

models = {"SigLIP2": Backbone("siglip2:nearid"), "NearID": NearID()}
draw_near_identity(models, read("val.parquet"), "separation.svg")  # Fig. 5
draw_attention(models, {"anchor": "a.png", "positive": "b.png", "distractor": "c.png"}, "attention.png")  # Fig. 3
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from idmetric.data.split import VIEW_ROLES, parent_rows
from idmetric.evaluate.report.attention import attention_maps
from idmetric.evaluate.report.figure import new_figure, save_figure
from idmetric.metric.embedder import Embedder
from idmetric.metric.files import StrPath, need
from idmetric.metric.heatmap import overlay
from idmetric.metric.images import ImageLike, read_image
from idmetric.stream import embedding_of, items_of_images

if TYPE_CHECKING:
    from pandas import DataFrame

IDENTITIES = 7  # NearID, Fig. 5
_NEAR_ROLES = ("distractor", "identity-edit", "part-edit")  # drawn as crosses: part-edits are other identities too


def draw_near_identity(
    metrics: Mapping[str, Embedder],
    manifest: DataFrame,
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
    rows = np.concatenate([views + distractors for views, distractors in groups])
    number_of = np.repeat(np.arange(len(groups)), [len(views) + len(distractors) for views, distractors in groups])
    is_view = np.concatenate([np.isin(views + distractors, views) for views, distractors in groups])
    items = items_of_images(list(manifest["path"][rows]), [None] * len(rows))

    figure, axes = new_figure(1, len(metrics))
    for panel, (name, metric) in zip(axes, metrics.items(), strict=True):
        vectors = embedding_of(items, metric).cls.double().numpy()
        points = KernelPCA(2, **{"kernel": "cosine", **kernel}).fit_transform(vectors)
        for number in range(len(groups)):
            for marker, is_kind in (("o", is_view), ("x", ~is_view)):
                x, y = points[(number_of == number) & is_kind].T
                label = f"S{number + 1}" if marker == "o" else None
                panel.scatter(x, y, s=28, marker=marker, color=f"C{number % 10}", label=label)
        panel.set(title=name, xticks=[], yticks=[])
    save_figure(figure, path)


def _choose(manifest: DataFrame, count: int) -> list[tuple[list[int], list[int]]]:
    """The views of the first `count` identities with two, and the near-identity images made from them."""
    names = manifest["identity"].tolist()
    parents = parent_rows(manifest)
    views: dict[str | None, list[int]] = {}
    distractors: dict[str | None, list[int]] = {}
    for row, role in enumerate(manifest["role"]):
        if role in VIEW_ROLES and names[row] is not None:
            views.setdefault(names[row], []).append(row)
        elif role in _NEAR_ROLES and parents[row] >= 0:
            distractors.setdefault(names[parents[row]], []).append(row)

    groups = [(rows, distractors[name]) for name, rows in views.items() if len(rows) > 1 and name in distractors]
    if len(groups) < count:
        raise ValueError(f"the manifest has {len(groups)} identities with two views and a distractor, not {count}")
    return groups[:count]


def draw_attention(metrics: Mapping[str, Embedder], images: Mapping[str, ImageLike], path: StrPath) -> None:
    """Draw images, and over them the attention of each model's pooling head (NearID, Fig. 3, left).

    Each picture has its own scale, from its least to its greatest attention.

    Args:
        metrics: name -> model that pools by attention; a row each.
        images: title -> image; a column each.
    """
    pictures = [read_image(image) for image in images.values()]
    panel_pictures = [*pictures]  # row by row
    for metric in metrics.values():
        for picture, heat in zip(pictures, attention_maps(metric, pictures), strict=True):
            panel_pictures.append(overlay(picture, heat.double().cpu()))

    figure, axes = new_figure(1 + len(metrics), len(images), width=2.4)
    for panel, picture in zip(axes, panel_pictures, strict=True):
        panel.imshow(np.asarray(picture))
        panel.set(xticks=[], yticks=[])
        panel.grid(False)
    for panel, title in zip(axes, images, strict=False):  # of the first row
        panel.set(title=title)
    for panel, name in zip(axes[len(images) :: len(images)], metrics, strict=True):
        panel.set(ylabel=name)
    save_figure(figure, path)
