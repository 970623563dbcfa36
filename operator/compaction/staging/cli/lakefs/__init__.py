"""`compactor staging lakefs`: sealed tokens of a live lakeFS on PostgreSQL (docs/design/staging.md#live-lakefs)."""
