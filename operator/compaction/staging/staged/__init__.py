"""Staged changes: the rows of staging tokens, layered newest first (docs/design/staging.md#staged-changes).

`tokens` reads, writes and drops them (`rows` has their bytes), `layers` merges those of several tokens, `counters` says
without a scan how much there is.
"""
