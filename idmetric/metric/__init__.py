"""Scores the identity in two images: what `IDSim()(a, b)`, `idmetric score` and `IdentityLoss` run.

This room imports nothing outside of itself. To read it from the top: `distance.embedding`, `distance.matrix`,
`images.read`, `models.embedder`, `models.idsim`, `scoring.score`, then `idmetric.cli.score`.
"""
