"""The decision to cut the history of a catalog, and its reconcile: pure functions over the object, reports, history,
topology and a clock (docs/design/catalog-compaction.md#decision).

Others import `reconcile` for the reconcile of one catalog, `observations` for what it reads and decides; `round` for
what a decision reads and the coordinator's own times, `deciding` for the two decisions and to carry a cut out.
"""
