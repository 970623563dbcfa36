"""Committed trees of staging areas: metaranges and their ranges in an object storage, and what makes new ones of them.

`storage` reads and writes; `applying` puts staged changes over a tree, as one stretch after the other or, for Spark,
cut into parts; `diffing` compares trees, and merges them. docs/design/staging.md#trees.
"""
