"""HTML pages: the layout, style, charts and pictures that all pages share, and the page of `match`."""
