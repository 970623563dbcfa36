"""The decision to cut the history of a catalog, and its reconcile: pure functions over the object, reports, history,
topology and a clock (docs/design/catalog-compaction.md#decision).

Others import `catalog` for the reconcile, `observations` for what it reads, `actions` for what it decides; `round` for
what a decision reads, `deciding` for the two decisions, `cutting` to carry a cut out, `watermark` and `fencing` for the
coordinator's own times and token.
"""
