"""A Kubernetes operator that keeps storage compacted: sense, plan, lease, rewrite on Spark, verify, commit, sweep."""
