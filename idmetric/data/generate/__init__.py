"""Data made with diffusion models (extra `generate`): `idsim`, `grid`, `distractor` and `ilgen` hold the papers' tasks.

Tasks plan jobs, engines make images, and `idmetric.data.generate.jobs` runs the jobs; a stop loses at most one image.

Weights are safetensors from the Hub or local folders; code of their repositories is never run. Their licenses differ,
and those of FLUX.1 [dev] forbid commercial use; the parameters of each row name them.
"""
