"""Compaction of a branch: claim, rewrite, proof, swap (docs/design/staging-areas.md#compaction)."""
