"""What the coordinator knows of the API server: watches, the cache that they fill, and the queue of what changed."""
