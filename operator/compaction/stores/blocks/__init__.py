"""Block stores: immutable, sorted Parquet blocks in an object store, their metadata in a SQL index.

A library of its own: neither Kubernetes nor Spark.
"""
