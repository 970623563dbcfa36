"""Processes that use a catalog and take part in its compaction (docs/design/catalog-compaction.md#participants)."""
