"""Tests; each worker of pytest-xdist, and the programs that it starts, have one thread."""

import os

if "PYTEST_XDIST_WORKER" in os.environ:
    os.environ.setdefault("OMP_NUM_THREADS", "1")
