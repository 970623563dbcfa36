"""Snapshots of a log, and the sets of live indexes beside them."""
