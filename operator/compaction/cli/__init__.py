"""`compactor`, also `kubectl-compaction`: each command is loaded only when it is called."""
