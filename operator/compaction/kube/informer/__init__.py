"""The coordinator's picture of the API server: watches, the cache that they fill, and the queue of what changed."""
