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
