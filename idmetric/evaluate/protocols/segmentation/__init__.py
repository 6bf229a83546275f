"""ID-Sim, Table 2c: where a subject is."""
