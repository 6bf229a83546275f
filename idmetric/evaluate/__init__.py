"""Measures metrics and generators: `statistics` on arrays, `protocols` for the papers' tables, `report` for pages."""
