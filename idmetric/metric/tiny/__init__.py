"""The model inside this package: its files, and the architecture of its backbones."""
