"""Staging areas: repositories, tables and trees, filled, and a lakeFS server as far as tokens go."""
