"""Repositories, branches, tags and commits, and what a reference means (docs/design/staging.md#references)."""
