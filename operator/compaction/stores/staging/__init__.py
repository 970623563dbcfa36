"""Staging areas: branches with uncommitted changes in a key-value store over sorted, immutable ranges of records.

A library of its own: neither Kubernetes nor Spark.
"""
