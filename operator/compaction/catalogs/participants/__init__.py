"""Processes that use a catalog and take part in its compaction (docs/design/catalog-compaction.md#participants).

A participant reports from when on it needs the catalog (`report`), which it knows from three trackers (`transactions`,
`minimums`, `watermark`) and its rebalances (`rebalances`).
"""
