"""Scores the identity in two images: what `IDSim()(a, b)`, `idmetric score` and `IdentityLoss` run.

This room imports nothing outside of itself. To read it from the top: `images`, `embedding`, `distance`, `embedder` and
`idsim`; then `idmetric.stream`, `idmetric.scoring.score` and `idmetric.cli.score`.
"""
