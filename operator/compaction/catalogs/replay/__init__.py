"""Histories that the reference wrote, in our terms: `parsing` reads commands (docs/design/catalogs.md#histories)."""
