"""Malformed inputs for everything that reads files or arguments: `python -m tests.fuzz --count 10000 --seed 0`.

`damage` spoils bytes and JSON values; `images`, `tables`, `weights`, `texts` and `commands` make inputs; `readers` says
what reads them and which errors it may raise; `run` gives them to child processes with limits, and counts.
"""
