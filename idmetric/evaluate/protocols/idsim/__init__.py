"""ID-Sim, Figure 25 and Table 2b: retrieval benchmarks."""
