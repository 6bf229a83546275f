"""The browser of the tests of pages."""

from tests.browser_parts import browser, visit

__all__ = ["browser", "visit"]
