"""The pretrained encoder of ID-Sim's and ILGen's tables: one small ViT for all rows and seeds.

It stands in for DINOv3 and SigLIP: it has a class token and patches, and knows kinds of objects, colors and whole
pictures, but no identities (see `pretraining`). No table trains or tests on the objects that it is pretrained on.
"""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path

import torch
from captions import Regions
from common import Options, digest, world
from pretraining import pretrained
from safetensors.torch import save_file
from world.write import WorldPlan

from idmetric import Backbone

NAME = "vit_tiny_patch16_224"
# at 64 px 16 patches: ID-Sim compares all patches of a batch by Sinkhorn
ARGS = {"patch_size": 16, "embed_dim": 128, "depth": 4, "num_heads": 4}
SIZE = 64
PLAN = WorldPlan(seed=50, size=SIZE, views=2, distractors=0)
WEIGHTS = "timm.safetensors"


def encoder(options: Options) -> Path:
    """The encoder's folder, pretrained once: `Backbone(folder)` opens it."""
    things, steps = (8, 2) if options.quick else (1200, 400)
    folder = options.out / "encoders" / digest(["dense", NAME, ARGS, asdict(PLAN), things, steps])
    if not (folder / WEIGHTS).is_file():
        data = world(options, PLAN, things)
        torch.manual_seed(0)
        new = Backbone(NAME, pretrained=False, image_size=SIZE, backbone_args=ARGS)
        model = pretrained(new, data, folder, steps=steps, seed=0, batch=min(64, len(data)), captions=Regions)
        save_file(model.backbone.state_dict(), folder / WEIGHTS)
    return folder
