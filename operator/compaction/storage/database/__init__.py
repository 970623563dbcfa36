"""A SQL database in which a store keeps its metadata: SQLite or PostgreSQL, for every kind of store."""
