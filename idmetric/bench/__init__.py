"""Speed, measured: what `idmetric-bench` runs, one file for each kind of question."""
