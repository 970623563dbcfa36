"""Repositories, branches, tags and commits, and what a reference means (docs/design/staging-areas.md#references)."""
