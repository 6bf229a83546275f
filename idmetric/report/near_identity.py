"""NearID's figures of embeddings and attention, for one model or several.

models = {"SigLIP2": Backbone("vit_so400m_patch14_siglip_384.v2_webli"), "NearID": NearID()}
draw_near_identity(models, read("val.parquet"), "separation.svg")  # Fig. 5
draw_attention(models, {"anchor": "a.png", "positive": "b.png", "distractor": "c.png"}, "attention.png")  # Fig. 3
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import ArrayLike

from idmetric.data.manifest.lineage import VIEW_ROLES, parent_rows
from idmetric.data.manifest.table import Manifest
from idmetric.images.read import ImageLike, read_image
from idmetric.io.hints import need
from idmetric.models.embedder import Embedder
from idmetric.report.figure import Place, new_figure, save_figure
from idmetric.report.heatmap import overlay
from idmetric.scoring.attention import attention_maps

IDENTITIES = 7  # NearID, Fig. 5
_NEAR = ("distractor", "identity-edit", "part-edit")
Kernel = Literal["cosine", "rbf", "linear"]


@dataclass(frozen=True)
class Chosen:
    """Rows of some identities: numbers in the manifest, each row's identity, and whether it is one of its views.

    A row that is not a view is a distractor of one.
    """

    rows: list[int]
    identity: list[str]
    view: list[bool]


def draw_near_identity(
    metrics: Mapping[str, Embedder],
    manifest: Manifest,
    path: Place,
    *,
    identities: int = IDENTITIES,
    kernel: Kernel = "cosine",
    gamma: float | None = None,
    batch_size: int = 32,
) -> None:
    """Draw views and distractors of the manifest's first identities by kernel PCA, a panel per model (NearID, Fig. 5).

    Args:
        metrics: name -> model.
        manifest: identities with two views or more, and distractors made from them.
        identities: number of identities.
        kernel, gamma: of scikit-learn's KernelPCA, the same for all models, each of which has a projection of its own.
            The paper says "identical settings" and gives none.

    Raises:
        ValueError: if the manifest has fewer such identities.
    """
    chosen = choose(manifest, identities)
    images = [manifest.image(row) for row in chosen.rows]
    vectors = {name: m.embed(images, patches=False, batch_size=batch_size).cls for name, m in metrics.items()}
    panels = {name: found.double().cpu().numpy() for name, found in vectors.items()}
    near_identity(panels, chosen.identity, chosen.view, path, kernel=kernel, gamma=gamma)


def choose(manifest: Manifest, count: int) -> Chosen:
    """The manifest's first `count` identities with two views or more and a distractor of one of them.

    Raises:
        ValueError: if there are fewer, or count is below 1.
    """
    if count < 1:
        raise ValueError(f"the number of identities must be at least 1, not {count}")
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
    rows = [(row, name, view) for name in found for view, own in ((True, views), (False, near)) for row in own[name]]
    return Chosen([r for r, *_ in rows], [n for _, n, _ in rows], [v for *_, v in rows])


def near_identity(
    vectors: Mapping[str, ArrayLike],
    identity: ArrayLike,
    view: ArrayLike,
    path: Place,
    *,
    kernel: Kernel = "cosine",
    gamma: float | None = None,
) -> None:
    """Draw embeddings in their first two kernel principal components; circles are views, crosses their distractors.

    Args:
        vectors: model -> embeddings (N, D).
        identity: (N,), of a view, and of the view that a distractor was made from. view: bool (N,).
    """
    need("eval", "the figure of near-identities", sklearn="scikit-learn")
    from sklearn.decomposition import KernelPCA

    names, views = np.asarray(identity), np.asarray(view, dtype=bool)
    figure, axes = new_figure(1, len(vectors))
    for panel, (name, found) in zip(axes, vectors.items(), strict=True):
        places = KernelPCA(2, kernel=kernel, gamma=gamma).fit_transform(np.asarray(found))
        for k, one in enumerate(dict.fromkeys(names.tolist())):
            for chosen, marker in ((names == one) & views, "o"), ((names == one) & ~views, "x"):
                x, y = places[chosen].T
                panel.scatter(x, y, s=28, marker=marker, color=f"C{k % 10}", label=f"S{k + 1}" * (marker == "o"))
        panel.set(title=name, xticks=[], yticks=[])
    save_figure(figure, path)


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
