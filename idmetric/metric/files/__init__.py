"""Files: atomic output, JSON, TOML, CSV and text of unknown origin, locks, progress."""

import os

StrPath = str | os.PathLike[str]
