"""Schemas of blocks: what identifies one, and which may be merged with one another."""
