"""Processes that use a catalog and take part in its compaction (docs/design/catalog-compaction.md#participants).

A participant reports from when on it needs the catalog (`reports`), which it knows from three trackers (transactions,
minimums, `watermark`) and its rebalances (`rebalances`). `reference` is a complete one, whose state a test drives.
Nothing here knows HTTP: reports travel by `compaction.catalogs.serving`.
"""
