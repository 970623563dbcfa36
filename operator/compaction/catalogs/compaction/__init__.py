"""The decision to cut the history of a catalog: pure functions over reports, history and topology
(docs/design/catalog-compaction.md#decision).

Others import `round` for what a decision reads, `deciding` for the two decisions, `processes` for what runs when,
`reasons` for how it ends, `cutting` to carry a cut out, `watermark` and `fencing` for the coordinator's own times and
token.
"""
