"""Staged changes: the rows of staging tokens, layered newest first (docs/design/staging.md#staged-changes)."""
