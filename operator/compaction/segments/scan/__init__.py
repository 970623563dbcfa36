"""The scan of a root: where its logs are, what changed since, and what each would gain from compaction."""
