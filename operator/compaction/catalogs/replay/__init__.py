"""Histories that the reference wrote, in our terms: `parsing` reads their commands (docs/design/catalogs.md#histories)."""
