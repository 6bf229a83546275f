"""The version of the package; here, so that modules can import it without the package's lazy names."""

__version__ = "0.2.0"
