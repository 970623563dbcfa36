"""Servers that block stores use in tests and demos: PostgreSQL and an S3 server."""
