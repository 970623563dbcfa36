"""Servers on this machine: PostgreSQL and an S3 server for tests and demos of block stores, etcd for catalogs."""
