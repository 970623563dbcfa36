"""Histories of operations, an object of JSON per line, with a line of result for each: what the `exec` commands share."""
