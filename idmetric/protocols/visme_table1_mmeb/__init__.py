"""VisME, Table 1: the meta-tasks of MMEB."""
