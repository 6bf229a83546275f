"""ID-Sim's two terms (Eq. 1) on groups of an identity and its twin, and a term that learns from other models."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from idmetric.metric.distance.sinkhorn import sinkhorn_distance
from idmetric.train.losses.info_nce import info_nce


def global_loss(features: Tensor, temperature: float, identities: Tensor | None = None) -> Tensor:
    """InfoNCE over all ordered pairs of views (ID-Sim Eq. 2).

    Args:
        features: (B, 2, V, D), unit length: identity and twin of each group. An anchor's negatives are all images of
            other identities, its own twin's included.
        identities: (B, 2), which identity each shows, where one may be in several groups; default: each is another.
    """
    views = features.shape[2]
    flat = features.flatten(0, 2)
    identity = torch.arange(len(flat), device=flat.device) // views
    similarity = flat @ flat.T
    shown = identity if identities is None else identities.flatten().to(flat.device).repeat_interleave(views)
    negative = shown[:, None] != shown[None]
    place = torch.arange(len(flat), device=flat.device)
    losses = []
    for step in range(1, views):  # the positives of each view: the others of its identity, one after another
        positive = identity * views + (place + step) % views
        losses.append(info_nce(similarity[place, positive], similarity, temperature=temperature, valid=negative))
    return torch.stack(losses).mean()


def patch_loss(patches: Tensor, temperature: float, others: int, identities: Tensor | None = None) -> Tensor:
    """InfoNCE on the negative Sinkhorn distance of patch tokens (ID-Sim Eq. 2 and 3).

    Args:
        patches: (B, 2, V, P, D), unit length. Anchor: the identity's first view; positive: its second; negatives: the
            twin in the anchor's context, and the second view of the next `others` groups' identities.
        identities: as for `global_loss`.
    """
    anchor, positive = patches[:, 0, 0], patches[:, 0, 1]
    candidates = [positive, patches[:, 1, 0], *(positive.roll(-k, 0) for k in range(1, others + 1))]
    distance = sinkhorn_distance(anchor.repeat(len(candidates), 1, 1), torch.cat(candidates))
    similarity = -distance.view(len(candidates), len(anchor)).T
    valid = None
    if identities is not None:
        shown = identities.to(patches.device)[:, 0]
        valid = torch.stack([identities.to(patches.device)[:, 1], *(shown.roll(-k) for k in range(1, others + 1))], 1)
        valid = valid != shown[:, None]
    return info_nce(similarity[:, 0], similarity[:, 1:], temperature=temperature, valid=valid)


def similarity_loss(features: Tensor, taught: Tensor, temperature: float) -> Tensor:
    """Cross-entropy between each image's distributions of similarity to the others, a teacher's and the student's.

    Less the teacher's entropy, so that 0 is perfect agreement: a KL divergence. After SEED (Fang et al. 2021), with the
    batch in place of a queue.

    Args:
        features: (N, D), of unit length. taught: (N, E), of unit length, without graph.
        temperature: of both softmax functions; an image's similarity to itself is left out.
    """
    own = torch.eye(len(features), dtype=torch.bool, device=features.device)
    student, teacher = ((x @ x.T / temperature)[~own].view(len(x), -1) for x in (features, taught))
    return F.kl_div(student.log_softmax(-1), teacher.log_softmax(-1), reduction="batchmean", log_target=True)
