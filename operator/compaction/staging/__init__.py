"""Staging areas: branches with uncommitted changes in a key-value store over sorted, immutable ranges of records.

`kind` is what the core knows of them, `adapter` the door to the store; `rewriting` holds the rewrite of a branch,
`serving` the endpoint of writers, `cli` the commands. All else is a library of its own, without Kubernetes and Spark.
"""
