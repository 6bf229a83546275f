"""Optimize pixels towards an identity: the metric as a differentiable loss."""

from __future__ import annotations

import argparse
from pathlib import Path

IMAGES = Path(__file__).parent / "images"


def main(steps: int = 60, model: str = "tiny") -> list[float]:
    """Return the distance before each step; it falls."""
    import torch

    from idmetric import IDSim

    metric = IDSim(model, device="cpu")
    target = metric.embed(IMAGES / "mug_a.png")  # once, without a graph
    torch.manual_seed(0)
    logits = torch.zeros(1, 3, 128, 128).normal_(std=0.1).requires_grad_()
    optimizer = torch.optim.Adam([logits], lr=0.05)
    distances = []
    for step in range(steps):
        loss = metric(logits.sigmoid(), target, distance="joint").mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        distances.append(loss.item())
        if step % 20 == 0 or step == steps - 1:
            print(f"step {step}: distance {loss.item():.4f}")
    return distances


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", default="tiny", help="an ID-Sim model (default: %(default)s)")
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--smoke", action="store_true", help="three steps")
    args = parser.parse_args()
    main(3 if args.smoke else args.steps, args.model)
