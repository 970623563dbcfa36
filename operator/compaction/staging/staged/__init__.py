"""Staged changes: the rows of staging tokens, layered newest first (docs/design/staging.md#staged-changes).

`rows` reads, writes and drops them, and merges those of several tokens; `counters` says without a scan how much there
is.
"""
