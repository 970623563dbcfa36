"""Segment logs: Raft entries in numbered segment files, a snapshot, and the live indexes at or below it."""
