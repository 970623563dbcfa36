"""Block stores: immutable, sorted Parquet blocks in an object store, their metadata in a SQL index.

`kind` is what the core knows of them, `adapter` the door to the store; `rewriting` holds the rewrite of a job,
`serving` the endpoint of writers, `cli` the commands. All else is a library of its own, without Kubernetes and Spark.
"""
