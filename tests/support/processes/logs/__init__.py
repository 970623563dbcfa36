"""Processes that share one system of logs: its owner, a compactor and a reader, each for itself killable anywhere."""
