"""Committed trees: what a metarange holds, and how one is made from another (docs/design/staging.md#trees)."""
