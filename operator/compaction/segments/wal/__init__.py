"""The write-ahead log of a system of logs: records as Ra writes them, group commit, roll-over, recovery."""
