"""Segment logs: Raft entries in numbered segment files, a snapshot, and the live indexes at or below it.

`kind` is what the core knows of them, `adapter` the door to the store; `rewriting` holds the rewrite of a job, `cli`
the commands. All else is a library of its own, without Kubernetes and Spark.
"""
