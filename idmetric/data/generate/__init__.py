"""Data made with diffusion models (extra `generate`): contextual edits, identity edits, distractors, ILGen.

Tasks plan jobs, engines make images, and `idmetric.data.generate.jobs` runs the jobs; a stop loses at most one image.

| task | paper | engines |
|---|---|---|
| `contextual_task` | ID-Sim, A.2.1 | `qwen_edit` |
| `identity_task`, `noise_task` | ID-Sim, A.2.2 | `flux_fill` |
| `grid_identity_task`, `grid_context_task` | ID-Sim, F.1 | `qwen_edit_inpaint`, then `qwen_edit` |
| `distractor_task` | NearID, 0.B.1 | `sdxl_inpaint`, `flux_fill`, `flux_canny`, `qwen_inpaint`, `powerpaint` |
| `object_task`, `relight_task` | ILGen, 3.2 | `sd_turbo`, then `iclight` |

NearID's PowerPaint is version 2.1, which no release of diffusers includes and which comes with a pickle. `powerpaint`
is version 1. The distractors of 2.1 are published with the NearID dataset.

Weights are safetensors from the Hub or local folders; code of their repositories is never run. Their licenses differ,
and those of FLUX.1 [dev] forbid commercial use; the parameters of each row name them.
"""

from __future__ import annotations

from idmetric.data.generate.distractor import distractor_task
from idmetric.data.generate.engine import Engine, Request
from idmetric.data.generate.engines import ENGINES, open_engine
from idmetric.data.generate.grid import grid_context_task, grid_identity_task, grid_sources
from idmetric.data.generate.idsim import contextual_task, identity_task, noise_task
from idmetric.data.generate.ilgen import object_task, relight_task
from idmetric.data.generate.jobs import Job, Made, Task
from idmetric.data.generate.masks import REMOVERS, CleanBackground, GroundedSam, Remover, open_remover
from idmetric.data.generate.weights import Flat, GenerateError, Place, Rejected, Weights
from idmetric.data.generate.wording import Wording, read_wording

__all__ = [
    "ENGINES", "REMOVERS", "CleanBackground", "Engine", "Flat", "GenerateError", "GroundedSam", "Job", "Made", "Place",
    "Rejected", "Remover", "Request", "Task", "Weights", "Wording", "contextual_task", "distractor_task",
    "grid_context_task", "grid_identity_task", "grid_sources", "identity_task", "noise_task", "object_task",
    "open_engine", "open_remover", "read_wording", "relight_task",
]  # fmt: skip
