"""Histories of operations, one JSON object per line with a line of result for each: shared by the `exec` commands."""
